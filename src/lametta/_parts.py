"""One part of a name such as ``tent+lame``: what it may be given, and what makes it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lametta.affinity import AFFINITIES, Affinity
from lametta.registry import Parameter, parameters_of
from lametta.types import LamettaError


@dataclass(frozen=True)
class Part:
    """A single method by its name and what makes it."""

    name: str
    make: Callable[..., Any]

    @property
    def is_corrector(self) -> bool:
        return callable(getattr(self.make, "correct", None))

    @cached_property
    def own(self) -> dict[str, Parameter]:
        """The parameters of the constructor, without the model of an adapter."""
        found = list(parameters_of(self.make).items())
        return dict(found if self.is_corrector else found[1:])

    @cached_property
    def affinity(self) -> Parameter | None:
        """The parameter that is an affinity: it may be a name, with its options beside it."""
        return next((p for p in self.own.values() if p.kind is Affinity), None)

    def options(self, params: Mapping[str, object]) -> dict[str, Parameter]:
        """All that may be given, with the options of the affinity that ``params`` choose."""
        if self.affinity is None:
            return dict(self.own)
        name = self.affinity.name
        chosen = params.get(f"{self.name}.{name}", params.get(name, self.affinity.default))
        make, default = (
            AFFINITIES.factory_of(chosen, "affinity"),
            type(self.affinity.default).__name__,
        )
        shown = Parameter(name, default, Affinity | str)  # the name says as much as the object
        return {**self.own, name: shown, **({} if make is None else parameters_of(make))}

    def arguments(self, given: Mapping[str, object]) -> dict[str, object]:
        """What the constructor is called with: an affinity instead of its name and options."""
        own = {name: value for name, value in given.items() if name in self.own}
        if self.affinity is not None:
            options = {name: value for name, value in given.items() if name not in own}
            chosen = own.get(self.affinity.name, self.affinity.default)
            if (make := AFFINITIES.factory_of(chosen, "affinity")) is not None and (
                options or isinstance(chosen, str)
            ):
                try:
                    own[self.affinity.name] = make(**options)
                except TypeError as error:  # someone else's, of another signature
                    raise LamettaError(f"affinity must take {options}, got {error}") from None
        return own
