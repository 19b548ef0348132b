"""What makes the order of a stream: its classes, or something else that its features show.

Over the window, in the order of time, let W_ij = exp(-|i - j| / 8), F the cosines of features, and
O_ij = sum_k a_ik a_jk / m_k, where a = sqrt(q) / sum sqrt(q) and m is its mean: how alike outputs
are. Each is centered and has norm one. If samples are exchangeable, r_f = <W, F> and r_o = <W, O>
have mean 0 and deviation sqrt(2) / (n - 1), whatever the network's bias.

A run of one class shows in outputs about as much as in features; a change of domain shows in
features first. Two counts add up over looks, in deviations, and the memory is heard where either is
positive: a *quick* one of the partial correlation of time and outputs given features, and a
*patient* one that asks whether outputs are .55 times as much in order as features, of which one
look counts for little. So long runs of one class are seen, and one border of domains is not enough.
Where a window of many classes shows no order, a run is over, and both fall.
"""

import math
from functools import cache

import numpy as np

from lametta._arrays import Floats
from lametta.correctors.base import State
from lametta.correctors.prudent import window
from lametta.correctors.prudent.constants import Constants


def init_state(c: Constants) -> State:
    """The state before the first sample."""
    # The quick and the patient count, and deviations of the order at the last look.
    return {"order": np.array([c.quick_start, c.patient_start, 0.0])}


def by_classes(state: State) -> bool:
    """Whether the classes of the samples before may be heard."""
    return bool(state["order"][:2].max() > 0)


def against_classes(c: Constants, state: State) -> bool:
    """Whether looks spoke against classes, more than for them."""
    quick, patient, _ = state["order"].tolist()
    return bool(patient <= 0 and quick < c.quick_start)


def found(c: Constants, state: State) -> float:
    """What the last look found: 1 for order by classes, -1 by something else, 0 for none."""
    if state["order"][2] <= c.order_deviations:
        return 0.0
    return 1.0 if by_classes(state) else -1.0


def look_at_window(c: Constants, state: State) -> None:
    """Look at the window, where no one else does."""
    sketches, classes, probs = window.in_order(state)
    rows = window.dense(classes, probs, state["decayed_counts"].shape[1])
    look(c, state, sketches @ sketches.T, rows, min(float(state["since_look"]) / len(rows), 1.0))
    state["since_look"][()] = 0


def look(c: Constants, state: State, cosines: Floats, rows: Floats, share: float) -> None:
    """Look at the window: cosines [n, n] and rows [n, K]; a share of it is new."""
    n = len(rows)
    roots = np.sqrt(rows)
    roots /= roots.sum(axis=1, keepdims=True)
    roots /= np.sqrt(np.maximum(roots.mean(axis=0), 1e-30))
    near, alike, features = (
        _nearness(n, c.order_reach),
        _centered(roots @ roots.T),
        _centered(cosines),
    )
    r_f, r_o, both = (
        float(np.vdot(x, y)) for x, y in ((near, features), (near, alike), (features, alike))
    )
    z = (n - 1) / math.sqrt(2)
    quick, patient, _ = state["order"].tolist()
    deviations = z * max(r_f, r_o)
    if deviations > c.order_deviations:
        low, high = c.count_limits
        spread = math.sqrt(max((1 - r_f**2) * (1 - both**2), 1e-6))
        quick = min(max(quick + share * z * (r_o - both * r_f) / spread, low), high)
        ratio = min(both, c.patient_ratio)
        spread = math.sqrt(max(1 + ratio**2 - 2 * ratio * both, 1e-6))
        step = min(z * (r_o - ratio * r_f) / spread, c.patient_step)
        patient = min(max(patient + share * step, low), high)
    else:  # of one class a window has no order, of many it would have
        shares = np.bincount(rows.argmax(axis=1)) / n
        fade = share * c.fade * (1 / float(np.vecdot(shares, shares)) - 1)
        quick, patient = (x if x <= 0 else max(x - fade, 0.0) for x in (quick, patient))
    state["order"][:] = quick, patient, deviations


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
    matrix = matrix - means - means[:, None] + means.mean()
    return matrix / max(float(np.linalg.norm(matrix)), 1e-30)
