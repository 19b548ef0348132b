"""Exponential smoothing of the probabilities."""

from dataclasses import dataclass

import numpy as np

from lametta._arrays import Floats
from lametta._checks import check_number
from lametta.correctors._state import Remembering, State, normalized


@dataclass
class Smoothing(Remembering):
    """Answer with an exponentially weighted mean of the probabilities so far.

    ``s <- decay s + (1 - decay) q``, from the first sample's own probabilities on.

    Parameters
    ----------
    decay : float
        How much of the mean is kept at each sample, 0 to below 1; 0 is the source.

    Notes
    -----
    A stream's state is one row of numbers: 8 kB at 1000 classes.

    Examples
    --------
    >>> import numpy as np
    >>> probs = np.array([[0.9, 0.1], [0.1, 0.9], [0.1, 0.9]])
    >>> Smoothing(0.5).correct(np.ones((3, 1)), probs).probs
    array([[0.9, 0.1],
           [0.5, 0.5],
           [0.3, 0.7]])
    """

    decay: float = 0.9

    def __post_init__(self) -> None:
        check_number("decay", self.decay, 0, below=1)

    def _begin(self, d: int, k: int) -> State:
        return {"mean": np.zeros(k)}

    def _next(self, state: State, x: Floats, q: Floats) -> Floats:
        mean = state["mean"]
        mean *= self.decay
        mean += (1 - self.decay if mean.any() else 1) * q
        return normalized(mean)
