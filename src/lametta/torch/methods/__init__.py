"""Network methods, one file each."""

from lametta.torch.methods.adabn import AdaBN
from lametta.torch.methods.bn import EMABN, AlphaBN
from lametta.torch.methods.cmf import CMF
from lametta.torch.methods.cotta import CoTTA
from lametta.torch.methods.deyo import DeYO
from lametta.torch.methods.eata import EATA
from lametta.torch.methods.eta import ETA
from lametta.torch.methods.half_bn import HalfBN
from lametta.torch.methods.memo import MEMO
from lametta.torch.methods.note import NOTE
from lametta.torch.methods.petta import PeTTA
from lametta.torch.methods.prudent_bn import PrudentBN
from lametta.torch.methods.pseudo_label import PseudoLabel
from lametta.torch.methods.rdumb import RDumb
from lametta.torch.methods.roid import ROID
from lametta.torch.methods.rotta import RoTTA
from lametta.torch.methods.sar import SAR
from lametta.torch.methods.shot_im import SHOTIM
from lametta.torch.methods.sotta import SoTTA
from lametta.torch.methods.tent import TENT
from lametta.torch.methods.ttbn import TTBN

__all__ = [
    "CMF",
    "EATA",
    "EMABN",
    "ETA",
    "MEMO",
    "NOTE",
    "ROID",
    "SAR",
    "SHOTIM",
    "TENT",
    "TTBN",
    "AdaBN",
    "AlphaBN",
    "CoTTA",
    "DeYO",
    "HalfBN",
    "PeTTA",
    "PrudentBN",
    "PseudoLabel",
    "RDumb",
    "RoTTA",
    "SoTTA",
]
