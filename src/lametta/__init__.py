"""Correct a frozen classifier's predictions at test time.

No labels, no training data, no change to the weights.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if _TYPE_CHECKING:
    from lametta import testing
    from lametta._lame import LameResult, LameStreamsResult, lame, lame_streams
    from lametta._versions import show_versions as show_versions
    from lametta.adapters import Corrected, Source
    from lametta.affinity import knn, linear, rbf
    from lametta.classmap import ClassMap
    from lametta.correctors import LAME, Memory, Prudent, Shadow, Streams, Windowed
    from lametta.types import (
        Adapter,
        Corrector,
        LamettaDeprecationWarning,
        LamettaError,
        Model,
        Output,
        Prediction,
    )

__version__ = "0.1.0"

__all__ = [
    "LAME",
    "Adapter",
    "ClassMap",
    "Corrected",
    "Corrector",
    "LameResult",
    "LameStreamsResult",
    "LamettaDeprecationWarning",
    "LamettaError",
    "Memory",
    "Model",
    "Output",
    "Prediction",
    "Prudent",
    "Shadow",
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


_HOMES = ("_lame", "adapters", "affinity", "classmap", "correctors", "types")
_MODULES = (*_HOMES, "integrations", "ray", "testing", "torch")


def __getattr__(name: str) -> _Any:
    # NumPy takes most of the time of an import, and who asks for the version does not need it.
    if name in _MODULES:
        return _import_module(f"lametta.{name}")
    if name == "show_versions":  # which needs no NumPy
        return _import_module("lametta._versions").show_versions
    if name in __all__:
        homes = (_import_module(f"lametta.{home}") for home in _HOMES)
        found = globals()[name] = next(getattr(home, name) for home in homes if hasattr(home, name))
        return found
    raise AttributeError(f"module 'lametta' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES, "show_versions"})
