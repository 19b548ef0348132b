"""Packages that not everyone has."""

import importlib
from typing import Any

from lametta.types import LamettaError


def package(module: str, install: str, user: str) -> Any:
    """Import a module, or say that ``user`` needs it and what to install.

    Examples
    --------
    >>> package("no_such_module", "nothing", "an example")
    Traceback (most recent call last):
    lametta.types.LamettaError: an example needs no_such_module: pip install nothing
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if (error.name or "").partition(".")[0] != package:
            raise  # something that the package itself needs; its own message says what
        raise LamettaError(f"{user} needs {package}: pip install {install}") from None
