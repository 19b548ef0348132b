"""Shadow mode: the source answers, and what a corrector would have changed is recorded."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lametta._arrays import namespace, to_numpy
from lametta._checks import check_integer
from lametta._lame import check_shapes
from lametta._locks import FairLock
from lametta.correctors._params import Params
from lametta.correctors.base import (
    CompositeCorrector,
    Invariant,
    State,
    check_arrays,
    check_can_correct,
    check_invariants,
    check_sizes,
    checked_prediction,
    clone,
    filled,
    state_nbytes,
    within,
)
from lametta.signals import signals
from lametta.types import Array, Corrector, LamettaError, Prediction, Stateful

_OWN, _INNER = "shadow.", "corrector."  # before the names of arrays in its state


class Difference(NamedTuple):
    """One sample of which the corrector would have said something else.

    Attributes
    ----------
    sample : int
        Its number in the stream, from 0.
    source, corrected : int
        The classes, as the source has it and as corrected.
    source_confidence, confidence : float
        The probability that each gave to its own class.

    Examples
    --------
    >>> Difference(7, 0, 1, 0.6, 0.9).corrected
    1
    """

    sample: int
    source: int
    corrected: int
    source_confidence: float
    confidence: float


class Differences:
    """Counts by class of where two predictions differ, and the last of these, in bounded memory.

    Parameters
    ----------
    size : int
        How many of the last differences are kept.

    Attributes
    ----------
    samples : int
        How many samples there were.
    source, corrected, lost, gained : array [K]
        Of each class: how many samples the source gave it and how many the corrector would have;
        how many of the first would have gone to another class, and of the second came from one.

    Examples
    --------
    >>> differences = Differences(size=8)
    >>> before, after = np.array([[0.6, 0.4], [0.2, 0.8]]), np.array([[0.1, 0.9], [0.1, 0.9]])
    >>> differences.add(before, after)
    >>> differences.samples, differences.changed, differences.lost.tolist()
    (2, 1, [1, 0])
    >>> differences.last()
    [Difference(sample=0, source=0, corrected=1, source_confidence=0.6, confidence=0.9)]
    """

    def __init__(self, size: int, state: State | None = None) -> None:
        self.size = size
        self.arrays: State = {} if state is None else state

    @staticmethod
    def init_state(size: int, k: int) -> State:
        """The arrays of no samples yet."""
        return {
            "samples": np.zeros((), np.int64),
            "changed": np.zeros((), np.int64),
            "classes": filled((4, k), 0, np.int64),
            "last": filled((size, 3), 0, np.int64),
            "confidences": filled((size, 2), 0, np.float32),
        }

    @staticmethod
    def invariants() -> dict[str, Invariant]:
        """What holds of the arrays."""
        return {name: within(0) for name in ("samples", "changed", "classes", "last")} | {
            "confidences": within(0, 1.01)
        }

    def add(self, source: NDArray[np.floating], corrected: NDArray[np.floating]) -> None:
        """Count the next samples, by probabilities [N, K]."""
        k = source.shape[1]
        if not self.arrays or self.arrays["classes"].shape[1] != k:
            self.arrays = {name: np.array(x) for name, x in self.init_state(self.size, k).items()}
        arrays, before, after = self.arrays, source.argmax(axis=1), corrected.argmax(axis=1)
        rows = np.flatnonzero(before != after)
        for counts, labels in zip(
            arrays["classes"], (before, after, before[rows], after[rows]), strict=True
        ):
            np.add.at(counts, labels, 1)
        kept = rows[max(len(rows) - self.size, 0) :]
        places = (int(arrays["changed"]) + len(rows) - len(kept) + np.arange(len(kept))) % self.size
        numbers = int(arrays["samples"]) + kept
        arrays["last"][places] = np.stack([numbers, before[kept], after[kept]], axis=1)
        tops = [source[kept, before[kept]], corrected[kept, after[kept]]]
        arrays["confidences"][places] = np.stack(tops, axis=1)
        arrays["samples"] += len(before)
        arrays["changed"] += len(rows)

    def _classes(self, row: int) -> NDArray[np.int64]:
        return self.arrays["classes"][row].copy() if self.arrays else np.zeros(0, np.int64)

    @property
    def samples(self) -> int:
        return int(self.arrays["samples"]) if self.arrays else 0

    @property
    def changed(self) -> int:
        """How many samples would have had another class."""
        return int(self.arrays["changed"]) if self.arrays else 0

    @property
    def source(self) -> NDArray[np.int64]:
        return self._classes(0)

    @property
    def corrected(self) -> NDArray[np.int64]:
        return self._classes(1)

    @property
    def lost(self) -> NDArray[np.int64]:
        return self._classes(2)

    @property
    def gained(self) -> NDArray[np.int64]:
        return self._classes(3)

    def last(self) -> list[Difference]:
        """The last differences, the newest at the end."""
        n = min(self.changed, self.size)
        places = np.arange(self.changed - n, self.changed) % self.size
        return [
            Difference(*map(int, self.arrays["last"][place]), *_rounded(int(place), self.arrays))
            for place in places
        ]


def _rounded(place: int, arrays: State) -> list[float]:
    return [round(float(x), 6) for x in arrays["confidences"][place]]


@dataclass
class Shadow(CompositeCorrector, Params):
    """Answer with the source's own probabilities, and keep what a corrector would have said.

    So a corrector can be tried where its answers are not trusted yet. It sees all samples and keeps
    its own memory; `differences` counts by class where it would have said something else, and has
    the last of these. ``lametta.Streams(Shadow(...))`` keeps both apart for each stream.

    Parameters
    ----------
    corrector : Corrector
        What is tried.
    size : int
        How many of the last differences are kept.

    Notes
    -----
    ``Prediction.info`` has the corrector's own diagnostics, ``shadow_changed``, the share of the
    samples to which it would have given another class, and the signals of the source.

    Examples
    --------
    >>> import numpy as np
    >>> import lametta
    >>> shadow = lametta.Shadow(lametta.LAME())
    >>> features = np.array([[1.0, 0.0], [0.9, 0.1], [0.8, 0.1]])
    >>> probs = np.array([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]])
    >>> prediction = shadow.correct(features, probs)
    >>> prediction.probs is probs, prediction.info["shadow_changed"]
    (True, 0.3333333333333333)
    >>> shadow.differences.changed, shadow.differences.last()[0].corrected
    (1, 0)
    """

    corrector: Corrector
    size: int = 64
    differences: Differences = field(init=False, repr=False, compare=False)
    _sizes: tuple[int, int] | None = field(default=None, init=False, repr=False, compare=False)
    _lock: FairLock = field(default_factory=FairLock, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_integer("size", self.size, 1)
        check_can_correct(self.corrector)
        self.differences = Differences(self.size)

    def _held(self) -> tuple[Corrector, ...]:
        return (self.corrector,)

    @property
    def stateful(self) -> bool:
        """Always: differences are counted."""
        return True

    def correct(self, features: Array, probs: Array, /) -> Prediction:
        """Give a batch back as it came: features [N, d] and probs [N, K]."""
        with self._lock:
            sizes = _sizes_of(features, probs)
            if self._sizes is not None:
                check_sizes(self._sizes, sizes, "this stream", "; reset() begins another")
            found = checked_prediction(self.corrector.correct(features, probs), self.corrector)
            source, corrected = to_numpy(probs), to_numpy(found.probs)
            info = {**found.info, **signals(probs, probs)}
            if len(source):
                before = self.differences.changed
                self.differences.add(source, corrected)
                self._sizes = sizes
                info["shadow_changed"] = (self.differences.changed - before) / len(source)
        return Prediction(probs, features, info)

    def reset(self) -> None:
        """Forget all samples."""
        with self._lock:
            self.corrector.reset()
            self.differences, self._sizes = Differences(self.size), None

    def state_dict(self) -> dict[str, Array]:
        """Give a copy of what is counted, and of what the corrector remembers."""
        with self._lock:
            own = {f"{_OWN}{name}": np.array(x) for name, x in self.differences.arrays.items()}
            if self._sizes is not None:
                own[f"{_OWN}sizes"] = np.array(self._sizes)
            if not isinstance(self.corrector, Stateful):
                return own
            inner = self.corrector.state_dict()
            return own | {f"{_INNER}{name}": array for name, array in inner.items()}

    def load_state_dict(self, state: Mapping[str, Array], /) -> None:
        """Continue from what `state_dict` gave; nothing changes if any of it is refused."""
        if not isinstance(state, Mapping):
            raise LamettaError(f"state must be arrays by name, got {type(state).__name__}")
        own, inner = _below(_OWN, state), _below(_INNER, state)
        if len(own) + len(inner) != len(state):
            raise LamettaError(f"state must have names of {_OWN} and {_INNER}, got others")
        given = {name: to_numpy(array) for name, array in own.items()}
        sizes = given.pop("sizes", None)
        loaded = self._checked(given, sizes)
        if isinstance(self.corrector, Stateful):
            clone(self.corrector).load_state_dict(inner)
        elif inner:
            raise LamettaError(f"state must have nothing of {type(self.corrector).__name__}")
        with self._lock:
            if isinstance(self.corrector, Stateful):
                self.corrector.load_state_dict(inner)
            self.differences = Differences(self.size, loaded)
            self._sizes = None if sizes is None else (int(sizes[0]), int(sizes[1]))

    def _checked(self, given: dict[str, NDArray[Any]], sizes: NDArray[Any] | None) -> State:
        """A copy of the counts, if they are some."""
        if not given and sizes is None:
            return {}
        classes = given.get("classes", np.zeros(0))
        k = classes.shape[1] if classes.ndim == 2 else 0
        is_pair = sizes is not None and sizes.shape == (2,) and sizes.dtype == np.int64
        if sizes is None or not is_pair or sizes.min() < 1 or sizes[1] != k:
            raise LamettaError(f"state['{_OWN}sizes'] must be the d and K of its classes")
        check_arrays(given, Differences.init_state(self.size, k), _OWN)
        check_invariants(given, Differences.invariants(), _OWN)
        return {name: np.array(array) for name, array in given.items()}

    def state_nbytes(self, d: int, k: int) -> int:
        """How many bytes the state of a stream takes, as far as the corrector knows."""
        own = sum(int(array.nbytes) for array in Differences.init_state(self.size, k).values())
        return own + 16 + state_nbytes(self.corrector, d, k)


def _below(prefix: str, state: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays whose names begin so, by the rest of their names."""
    names = ((str(key), array) for key, array in state.items())
    return {key.removeprefix(prefix): x for key, x in names if key.startswith(prefix)}


def _sizes_of(features: Array, probs: Array) -> tuple[int, int]:
    check_shapes(namespace(features=features, probs=probs), features, probs)
    return int(features.shape[1]), int(probs.shape[1])
