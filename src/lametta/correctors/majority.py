"""The vote of the labels so far."""

from dataclasses import dataclass

import numpy as np

from lametta._arrays import Floats
from lametta.correctors._state import Remembering, State, normalized


@dataclass
class Majority(Remembering):
    """Answer with the label that the source gave most often so far: for tracks of one object.

    A row is the share of votes that each class has, where the mean of the probabilities so far
    counts as one more vote: it settles ties, and no more, since its entries differ by less than 1.

    Notes
    -----
    A stream's state is two rows of numbers: 16 kB at 1000 classes.

    Examples
    --------
    >>> import numpy as np
    >>> probs = np.array([[0.9, 0.1], [0.4, 0.6], [0.4, 0.6]])
    >>> Majority().correct(np.ones((3, 1)), probs).probs.round(2)
    array([[0.95, 0.05],
           [0.55, 0.45],
           [0.39, 0.61]])
    """

    def _begin(self, d: int, k: int) -> State:
        return {"votes": np.zeros(k), "total": np.zeros(k)}

    def _next(self, state: State, x: Floats, q: Floats) -> Floats:
        votes, total = state["votes"], state["total"]
        votes[q.argmax()] += 1
        total += q
        return normalized(votes + normalized(total))
