"""Constant label prior by EM, used only where neighbors agree with it.

The order of samples says nothing about a prior that never changes, and the network's own bias looks
like one. The features tell them apart: where classes are truly absent, labels corrected by the
prior say more about the labels of a sample's neighbors than the network's own labels do.
"""

import numpy as np
from numpy.typing import NDArray

from lametta._arrays import Floats, top_k
from lametta.correctors.base import State
from lametta.correctors.prudent.constants import (
    BUFFER_CLASSES,
    BUFFER_SIZE,
    COPY_COSINE,
    EM_STEPS,
    FIT_INTERVAL,
    MIN_AGREEMENT,
    MIN_GAIN,
    N_NEIGHBORS,
)
from lametta.correctors.prudent.scenes import width
from lametta.types import LamettaError


def init_state(d: int, k: int) -> State:
    """The state before the first sample."""
    top = min(k, BUFFER_CLASSES)
    return {
        "buffer": np.zeros((BUFFER_SIZE, width(d)), np.float32),
        "buffer_classes": np.zeros((BUFFER_SIZE, top), np.int32),
        "buffer_probs": np.zeros((BUFFER_SIZE, top), np.float32),
        "label_prior": np.full(k, 1 / k, np.float32),
        "buffer_count": np.zeros(()),  # samples put there in all
        "pending": np.zeros(()),  # novelty of which no sample is there yet
        "since_fit": np.zeros(()),  # novelty since the last fit
        "accepted": np.zeros(()),  # 1 where neighbors agree better with the prior, else 0
    }


def check_state(state: State) -> None:
    """Refuse a loaded state with classes that do not exist, or with impossible counts."""
    for name in ("buffer_count", "pending", "since_fit", "accepted"):
        if not 0 <= state[name] < 2**53:
            raise LamettaError(f"state[{name!r}] must be a count >= 0, got {state[name]}")
    classes, k = state["buffer_classes"], len(state["label_prior"])
    low, high = int(classes.min()), int(classes.max())
    if low < 0 or high >= k:
        raise LamettaError(
            f"state['buffer_classes'] must be class numbers from 0 to {k - 1}, "
            f"got {low if low < 0 else high}"
        )


def add_to_buffer(state: State, novelty: list[float], sketches: Floats, rows: Floats) -> None:
    """Put the samples that are new into the ring buffer."""
    top = state["buffer_classes"].shape[1]
    new, pending = [], float(state["pending"])
    for i, novel in enumerate(novelty):
        pending += novel
        if pending > 1 - 1e-9:
            pending -= 1
            new.append(i)
    state["pending"][()] = pending
    state["since_fit"] += sum(novelty)
    if not new:
        return
    state["buffer_count"] += len(new)
    count = int(state["buffer_count"])
    if len(new) == 1:  # takes half the time of what follows
        place, row = (count - 1) % BUFFER_SIZE, rows[new[0]]
        classes = np.argpartition(row, -top)[-top:]
        state["buffer"][place] = sketches[new[0]]
        state["buffer_classes"][place] = classes
        state["buffer_probs"][place] = row[classes]
        return
    new = new[-BUFFER_SIZE:]
    places = np.arange(count - len(new), count) % BUFFER_SIZE
    rows = rows[new]
    classes = np.argpartition(rows, -top, axis=1)[:, -top:]
    state["buffer"][places] = sketches[new]
    state["buffer_classes"][places] = classes
    state["buffer_probs"][places] = rows[np.arange(len(new))[:, None], classes]


def should_fit(state: State) -> bool:
    """Whether it is time to fit."""
    return min(float(state["since_fit"]), float(state["buffer_count"])) >= FIT_INTERVAL


def fit(state: State) -> bool:
    """Fit the prior to the buffer, and say whether it is accepted: whether neighbors agree."""
    n, k = _n_buffered(state), len(state["label_prior"])
    classes, probs = state["buffer_classes"][:n], state["buffer_probs"][:n]
    prior, distinct, posteriors = _em(classes, probs, k)
    state["label_prior"][:] = prior
    # Each sample's label without its own part in the prior.
    others = np.maximum(prior[classes] - posteriors / (n + distinct), 1e-3 / (k * n))
    before = _labels(classes, probs)
    after = _labels(classes, probs * others)
    near = _neighbors(state["buffer"][:n])
    agree, told = _agreement(after, near, k)
    accepted = agree > MIN_AGREEMENT and told - _agreement(before, near, k)[1] > MIN_GAIN
    state["since_fit"][()], state["accepted"][()] = 0, accepted
    return accepted


def reweight(state: State, rows: Floats) -> tuple[Floats, Floats]:
    """Rows [N, K] as the prior corrects them, and how likely each is under it, [N].

    Where the prior was fitted in this call, a row's own part in it, an n-th of the row's posterior,
    is taken out first. What is left is at least the prior of a class that never came.
    """
    prior = state["label_prior"]
    weighed = rows * prior
    found = weighed.sum(axis=1)
    if state["since_fit"] == 0:
        weighed /= (-_n_buffered(state) * found)[:, None]
        weighed += prior
        np.maximum(weighed, prior.min(), out=weighed)
        weighed *= rows
        found = weighed.sum(axis=1)
    weighed /= found[:, None]
    return weighed, found


def corrected(state: State, powers: tuple[float, ...]) -> tuple[Floats, int]:
    """Sums [powers, K] over the buffer as the prior corrects its rows, to each power; their number.

    Only the top classes of a row are kept. The others share the rest of it evenly: a marginal in
    which they had nothing would make them look new.
    """
    n, k = _n_buffered(state), len(state["label_prior"])
    prior = state["label_prior"]
    classes, probs = state["buffer_classes"][:n], state["buffer_probs"][:n]
    rest = np.maximum(1 - probs.sum(axis=1, keepdims=True), 0) / max(k - classes.shape[1], 1)
    sums = np.empty((len(powers), k), np.float32)
    for place, power in enumerate(powers):
        spread, others, top = (_power(x, power) for x in (prior, rest, probs))
        more = (top - others) * spread[classes]  # what the top classes have beyond the others
        totals = more.sum(axis=1, keepdims=True) + others * spread.sum()
        sums[place] = np.bincount(classes.ravel(), (more / totals).ravel(), k)
        sums[place] += spread * (others / totals).sum()
    return sums, n


def _power(x: Floats, power: float) -> Floats:
    # Square roots where possible: other powers take 20 times as long.
    roots: Floats = x if power == 1 else np.sqrt(np.sqrt(x)) if power == 0.25 else x**power
    return roots


def _n_buffered(state: State) -> int:
    return min(int(state["buffer_count"]), BUFFER_SIZE)


def _em(classes: NDArray[np.int32], probs: Floats, k: int) -> tuple[Floats, float, Floats]:
    """Label-shift EM, smoothed by Witten and Bell's rule: a new class is as likely as before.

    With D distinct classes among n samples, a share D / (n + D) goes to all classes alike, which is
    little where ten classes are seen again and again, and most where each sample is of a new one.
    """
    flat = classes.ravel().astype(np.intp)
    prior: Floats = np.full(k, 1 / k, np.float32)
    distinct, posteriors = 0.0, probs
    for _ in range(EM_STEPS):
        posteriors = prior.take(flat).reshape(probs.shape)
        posteriors *= probs
        posteriors /= posteriors.sum(axis=1, keepdims=True)
        counts = np.bincount(flat, posteriors.ravel(), k)
        distinct = float(np.minimum(counts, 1).sum())
        prior = ((counts + distinct / k) / (len(classes) + distinct)).astype(np.float32)
    return prior, distinct, posteriors


def _labels(classes: NDArray[np.int32], scores: Floats) -> NDArray[np.int32]:
    best: NDArray[np.int32] = classes[np.arange(len(classes)), scores.argmax(axis=1)]
    return best


def _neighbors(rows: NDArray[np.float32]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Pairs of samples and neighbors, copies left out."""
    cosines = rows @ rows.T
    cosines[cosines > COPY_COSINE] = -2
    np.fill_diagonal(cosines, -2)  # a zero row has a cosine of 0 with itself
    k = min(N_NEIGHBORS, len(rows) // 4)
    near = top_k(np, cosines.copy(), k).ravel()
    sample = np.repeat(np.arange(len(rows)), k)
    apart = cosines[sample, near] > -2
    return sample[apart], near[apart]


def _agreement(
    labels: NDArray[np.int32], near: tuple[NDArray[np.intp], NDArray[np.intp]], k: int
) -> tuple[float, float]:
    """Agreement of neighbors beyond chance, and nats that a label tells about its neighbors'."""
    own, others = labels[near[0]], labels[near[1]]
    if not len(own):
        return 0.0, 0.0
    shares = np.bincount(labels, minlength=k) / len(labels)
    same = own == others
    chance = float(np.vecdot(shares, shares))
    told = np.log(0.1 + 0.9 * same / shares[own]).mean()
    return (float(same.mean()) - chance) / (1 - chance + 1e-9), float(told)
