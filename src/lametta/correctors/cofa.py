"""COFA (UniTTA): average with the previous sample."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lametta._arrays import Floats
from lametta._checks import check_flag
from lametta.correctors.base import (
    Invariant,
    State,
    StatefulCorrector,
    filled,
    normalized,
    within,
)


@dataclass
class COFA(StatefulCorrector):
    """Average each sample with the one before it, wherever that makes it more confident.

    COFA of UniTTA (Du et al., 2024) averages the features of two successive samples, applies the
    classifier head, and takes the result where its largest probability exceeds the source's. A
    linear head gives for the mean of two features the mean of their scores, and the softmax of that
    is ``sqrt(q previous)``, normalized: the same answer without the head. Both are the source's
    probabilities: averages are not averaged again.

    Parameters
    ----------
    filter : bool
        Whether the average counts only where it is more confident; else it always does.

    Notes
    -----
    A stream's state is one row of numbers: 8 kB at 1000 classes.

    References
    ----------
    C. Du et al., "UniTTA: unified benchmark and versatile framework towards realistic test-time
    adaptation", arXiv 2407.20080 (2024).

    Examples
    --------
    >>> import numpy as np
    >>> probs = np.array([[0.9, 0.1], [0.4, 0.6], [0.1, 0.9]])
    >>> COFA().correct(np.ones((3, 1)), probs).probs.round(2)
    array([[0.9 , 0.1 ],
           [0.71, 0.29],
           [0.1 , 0.9 ]])
    """

    filter: bool = True

    def __post_init__(self) -> None:
        check_flag("filter", self.filter)

    def init_state(self, d: int, k: int) -> State:
        return {"previous": filled(k)}

    def invariants(self) -> Mapping[str, Invariant]:
        return {"previous": within(0, 2)}

    def update_one(self, state: State, x: Floats, q: Floats) -> Floats:
        row: Floats = np.sqrt(state["previous"] * q)
        state["previous"][:] = q
        # The very first sample, and one that shares no class with the last, keep their own.
        limit = q.max() * row.sum() if self.filter else 0
        return normalized(row if row.max() > limit else q)
