"""Estimate of a gain without labels, with an interval.

What a correction gains is what it changes times r, where r is 1 if every change is right and was
wrong before, and -1 if it is the other way round. A linear model guesses r from what can be seen of
the changes (`clues`). Its coefficients were fitted on labeled streams, and its interval is where
90 % of r were on those of a network that was left out: ``benchmarks/try.py``, docs/try.md.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from lametta._arrays import Floats
from lametta._neighbors import nearest
from lametta.bench.trial.candidates import Index, Outputs, Run
from lametta.bench.trial.look import effective_number

PANEL = (
    *("prudent", "lame", "windowed", "memory", "smoothing", "track", "prior_correction", "cofa"),
)
"""The methods whose agreement counts: they err in different ways, and are cheap."""

CLUES = (
    "intercept", "neighbors", "moments", "contrast of neighbors", "contrast of moments",
    "agreement", "kinship", "diversity", "change of diversity",
)  # fmt: skip
"""The names of `clues`, in order."""

COEFFICIENTS = (0.755, -0.438, -0.649, 0.473, 0.150, 0.816, -0.109, 0.605, 0.428)
HALF_WIDTH = 0.627
"""Of the 90 % interval of r."""

_MOST = 2048  # samples among which neighbors are looked for
_NEIGHBORS, _MOMENTS = 5, 8
_SMALL = 0.05  # of a contrast's denominator, so that few votes do not count as many
_FEW = 3  # methods of the panel, without which an estimate says nothing


@dataclass(frozen=True)
class Estimate:
    """A gain of accuracy, as a share of samples, and its 90 % interval.

    Examples
    --------
    >>> Estimate(0.05, 0.02, 0.08).verdict, Estimate(0.05, 0.02, 0.08).interval
    ('helps', '2.0 to 8.0')
    """

    gain: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """Whether it "helps" or "hurts", or "cannot tell" where the interval holds 0."""
        if self.low > 0:
            return "helps"
        return "hurts" if self.high < 0 else "cannot tell"

    @property
    def interval(self) -> str:
        """The interval in points."""
        low, high = (round(100 * x, 1) + 0.0 for x in (self.low, self.high))  # no -0.0
        return f"{low:.1f} to {high:.1f}"


@dataclass(frozen=True, eq=False)
class Surroundings:
    """What the neighbors of samples are called by the network, in features and in time.

    Attributes
    ----------
    rows : array [m]
        The samples that are looked at, evenly spread over the stream.
    near : array [m, k]
        The nearest of them in features to each, as places in ``rows``.
    moments : array [N, 16]
        The samples just before and after each in its own stream; -1 where there are none.
    kinship : float
        How often the nearest neighbors have the same class beyond chance, over what the network's
        own confidence promises, from 0 to 1. Near 0, samples that look alike are sure to be of
        different classes, and nothing can be learned from neighbors.
    """

    rows: Index
    near: Index
    moments: Index
    kinship: float

    @classmethod
    def of(cls, outputs: Outputs) -> Self:
        """Look for the neighbors of a stream's samples."""
        n, before = len(outputs), outputs.before
        rows = np.unique(np.linspace(0, n - 1, min(n, _MOST)).astype(np.intp))
        near = np.asarray(nearest(np, outputs.features[rows], _NEIGHBORS))
        found = before[rows]
        same = float((found[near] == found[:, None]).mean()) if near.size else 0.0
        shares = np.bincount(found) / len(found)
        chance = float((shares**2).sum())
        promised = float(outputs.probs[rows].max(axis=1).mean()) ** 2
        kinship = (same - chance) / max(1 - chance, 1e-9) / max(promised, 1e-9)
        return cls(rows, near, _moments(outputs), min(max(kinship, 0.0), 1.0))


def _moments(outputs: Outputs) -> Index:
    around = np.r_[-_MOMENTS:0, 1 : _MOMENTS + 1]
    found = np.full((len(outputs), len(around)), -1, np.intp)
    for rows in outputs.streams:
        places = np.arange(len(rows))[:, None] + around
        inside = (places >= 0) & (places < len(rows))
        found[rows] = np.where(inside, rows[places.clip(0, len(rows) - 1)], -1)
    return found


def panel(runs: Collection[Run]) -> list[Run]:
    """The runs whose agreement counts."""
    return [run for run in runs if run.candidate.method in PANEL]


def clues(
    outputs: Outputs, run: Run, around: Surroundings, others: Collection[Run], rows: Index
) -> NDArray[np.float64]:
    """What can be seen of the changes among these samples, as `CLUES` names it.

    The share of neighbors, in features and then in time, that the network gives the new class;
    how much more these are than those of the old one; how far other methods agree with the change;
    `Surroundings.kinship`; and how much more diverse the answers are than before.
    """
    before, after = outputs.before, run.after
    changed = rows[after[rows] != before[rows]]
    places = np.flatnonzero(np.isin(around.rows, changed))
    close = outputs.probs[around.rows[around.near[places]]] if len(places) else None
    looked = around.rows[places]
    n_new, n_old = (_support(close, classes[looked]) for classes in (after, before))
    moments = around.moments[changed]
    said = np.where(moments >= 0, before[moments], -1)
    t_new, t_old = (
        float((said == x[changed, None]).sum() / max(1, (moments >= 0).sum()))
        for x in (after, before)
    )
    votes = [
        np.mean(
            (one.after[changed] == after[changed]) * 1.0 - (one.after[changed] == before[changed])
        )
        for one in others
        if one.candidate.method != run.candidate.method
    ]
    counts = (np.bincount(x[rows]).astype(float) for x in (after, before))
    new, old = (effective_number(x) for x in counts)
    diversity = float(np.clip(np.log(new / old), -1, 1))
    return np.array([
        1.0, n_new, t_new, _contrast(n_new, n_old), _contrast(t_new, t_old),
        np.mean(votes) if votes else 0.0, around.kinship, diversity, abs(diversity),
    ])  # fmt: skip


def _support(close: Floats | None, classes: Index) -> float:
    """The mean probability that neighbors [m, k, K] have for classes [m]."""
    if close is None:
        return 0.0
    return float(close.mean(axis=1)[np.arange(len(classes)), classes].mean())


def _contrast(new: float, old: float) -> float:
    return (new - old) / (new + old + _SMALL)


def estimate(
    outputs: Outputs,
    run: Run,
    around: Surroundings,
    runs: Collection[Run],
    rows: Index | None = None,
) -> Estimate:
    """Estimate what a run gains on a stream, or on some samples of it.

    With too few methods of `PANEL` beside it, the interval is all that the changes allow.

    Examples
    --------
    >>> outputs = Outputs(np.eye(4), np.eye(2)[[0, 0, 1, 1]])
    >>> run = Run(None, np.array([0, 0, 1, 1]), np.ones(4), np.ones(4), 0.0)
    >>> estimate(outputs, run, Surroundings.of(outputs), []).gain  # it changes nothing
    0.0
    """
    rows = np.arange(len(outputs)) if rows is None else rows
    share = float(np.mean(run.after[rows] != outputs.before[rows]))
    if share == 0:
        return Estimate(0.0, 0.0, 0.0)
    others = panel(runs)
    found = clues(outputs, run, around, others, rows)
    center = float(np.clip(found @ np.array(COEFFICIENTS), -1, 1))
    if len({one.candidate.method for one in others} - {run.candidate.method}) < _FEW:
        return Estimate(share * center, -share, share)
    low, high = max(center - HALF_WIDTH, -1), min(center + HALF_WIDTH, 1)
    return Estimate(share * center, share * low, share * high)
