"""OATTA: a Bayesian filter whose class transitions are learned online."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log

import numpy as np

from lametta._arrays import Floats
from lametta._checks import check_number
from lametta.correctors.base import (
    Invariant,
    State,
    StatefulCorrector,
    distribution,
    filled,
    normalized,
    within,
)


@dataclass
class OATTA(StatefulCorrector):
    """Learn which class follows which, and predict each sample by that and by its probabilities.

    The filter of OATTA (Kim et al., 2026): with A the transition matrix and p the posterior of the
    sample before,

        prior = A^T p,        posterior ~ prior q,

    assuming that the source was trained on equal frequencies. The gate compares how likely a sample
    is under this prior and under equal frequencies, the ratio ``K sum_k prior_k q_k``: where the
    sum of its logarithms over the recent samples is not above 0, answer and p are the source's.

    The filter and the idea of the gate are the paper's. How A is learned here, as expected counts
    ``C += p posterior^T`` whose rows are divided by their sums, and how fast the gate forgets, is
    ours.

    Parameters
    ----------
    smoothing : float
        How many transitions from each class are imagined, spread evenly over all classes.
    decay : float
        How much of the gate's sum is kept at each sample, 0 to below 1.

    Notes
    -----
    A stream's state is a matrix [K, K] of numbers of four bytes: 4 MB at 1000 classes, and all of
    it is read and written for every sample.

    References
    ----------
    Y. K. Kim et al., "Order-aware test-time adaptation: leveraging temporal dynamics for robust
    streaming inference", arXiv 2601.21012 (2026).

    Examples
    --------
    >>> import numpy as np
    >>> probs = np.array([[0.9, 0.1]] * 8 + [[0.45, 0.55]])
    >>> OATTA().correct(np.ones((9, 1)), probs).probs[-1].argmax()
    np.int64(0)
    """

    smoothing: float = 1.0
    decay: float = 0.95

    def __post_init__(self) -> None:
        check_number("smoothing", self.smoothing, above=0)
        check_number("decay", self.decay, 0, below=1)

    def init_state(self, d: int, k: int) -> State:
        return {
            "transitions": filled((k, k), 0, np.float32),
            "departures": filled(k),  # sums of its rows
            "posterior": filled(k),  # of the sample before; 0 before the first
            "evidence": np.zeros(()),
        }

    def invariants(self) -> Mapping[str, Invariant]:
        return {
            "transitions": within(0),
            "departures": within(0),
            "posterior": distribution(or_zero=True),
            "evidence": within(-1e100, 1e100),
        }

    def update_one(self, state: State, x: Floats, q: Floats) -> Floats:
        transitions, departures = state["transitions"], state["departures"]
        before, k = state["posterior"], len(q)
        answer = q = normalized(q)
        if before.any():
            leaving = (before / (departures + self.smoothing)).astype(np.float32)
            joint = (leaving @ transitions + self.smoothing / k * leaving.sum()) * q
            state["evidence"] *= self.decay
            state["evidence"] += log(k * joint.sum())
            if state["evidence"] > 0:
                answer = normalized(joint)
            transitions += np.multiply.outer(before.astype(np.float32), answer.astype(np.float32))
            departures += before
        before[:] = answer
        return answer
