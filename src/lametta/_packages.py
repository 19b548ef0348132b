"""What other packages add to lametta: objects by name, and entry points."""

import importlib
from functools import cache
from operator import attrgetter
from typing import Any

from lametta._checks import raise_as


def load_object(name: str, argument: str) -> Any:
    """Import what ``python:package.module:Name`` names. This runs the code of that package."""
    module, _, path = name.removeprefix("python:").partition(":")
    with raise_as(f"{argument} must name something that can be imported", name):
        return attrgetter(path)(importlib.import_module(module))


@cache  # to look through all installed packages takes tens of milliseconds
def plugins(group: str) -> dict[str, str]:
    """Names that installed packages add to a group of entry points, and where each is."""
    from importlib.metadata import entry_points  # as slow to load as all of lametta

    return {point.name: point.value for point in entry_points(group=group)}
