"""Correct a frozen classifier's predictions at test time.

No labels, no training data, no change to the weights.
"""

from lametta import testing
from lametta.adapters import Corrected, Source
from lametta.affinity import knn, linear, rbf
from lametta.classmap import ClassMap
from lametta.correctors import LAME
from lametta.lame import LameResult, lame
from lametta.types import Adapter, Corrector, LamettaError, Model, Output, Prediction

__version__ = "0.1.0"

__all__ = [
    "LAME",
    "Adapter",
    "ClassMap",
    "Corrected",
    "Corrector",
    "LameResult",
    "LamettaError",
    "Model",
    "Output",
    "Prediction",
    "Source",
    "__version__",
    "knn",
    "lame",
    "linear",
    "rbf",
    "testing",
]
