"""The parameters of a constructor, read from its signature: names, defaults, types."""

import inspect
import types
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from lametta.types import LamettaError

_WORDS: dict[object, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "text",
    types.NoneType: "none",
}
_ABSTRACT: dict[object, object] = {int: Integral, float: Real, None: types.NoneType}


class Parameter(NamedTuple):
    """A parameter: its name, its default (`inspect.Parameter.empty` if none), its type."""

    name: str
    default: object
    kind: object

    @property
    def text(self) -> str:
        """As one would write it: ``k=5``, or the name alone where it has no default."""
        if self.default is inspect.Parameter.empty:
            return self.name
        return f"{self.name}={self.default!r}"

    def check(self, name: str, value: object) -> None:
        """Raise unless the value is of the parameter's type; a constructor checks the rest."""
        if not _fits(value, self.kind):
            raise LamettaError(f"{name} must be {_words(self.kind)}, got {value!r}")


def parameters_of(make: Callable[..., object]) -> dict[str, Parameter]:
    """Read the parameters of a class or a function that can be given by name."""
    try:
        signature = inspect.signature(make, eval_str=True)
    except NameError:  # a type that is imported only for type checkers
        signature = inspect.signature(make)
    made = {
        field.name: field.default_factory()
        for field in (fields(make) if is_dataclass(make) else ())
        if field.default_factory is not MISSING
    }
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {
        name: Parameter(name, made.get(name, parameter.default), parameter.annotation)
        for name, parameter in signature.parameters.items()
        if parameter.kind not in variadic
    }


def _fits(value: object, kind: object) -> bool:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in get_args(kind))
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in get_args(kind))
    if isinstance(value, bool) and kind in (int, float):
        return False
    abstract: Any = _ABSTRACT.get(kind, origin or kind)
    try:
        return isinstance(value, abstract)
    except TypeError:  # no type that a value could be checked against
        return True


def _words(kind: object) -> str:
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(_words(one) for one in get_args(kind))
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(repr, get_args(kind)))}"
    if get_origin(kind) is Callable:
        return "a callable"
    return _WORDS.get(kind) or str(getattr(kind, "__name__", kind))
