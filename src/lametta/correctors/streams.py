"""Streams: one copy of a corrector per stream id, in an LRU cache."""

import json
import math
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from types import ModuleType
from typing import Any, cast

import numpy as np
from array_api_compat import device

from lametta._arrays import namespace, to_numpy, widen
from lametta._checks import check_integer, check_number
from lametta._lame import check_shapes
from lametta._solvers.problem import checked_probs
from lametta.correctors._lru import LRUCache
from lametta.correctors._params import Params
from lametta.correctors.base import (
    Composite,
    check_can_correct,
    check_sizes,
    checked_prediction,
    clone,
)
from lametta.signals import signals
from lametta.types import (
    Array,
    Corrector,
    Id,
    LamettaError,
    Prediction,
    Prototypes,
    Stateful,
    StreamsPrediction,
    UsesPrototypes,
)


@dataclass
class _Own:
    """A stream's copy of the corrector."""

    corrector: Corrector
    sizes: tuple[int, int] | None = None  # d and K, which stay the same
    n_calls: int = 0
    n_bytes: int = 0


@dataclass
class Streams(Composite, Params):
    """One copy of a corrector for each stream: cameras, users or tracks are never mixed.

    Streams begin by themselves with their first samples. Threads may call at the same time:
    different streams are corrected in parallel, the samples of one in the order of the calls.

    A copy, deep or pickled, goes on with all streams. So does a process that is forked, but for
    streams that another thread was correcting at that moment: these begin anew.

    Parameters
    ----------
    corrector : Corrector
        What each stream gets a copy of; only its options count, not what it remembers.
    most : int
        How many streams are remembered. One more, and the least recently used is forgotten: it
        begins anew when it comes again.
    idle : float
        Seconds without samples after which a stream is forgotten.
    memory : float
        Bytes that all memories together may take; the least recently used streams make room.

    Examples
    --------
    >>> import numpy as np
    >>> from lametta.correctors import Average
    >>> streams = Streams(Average(), most=1000)
    >>> a, b = np.array([[0.9, 0.1]]), np.array([[0.1, 0.9]])
    >>> streams.correct(a, a, "door").probs
    array([[0.9, 0.1]])
    >>> both = streams.correct(np.vstack([b, b]), np.vstack([b, b]), ["door", "yard"])
    >>> both.probs
    array([[0.5, 0.5],
           [0.1, 0.9]])
    >>> len(streams), streams.ids
    (2, ['door', 'yard'])
    """

    corrector: Corrector
    most: int = 10_000
    idle: float = math.inf
    memory: float = 4 * 2**30
    _cache: LRUCache[_Own] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_can_correct(self.corrector)
        check_integer("most", self.most, 1)
        for name in "idle", "memory":
            if getattr(self, name) != math.inf:
                check_number(name, getattr(self, name), above=0)
        self._cache = LRUCache(
            self._new, _size, max_entries=self.most, max_bytes=self.memory, ttl=self.idle
        )

    def _held(self) -> tuple[Corrector]:
        return (self.corrector,)

    def correct(
        self, features: Array, probs: Array, stream: Id | Sequence[Id] | Array, /
    ) -> StreamsPrediction:
        """Correct the next samples of a stream, or of several.

        Parameters
        ----------
        features, probs
            As for `lametta.Corrector.correct`.
        stream : str or int, or a sequence of N of them
            Whose samples these are: one id for all rows, or one for each. The rows of a stream
            are its batch, in their order.

        Returns
        -------
        StreamsPrediction
            Rows in the order given. With ids for each row, ``info`` has the signals of all rows,
            ``streams``, how many there were, and the means over rows of what all of them report.

        Notes
        -----
        With an id for each row, a stream whose rows cannot be corrected, such as one with NaN
        among them, costs nobody else: it stays as it was, its rows of the answer are NaN,
        ``errors`` says why, ``info["refused"]`` how many such rows there are, and a warning names
        it. The others are answered and move on. If all are refused, the first error is raised.
        """
        if (one := as_id(stream)) is not None:
            alone = self._step(one, features, probs)
            return StreamsPrediction(alone.probs, alone.features, alone.info)
        xp = namespace(features=features, probs=probs)
        check_shapes(xp, features, probs)
        rows = rows_by_stream(stream, probs.shape[0])
        if not rows:
            return StreamsPrediction(probs, features)
        self._check_sizes(rows, (features.shape[1], probs.shape[1]))
        answers, errors = self._answers(xp, features, probs, rows)
        if not answers:
            raise next(iter(errors.values()))
        for one, reason in errors.items():
            warnings.warn(f"stream {one!r} is left out of this batch: {reason}", stacklevel=2)
        joined = _joined(xp, probs, rows, answers)
        info = means([(answer.info, len(rows[one])) for one, answer in answers.items()])
        if errors:
            answered = [row for one in answers for row in rows[one]]
            info |= signals(*(_take(xp, array, answered) for array in (joined, probs)))
            info["refused"] = probs.shape[0] - len(answered)
        else:
            info |= signals(joined, probs)
        return StreamsPrediction(joined, features, {**info, "streams": len(rows)}, errors=errors)

    def _check_sizes(self, streams: Iterable[Id], sizes: tuple[int, int]) -> None:
        """Raise if any stream had other columns, before one moves on: they are the whole call's."""
        for one in streams:
            if one in self._cache:
                with self._cache.lease(one) as own:
                    check_sizes(own.sizes or sizes, sizes, f"stream {one!r}")

    def _answers(
        self, xp: ModuleType, features: Array, probs: Array, rows: Mapping[Id, list[int]]
    ) -> tuple[dict[Id, Prediction], dict[Id, LamettaError]]:
        """What each stream's corrector says of its rows, or why it was refused them."""
        answers: dict[Id, Prediction] = {}
        errors: dict[Id, LamettaError] = {}
        all_are_fine = _refusal(xp, features, probs) is None  # one look for all, as a rule
        for one, mine in rows.items():
            x, q = (_take(xp, array, mine) for array in (features, probs))
            try:
                if not all_are_fine and (refusal := _refusal(xp, x, q)) is not None:
                    raise refusal
                answers[one] = self._step(one, x, q)
            except LamettaError as error:
                errors[one] = error
        return answers, errors

    @property
    def needs(self) -> Collection[str]:
        """What the corrector has to be given."""
        needs: Collection[str] = getattr(self.corrector, "needs", frozenset())
        return needs

    @property
    def takes(self) -> Collection[str]:
        """What the corrector takes where there is some."""
        takes: Collection[str] = getattr(self.corrector, "takes", frozenset())
        return takes

    @property
    def prototypes(self) -> Prototypes | None:
        """Those that the corrector was given, which all streams share."""
        return getattr(self.corrector, "prototypes", None)

    def use(self, prototypes: Prototypes, /) -> None:
        """Give prototypes to the corrector, and forget all streams."""
        cast(UsesPrototypes, self.corrector).use(prototypes)
        self.reset()

    def forget(self, stream: Id) -> None:
        """Forget a stream: its next samples begin it anew."""
        self._cache.discard(stream)

    def reset(self) -> None:
        """Forget all streams."""
        self._cache.clear()

    def __len__(self) -> int:
        return len(self._cache)

    def __contains__(self, stream: object) -> bool:
        return stream in self._cache

    def __getitem__(self, stream: Id) -> Corrector:
        """A copy of the corrector of a stream that is remembered, as it is now."""
        if stream not in self._cache:
            raise LamettaError(f"stream must be one that is remembered, got {stream!r}")
        with self._cache.lease(stream) as own:
            found = clone(self.corrector)
            if isinstance(found, Stateful) and isinstance(own.corrector, Stateful):
                found.load_state_dict(own.corrector.state_dict())
        return found

    @property
    def ids(self) -> list[Id]:
        """The streams that are remembered, the least recently used first."""
        return self._cache.streams()  # type: ignore[return-value]

    @property
    def evicted(self) -> int:
        """How many streams were forgotten to keep the bounds."""
        return self._cache.evicted

    @property
    def nbytes(self) -> int:
        """How many bytes all memories take."""
        return self._cache.size

    def state_dict(self) -> dict[str, Array]:
        """Give a copy of all memories: arrays by ``id/name``, the id as JSON writes it."""
        state: dict[str, Array] = {}
        for one in self._cache.streams():
            with self._cache.lease(one) as own:
                if isinstance(own.corrector, Stateful):
                    arrays = own.corrector.state_dict()
                    state |= {f"{json.dumps(one)}/{name}": array for name, array in arrays.items()}
        return state

    def load_state_dict(self, state: Mapping[str, Array], /) -> None:
        """Continue from what `state_dict` gave; other streams are forgotten."""
        memories = _by_id(state)
        loaded = {one: self._new() for one in memories}
        for one, own in loaded.items():
            if not isinstance(own.corrector, Stateful):
                raise LamettaError(
                    f"state must be empty for {type(own.corrector).__name__}, which remembers "
                    f"nothing, got that of stream {one!r}"
                )
            try:
                own.corrector.load_state_dict(memories[one])
            except LamettaError as error:
                raise LamettaError(f"state of stream {one!r}: {error}") from error
        self.reset()
        for one, own in loaded.items():
            with self._cache.lease(one) as kept:
                kept.corrector, sizes = own.corrector, memories[one].get("sizes")
                kept.sizes = None if sizes is None else tuple(to_numpy(sizes).tolist())

    def _new(self) -> _Own:
        return _Own(clone(self.corrector))

    def _step(self, stream: Id, features: Array, probs: Array) -> Prediction:
        with self._cache.lease(stream) as own:
            corrector = own.corrector
            prediction = checked_prediction(corrector.correct(features, probs), corrector)
            own.sizes = features.shape[1], probs.shape[1]
        return prediction

    def __getstate__(self) -> dict[str, object]:
        options = {name: value for name, value in vars(self).items() if name != "_cache"}
        return {**options, "state": self.state_dict()}

    def __setstate__(self, options: dict[str, Any]) -> None:
        state = options.pop("state")
        vars(self).update(options)
        self.__post_init__()
        self.load_state_dict(state)


def as_id(stream: object) -> Id | None:
    """The id of one stream, a text or an integer; None if it is neither."""
    if isinstance(stream, str):
        return stream
    return int(stream) if isinstance(stream, Integral) and not isinstance(stream, bool) else None


def rows_by_stream(ids: object, n: int) -> dict[Id, list[int]]:
    """The rows of each stream, by its id."""
    listed = to_numpy(ids).tolist() if hasattr(ids, "__array__") else ids
    listed = [as_id(one) for one in listed] if isinstance(listed, Sequence) else [None]
    if None in listed:
        raise LamettaError(
            f"stream must be a text or an integer, or one of these for each row, got {ids!r:.200}"
        )
    if len(listed) != n:
        raise LamettaError(f"stream must have an id for each of {n} rows, got {len(listed)}")
    rows: dict[Id, list[int]] = {}
    for row, one in enumerate(listed):
        rows.setdefault(one, []).append(row)
    return rows


def _size(own: _Own) -> int:
    # At calls 1, 2, 4, ...: a look at a state costs as much as a sample, and its size soon settles.
    own.n_calls += 1
    if own.n_calls & (own.n_calls - 1) == 0 and isinstance(own.corrector, Stateful):
        own.n_bytes = sum(int(to_numpy(x).nbytes) for x in own.corrector.state_dict().values())
    return own.n_bytes


def _take(xp: ModuleType, array: Array, rows: Any) -> Array:
    return xp.take(array, xp.asarray(rows, device=device(array)), axis=0)


def _joined(
    xp: ModuleType, probs: Array, rows: Mapping[Id, list[int]], answers: Mapping[Id, Prediction]
) -> Array:
    """The probabilities of all streams in the order of the batch, NaN where there is no answer."""
    parts = [
        answers[one].probs if one in answers else xp.full_like(probs[: len(mine), :], xp.nan)
        for one, mine in rows.items()
    ]
    back = np.argsort(np.concatenate(list(rows.values())))
    return _take(xp, xp.concat(parts, axis=0), back)


def _refusal(xp: ModuleType, features: Array, probs: Array) -> LamettaError | None:
    """What is wrong with these values, if anything is."""
    try:
        checked_probs(probs.dtype, widen(xp, features), widen(xp, probs), xp)
    except LamettaError as error:
        return error
    return None


def means(infos: Sequence[tuple[Mapping[str, float], int]]) -> dict[str, float]:
    """The mean over rows of each number that all streams report."""
    shared = [name for name in infos[0][0] if all(name in info for info, _ in infos)]
    total = sum(n for _, n in infos)
    return {name: sum(float(info[name]) * n for info, n in infos) / total for name in shared}


def _by_id(state: Mapping[str, Array]) -> dict[Id, dict[str, Array]]:
    """The state of each stream, out of that of all."""
    if not isinstance(state, Mapping):
        raise LamettaError(f"state must be arrays by name, got {type(state).__name__}")
    memories: dict[Id, dict[str, Array]] = {}
    for key, array in state.items():
        one, name = parse_key(str(key))
        memories.setdefault(one, {})[name] = array
    return memories


def parse_key(key: str, prefix: str = "") -> tuple[Id, str]:
    """The stream that an array of a state is of, and its name there.

    Examples
    --------
    >>> parse_key('"cam/1"/weights')
    ('cam/1', 'weights')
    """
    text, _, name = key.removeprefix(prefix).rpartition("/")
    try:
        one = as_id(json.loads(text))
    except ValueError:
        one = None
    if one is None:
        raise LamettaError(f"state must have names {prefix}id/name, the id in JSON, got {key!r}")
    return one, name
