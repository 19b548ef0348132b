"""Stored: the state of a network method as plain arrays, for one stream or for each of several."""

import json
import math
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from lametta._arrays import to_numpy
from lametta.correctors._lru import LRUCache
from lametta.correctors.streams import as_id, means, parse_key, rows_by_stream
from lametta.signals import signals
from lametta.torch.network import check_finite
from lametta.types import Array, Id, LamettaError, Prediction

_STREAMS = "streams/"  # before the names of what is not the one stream's without an id
_COUNTS = ("forwards", "forward_samples", "backwards", "backward_samples")


@dataclass
class _Own:
    """What a method remembers of a stream."""

    values: dict[str, Any] = field(default_factory=dict)

    def measure(self) -> int:
        records = [vars(value) for value in self.values.values() if hasattr(value, "__dict__")]
        tensors = [x for record in records for x in record.values() if isinstance(x, Tensor)]
        return sum(x.nbytes for x in tensors)


_own: ContextVar[_Own | None] = ContextVar("own", default=None)


class Stored:
    """Mix-in of a method that leaves the network as it was: all state is what it declares.

    What a class declares by `lametta.torch.own` are numbers, and records of tensors, whose fields
    that are tensors are stored as ``record.field``. Since the network is the source between steps,
    one network serves many streams, each with a state of its own.

    Attributes
    ----------
    records : mapping of str to type
        The types of its records; those that may be None are optional.
    most, memory : int, float
        How many streams are remembered, and their bytes in all; the least recently used make room.

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
    by_stream: ClassVar[bool] = True
    most: ClassVar[int] = 10_000
    memory: ClassVar[float] = 4 * 2**30
    _cache: LRUCache[_Own] | None = None

    def step(self, x: Any, /, *, stream: Id | Sequence[Id] | Array | None = None) -> Prediction:
        """Predict one batch; ``stream`` says whose samples these are, as for `lametta.Streams`.

        The rows of each stream are a batch of their own, with passes of their own.
        """
        if stream is None:
            return super().step(x)  # type: ignore[misc, no-any-return]
        one = as_id(stream)
        rows = rows_by_stream(stream if one is None else [one] * len(x), len(x))
        if not isinstance(x, Tensor) and len(rows) > 1:
            raise LamettaError(
                f"x must be a tensor where it is of several streams, got {type(x).__name__}"
            )
        if len(rows) == 1:
            return self._step_one(next(iter(rows)), x)
        check_finite(x)  # or some would move on, and others not
        answers = {one: self._step_one(one, x[mine]) for one, mine in rows.items()}
        return _joined(rows, answers) if rows else super().step(x)  # type: ignore[misc]

    def _step_one(self, stream: Id, x: Any) -> Prediction:
        with self._streams.lease(stream) as own:
            token = _own.set(own)
            try:
                return super().step(x)  # type: ignore[misc, no-any-return]
            finally:
                _own.reset(token)

    def _step(self, x: Any) -> Prediction:
        """Make a step with what is remembered of its stream; nobody else makes one meanwhile."""
        own, names = _own.get(), [one.name for one in self._declared()]
        if own is None:
            return super()._step(x)  # type: ignore[misc, no-any-return]
        others = {name: getattr(self, name) for name in names}
        self._reset_own()
        vars(self).update(own.values)
        try:
            return super()._step(x)  # type: ignore[misc, no-any-return]
        finally:
            own.values = {name: getattr(self, name) for name in names}
            vars(self).update(others)

    @property
    def _streams(self) -> LRUCache[_Own]:
        if self._cache is not None:
            return self._cache
        made = LRUCache(
            _Own, _Own.measure, max_entries=self.most, max_bytes=self.memory, ttl=math.inf
        )
        kept: LRUCache[_Own] = vars(self).setdefault("_cache", made)  # of threads, the first one's
        return kept

    def state_dict(self) -> dict[str, Array]:
        """A copy of what is remembered: no arrays before the first sample."""
        found = self._arrays({one.name: getattr(self, one.name) for one in self._declared()})
        for stream in self._streams.streams():
            with self._streams.lease(stream) as own:
                prefix = f"{_STREAMS}{json.dumps(stream)}/"
                found |= {prefix + name: x for name, x in self._arrays(own.values).items()}
        return found

    def _arrays(self, values: Mapping[str, Any]) -> dict[str, Array]:
        found: dict[str, Array] = {}
        for one in self._declared():
            value = values.get(one.name)
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
        of_streams: dict[Id, dict[str, Array]] = {}
        for key in [key for key in given if key.startswith(_STREAMS)]:
            one, name = parse_key(key, _STREAMS)
            of_streams.setdefault(one, {})[name] = given.pop(key)
        values, owns = self._values(given), {}
        for one, arrays in of_streams.items():
            owns[one] = self._values(arrays)
        self.forget()
        vars(self).update(values)
        self._put(owns)

    def _values(self, given: dict[str, Array]) -> dict[str, Any]:
        """What a stream's arrays stand for, checked."""
        values = {one.name: self._taken(one, given) for one in self._declared()} if given else {}
        if given:
            raise LamettaError(f"state must have no entry {next(iter(given))!r}, got one")
        self.check_state(values)
        return values

    def check_state(self, values: Mapping[str, Any], /) -> None:
        """Raise `LamettaError` unless these values of what is declared fit each other."""

    def forget(self) -> None:
        """Set what is declared back, and forget all streams."""
        self._reset_own()
        vars(self).pop("_cache", None)

    def _reset_own(self) -> None:
        super().forget()  # type: ignore[misc]

    def __getstate__(self) -> dict[str, Any]:
        """A copy, deep or pickled, goes on with all streams."""
        owns = {}
        for stream in self._streams.streams():
            with self._streams.lease(stream) as own:
                owns[stream] = own.values
        return {**vars(self), "_cache": owns}

    def __setstate__(self, state: dict[str, Any]) -> None:
        owns = state.pop("_cache")
        vars(self).update(state)
        self._put(owns)

    def _put(self, owns: Mapping[Any, dict[str, Any]]) -> None:
        for stream, values in owns.items():
            with self._streams.lease(stream) as own:
                own.values = values

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


def _joined(rows: Mapping[Id, list[int]], answers: Mapping[Id, Prediction]) -> Prediction:
    """The answers of all streams in the order of the batch; passes are those of all together."""
    back = torch.tensor(np.argsort(np.concatenate(list(rows.values()))))

    def in_order(parts: list[Any]) -> Tensor:
        joined = torch.cat(parts)
        return joined[back.to(joined.device)]

    found = list(answers.values())
    probs = in_order([one.probs for one in found])
    info = means([(one.info, len(rows[stream])) for stream, one in answers.items()])
    info |= {name: sum(one.info[name] for one in found) for name in _COUNTS if name in info}
    features = in_order([one.features for one in found])
    return Prediction(probs, features, {**info, **signals(probs), "streams": len(rows)})


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
