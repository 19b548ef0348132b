"""Estimate of a gain without labels, with an interval.

What a correction gains is what it changes times r, where r is 1 if every change is right and was
wrong before, and -1 if it is the other way round. A linear model guesses r from what can be seen of
the changes (`clues`). Its coefficients were fitted on labeled streams, and its interval is where
90 % of r were on those of a network that was left out: ``benchmarks/try.py``, docs/try.md.

Neighbors in features and in time, the confidence of network and correction, and how diverse answers
are were tried as clues, too. They told one network's streams better, and another's worse.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lametta.bench.trial.runs import Index, Outputs, Run

PANEL = (
    *("prudent", "lame", "windowed", "memory", "smoothing", "track", "prior_correction", "cofa"),
)
"""The methods whose agreement counts: they err in different ways, and are cheap."""

CLUES = ("intercept", "agreement", "asks for evidence")
"""The names of `clues`, in order."""

COEFFICIENTS = (0.128, 0.703, 0.466)
HALF_WIDTH = 0.708
"""Of the 90 % interval of r."""

_SINGLE, _SINGLE_WIDTH = 1.3, 0.4
# Of r where groups are one object, by the votes of the rest of a group: on three networks' videos
# of digits and on the seven videos r was 1.0 to 1.6 of these.

LEAST_KINSHIP = 0.25
"""The `lametta.bench.trial.stream.Look.kinship` below which no gain is guessed: no stream that the
coefficients were fitted on has so little."""

_EVIDENCE = ("prudent", "memory")  # which correct only as far as the stream so far speaks for it
NORMAL = 1.645  # deviations of a normal distribution that hold 90 %
_FEW = 3  # methods of the panel, without which an estimate says nothing


@dataclass(frozen=True)
class Estimate:
    """A gain of accuracy, as a share of samples, and its 90 % interval.

    With ``labels``, so many measured it; without, it is guessed.

    Examples
    --------
    >>> Estimate(0.05, 0.02, 0.08).verdict, Estimate(0.05, 0.02, 0.08).interval
    ('helps', '2.0 to 8.0')
    """

    gain: float
    low: float
    high: float
    labels: int = 0

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


def panel(runs: Collection[Run]) -> list[Run]:
    """The runs whose agreement counts."""
    return [run for run in runs if run.candidate.method in PANEL]


def clues(outputs: Outputs, run: Run, others: Collection[Run], rows: Index) -> NDArray[np.float64]:
    """What can be seen of the changes among these samples, as `CLUES` names it.

    The agreement is the share of the other methods that make the same change, less the share of
    those that stay with the network, from -1 to 1.

    Examples
    --------
    >>> from lametta.bench.trial.runs import Candidate
    >>> outputs = Outputs(np.eye(2), np.eye(2))
    >>> one, other = (
    ...     Run(Candidate(name, 64), np.array(after), np.ones(2), np.ones(2), 0.0)
    ...     for name, after in (("lame", [0, 0]), ("cofa", [0, 1]))
    ... )
    >>> clues(outputs, one, [one, other], np.arange(2))
    array([ 1., -1.,  0.])
    """
    before, after = outputs.before, run.after
    changed = rows[after[rows] != before[rows]]
    votes = [
        np.mean(
            1.0 * (one.after[changed] == after[changed]) - (one.after[changed] == before[changed])
        )
        for one in others
        if one.candidate.method != run.candidate.method
    ]
    agreement = float(np.mean(votes)) if votes and len(changed) else 0.0
    return np.array([1.0, agreement, float(run.candidate.method in _EVIDENCE)])


def estimate(
    outputs: Outputs,
    run: Run,
    runs: Collection[Run],
    kinship: float,
    rows: Index | None = None,
    copies: float = 0.0,
) -> Estimate:
    """Estimate what a run gains on a stream, or on some samples of it.

    With too few methods of `PANEL` among all runs, or too little kinship, the interval is all that
    the changes allow. Of some samples it is wider, the more so if a share of ``copies`` are
    near-copies, which are right or wrong together.

    Examples
    --------
    >>> from lametta.bench.trial.runs import Candidate
    >>> outputs = Outputs(np.eye(2), np.eye(2))
    >>> run = Run(Candidate("lame", 64), np.array([0, 0]), np.ones(2), np.ones(2), 0.0)
    >>> estimate(outputs, run, [run], kinship=1.0)
    Estimate(gain=0.0, low=-0.5, high=0.5, labels=0)
    """
    part = rows is not None
    rows = np.arange(len(outputs)) if rows is None else rows
    share = float(np.mean(run.after[rows] != outputs.before[rows]))
    if share == 0:
        return Estimate(0.0, 0.0, 0.0)
    # Of few changes r is also a matter of luck, more than in whole streams.
    luck = NORMAL / np.sqrt(share * len(rows) * max(1 - copies, 1e-3)) if part else 0.0
    if outputs.single:
        return _of_share(share, _SINGLE * votes(outputs, run, rows), _SINGLE_WIDTH, luck)
    others = panel(runs)
    few = len({one.candidate.method for one in others} - {run.candidate.method}) < _FEW
    if few or kinship < LEAST_KINSHIP:
        return Estimate(0.0, -share, share)
    center = float(clues(outputs, run, others, rows) @ np.array(COEFFICIENTS))
    return _of_share(share, center, HALF_WIDTH, luck)


def _of_share(share: float, r: float, width: float, luck: float) -> Estimate:
    """The estimate of a share of changes, by r and the half width of its interval."""
    center, width = float(np.clip(r, -1, 1)), float(np.hypot(width, luck))
    low, high = max(center - width, -1), min(center + width, 1)
    return Estimate(share * center, share * low, share * high)


def votes(outputs: Outputs, run: Run, rows: Index) -> float:
    """How the network's answers for the rest of a group speak for the changes, from -1 to 1.

    Where a group is one object, they are other views of the same class.

    Examples
    --------
    >>> from lametta.bench.trial.runs import Candidate
    >>> outputs = Outputs(np.eye(3), np.eye(2)[[0, 0, 1]], groups=np.zeros(3))
    >>> run = Run(Candidate("track", 1), np.array([0, 0, 0]), np.ones(3), np.ones(3), 0.0)
    >>> votes(outputs, run, np.arange(3))
    1.0
    """
    before, after, found = outputs.before, run.after, []
    asked = np.zeros(len(outputs), bool)
    asked[rows] = after[rows] != before[rows]
    for group in outputs.streams:
        changed = group[asked[group]]
        counts = np.bincount(before[group], minlength=outputs.probs.shape[1])
        others = max(len(group) - 1, 1)
        found.append((counts[after[changed]] - counts[before[changed]] + 1) / others)
    every = np.concatenate(found)
    return float(every.mean()) if len(every) else 0.0
