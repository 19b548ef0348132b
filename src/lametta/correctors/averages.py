"""Moving averages of probabilities: mean, majority vote, product, exponential smoothing."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lametta._arrays import Floats
from lametta._checks import check_number
from lametta.correctors.base import (
    Invariant,
    State,
    StatefulCorrector,
    filled,
    normalized,
    within,
)

_TINY = 1e-30  # what a probability of 0 counts as, so that one sample cannot rule out a class


@dataclass
class Average(StatefulCorrector):
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

    def init_state(self, d: int, k: int) -> State:
        return {"total": filled(k)}

    def invariants(self) -> Mapping[str, Invariant]:
        return {"total": within(0)}

    def update_one(self, state: State, x: Floats, q: Floats) -> Floats:
        total = state["total"]
        total += q
        return normalized(total)


@dataclass
class Majority(StatefulCorrector):
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

    def init_state(self, d: int, k: int) -> State:
        return {"votes": filled(k), "total": filled(k)}

    def invariants(self) -> Mapping[str, Invariant]:
        return {"votes": within(0), "total": within(0)}

    def update_one(self, state: State, x: Floats, q: Floats) -> Floats:
        votes, total = state["votes"], state["total"]
        votes[q.argmax()] += 1
        total += q
        return normalized(votes + normalized(total))


@dataclass
class Product(StatefulCorrector):
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

    def init_state(self, d: int, k: int) -> State:
        return {"logs": filled(k)}

    def invariants(self) -> Mapping[str, Invariant]:
        return {"logs": within(-1e300, 0)}

    def update_one(self, state: State, x: Floats, q: Floats) -> Floats:
        logs = state["logs"]
        logs += np.log(np.maximum(q.astype(float), _TINY)) / self.temperature
        logs -= logs.max()
        return normalized(np.exp(logs))


@dataclass
class Smoothing(StatefulCorrector):
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

    def init_state(self, d: int, k: int) -> State:
        return {"mean": filled(k)}

    def invariants(self) -> Mapping[str, Invariant]:
        return {"mean": within(0, 2)}

    def update_one(self, state: State, x: Floats, q: Floats) -> Floats:
        mean = state["mean"]
        mean *= self.decay
        mean += (1 - self.decay if mean.any() else 1) * q
        return normalized(mean)
