"""ROID's prior correction."""

from dataclasses import dataclass

from lametta._arrays import Floats
from lametta._checks import check_integer
from lametta.correctors._ring import push, ring
from lametta.correctors._state import Remembering, State, normalized


@dataclass
class ROID(Remembering):
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
    >>> ROID().correct(np.ones((3, 1)), probs).probs.argmax(axis=1)
    array([0, 0, 0])
    """

    size: int = 64

    def __post_init__(self) -> None:
        check_integer("size", self.size, 1)

    def _begin(self, d: int, k: int) -> State:
        return ring(self.size, k)

    def _next(self, state: State, x: Floats, q: Floats) -> Floats:
        rows = push(state, q)
        prior = rows.mean(axis=0)
        smooth = max(1 / len(rows), 1 / len(q)) / prior.max()
        return normalized(q * (prior + smooth))
