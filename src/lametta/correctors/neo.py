"""NEO: features centered at their mean (Murphy et al., 2025)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lametta._arrays import Floats, softmax
from lametta._checks import check_number
from lametta.correctors.base import Invariant, State, StatefulCorrector, filled, within

_TINY = 1e-30  # what a probability of 0 counts as


@dataclass
class NEO(StatefulCorrector):
    """Apply the head to features less their mean so far: for domains that shift, classes mixed.

    With c the mean of all features up to this batch's last,

        answer = softmax(W (f - c) + b).

    Of a linear head that is ``softmax(log p - mean(log p) + b)`` as well, since what is the same
    for all classes of a sample cancels: where the model has no prototypes (W and b), the answers
    are made from the probabilities alone, and b counts as 0.

    Parameters
    ----------
    rate : float, optional
        The continual variant, which forgets: c moves by this share (0.1 in the paper's code)
        towards the mean of each batch, from 0. None takes the mean of all samples.

    Notes
    -----
    A stream's state is c: d numbers, or K where there are no prototypes. Where classes come in runs
    the mean is that of a few classes, and to subtract it takes them away. Of a first batch of one
    sample, which is its own mean, the answer is softmax(b).

    References
    ----------
    A. Murphy et al., "NEO: no-optimization test-time adaptation through latent re-centering",
    arXiv 2510.05635 (2025).

    Examples
    --------
    >>> import numpy as np
    >>> probs = np.array([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]])  # all shifted to the first class
    >>> NEO().correct(np.ones((3, 1)), probs).probs.round(2)
    array([[0.7 , 0.3 ],
           [0.51, 0.49],
           [0.28, 0.72]])
    """

    rate: float | None = None

    takes: ClassVar[frozenset[str]] = frozenset({"prototypes"})
    ordered: ClassVar[bool] = False
    causal: ClassVar[bool] = False  # the mean holds the whole batch

    def __post_init__(self) -> None:
        if self.rate is not None:
            check_number("rate", self.rate, above=0, most=1)

    def init_state(self, d: int, k: int) -> State:
        center = {"center": filled(d)} if self.prototypes else {"center_of_logs": filled(k)}
        return {**center, "count": np.zeros((), np.int64)}

    def invariants(self) -> Mapping[str, Invariant]:
        far = 1e150  # of features, whose products with the head have to be finite
        center = {"center": within(-far, far)} if self.prototypes else None
        return {**(center or {"center_of_logs": within(-100, 1)}), "count": within(0)}

    def update(
        self, state: State, features: Floats, probs: Floats
    ) -> tuple[Floats, dict[str, float]]:
        head = self.prototypes
        if head is None:
            rows, center = np.log(np.maximum(probs, _TINY)), state["center_of_logs"]
        else:
            rows, center = features, state["center"]
        state["count"] += len(rows)
        rate = len(rows) / int(state["count"]) if self.rate is None else self.rate
        center += rate * (rows.mean(axis=0, dtype=float) - center)
        return softmax(np, rows - center if head is None else head.logits(rows - center)), {}
