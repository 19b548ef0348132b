"""Correct a frozen classifier's predictions at test time.

No labels, no training data, no change to the weights.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from lametta import _moved
from lametta._lame import LameResult, LameStreamsResult, lame, lame_streams
from lametta.adapters import Corrected, Source
from lametta.affinity import knn, linear, rbf
from lametta.classmap import ClassMap
from lametta.correctors import LAME, Memory, Prudent, Streams, Windowed
from lametta.types import Adapter, Corrector, LamettaError, Model, Output, Prediction

if _TYPE_CHECKING:
    from lametta import testing

_moved.install()

__version__ = "0.1.0"

__all__ = [
    "LAME",
    "Adapter",
    "ClassMap",
    "Corrected",
    "Corrector",
    "LameResult",
    "LameStreamsResult",
    "LamettaError",
    "Memory",
    "Model",
    "Output",
    "Prediction",
    "Prudent",
    "Source",
    "Streams",
    "Windowed",
    "__version__",
    "knn",
    "lame",
    "lame_streams",
    "linear",
    "rbf",
    "testing",
]


def __getattr__(name: str) -> _Any:
    # These are there for who uses them, and imported for nobody else.
    if name in ("integrations", "ray", "testing", "torch"):
        return _import_module(f"lametta.{name}")
    raise AttributeError(f"module 'lametta' has no attribute {name!r}")
