"""How alike samples of one class are, now and in the past of a model.

A few samples of each stream, and of all streams together, are *marks*. Each new one is compared
with those before it; fading sums over such pairs are kept.
"""

import math

import numpy as np

from lametta._arrays import Floats, finite_products
from lametta.correctors._scenes import fold

WIDTH = 64  # numbers that are kept of a sample's features; distances are off by some percent
MARKS = 16  # samples that are remembered to compare with, of each stream and of the model
SLOW = 512  # marks that the past reaches back
_KNOWN = 8  # marks with pairs of different classes, from which the past is known
_FADE = 1 - 1 / MARKS  # what is left of sums over pairs with each mark


class Marks:
    """Some of the last samples, and how alike those are that got the same class."""

    def __init__(self, width: int) -> None:
        self.rows = np.zeros((MARKS, width), np.float32)
        # Of each mark the network's class, the corrected one, and whether the network was sure;
        # a list, which for so few is faster than arrays.
        self.said: list[tuple[int, int, bool]] = []
        self.count = 0
        # Fading sums: of pairs; of pairs of one class, by source and corrected; of their distances.
        self.pairs = self.confidence = self.length = 0.0
        self.same = [0.0, 0.0]
        self.apart = [0.0, 0.0]

    def add(self, row: Floats, source: int, corrected: int, sure: bool) -> tuple[float, float]:
        """Compare a sample with the marks, then make it one.

        Gives two mean distances, if the network is sure of the sample, to marks that it is sure of
        too: to those of the same class, and to others; NaN where there are none.
        """
        n = len(self.said)
        with finite_products():
            cosines = (self.rows[:n] @ row).tolist()
        near: list[float] = []
        far: list[float] = []
        same, apart = [0.0, 0.0], [0.0, 0.0]
        for cosine, (other, other_corrected, other_sure) in zip(cosines, self.said, strict=True):
            distance = 1 - cosine
            if other == source:
                same[0] += 1
                apart[0] += distance
            if other_corrected == corrected:
                same[1] += 1
                apart[1] += distance
            if sure and other_sure:
                (near if other == source else far).append(distance)
        self.pairs = self.pairs * _FADE + n
        for which in (0, 1):
            self.same[which] = self.same[which] * _FADE + same[which]
            self.apart[which] = self.apart[which] * _FADE + apart[which]
        place = self.count % MARKS
        self.rows[place] = row
        self.said[place : place + 1] = [(source, corrected, sure)]
        self.count += 1
        return _mean(near), _mean(far)

    def share(self, which: int) -> float:
        """Of pairs, those of one class: by the network (0) or as corrected (1)."""
        return self.same[which] / self.pairs if self.count > MARKS // 2 else 0.0

    def distance(self, which: int) -> float:
        return self.apart[which] / max(self.same[which], 1e-9)


class Past:
    """How this model's samples used to be, from marks of all streams."""

    def __init__(self) -> None:
        self.far = self.near = self.share = self.confidence = self.length = 0.0
        self.n_far = self.n_near = self.n = 0

    def learn(self, near: float, far: float, share: float, top: float, length: float) -> None:
        if near == near:  # not NaN
            self.n_near += 1
            self.near += (near - self.near) / min(self.n_near, SLOW)
        if far == far:
            self.n_far += 1
            self.far += (far - self.far) / min(self.n_far, SLOW)
        self.n += 1
        part = 1 / min(self.n, SLOW)
        self.share += (share - self.share) * part
        self.confidence += (top - self.confidence) * part
        self.length += (length - self.length) * part

    @property
    def is_known(self) -> bool:
        return self.n_far >= _KNOWN and self.n >= 2 * MARKS

    def unlike(self, distance: float) -> float:
        """Where a distance lies: 0 as samples of one class were, 1 as those of different ones."""
        # Among many classes pairs of one are rare: assume half the distance until more are seen.
        near = (self.near * self.n_near + self.far / 2 * _KNOWN) / (self.n_near + _KNOWN)
        return (distance - near) / max(self.far - near, 1e-6)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def sketch(x: Floats) -> tuple[Floats, list[float]]:
    """Rows of unit length with about the cosines of features [N, d]; their lengths before that."""
    with np.errstate(over="ignore", invalid="ignore"):
        rows: Floats = fold(x.astype(np.float32), WIDTH)
        lengths = np.sqrt(np.vecdot(rows, rows))
    known = lengths.tolist()
    if not all(0 < length < math.inf for length in known):
        fine = (lengths > 0) & (lengths < math.inf)
        rows[~fine], lengths[~fine] = 0, 1  # zero, or beyond what float32 holds: like nothing
        known = [length if ok else 0.0 for length, ok in zip(known, fine.tolist(), strict=True)]
    rows /= lengths[:, None]
    return rows, known
