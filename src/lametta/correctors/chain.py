"""Chain: correctors in sequence, as one."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from lametta._arrays import to_numpy
from lametta._locks import FairLock
from lametta.correctors._params import Params
from lametta.correctors.base import (
    CompositeCorrector,
    check_can_correct,
    checked_prediction,
    clone,
    state_nbytes,
)
from lametta.signals import signals
from lametta.types import (
    Array,
    Corrector,
    LamettaError,
    Prediction,
    Stateful,
)


@dataclass
class Chain(CompositeCorrector, Params):
    """Each corrector corrects what the one before it said; their memories are stored together.

    Where any of them remembers, threads take turns in the order in which they come.

    Notes
    -----
    ``Prediction.info`` has the diagnostics of all; where several give one of the same name, the
    last one's counts. Two are of the whole: ``changed`` compares with the probabilities that the
    chain was given, and ``converged`` is true where all of them converged.

    Examples
    --------
    >>> import numpy as np
    >>> from lametta.correctors import LAME, Average
    >>> chain = Chain((Average(), LAME()))
    >>> chain.correct(np.eye(2), np.array([[0.9, 0.1], [0.3, 0.7]])).probs.argmax(axis=1)
    array([0, 0])
    >>> list(chain.state_dict())
    ['0.sizes', '0.total']
    """

    correctors: tuple[Corrector, ...]
    _lock: FairLock = field(default_factory=FairLock, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for one in self.correctors:
            check_can_correct(one)

    def _held(self) -> tuple[Corrector, ...]:
        return self.correctors

    def correct(self, features: Array, probs: Array, /) -> Prediction:
        """Correct one batch: features [N, d] and probs [N, K]."""
        prediction, info = Prediction(probs, features), dict[str, Any]()
        with self._lock if self.stateful else nullcontext():
            for one in self.correctors:
                prediction = checked_prediction(one.correct(features, prediction.probs), one)
                if (got := tuple(prediction.probs.shape)) != (shape := tuple(probs.shape)):
                    name = type(one).__name__
                    raise LamettaError(f"{name}.correct must return probs {shape}, got {got}")
                info = _merged(info, prediction.info)
        return replace(prediction, info=info | signals(prediction.probs, probs))

    def reset(self) -> None:
        """Forget all samples."""
        with self._lock:
            for one in self.correctors:
                one.reset()

    def state_dict(self) -> dict[str, Array]:
        """Give a copy of what all of them remember, by number and name."""
        with self._lock:
            return {
                f"{i}.{name}": array
                for i, one in enumerate(self.correctors)
                if isinstance(one, Stateful)
                for name, array in one.state_dict().items()
            }

    def load_state_dict(self, state: Mapping[str, Array], /) -> None:
        """Continue from what `state_dict` gave; nothing changes if any of it is refused."""
        parts = zip(self.correctors, _parts_of(state, len(self.correctors)), strict=True)
        held = [(one, part) for one, part in parts if isinstance(one, Stateful)]
        for one, part in held:
            clone(one).load_state_dict(part)
        sizes = {tuple(to_numpy(part["sizes"]).tolist()) for _, part in held if "sizes" in part}
        if len(sizes) > 1:
            raise LamettaError(f"state must be of one d and K in all parts, got {sorted(sizes)}")
        with self._lock:
            before = self.state_dict()
            try:
                for one, part in held:
                    one.load_state_dict(part)
            except BaseException:  # no memory left, or an interrupt
                self.load_state_dict(before)
                raise

    def state_nbytes(self, d: int, k: int) -> int:
        """How many bytes the state of a stream takes, as far as its parts know."""
        return sum(state_nbytes(one, d, k) for one in self.correctors)


def _parts_of(state: Mapping[str, Array], n: int) -> list[dict[str, Array]]:
    """The state of each of n correctors, out of that of their chain."""
    if not isinstance(state, Mapping):
        raise LamettaError(f"state must be arrays by name, got {type(state).__name__}")
    parts: list[dict[str, Array]] = [{} for _ in range(n)]
    for key, array in state.items():
        number, _, name = str(key).partition(".")
        if not number.isdecimal() or int(number) >= n:
            raise LamettaError(f"state must have names of {n} parts, got {key!r}")
        parts[int(number)][name] = array
    return parts


def _merged(info: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**info, **later}
    if "converged" in info and "converged" in later:
        # No `and`, which would wait for a value on an accelerator.
        merged["converged"] = info["converged"] * later["converged"]
    return merged
