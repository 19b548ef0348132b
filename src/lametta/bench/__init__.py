"""Benchmark: experiments, runs, analysis, report. Its public names."""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lametta.bench.analysis.results import read_cells, read_results
    from lametta.bench.experiment import load
    from lametta.bench.running import run
    from lametta.bench.running.workspace import Workspace
    from lametta.bench.trial import Trial, try_methods

__all__ = ["Trial", "Workspace", "load", "read_cells", "read_results", "run", "try_methods"]

_HOMES = {
    "Trial": "trial",
    "Workspace": "running.workspace",
    "load": "experiment",
    "read_cells": "analysis.results",
    "read_results": "analysis.results",
    "run": "running",
    "try_methods": "trial",
}


def __getattr__(name: str) -> Any:
    # Loaded when used: reading results takes no network, and checking a file neither.
    if name in _HOMES:
        found = globals()[name] = getattr(_import_module(f"{__name__}.{_HOMES[name]}"), name)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
