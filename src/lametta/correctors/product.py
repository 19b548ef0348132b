"""The product of the probabilities so far."""

from dataclasses import dataclass

import numpy as np

from lametta._arrays import Floats
from lametta._checks import check_number
from lametta.correctors._state import Remembering, State, normalized

_TINY = 1e-30  # what a probability of 0 counts as, so that one sample cannot rule out a class


@dataclass
class Product(Remembering):
    """Answer with the normalized product of all probabilities so far: for tracks of one object.

    This is Bayes' rule where samples are independent given the class and all classes are equally
    likely. Frames of a video are not independent: a ``temperature`` above 1, about the number of
    frames that say the same, keeps the product from locking onto a run of bad ones.

    Parameters
    ----------
    temperature : float
        Each row counts as ``q ** (1 / temperature)``.

    Notes
    -----
    A stream's state is one row of numbers: 8 kB at 1000 classes.

    Examples
    --------
    >>> import numpy as np
    >>> probs = np.array([[0.75, 0.25], [0.75, 0.25], [0.25, 0.75]])
    >>> Product().correct(np.ones((3, 1)), probs).probs
    array([[0.75, 0.25],
           [0.9 , 0.1 ],
           [0.75, 0.25]])
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_number("temperature", self.temperature, above=0)

    def _begin(self, d: int, k: int) -> State:
        return {"logs": np.zeros(k)}

    def _next(self, state: State, x: Floats, q: Floats) -> Floats:
        logs = state["logs"]
        logs += np.log(np.maximum(q.astype(float), _TINY)) / self.temperature
        logs -= logs.max()
        return normalized(np.exp(logs))
