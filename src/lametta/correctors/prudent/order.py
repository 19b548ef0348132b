"""What makes the order of a stream: its classes, or something else that its features show.

Over the window, in the order of time, let W_ij = exp(-|i - j| / 8), F the cosines of features, and
O how alike outputs are (`window.alike`). Each is centered and has norm one. If samples are
exchangeable, r_f = <W, F> and r_o = <W, O> have mean 0 and deviation sqrt(2) / (n - 1), whatever
the network's bias.

A run of one class shows in outputs about as much as in features; a change of domain shows in
features first. A count adds up over looks, in deviations, whether outputs are more than a given
share as much in order as features. The memory is heard where it is positive. One look counts for
little, so that long runs of one class are seen, and one border of domains is not enough. Where a
window of many classes shows no order, a run is over, and the count falls; so where its latest
samples show far less of it than the whole, since the next domain may begin there. Where labels
hardly come again, kinds follow each other that are alike, and no memory of classes may be heard.
"""

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

from lametta._arrays import Floats
from lametta.correctors.base import State
from lametta.correctors.prudent import window
from lametta.correctors.prudent.constants import Constants


def init_state(c: Constants) -> State:
    """The state before the first sample."""
    return {"order": np.array([c.order_start, 0.0])}  # the count, and deviations at the last look


def by_classes(state: State) -> bool:
    """Whether the classes of the samples before may be heard."""
    return bool(state["order"][0] > 0)


def against_classes(c: Constants, state: State) -> bool:
    """Whether looks spoke against classes, more than for them."""
    return bool(state["order"][0] < c.order_start)


def found(c: Constants, state: State) -> float:
    """What the last look found: 1 for order by classes, -1 by something else, 0 for none."""
    if state["order"][1] <= c.order_deviations:
        return 0.0
    return 1.0 if by_classes(state) else -1.0


def look_at_window(c: Constants, state: State) -> None:
    """Look at the window, where no one else does."""
    sketches, classes, probs = window.in_order(state)
    rows = window.dense(classes, probs, state["decayed_counts"].shape[1])
    look(c, state, sketches @ sketches.T, rows, window.share_of_new(state))
    state["since_look"][()] = 0


def look(c: Constants, state: State, cosines: Floats, rows: Floats, share: float) -> None:
    """Look at the window: cosines [n, n] and rows [n, K]; a share of it is new."""
    n, labels, count = len(rows), rows.argmax(axis=1), float(state["order"][0])
    likeness = window.alike(rows)
    near, features, outputs = _nearness(n, c.order_reach), _centered(cosines), _centered(likeness)
    pairs = (near, features), (near, outputs), (features, outputs)
    r_f, r_o, both = (float(np.vdot(x, y)) for x, y in pairs)
    z = (n - 1) / math.sqrt(2)
    deviations, over = z * max(r_f, r_o), _runs_are_over(c, likeness, labels, r_o)
    if deviations > c.order_deviations:
        ratio = min(both, c.order_ratio)
        spread = math.sqrt(max(1 + ratio**2 - 2 * ratio * both, 1e-6))
        step = min(z * (r_o - ratio * r_f) / spread, 0.0 if over else c.order_step)
        low, high = c.count_limits
        count = min(max(count + share * step, low), high)
    if count > 0 and (over or deviations <= c.order_deviations):
        # Of one class a window has no order, of many it would have.
        latest = c.order_latest if over else n
        new = min(share * n / latest, 1.0)
        count = max(count - new * c.fade * (_effective_classes(labels[-latest:]) - 1), 0.0)
    again = np.any([labels[3:] == labels[3 - j : n - j] for j in (1, 2, 3)], axis=0)
    if again.mean() < c.min_again:
        count = min(count, 0.0)
    state["order"][:] = count, deviations


def _runs_are_over(
    c: Constants, likeness: Floats, labels: NDArray[np.intp], window_order: float
) -> bool:
    """Whether the latest samples are of many classes, and in far less order than the window."""
    n = c.order_latest
    if len(labels) < n or _effective_classes(labels[-n:]) <= c.latest_classes:
        return False
    latest_order = float(np.vdot(_nearness(n, c.order_reach), _centered(likeness[-n:, -n:])))
    return latest_order < c.latest_share * window_order


def _effective_classes(labels: NDArray[np.intp]) -> float:
    """How many classes there are, were all as frequent: the inverse of their shares' squares."""
    shares = np.bincount(labels) / len(labels)
    return 1 / float(np.vecdot(shares, shares))


@cache
def _nearness(n: int, reach: float) -> Floats:
    """W: how near samples are in time."""
    return _centered(np.exp(-np.abs(np.subtract.outer(np.arange(n), np.arange(n))) / reach))


def _centered(matrix: Floats) -> Floats:
    """A symmetric matrix without its diagonal, centered both ways, of norm one."""
    n = len(matrix)
    matrix = matrix.astype(np.float64)
    np.fill_diagonal(matrix, (matrix.sum() - np.trace(matrix)) / (n * (n - 1)))
    means = matrix.mean(axis=0)
    matrix -= means
    matrix -= (means - means.mean())[:, None]
    matrix /= max(float(np.linalg.norm(matrix)), 1e-30)
    return matrix
