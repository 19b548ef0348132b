"""A corrector's parameters as scikit-learn reads and sets them, for clones and grid searches."""

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any, Self

from lametta._checks import did_you_mean
from lametta.types import LamettaError


class Params:
    """``get_params`` and ``set_params`` of a class whose constructor stores what it is given."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Give the options by name; with ``deep`` also those of what is held: ``affinity__k``.

        Examples
        --------
        >>> import lametta
        >>> lametta.LAME(lametta.linear()).get_params()["affinity__symmetric"]
        False
        """
        own = {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}
        if not deep:
            return own
        held = {f"{name}__{option}": x for name in own for option, x in _options(own[name]).items()}
        return own | held

    def set_params(self, **params: Any) -> Self:
        """Set options by name, those of what is held as ``affinity__k``, and forget all samples.

        What is held is replaced by a changed copy. Nothing changes if an option is refused.

        Examples
        --------
        >>> import lametta
        >>> lametta.Windowed().set_params(size=32, corrector__affinity__k=3).corrector.affinity.k
        3
        """
        vars(self).update(vars(_changed(self, params)))
        return self


def _options(value: object) -> dict[str, Any]:
    """The options of a corrector or of a dataclass, such as our affinities; else none."""
    if isinstance(value, Params):
        return value.get_params()
    if not dataclasses.is_dataclass(value):
        return {}
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _changed(holder: Any, params: Mapping[str, Any]) -> Any:
    """A new one of this kind, with these options set."""
    own = holder.get_params(deep=False) if isinstance(holder, Params) else _options(holder)
    held: dict[str, dict[str, Any]] = {}
    for key, value in params.items():
        name, nested, option = key.partition("__")
        if name not in own:
            listed, kind = ", ".join(own) or "none", type(holder).__name__
            guess = did_you_mean(name, own)
            raise LamettaError(f"{name} is no option of {kind}, which has {listed}{guess}")
        if nested:
            held.setdefault(name, {})[option] = value
        else:
            own[name] = value
    for name, options in held.items():
        own[name] = _changed(own[name], options)
    changed = type(holder)(**own)
    if (prototypes := getattr(holder, "prototypes", None)) is not None:  # which are no option
        changed.use(prototypes)
    return changed
