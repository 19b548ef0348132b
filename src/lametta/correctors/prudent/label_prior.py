"""Constant label prior by EM over the things of the window, used only where neighbors agree.

The order of samples says nothing about a prior that never changes, and the network's own bias looks
like one. The features tell them apart: where classes are truly absent, labels corrected by the
prior agree better with those of neighbors than the network's own labels do. A hopeless network's
favorite classes do so as well. So its own labels have to agree, too, the more the less neighbors
tell of corrected rows: that is their agreement, or the mean logarithm of (1 + O_ij) / 2, O_ij as in
`window`, which is large where many classes are found again. Belief in the prior rises with the
product of the two, from none at .1 to full at .2. Pictures of one thing count once.
"""

import numpy as np
from numpy.typing import NDArray

from lametta._arrays import Floats, row_sums, top_k
from lametta.correctors.base import State
from lametta.correctors.prudent import window
from lametta.correctors.prudent.constants import Constants


def init_state(c: Constants, k: int) -> State:
    """The state before the first sample."""
    return {
        "label_prior": np.full(k, 1 / k, np.float32),
        "belief": np.zeros(()),  # how far it is believed, 0 to 1
        "things": np.zeros(()),  # that the prior was fitted to
        "median_distance": np.array([c.usual_distance, 1.0]),  # mean over the fits, their number
    }


def fit(
    c: Constants, state: State, cosines: Floats, classes: NDArray[np.int32], probs: Floats
) -> bool:
    """Fit the prior to the window, and say whether it is believed at all: neighbors agree."""
    k, first = len(state["label_prior"]), _things(c, state, cosines)
    n = len(first)
    state["things"][()], state["belief"][()] = n, 0
    if n < c.min_groups:
        return False
    classes, probs = classes[first], probs[first]
    prior, distinct, posteriors = _em(classes, probs, k, c.em_steps)
    state["label_prior"][:] = prior
    # Each label without its own part in the prior.
    others = np.maximum(prior[classes] - posteriors / (n + distinct), 1e-3 / (k * n))
    near = cosines[np.ix_(first, first)]
    np.fill_diagonal(near, -2)
    near = top_k(np, near, max(1, n // c.group_share))
    scores, belief = probs * others, 0.0
    before, after = (agreement(_labels(classes, x), near, k) for x in (probs, scores))
    if after - c.min_gain > before:  # what follows is dear, and seldom asked
        columns = (np.bincount(classes.ravel()) > 0).cumsum() - 1  # no other class is in any row
        corrected = np.zeros((n, columns[-1] + 1), np.float32)
        scores /= row_sums(np, scores)[:, None]
        np.put_along_axis(corrected, columns[classes], scores, axis=1)
        near_rows = np.take_along_axis(window.alike(corrected), near, axis=1).mean(axis=1)
        told = max(float(np.log((1 + near_rows) / 2).mean()), after)
        belief = before * told / c.min_told - 1
    state["belief"][()] = min(max(belief, 0.0), 1.0)
    return belief > 0


def reweight(state: State, rows: Floats, fitted: bool) -> Floats:
    """Rows [N, K] as the prior corrects them.

    Where the prior was fitted in this call, a row's own part in it, an n-th of the row's posterior,
    is taken out first. What is left is at least the prior of a class that never came.
    """
    prior = state["label_prior"]
    weighed: Floats = rows * prior
    if fitted:
        weighed /= -state["things"] * row_sums(np, weighed)[:, None]
        weighed += prior
        np.maximum(weighed, prior.min(), out=weighed)
        weighed *= rows
    weighed /= row_sums(np, weighed)[:, None]
    return weighed.astype(np.float32, copy=False)


def _things(c: Constants, state: State, cosines: Floats) -> NDArray[np.intp]:
    """The first sample of each group of near-copies, linked one by one."""
    n, kept = len(cosines), state["median_distance"]
    median = 1 - float(np.median(cosines[np.tri(n, k=-1, dtype=bool)]))
    kept[1] += 1
    kept[0] += (median - kept[0]) / kept[1]
    linked = cosines > 1 - max(c.link * max(median, float(kept[0])), 1e-5)
    np.fill_diagonal(linked, True)
    first = np.arange(n)
    while True:  # each takes the first that those know to whom it is linked
        earlier = np.where(linked, first, n).min(axis=1)
        earlier = earlier[earlier]
        if (earlier == first).all():
            return np.flatnonzero(first == np.arange(n))
        first = earlier


def _em(
    classes: NDArray[np.int32], probs: Floats, k: int, steps: int
) -> tuple[Floats, float, Floats]:
    """Label-shift EM, smoothed by Witten and Bell's rule: a new class is as likely as before.

    With D distinct classes among n samples, a share D / (n + D) goes to all classes alike, which is
    little where ten classes are seen again and again, and most where each sample is of a new one.
    """
    flat = classes.ravel().astype(np.intp)
    prior: Floats = np.full(k, 1 / k, np.float32)
    distinct, posteriors = 0.0, probs
    for _ in range(steps):
        posteriors = prior.take(flat).reshape(probs.shape)
        posteriors *= probs
        posteriors /= row_sums(np, posteriors)[:, None]
        counts = np.bincount(flat, posteriors.ravel(), k)
        distinct = float(np.minimum(counts, 1).sum())
        prior = ((counts + distinct / k) / (len(classes) + distinct)).astype(np.float32)
    return prior, distinct, posteriors


def _labels(classes: NDArray[np.int32], scores: Floats) -> NDArray[np.int32]:
    best: NDArray[np.int32] = classes[np.arange(len(classes)), scores.argmax(axis=1)]
    return best


def agreement(labels: NDArray[np.int32], near: NDArray[np.intp], k: int) -> float:
    """The share of neighbors [n, m] with the same label, beyond chance."""
    shares = np.bincount(labels, minlength=k) / len(labels)
    chance = float(np.vecdot(shares, shares))
    same = float((labels[near] == labels[:, None]).mean())
    return (same - chance) / (1 - chance + 1e-9)
