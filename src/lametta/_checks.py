"""Argument checks and optional imports, with errors that say argument, expected and got."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from numbers import Integral, Real
from types import ModuleType

from lametta.types import LamettaError


def check_choice(name: str, value: object, choices: Iterable[object]) -> None:
    """Raise unless the value is one of the choices; propose the one that was meant.

    Examples
    --------
    >>> check_choice("split", "tset", ("val", "test"))
    Traceback (most recent call last):
    lametta.types.LamettaError: split must be one of 'val', 'test', got 'tset'; did you mean 'test'?
    """
    choices = tuple(choices)
    if not any(_is(value, choice) for choice in choices):
        known = ", ".join(map(repr, choices)) or "none"
        raise LamettaError(
            f"{name} must be one of {known}, got {value!r}{did_you_mean(value, choices)}"
        )


def _is(value: object, choice: object) -> bool:
    try:
        return bool(value == choice) and isinstance(value, bool) == isinstance(choice, bool)
    except ValueError:  # an array, which is no choice whatever is in it
        return False


def did_you_mean(value: object, choices: Iterable[object]) -> str:
    """The end of a message that proposes the nearest of the names; empty where none is near."""
    from difflib import get_close_matches  # for messages alone

    near = get_close_matches(str(value), [x for x in choices if isinstance(x, str)], n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def check_integer(name: str, value: object, least: int) -> None:
    """Raise unless the value is an integer from ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise LamettaError(f"{name} must be an integer >= {least}, got {value!r}")


def check_number(
    name: str,
    value: object,
    least: float = -math.inf,
    most: float = math.inf,
    *,
    above: float | None = None,
    below: float | None = None,
) -> None:
    """Raise unless the value is a finite number in a range: ``least`` and ``most`` belong to it.

    Examples
    --------
    >>> check_number("lr", "fast", 0)
    Traceback (most recent call last):
    lametta.types.LamettaError: lr must be a finite number >= 0, got 'fast'
    >>> check_number("threshold", 1, 0, below=1)
    Traceback (most recent call last):
    lametta.types.LamettaError: threshold must be a finite number >= 0 and < 1, got 1
    """
    x = float(value) if isinstance(value, Real) and is_number(value) else math.nan
    lies_outside = (above is not None and x <= above) or (below is not None and x >= below)
    if not least <= x <= most or lies_outside:
        limits = {">=": least, ">": above, "<=": most, "<": below}
        words = [
            f"{sign} {limit:g}"
            for sign, limit in limits.items()
            if limit is not None and math.isfinite(limit)
        ]
        raise LamettaError(f"{name} must be a finite number {' and '.join(words)}, got {value!r}")


def is_number(value: object) -> bool:
    """Whether this is a finite real number; True and False are none."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def check_flag(name: str, value: object) -> None:
    """Raise unless the value is True or False: the text "false" would count as true."""
    if not isinstance(value, bool):
        raise LamettaError(f"{name} must be True or False, got {value!r}")


def check_callable(name: str, value: object, expected: str) -> None:
    """Raise unless the value can be called; ``expected`` says what it is called with."""
    if not callable(value) or isinstance(value, type):
        raise LamettaError(f"{name} must be {expected}, got {value!r}")


@contextmanager
def raise_as(
    expected: str, got: object, kinds: type[Exception] | tuple[type[Exception], ...] = Exception
) -> Iterator[None]:
    """Turn an error of these kinds into one that says what was expected and what came.

    Examples
    --------
    >>> with raise_as("name must be a number", "ten"):
    ...     float("ten")
    Traceback (most recent call last):
    lametta.types.LamettaError: name must be a number, got 'ten': could not convert string to float:
    'ten'
    """
    try:
        yield
    except LamettaError:
        raise  # which explains itself
    except kinds as error:  # broken files and others' code may raise anything
        raise LamettaError(f"{expected}, got {got!r}: {_reason(error)}") from error


@contextmanager
def reading(
    path: object, what: str, kinds: type[Exception] | tuple[type[Exception], ...] = Exception
) -> Iterator[None]:
    """Turn an error of these kinds into one that says which file cannot be read as what.

    Examples
    --------
    >>> with reading("bank.npz", "a .npz file"):
    ...     raise ValueError("no header")
    Traceback (most recent call last):
    lametta.types.LamettaError: cannot read 'bank.npz' as a .npz file: no header
    """
    try:
        yield
    except LamettaError:
        raise
    except kinds as error:
        raise LamettaError(f"cannot read {str(path)!r} as {what}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return (str(error) or type(error).__name__).partition("\n")[0]


def import_optional(module: str, install: str, user: str) -> ModuleType:
    """Import a module, or say that ``user`` needs it and what to install."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if (error.name or "").partition(".")[0] != package:
            raise  # something that the package itself needs; its own message says what
        raise LamettaError(f"{user} needs {package}: pip install {install}") from None


def check_package(module: str, install: str, user: str) -> None:
    """Raise unless a module is installed; to import it may take seconds."""
    if find_spec(module) is None:
        raise LamettaError(f"{user} needs {module}: pip install {install}")


ONE_OF_SEVERAL = (
    "a classifier has to choose one class of several: multi-label classification and regression "
    "are not corrected"
)
"""What every entry says to outputs of another kind."""


def extra(name: str) -> str:
    """What pip installs for one of lametta's extras: no package index has a release yet."""
    return f"'.[{name}]' in a clone of lametta"
