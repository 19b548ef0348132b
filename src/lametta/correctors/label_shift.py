"""Label-shift correction on a sliding window: EM (Saerens), and ROID's prior correction."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lametta._arrays import Floats
from lametta._checks import check_integer, check_number
from lametta._locks import check_interrupt
from lametta.correctors.base import (
    Invariant,
    State,
    StatefulCorrector,
    append,
    normalized,
    ring_buffer,
    ring_buffer_invariants,
)


@dataclass
class LabelShift(StatefulCorrector):
    """Estimate how frequent each class is among the last samples, and correct by it.

    The EM algorithm of Saerens, Latinne and Decaestecker (2002) on the last ``size`` samples, the
    newest among them, from equal frequencies on:

        r_ik = q_ik p_k / sum_l q_il p_l,        p_k = (sum_i r_ik + c) / (N + c K),

    assuming that the source was trained on equal frequencies. The answer is the newest sample's r.
    With ``c = concentration`` above 0 this is the estimate under a Dirichlet prior, MAPLS of Ye et
    al. (2024), whose weight lambda of the data is N / (N + c K).

    Parameters
    ----------
    size : int
        How many samples to estimate from.
    concentration : float
        How many samples of each class are imagined; 0 for none.
    max_iter : int
        The most updates of p for each sample.
    tol : float
        Stop once an update moves p by no more than this in all.

    Notes
    -----
    A stream's state is ``size`` rows of numbers of four bytes: 1 MB at 1000 classes.

    References
    ----------
    M. Saerens, P. Latinne, C. Decaestecker, "Adjusting the outputs of a classifier to new a priori
    probabilities: a simple procedure", Neural Computation 14 (2002).
    C. Ye et al., "Label shift estimation for class-imbalance problem: a Bayesian approach", WACV
    2024.

    Examples
    --------
    >>> import numpy as np
    >>> probs = np.array([[0.9, 0.1], [0.9, 0.1], [0.45, 0.55]])
    >>> LabelShift().correct(np.ones((3, 1)), probs).probs.argmax(axis=1)
    array([0, 0, 0])
    """

    size: int = 256
    concentration: float = 0.0
    max_iter: int = 100
    tol: float = 1e-3

    def __post_init__(self) -> None:
        check_integer("size", self.size, 1)
        check_number("concentration", self.concentration, 0)
        check_integer("max_iter", self.max_iter, 0)
        check_number("tol", self.tol, 0)

    def init_state(self, d: int, k: int) -> State:
        return ring_buffer(self.size, k)

    def invariants(self) -> Mapping[str, Invariant]:
        return ring_buffer_invariants()

    def update_one(self, state: State, x: Floats, q: Floats) -> Floats:
        rows = append(state, q)
        return normalized(q * self._frequencies(rows))

    def _frequencies(self, q: Floats) -> Floats:
        p = np.full(q.shape[1], 1 / q.shape[1], q.dtype)
        for _ in range(self.max_iter):
            check_interrupt()
            # sum_i r_ik = p_k sum_i q_ik / (q p)_i: two products, and no matrix of r.
            new = p * (q.T @ (1 / (q @ p)))
            new += self.concentration
            new /= new.sum()
            moved = abs(new - p).sum()
            p = new
            if moved <= self.tol:
                break
        return p


@dataclass
class PriorCorrection(StatefulCorrector):
    """Multiply probabilities by how frequent the classes are among the last samples, smoothed.

    The prior correction of ROID (Marsden, Döbler and Yang, WACV 2024): with p the mean of the last
    N rows,

        answer ~ q (p + g) / (1 + g K),        g = max(1 / N, 1 / K) / max_k p_k.

    ROID takes the mean over a batch, and so looks ahead in it; this takes the last ``size`` samples
    up to the one that is answered, so that the last of a batch of ``size`` gets ROID's answer. The
    published code multiplies scores before the softmax, which depends on a meaningless offset of
    the scores; this multiplies probabilities, as Bayes' rule does. The rest of ROID adapts
    a network, and is not here.

    Parameters
    ----------
    size : int
        How many samples to take the mean of; ROID's batches of ImageNet-C have 64.

    Notes
    -----
    A stream's state is ``size`` rows of numbers of four bytes: 256 kB at 1000 classes.

    References
    ----------
    R. A. Marsden, M. Döbler, B. Yang, "Universal test-time adaptation through weight ensembling,
    diversity weighting, and prior correction", WACV 2024.

    Examples
    --------
    >>> import numpy as np
    >>> probs = np.array([[0.9, 0.1], [0.9, 0.1], [0.45, 0.55]])
    >>> PriorCorrection().correct(np.ones((3, 1)), probs).probs.argmax(axis=1)
    array([0, 0, 0])
    """

    size: int = 64

    def __post_init__(self) -> None:
        check_integer("size", self.size, 1)

    def init_state(self, d: int, k: int) -> State:
        return ring_buffer(self.size, k)

    def invariants(self) -> Mapping[str, Invariant]:
        return ring_buffer_invariants()

    def update_one(self, state: State, x: Floats, q: Floats) -> Floats:
        rows = append(state, q)
        prior = rows.mean(axis=0)
        smooth = max(1 / len(rows), 1 / len(q)) / prior.max()
        return normalized(q * (prior + smooth))


ROID = PriorCorrection  # the name that it had, although ROID is more than this
