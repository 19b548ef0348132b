"""Window of the last samples of a stream, in little memory, and what makes their order.

A window has 128 samples: sketches of their features and outputs, and their labels by the network
and as corrected. As in `lametta.correctors.prudent.order`, which explains it, a run of one class
shows in outputs about as much as in features, a change of domain shows in features first. Looks add
up in a count: above 0 classes make the order, below 0 something else.
"""

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

from lametta._arrays import Floats, count_sketch

ORDERS = ("classes", "domains", "none")
"""What makes the order of a stream: its classes, something else, or it has none."""

WINDOW = 128  # samples
_WIDTH = 64  # numbers that are kept of features, and of outputs

_REACH = 8  # samples: how near in time two samples are, exp(-gap / reach)
_DEVIATIONS = 5.0  # from here on a window has an order; chance gave 4.2 at most
_RATIO = 0.65  # outputs in order, over features: classes .73 on, most domains .6
_FADE = 1 / 8  # of the count, with each window without order


class Window:
    """The last samples of one stream, and what looks at their order found."""

    def __init__(self) -> None:
        self.rows = np.empty((0, 0), np.float16)  # of features, sketched, of length one
        self.outputs = np.empty((0, 0), np.float16)
        self.labels = np.zeros((2, WINDOW), np.int32)  # the network's, and corrected
        # The network's confidence, lengths of features, and nats for the corrected labels.
        self.numbers = np.zeros((3, WINDOW), np.float32)
        self.count = self.new = 0  # samples, and those since the last look
        self.order = self.deviations = 0.0  # for classes or against them; of the last look's order

    def add(
        self, rows: Floats, outputs: Floats, labels: NDArray[np.int32], numbers: Floats
    ) -> None:
        """Keep samples, a window of them at most."""
        if self.rows.shape[1:] != rows.shape[1:] or self.outputs.shape[1:] != outputs.shape[1:]:
            self.count = self.new = 0  # another network
            self.rows = np.zeros((WINDOW, rows.shape[1]), np.float16)
            self.outputs = np.zeros((WINDOW, outputs.shape[1]), np.float16)
        n, start = len(rows), self.count % WINDOW
        self.count, self.new = self.count + n, self.new + n
        places: slice | NDArray[np.intp] = slice(start, start + n)
        if start + n > WINDOW:
            places = np.arange(start, start + n) % WINDOW
        self.rows[places], self.outputs[places] = rows, outputs
        self.labels[:, places], self.numbers[:, places] = labels, numbers

    def in_order(self) -> tuple[Floats, Floats, NDArray[np.int32], Floats]:
        """The window in the order of time."""
        places = np.arange(max(self.count - WINDOW, 0), self.count) % WINDOW
        rows, outputs = (x[places].astype(np.float32) for x in (self.rows, self.outputs))
        return rows, outputs, self.labels[:, places], self.numbers[:, places]

    def look_at_order(self, cosines: Floats, outputs: Floats) -> None:
        """Count what speaks for classes as what makes the order, or against them."""
        n = len(outputs)
        share, self.new = min(self.new / n, 1.0), 0
        near, features = _nearness(n), _centered(cosines)
        with np.errstate(invalid="ignore"):
            alike = _centered(outputs @ (outputs / np.maximum(outputs.mean(axis=0), 1e-6)).T)
        r_f, r_o, both = (
            float(np.vdot(x, y)) for x, y in ((near, features), (near, alike), (features, alike))
        )
        z = (n - 1) / math.sqrt(2)
        self.deviations = z * max(r_f, r_o)
        if self.deviations > _DEVIATIONS:
            ratio = min(both, _RATIO)
            spread = math.sqrt(max(1 + ratio**2 - 2 * ratio * both, 1e-6))
            self.order = max(min(self.order + share * z * (r_o - ratio * r_f) / spread, 1), -1)
        elif self.order > 0:
            self.order = max(self.order - share * _FADE, 0.0)

    @property
    def found(self) -> str:
        """What makes the order, by the last look."""
        if self.deviations <= _DEVIATIONS:
            return ORDERS[2]
        return ORDERS[0] if self.order > 0 else ORDERS[1]


@cache
def _nearness(n: int) -> Floats:
    """How near samples are in time."""
    return _centered(np.exp(-np.abs(np.subtract.outer(np.arange(n), np.arange(n))) / _REACH))


def _centered(matrix: Floats) -> Floats:
    """A symmetric matrix without its diagonal, centered both ways, of norm one."""
    n = len(matrix)
    matrix = matrix.astype(np.float32)
    np.fill_diagonal(matrix, (matrix.sum() - np.trace(matrix)) / (n * (n - 1)))
    means = matrix.mean(axis=0)
    matrix -= means + (means - means.mean())[:, None]
    matrix /= max(float(np.linalg.norm(matrix)), 1e-30)
    return matrix


def fold(probs: Floats) -> Floats:
    """Roots of probabilities [N, K], of unit sum; many classes share 64 columns."""
    n, k = probs.shape
    if k > _WIDTH:
        padded = np.zeros((n, -(-k // _WIDTH) * _WIDTH), np.float32)
        padded[:, :k] = probs
        probs = padded.reshape(n, -1, _WIDTH).sum(axis=1)
    roots: Floats = np.sqrt(probs, dtype=np.float32)
    roots /= roots.sum(axis=1, keepdims=True)
    return roots


def sketch(x: Floats) -> tuple[Floats, Floats]:
    """Rows of unit length with about the cosines of features [N, d]; their lengths before that."""
    with np.errstate(over="ignore", invalid="ignore"):
        rows: Floats = count_sketch(x.astype(np.float32), _WIDTH)
        lengths: Floats = np.sqrt(np.vecdot(rows, rows))
    fine = (lengths > 0) & (lengths < math.inf)
    if not fine.all():  # zero, or beyond what float32 holds: like nothing
        rows[~fine], lengths[~fine] = 0, 1
    return rows / lengths[:, None], lengths * fine
