"""Packages that not everyone has, and what other packages add to lametta."""

import importlib
import importlib.util
from functools import cache
from operator import attrgetter
from types import ModuleType
from typing import Any

from lametta._checks import explained
from lametta.types import LamettaError


def package(module: str, install: str, user: str) -> ModuleType:
    """Import a module, or say that ``user`` needs it and what to install."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if (error.name or "").partition(".")[0] != package:
            raise  # something that the package itself needs; its own message says what
        raise LamettaError(f"{user} needs {package}: pip install {install}") from None


def check_package(module: str, install: str, user: str) -> None:
    """Raise unless a module is installed; to import it may take seconds."""
    if importlib.util.find_spec(module) is None:
        raise LamettaError(f"{user} needs {module}: pip install {install}")


def extra(name: str) -> str:
    """What pip installs for one of lametta's extras: no package index has a release yet."""
    return f"'.[{name}]' in a clone of lametta"


def load_object(name: str, argument: str) -> Any:
    """Import what ``python:package.module:Name`` names. This runs the code of that package."""
    module, _, path = name.removeprefix("python:").partition(":")
    with explained(f"{argument} must name something that can be imported", name):
        return attrgetter(path)(importlib.import_module(module))


@cache  # to look through all installed packages takes tens of milliseconds
def plugins(group: str) -> dict[str, str]:
    """Names that installed packages add to a group of entry points, and where each is."""
    from importlib.metadata import entry_points  # as slow to load as all of lametta

    return {point.name: point.value for point in entry_points(group=group)}
