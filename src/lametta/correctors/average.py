"""The mean of the probabilities so far."""

from dataclasses import dataclass

import numpy as np

from lametta._arrays import Floats
from lametta.correctors._state import Remembering, State, normalized


@dataclass
class Average(Remembering):
    """Answer with the mean of all probabilities so far: for tracks of one object.

    Each answer weighs its own sample and all before it equally. A stream that moves on to other
    classes needs `Smoothing`, which forgets, or a new track.

    Notes
    -----
    A stream's state is one row of numbers: 8 kB at 1000 classes.

    Examples
    --------
    >>> import numpy as np
    >>> probs = np.array([[0.9, 0.1], [0.3, 0.7], [0.0, 1.0]])
    >>> Average().correct(np.ones((3, 1)), probs).probs
    array([[0.9, 0.1],
           [0.6, 0.4],
           [0.4, 0.6]])
    """

    def _begin(self, d: int, k: int) -> State:
        return {"total": np.zeros(k)}

    def _next(self, state: State, x: Floats, q: Floats) -> Floats:
        total = state["total"]
        total += q
        return normalized(total)
