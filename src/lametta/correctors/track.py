"""The last probabilities of a track, multiplied and averaged."""

from dataclasses import dataclass

import numpy as np

from lametta._checks import check_number
from lametta.correctors._state import Floats, Remembering, State, normalized

_TINY = 1e-9  # what a probability of 0 counts as, so that one sample cannot rule out a class
_MEAN = 0.25  # the weight of the mean beside the product
_POWER = 1 / 3  # n samples of a track are as good as n ** (1 / 3) independent ones


@dataclass
class Track(Remembering):
    """Answer with the product of the last probabilities, tempered: for tracks of one object.

    The product tells classes apart by small probabilities too, and so corrects a wrong beginning
    in few samples; the mean is not moved by a single sample that is sure and wrong. With
    ``d = 1 - 1 / memory``, sums that forget slowly are kept of both:

        n <- d n + 1,        L <- d L + log q,        A <- d A + q,
        log z = n ** (1/3) (3/4 L / n + 1/4 log(A / n)) + constant.

    The first answer is the source's. The power keeps answers from being as sure as if the samples
    were independent, which frames of a video are not. Features are not used.

    Parameters
    ----------
    memory : float
        How many samples count, from 1, which is the source. Errors in a video come in runs: a
        memory of some twenty frames gets out of them again.

    Notes
    -----
    A stream's state is two rows of numbers: 16 kB at 1000 classes.

    Examples
    --------
    >>> import numpy as np
    >>> probs = np.array([[0.9, 0.1], [0.2, 0.8], [0.2, 0.8], [0.2, 0.8]])
    >>> Track().correct(np.ones((4, 1)), probs).probs.round(2)
    array([[0.9 , 0.1 ],
           [0.6 , 0.4 ],
           [0.41, 0.59],
           [0.3 , 0.7 ]])
    """

    memory: float = 20.0

    def __post_init__(self) -> None:
        check_number("memory", self.memory, 1)

    def _begin(self, d: int, k: int) -> State:
        return {"logs": np.zeros(k), "total": np.zeros(k), "count": np.zeros(())}

    def _next(self, state: State, x: Floats, q: Floats) -> Floats:
        logs, total, count = state["logs"], state["total"], state["count"]
        row = np.maximum(q.astype(float), _TINY)
        for kept, new in ((logs, np.log(row)), (total, row), (count, 1)):
            kept *= 1 - 1 / self.memory
            kept += new
        z = count**_POWER * ((1 - _MEAN) * logs / count + _MEAN * np.log(total / count))
        return normalized(np.exp(z - z.max()))
