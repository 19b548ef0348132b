"""Stored: the state of a network method as plain arrays, as a file of safetensors holds them."""

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from lametta._arrays import to_numpy
from lametta.types import Array, LamettaError


class Stored:
    """Mix-in of a method that leaves the network as it was: all state is what it declares.

    What a class declares by `lametta.torch.own` are numbers, and records of tensors, whose fields
    that are tensors are stored as ``record.field``.

    Attributes
    ----------
    records : mapping of str to type
        The types of its records; those that may be None are optional.

    Examples
    --------
    >>> from lametta.torch import Classifier, HalfBN
    >>> from lametta.torch.digits import digits_net
    >>> method, twin = (HalfBN(Classifier(digits_net())) for _ in range(2))
    >>> _ = method.step(torch.rand(8, 1, 8, 8))
    >>> twin.load_state_dict(method.state_dict())
    >>> sorted(twin.state_dict())[:3]
    ['batches', 'domain_changes', 'halfway.source']
    """

    records: ClassVar[Mapping[str, type]] = {}

    def state_dict(self) -> dict[str, Array]:
        """A copy of what is remembered: no arrays before the first sample."""
        found: dict[str, Array] = {}
        for one in self._declared():
            value = getattr(self, one.name)
            if one.name not in self.records:
                found[one.name] = np.array(value)
            elif value is not None:
                held = {f"{one.name}.{n}": x for n, x in vars(value).items()}
                tensors = {name: x for name, x in held.items() if isinstance(x, Tensor)}
                found |= {name: x.detach().cpu().numpy().copy() for name, x in tensors.items()}
        return found if any("." in name for name in found) else {}

    def load_state_dict(self, state: Mapping[str, Array], /) -> None:
        """Continue from what `state_dict` gave, on the same network."""
        if not isinstance(state, Mapping):
            raise LamettaError(f"state must be arrays by name, got {type(state).__name__}")
        given = {str(name): np.array(to_numpy(array), order="C") for name, array in state.items()}
        values = {one.name: self._taken(one, given) for one in self._declared()} if given else {}
        if given:
            raise LamettaError(f"state must have no entry {next(iter(given))!r}, got one")
        self.check_state(values)
        self.forget()
        for name, value in values.items():
            setattr(self, name, value)

    def check_state(self, values: Mapping[str, Any], /) -> None:
        """Raise `LamettaError` unless these values of what is declared fit each other."""

    def forget(self) -> None:
        """Set what is declared back; `lametta.torch.NetworkMethod` does."""
        super().forget()  # type: ignore[misc]

    def _declared(self) -> list[Field[Any]]:
        return [one for one in fields(self) if one.metadata.get("own")]  # type: ignore[arg-type]

    def _taken(self, one: Field[Any], given: dict[str, Array]) -> Any:
        """The value of one field, whose arrays are taken out of those given."""
        if one.name not in self.records:
            return _number(one, given.pop(one.name, None))
        kind, prefix = self.records[one.name], f"{one.name}."
        names = [name for name in given if name.startswith(prefix)]
        known = {name.name for name in fields(kind)}
        tensors = {name.removeprefix(prefix): _tensor(name, given.pop(name)) for name in names}
        needed = {n.name for n in fields(kind) if n.default is n.default_factory is MISSING}
        if not tensors:
            return None if needed else kind()
        if not needed <= tensors.keys() <= known:
            wanted, got = ", ".join(sorted(known)), ", ".join(sorted(tensors))
            raise LamettaError(f"state of {one.name} must have {wanted}, got {got}")
        return kind(**tensors)


def _number(one: Field[Any], array: Array | None) -> int | float:
    kind = type(one.default)
    wanted = "i" if kind is int else "f"
    if array is None or array.shape != () or array.dtype.kind != wanted or not np.isfinite(array):
        got = "none" if array is None else f"{array.dtype} {array.shape}"
        raise LamettaError(f"state[{one.name!r}] must be one finite {kind.__name__}, got {got}")
    return int(array) if kind is int else float(array)


def _tensor(name: str, array: Array) -> Tensor:
    if array.dtype not in (np.float32, np.float64) or not np.isfinite(array).all():
        raise LamettaError(f"state[{name!r}] must be finite floats, got {array.dtype}")
    return torch.from_numpy(array).clone()  # aligned as PyTorch does, on which rounding depends
