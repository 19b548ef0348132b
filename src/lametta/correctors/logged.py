"""Logged: a corrector whose diagnostics go where people log."""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self, TypeAlias

from lametta._checks import check_integer
from lametta.correctors._params import Params
from lametta.correctors.base import (
    CompositeCorrector,
    check_can_correct,
    checked_prediction,
    clone,
    state_nbytes,
)
from lametta.types import Array, Corrector, LamettaError, Prediction, Stateful

OnInfo: TypeAlias = Callable[[Mapping[str, float], int], object]
"""Is told the diagnostics of a batch, ``Prediction.info`` as numbers, and the batch's number."""


def _count() -> Iterator[int]:
    """Count from 0, for all threads; ``itertools.count`` is no longer pickled on Python 3.14."""
    return iter(range(sys.maxsize))


@dataclass
class Logged(CompositeCorrector, Params):
    """Correct as a corrector does, and hand on its diagnostics: to a logger, a file, a monitor.

    Parameters
    ----------
    corrector : Corrector
        What corrects.
    on_info : callable
        Called with ``Prediction.info``, as Python's numbers, and the number of the batch, from 0.
        An error in it is the caller's.
    every : int
        Every how many batches it is called. On an accelerator each call waits for the numbers.

    Notes
    -----
    Copies, such as those that `lametta.Streams` makes for each stream, call the same function, and
    number their batches together; calls may come from several threads.

    Examples
    --------
    >>> import numpy as np
    >>> from lametta import LAME
    >>> logged = Logged(LAME(), lambda info, step: print(step, sorted(info)[:2]))
    >>> probs = logged.correct(np.eye(2), np.array([[0.9, 0.1], [0.3, 0.7]])).probs
    0 ['changed', 'converged']
    """

    corrector: Corrector
    on_info: OnInfo
    every: int = 1
    _numbers: Iterator[int] = field(default_factory=_count, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_integer("every", self.every, 1)
        check_can_correct(self.corrector)
        if not callable(self.on_info):
            raise LamettaError(f"on_info must be callable, got {type(self.on_info).__name__}")

    def __deepcopy__(self, memo: object) -> Self:
        copied = type(self)(clone(self.corrector), self.on_info, self.every)
        copied._numbers = self._numbers
        return copied

    def _held(self) -> tuple[Corrector, ...]:
        return (self.corrector,)

    def correct(self, features: Array, probs: Array, /) -> Prediction:
        """Correct one batch: features [N, d] and probs [N, K]."""
        prediction = checked_prediction(self.corrector.correct(features, probs), self.corrector)
        if (number := next(self._numbers)) % self.every == 0:
            prediction = prediction.plain()
            self.on_info(prediction.info, number)
        return prediction

    def reset(self) -> None:
        """Forget all samples, and go on counting."""
        self.corrector.reset()

    def state_dict(self) -> dict[str, Array]:
        """Give a copy of what the corrector remembers."""
        return self.corrector.state_dict() if isinstance(self.corrector, Stateful) else {}

    def load_state_dict(self, state: Mapping[str, Array], /) -> None:
        """Continue from what `state_dict` gave."""
        if isinstance(self.corrector, Stateful):
            self.corrector.load_state_dict(state)
        elif state:
            raise LamettaError(f"state must be empty for {type(self.corrector).__name__}")

    def state_nbytes(self, d: int, k: int) -> int:
        """How many bytes the state of a stream takes, as far as the corrector knows."""
        return state_nbytes(self.corrector, d, k)
