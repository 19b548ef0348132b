"""A few labels: which samples settle soonest what to take, and what their labels measure.

`draw` takes samples at random from strata, by how far the runs that may be best differ on them, so
that what `measure` says of the whole stream is right on average, whatever the network and the
methods answer. Where all answers are the same no label is needed: no run gains or loses there.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import erf
from pathlib import Path
from typing import Any

import numpy as np

from lametta._arrays import Floats
from lametta._checks import check_integer, reading
from lametta._files import PathLike, check_regular_file
from lametta.bench.trial.gains import NORMAL, Estimate
from lametta.bench.trial.runs import Index, Outputs, Run
from lametta.types import LamettaError

ANOTHER = -1
"""The label of a sample that is of none of the classes that any run answers."""

UNKNOWN = -2
"""That of one not labeled yet, or that nobody can tell."""

_KIND = "labels for lametta try"
_STRATA = 10
_EACH = 5  # samples of a stratum, from which there are more strata than one
_LEAST = 0.05  # the weight of a run that is hardly the best, so that its changes are seen, too
_PRIOR = 3.0  # labels by which a stratum's variance is kept near that of all


@dataclass(frozen=True, eq=False)
class Draw:
    """Samples drawn to be labeled, and their labels so far.

    Attributes
    ----------
    samples : int
        Of the whole stream.
    runs : tuple of str
        The titles of the runs that the draw looked at: what they gain can be measured.
    sizes : tuple of int
        How many samples each stratum has.
    rows, strata, labels : array [n]
        The position of each sample in the stream, its stratum, and its class, `ANOTHER` or
        `UNKNOWN`. In a random order: the first of them are a draw, too.
    keys : tuple of str
        Names of the samples, where they have any.

    Examples
    --------
    >>> one = Draw(9, ("lame, batches of 64",), (4,), np.array([7, 2]), np.array([0, 0]))
    >>> one.known, one.labeled({2: 1}).known
    (0, 1)
    """

    samples: int
    runs: tuple[str, ...]
    sizes: tuple[int, ...]
    rows: Index
    strata: Index
    labels: Index = None  # type: ignore[assignment]
    keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.labels is None:
            object.__setattr__(self, "labels", np.full(len(self.rows), UNKNOWN))

    @property
    def known(self) -> int:
        """How many are labeled."""
        return int((self.labels != UNKNOWN).sum())

    def labeled(self, found: Mapping[int, int]) -> "Draw":
        """The same with labels by position in the stream."""
        old = zip(self.rows.tolist(), self.labels.tolist(), strict=True)
        return replace(self, labels=np.array([found.get(row, one) for row, one in old], np.intp))

    def as_dict(self) -> dict[str, Any]:
        """The file of labels that the page hands out, and that `read` takes."""
        names = {UNKNOWN: None, ANOTHER: "another"}
        columns = (self.rows.tolist(), self.strata.tolist(), self.labels.tolist())
        drawn = [
            {"row": row, "stratum": stratum, "label": names.get(label, label)}
            for row, stratum, label in zip(*columns, strict=True)
        ]
        for one, key in zip(drawn, self.keys, strict=False):  # keys are of all, or of none
            one["key"] = key
        head = {"kind": _KIND, "samples": self.samples, "runs": list(self.runs)}
        return {**head, "strata": list(self.sizes), "drawn": drawn}


def read(path: PathLike, outputs: Outputs) -> Draw:
    """Read the labels that a page handed out, of samples of these outputs.

    Examples
    --------
    >>> labels = read("labels.json", trial.outputs)  # doctest: +SKIP
    """
    check_regular_file("the file of labels", Path(path))
    with reading(path, "labels for lametta try"):
        given = json.loads(Path(path).read_text("utf-8"))
        if not isinstance(given, dict) or given.get("kind") != _KIND:
            raise LamettaError(f"labels must be from a page of lametta try --label, got {path}")
        drawn = given["drawn"]
        found = Draw(
            int(given["samples"]),
            tuple(map(str, given["runs"])),
            tuple(map(int, given["strata"])),
            np.array([one["row"] for one in drawn], np.intp),
            np.array([one["stratum"] for one in drawn], np.intp),
            np.array([_label(one.get("label")) for one in drawn], np.intp),
            tuple(str(one["key"]) for one in drawn if "key" in one),
        )
    check(found, outputs)
    return found


def _label(given: object) -> int:
    names = {None: UNKNOWN, "another": ANOTHER}
    return names[given] if given is None or given == "another" else int(given)  # type: ignore


def check(found: Draw, outputs: Outputs) -> None:
    """Raise unless these are labels of samples of these outputs."""
    n, k = outputs.probs.shape
    of = f"labels must be of the same samples as SOURCE has, {n} of them"
    if found.samples != n:
        raise LamettaError(f"{of}, got labels of {found.samples}")
    for name, values, least, most in (
        ("row", found.rows, 0, n), ("stratum", found.strata, 0, len(found.sizes)),
        ("label", found.labels, UNKNOWN, k),
    ):  # fmt: skip
        if wrong := [x for x in values.tolist() if not least <= x < most]:
            raise LamettaError(f"{name} of the labels must be below {most}, got {wrong[0]}")
    if len(np.unique(found.rows)) < len(found.rows) or len(found.keys) not in (0, len(found.rows)):
        raise LamettaError("labels must have each row once, and a key for each row or none")
    drawn = np.bincount(found.strata, minlength=len(found.sizes))
    if (drawn > found.sizes).any() or sum(found.sizes) > n:
        raise LamettaError("strata of the labels must be no larger than the stream")
    for row, key in zip(found.rows.tolist(), found.keys, strict=False):
        if outputs.keys and key != outputs.keys[row]:
            raise LamettaError(
                f"{of}: row {row} is {outputs.keys[row]!r} there, and {key!r} in the labels"
            )


def draw(
    outputs: Outputs,
    runs: Sequence[Run],
    estimates: Mapping[str, Estimate],
    taken: str,
    n: int,
    seed: int = 0,
) -> Draw:
    """Draw samples whose labels settle soonest what to take.

    A sample counts by the runs that answer otherwise than the one that would be ``taken`` (the
    network, if empty), each as far as it may be better by its estimate. Strata have equal sums of
    the roots of that, and equal shares of the draw, which is near the least variance that a
    stratified draw can have.

    Examples
    --------
    >>> from lametta.bench.trial.runs import Candidate
    >>> outputs = Outputs(np.eye(2), np.eye(2))
    >>> run = Run(Candidate("lame", 64), np.array([0, 0]), np.ones(2), np.ones(2), 0.0)
    >>> draw(outputs, [run], {"lame, batches of 64": Estimate(0.1, 0, 0.2)}, "", 50).rows
    array([1])
    """
    check_integer("n", n, 1)
    weight = _weights(outputs, runs, estimates, taken)
    rows = np.flatnonzero(weight > 0)
    rng = np.random.default_rng(seed)
    rows = rng.permutation(rows)
    rows = rows[np.argsort(weight[rows], kind="stable")]
    parts = _cut(rows, np.sqrt(weight[rows]), max(1, min(_STRATA, n // _EACH)))
    counts = _allotted([len(part) for part in parts], n)
    picked = [rng.permutation(part) for part in parts]
    # By turns, so that the first labels are of all strata.
    turns = [(place, s) for s, count in enumerate(counts) for place in range(count)]
    turns.sort(key=lambda turn: (turn[0] / counts[turn[1]], turn[1]))
    found = np.array([picked[s][place] for place, s in turns], np.intp)
    return Draw(
        len(outputs),
        tuple(run.candidate.title for run in runs),
        tuple(map(len, parts)),
        found,
        np.array([s for _, s in turns], np.intp),
        keys=tuple(outputs.keys[row] for row in found) if outputs.keys else (),
    )


def _weights(
    outputs: Outputs, runs: Sequence[Run], estimates: Mapping[str, Estimate], taken: str
) -> Floats:
    """How much each sample counts, by the runs that answer otherwise than the one taken."""
    answers = {run.candidate.title: run.after for run in runs} | {"": outputs.before}
    own, reference = estimates.get(taken, Estimate(0.0, 0.0, 0.0)), answers[taken]
    weights = np.zeros(len(outputs))
    for title, after in answers.items():
        one = estimates.get(title, Estimate(0.0, 0.0, 0.0))
        share = 1.0 if title == "" else max(_chance_ahead(one, own), _LEAST)
        weights += share * (after != reference)
    return weights


def _chance_ahead(one: Estimate, other: Estimate) -> float:
    """How likely a run gains more than another, if both estimates are normal and independent."""
    scale = np.hypot(one.high - one.low, other.high - other.low) / (2 * NORMAL)
    return 0.5 * (1 + erf((one.gain - other.gain) / max(np.sqrt(2) * scale, 1e-9)))


def _cut(rows: Index, sizes: Floats, most: int) -> list[Index]:
    """Cut rows, which are in order, into parts of equal sums of sizes."""
    if not len(rows):
        return []
    at = np.cumsum(sizes) - sizes / 2
    part = (most * at / sizes.sum()).astype(int)
    return [rows[part == i] for i in np.unique(part)]


def _allotted(sizes: Sequence[int], n: int) -> list[int]:
    """Equal shares of n; what is more than a stratum holds goes to the others."""
    counts = [0] * len(sizes)
    for _ in range(min(n, sum(sizes))):
        counts[min((c, i) for i, c in enumerate(counts) if c < sizes[i])[1]] += 1
    return counts


def measure(found: Draw, after: Index, before: Index, guess: float = 0.0) -> Estimate:
    """Measure by labels what answers [N] gain over others, with a 90 % interval.

    The stratified difference estimator: of each changed sample the ``guess`` is taken to be its
    gain, and labels tell by how much that is wrong. It is unbiased whatever the guess, as every
    sample of a stratum is as likely drawn; what no change allows is cut. A stratum without labels
    may hold anything.

    Examples
    --------
    >>> one = Draw(4, (), (2, 2), np.array([0, 1, 2, 3]), np.array([0, 0, 1, 1]))
    >>> one = one.labeled({0: 1, 1: 1, 2: 1, 3: 0})
    >>> measure(one, np.array([1, 1, 1, 1]), np.array([0, 0, 0, 0])).gain
    0.5
    """
    known = found.labels != UNKNOWN
    rows, labels, strata = found.rows[known], found.labels[known], found.strata[known]
    changed = after != before
    wrong = 1.0 * (after[rows] == labels) - (before[rows] == labels) - guess * changed[rows]
    seen = wrong[changed[rows]]
    usual = (np.sum(seen**2) + sum((x - guess) ** 2 for x in (-1, 0, 1))) / (len(seen) + 3)
    usual *= max(len(seen) / max(len(rows), 1), changed.sum() / max(sum(found.sizes), 1))
    total, variance, unknown = guess * float(changed.sum()), 0.0, 0.0
    for s, size in enumerate(found.sizes):
        own = wrong[strata == s]
        if not (k := len(own)):
            unknown += size
            continue
        total += size * own.mean()
        spread = (np.sum((own - own.mean()) ** 2) + _PRIOR * usual) / (k - 1 + _PRIOR)
        variance += size**2 * spread / k * (1 - k / size)
    share = float(changed.mean())
    half = (NORMAL * np.sqrt(variance) + unknown) / found.samples
    center = total / found.samples
    low, high = max(center - half, -share), min(center + half, share)
    return Estimate(float(np.clip(center, -share, share)), low, high, found.known)
