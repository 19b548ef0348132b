"""Track: product or mean of the last probabilities of one object."""

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

_TINY = 1e-9  # what a probability of 0 counts as, so that one sample cannot rule out a class
_VIDEO = 0.3  # from this resemblance of neighbors on, rows are only averaged
_DOUBT = 0.1  # and from this on they count as frames of a video
_POWER = 1 / 3  # n samples of a track are as good as n ** (1 / 3) independent ones
_VIDEO_POWER = 0.12  # and n frames of a video as n ** 0.12
_NEWS = 10.0  # rows that differ x times are 1 + 10 x samples at most


@dataclass
class Track(StatefulCorrector):
    """Answer with the product or the mean of the last probabilities: for tracks of one object.

    Of independent samples the product is right: it tells classes apart by small probabilities too,
    and so corrects a wrong beginning in few samples. Frames of a video repeat their errors, and
    there the mean is better. With ``d = 1 - 1 / memory``, sums that forget slowly are kept of both,
    and joined:

        n <- d n + 1,        L <- d L + log q,        A <- d A + q,
        log z = m^((1 - v) / 3 + 0.12 v) ((1 - w) L / n + w log(A / n)) + constant.

    How much more a row resembles the one before than earlier ones says which of the two a stream
    is. Let r be the square root of q, p that of the row before, s the mean of those before p:

        w = min(1, a / 0.3),        a = max(0, sum of r.p - r.s) / (1 + sum of 1 - r.s),

    which is about 0 for photographs in any order and 0.5 in videos. The power keeps answers from
    being as sure as if samples were independent. Frames share their errors, and weigh less as soon
    as there is a sign of them: v = min(1, a / 0.1). Near-copies say nothing new, and m = 1 where
    all rows are the same: m = min(n, 1 + 10 x), with the variation of rows::

        x <- d (x + min(1, |q - q before| / (2 max q))).

    The first answer is the source's. Features are not used.

    Parameters
    ----------
    memory : float
        How many samples count, from 1, which is the source. Errors in a video come in runs: a
        memory of some twenty frames gets out of them again.

    Notes
    -----
    A stream's state is four rows of numbers: 32 kB at 1000 classes. A video whose frames agree on
    a wrong class makes its answers too sure: nothing in a track shows it.

    Examples
    --------
    >>> import numpy as np
    >>> probs = np.array([[0.9, 0.1], [0.2, 0.8], [0.2, 0.8], [0.2, 0.8]])
    >>> Track().correct(np.ones((4, 1)), probs).probs.round(2)
    array([[0.9 , 0.1 ],
           [0.61, 0.39],
           [0.42, 0.58],
           [0.34, 0.66]])
    """

    memory: float = 20.0

    def __post_init__(self) -> None:
        check_number("memory", self.memory, 1)

    def init_state(self, d: int, k: int) -> State:
        rows = {name: filled(k) for name in ("logs", "total", "before", "past")}
        numbers = {name: np.zeros(()) for name in ("count", "varied", "seen")}
        return {**rows, **numbers, "resembles": np.zeros(2)}

    def invariants(self) -> Mapping[str, Invariant]:
        return {
            "logs": within(-(2.0**53)),
            "total": within(0),
            "before": within(0, 1.01),
            "past": within(0) & _PAST,
            "count": within(0, 1.01 * self.memory),
            "varied": within(0, 1.01 * self.memory),
            "seen": within(0),
            "resembles": _RESEMBLES,
        }

    def update_one(self, state: State, x: Floats, q: Floats) -> Floats:
        logs, total, count, varied = (state[x] for x in ("logs", "total", "count", "varied"))
        row = np.maximum(q.astype(float), _TINY)
        if state["seen"]:
            change = float(abs(row - state["before"] ** 2).sum() / (2 * row.max()))
            varied += min(change, 1.0)
        for kept, new in ((logs, np.log(row)), (total, row), (count, 1), (varied, 0)):
            kept *= 1 - 1 / self.memory
            kept += new
        resemblance = _resemblance(state, np.sqrt(row))
        w, v = min(resemblance / _VIDEO, 1.0), min(resemblance / _DOUBT, 1.0)
        power = (1 - v) * _POWER + v * _VIDEO_POWER
        news = min(float(count), 1 + _NEWS * float(varied))
        z = news**power * ((1 - w) * logs / count + w * np.log(total / count))
        return normalized(np.exp(z - z.max()))


# A row has length 1 as a square root: the sum of those before the last one is no longer than them.
_PAST = Invariant(
    "a sum of ``seen - 1`` rows of length 1",
    lambda past, state: bool(np.sqrt(past @ past) <= 1.001 * max(float(state["seen"]) - 1, 0)),
)
_RESEMBLES = Invariant(
    "sums of ``seen - 2`` differences of cosines",
    lambda sums, state: bool(
        abs(sums[0]) <= 1.01 * float(state["seen"]) and -0.5 <= sums[1] <= float(state["seen"])
    ),
)


def _resemblance(state: State, root: Floats) -> float:
    """How much more rows so far resemble the one before than earlier ones, at least 0."""
    before, past, seen, sums = (state[x] for x in ("before", "past", "seen", "resembles"))
    if seen >= 2:
        usual = float(root @ past) / (float(seen) - 1)
        sums += float(root @ before) - usual, 1 - usual
    past += before
    before[:] = root
    seen += 1
    return max(float(sums[0]), 0.0) / (1 + float(sums[1]))
