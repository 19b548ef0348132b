"""What a stream shows without labels: its order, near-copies, classes, and what became of what."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lametta._arrays import Floats, unit_rows
from lametta._neighbors import nearest
from lametta.bench.trial.runs import Index, Outputs, Run

_MOST = 2048  # samples by whose neighbors the kinship is judged
_NEIGHBORS = 5
_OTHERS = 4096  # samples among which neighbors are looked for
_OF_A_PAIR = 2  # samples of the same change that are shown
_ONE_CLASS = 0.95  # the chance to agree above which there is no more to see
_NEW = 0.5  # the novelty from which a picture is another scene
_WINDOW = 50  # samples before and after, by which the beginning of a domain is seen
_MOVED = 7.0  # deviations of independent samples that it must be beyond
SURE_COPY = 0.5  # the share of near-copies from which a stream is called one of frames


@dataclass(frozen=True)
class Look:
    """What is known of a stream without labels.

    Attributes
    ----------
    samples, classes, streams : int
        How many there are.
    predicted : float
        How many equally frequent classes would be as diverse as the network's answers.
    stays, stays_by_chance : float
        The share of samples that have the class of the one before, and what it would be shuffled.
    kinship : float
        How often the nearest neighbors in features have the same class, beyond chance, over what
        the network's own confidence promises, from 0 to 1. Near 0, samples that look alike are
        surely of different classes, and there is nothing to learn from them.
    by_classes, by_other : float or None
        The share of the stream that Prudent found ordered by classes, or by something else that
        features show, such as domains; None if Prudent was not run.
    copies : float or None
        The share of samples that are near-copies of the one before, as frames of a video are.
    evidence : float or None
        Nats a sample by which what came before predicted the network's answers, beyond themselves.
    """

    samples: int
    classes: int
    streams: int
    predicted: float
    stays: float
    stays_by_chance: float
    kinship: float = 1.0
    by_classes: float | None = None
    by_other: float | None = None
    copies: float | None = None
    evidence: float | None = None

    @property
    def order(self) -> str:
        """What makes the order: "classes", "something else", "none", or empty if not known.

        Examples
        --------
        >>> Look(9, 3, 1, 2.5, 0.6, 0.4, by_classes=0.7, by_other=0.0).order
        'classes'
        """
        if self.by_classes is None or self.by_other is None:
            return ""
        if max(self.by_classes, self.by_other) < 0.1:
            return "none"
        return "classes" if self.by_classes >= self.by_other else "something else"

    def sentences(self) -> list[str]:
        """The same in plain words."""
        n = "one stream" if self.streams == 1 else f"{self.streams} streams, kept apart"
        said = [
            f"{self.samples:,} samples of {self.classes:,} classes in {n}.",
            f"The network's answers are as diverse as {self.predicted:.1f} equally frequent "
            f"classes would be; {self.stays:.0%} of them repeat the one before "
            f"({self.stays_by_chance:.0%} if the samples were shuffled).",
        ]
        if self.order:
            said.append(self._order_in_words())
        if self.kinship < 0.5:
            said.append(
                "Samples that look alike are given different classes: they agree in "
                f"{self.kinship:.0%} of what the network's confidence promises."
            )
        if self.copies is not None:
            such = ": frames of videos, or bursts" if self._is_of_frames else ""
            said.append(f"{self.copies:.0%} are near-copies of the sample before{such}.")
        if self.evidence is not None:
            said.append(
                f"What came before predicted the network's answers by {self.evidence:.2f} nats a "
                "sample better than no memory would."
            )
        return said

    def _order_in_words(self) -> str:
        if self.order == "classes":
            return (
                f"Classes make the order: Prudent found so in {self.by_classes:.0%} of its looks."
            )
        if self.order == "something else":
            return (
                "Something that features show makes the order, and not the classes (domains, say): "
                f"Prudent found so in {self.by_other:.0%} of its looks."
            )
        if self._is_of_frames:
            return "Prudent averages near-copies, and saw too few other samples for an order."
        return "Prudent found no order beyond chance, or saw too few different samples to say."

    @property
    def _is_of_frames(self) -> bool:
        return self.copies is not None and self.copies > SURE_COPY


def look(outputs: Outputs, watched: Run | None) -> Look:
    """Look at a stream, with what Prudent found in it, if it was run.

    Examples
    --------
    >>> outputs = Outputs(np.eye(4), np.eye(2)[[0, 0, 1, 1]])
    >>> found = look(outputs, None)
    >>> found.predicted, round(found.stays, 2), round(found.stays_by_chance, 2)
    (2.0, 0.67, 0.33)
    """
    before, k = outputs.before, outputs.probs.shape[1]
    counts = np.bincount(before, minlength=k).astype(float)
    follows = [before[rows][1:] == before[rows][:-1] for rows in outputs.streams]
    stays = np.concatenate(follows) if follows else np.zeros(0, bool)
    chance = float((counts * (counts - 1)).sum() / max(1.0, len(before) * (len(before) - 1.0)))
    found: dict[str, float | None] = {}
    if watched is not None and watched.series:
        series = watched.series
        found = {
            "by_classes": float((series["order"] > 0).mean()),
            "by_other": float((series["order"] < 0).mean()),
            "copies": 1 - float(series["novelty"].mean()),
            "evidence": float(series["evidence"].mean()),
        }
    return Look(
        len(before),
        k,
        len(outputs.streams),
        effective_number(counts),
        float(stays.mean()) if len(stays) else 0.0,
        chance,
        kinship(outputs),
        **found,
    )


def scenes(outputs: Outputs, novelty: Floats) -> list[int]:
    """Where a scene begins: a new picture after near-copies, each stream by itself.

    Examples
    --------
    >>> outputs = Outputs(np.eye(5), np.ones((5, 1)))
    >>> scenes(outputs, np.array([1, 0.1, 0.1, 0.9, 0.1]))
    [0, 3]
    """
    found = []
    for rows in outputs.streams:
        new = novelty[rows] > _NEW
        found += rows[new & ~np.concatenate([[False], new[:-1]])].tolist()
    return sorted(found)


def domains(outputs: Outputs) -> list[int]:
    """Where another domain begins: features move, and not as answers do.

    The means of the 50 samples before and after are compared, each less the mean of its answer's
    class; the largest differences far beyond those of independent samples are the beginnings.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> features = rng.normal(size=(300, 8)) + np.where(np.arange(300) < 150, 2, -2)[:, None]
    >>> abs(domains(Outputs(features, np.ones((300, 1))))[0] - 150) < 3
    True
    """
    found = []
    for rows in outputs.streams:
        if len(rows) < 2 * _WINDOW:
            continue
        x, answers = unit_rows(np, outputs.features[rows]), outputs.before[rows]
        classes, place = np.unique(answers, return_inverse=True)
        sums = np.zeros((len(classes), x.shape[1]))
        np.add.at(sums, place, x)
        rest = x - (sums / np.bincount(place)[:, None])[place]
        total = np.concatenate([np.zeros((1, x.shape[1])), np.cumsum(rest, axis=0)])
        at = np.arange(_WINDOW, len(rows) - _WINDOW + 1)
        ahead, behind = total[at + _WINDOW] - total[at], total[at] - total[at - _WINDOW]
        moved = ((ahead - behind) ** 2).sum(axis=1) / (2 * _WINDOW)
        local = np.diff(rest, axis=0) / np.sqrt(2)  # without slow changes
        # Of independent samples the mean is the trace of their covariance, and this the variance.
        gram = np.einsum("ij,ij->i", local[:-2:2], local[1:-1:2]) ** 2
        spread = np.sqrt(2 * gram.mean())
        score = (moved - (local**2).sum(axis=1).mean()) / max(float(spread), 1e-9)
        while score.max() > _MOVED:
            best = int(score.argmax())
            found.append(int(rows[at[best]]))
            score[max(0, best - _WINDOW) : best + _WINDOW] = -np.inf
    return sorted(found)


def kinship(outputs: Outputs) -> float:
    """How well neighbors agree, as `Look.kinship` says.

    Examples
    --------
    >>> kinship(Outputs(np.eye(2)[[0, 0, 1, 1]], np.eye(2)[[0, 0, 1, 1]]))
    1.0
    """
    n = len(outputs)
    rows = np.unique(np.linspace(0, n - 1, min(n, _MOST)).astype(np.intp))
    found = outputs.before[rows]
    k = min(_NEIGHBORS, max(1, (len(rows) - 1) // 3))  # of few samples, all would be neighbors
    near = np.asarray(nearest(np, outputs.features[rows], k))
    if not near.size:
        return 1.0
    same = float((found[near] == found[:, None]).mean())
    shares = np.bincount(found) / len(found)
    chance = float((shares**2).sum())
    if chance > _ONE_CLASS:
        return 1.0
    promised = float(outputs.probs[rows].max(axis=1).mean()) ** 2
    return min(max((same - chance) / (1 - chance) / promised, 0.0), 1.0)


def effective_number(counts: Floats) -> float:
    """How many equally frequent classes have the entropy of these counts.

    Examples
    --------
    >>> round(effective_number(np.array([5.0, 5.0, 0.0])), 6)
    2.0
    """
    shares = counts[counts > 0] / counts.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))


def flows(before: Index, after: Index, most: int = 12) -> list[tuple[int, int, int]]:
    """What became of what: class before, class after and how often, the commonest first.

    Examples
    --------
    >>> flows(np.array([0, 1, 1, 2]), np.array([0, 2, 2, 1]))
    [(1, 2, 2), (2, 1, 1)]
    """
    changed = before != after
    pairs = Counter(zip(before[changed].tolist(), after[changed].tolist(), strict=True))
    return [(b, a, n) for (b, a), n in pairs.most_common(most)]


def most_changed(outputs: Outputs, run: Run, most: int = 12) -> list[int]:
    """The samples whose class would change, those first that the network was surest of.

    Two of the same change at most, and not one after the other: one frame of a scene shows enough.

    Examples
    --------
    >>> outputs = Outputs(np.eye(3), np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]]))
    >>> run = Run(None, np.array([1, 1, 1]), np.ones(3), np.zeros(3), 0.0)
    >>> most_changed(outputs, run)
    [0]
    """
    before, rows = outputs.before, np.arange(len(outputs))
    changed = run.after != before
    same = (before[1:] == before[:-1]) & (run.after[1:] == run.after[:-1]) & changed[1:]
    first = changed & ~np.concatenate([[False], same])
    sure = outputs.probs[rows, before] + run.confidence
    found = np.flatnonzero(first)
    shown: list[int] = []
    pairs = Counter[tuple[int, int]]()
    for i in found[np.argsort(-sure[found], kind="stable")].tolist():
        pairs[pair := (int(before[i]), int(run.after[i]))] += 1
        if pairs[pair] <= _OF_A_PAIR:
            shown.append(i)
    return shown[:most]


def neighbors(outputs: Outputs, rows: Sequence[int], k: int = 4) -> list[list[int]]:
    """The nearest samples of each of these in features, among at most 4096 of the stream.

    Examples
    --------
    >>> neighbors(Outputs(np.array([[1.0, 0], [0, 1], [1, 0.1]]), np.ones((3, 1))), [0], k=1)
    [[2]]
    """
    n = len(outputs)
    others = np.unique(np.linspace(0, n - 1, min(n, _OTHERS)).astype(np.intp))
    known = unit_rows(np, outputs.features[others])
    found = []
    for row in rows:
        cosines = known @ unit_rows(np, outputs.features[row : row + 1])[0]
        cosines[others == row] = -2
        found.append(others[np.argsort(-cosines)[: min(k, n - 1)]].tolist())
    return found
