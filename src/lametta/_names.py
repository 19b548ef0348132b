"""The public names, which `import lametta` loads when the first of them is used."""

from lametta._lame import LameResult as LameResult
from lametta._lame import LameStreamsResult as LameStreamsResult
from lametta._lame import lame as lame
from lametta._lame import lame_streams as lame_streams
from lametta.adapters import Corrected as Corrected
from lametta.adapters import Source as Source
from lametta.affinity import knn as knn
from lametta.affinity import linear as linear
from lametta.affinity import rbf as rbf
from lametta.classmap import ClassMap as ClassMap
from lametta.correctors import LAME as LAME
from lametta.correctors import Memory as Memory
from lametta.correctors import Prudent as Prudent
from lametta.correctors import Streams as Streams
from lametta.correctors import Windowed as Windowed
from lametta.types import Adapter as Adapter
from lametta.types import Corrector as Corrector
from lametta.types import LamettaError as LamettaError
from lametta.types import Model as Model
from lametta.types import Output as Output
from lametta.types import Prediction as Prediction
