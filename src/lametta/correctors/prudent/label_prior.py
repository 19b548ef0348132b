"""Classes that are absent from a stream: a constant prior, and the test that it has to pass.

The order of samples says nothing about a prior that never changes, and the network's own bias looks
like one. The features tell them apart: where classes are truly absent, labels corrected by the
prior say more about the labels of a sample's neighbors than the network's own labels do.
"""

import numpy as np
from numpy.typing import NDArray

from lametta._arrays import Floats, top_k
from lametta.correctors.base import State
from lametta.correctors.prudent.scenes import width
from lametta.types import LamettaError

_ROWS = 128  # samples that are kept, near-copies only once
_TOP = 32  # classes that are kept of each sample
_EVERY = 16  # new samples between two fits
_STEPS = 12  # of EM
_NEIGHBORS = 10
_COPY = 0.999  # from this cosine on neighbors are copies, which agree even where they are wrong
_AGREE = 0.25  # the least agreement of neighbors beyond chance
_GAIN = 0.3  # nats that labels must tell about their neighbors' beyond what the source's tell


def begin(d: int, k: int) -> State:
    """The state before the first sample."""
    top = min(k, _TOP)
    return {
        "kept": np.zeros((_ROWS, width(d)), np.float32),
        "kept_classes": np.zeros((_ROWS, top), np.int32),
        "kept_probs": np.zeros((_ROWS, top), np.float32),
        "absent": np.full(k, 1 / k, np.float32),  # the prior
        "kept_count": np.zeros(()),  # samples kept in all
        "due": np.zeros(()),  # novelty of which no sample was kept yet
        "since_fit": np.zeros(()),  # novelty since the last fit
        "believed": np.zeros(()),  # 1 where neighbors agree better with the prior, else 0
    }


def check(state: State) -> None:
    """Refuse a loaded state with classes that do not exist, or with impossible counts."""
    for name in ("kept_count", "due", "since_fit", "believed"):
        if not 0 <= state[name] < 2**53:
            raise LamettaError(f"state[{name!r}] must be a count >= 0, got {state[name]}")
    classes, k = state["kept_classes"], len(state["absent"])
    low, high = int(classes.min()), int(classes.max())
    if low < 0 or high >= k:
        raise LamettaError(
            f"state['kept_classes'] must be class numbers from 0 to {k - 1}, "
            f"got {low if low < 0 else high}"
        )


def keep(state: State, novelty: list[float], sketches: Floats, rows: Floats) -> None:
    """Keep the samples that are new."""
    top = state["kept_classes"].shape[1]
    new, due = [], float(state["due"])
    for i, novel in enumerate(novelty):
        due += novel
        if due > 1 - 1e-9:
            due -= 1
            new.append(i)
    state["due"][()] = due
    state["since_fit"] += sum(novelty)
    if not new:
        return
    state["kept_count"] += len(new)
    count = int(state["kept_count"])
    if len(new) == 1:  # takes half the time of what follows
        place, row = (count - 1) % _ROWS, rows[new[0]]
        classes = np.argpartition(row, -top)[-top:]
        state["kept"][place] = sketches[new[0]]
        state["kept_classes"][place] = classes
        state["kept_probs"][place] = row[classes]
        return
    new = new[-_ROWS:]
    places = np.arange(count - len(new), count) % _ROWS
    rows = rows[new]
    classes = np.argpartition(rows, -top, axis=1)[:, -top:]
    state["kept"][places] = sketches[new]
    state["kept_classes"][places] = classes
    state["kept_probs"][places] = rows[np.arange(len(new))[:, None], classes]


def is_due(state: State) -> bool:
    """Whether it is time to fit."""
    return min(float(state["since_fit"]), float(state["kept_count"])) >= _EVERY


def fit(state: State) -> bool:
    """Fit the prior to the samples that are kept, and say whether it is to be believed."""
    n, k = _kept(state), len(state["absent"])
    classes, probs = state["kept_classes"][:n], state["kept_probs"][:n]
    prior, distinct, posteriors = _maximize(classes, probs, k)
    state["absent"][:] = prior
    # Each sample's label without its own part in the prior.
    others = np.maximum(prior[classes] - posteriors / (n + distinct), 1e-3 / (k * n))
    before = _labels(classes, probs)
    after = _labels(classes, probs * others)
    near = _neighbors(state["kept"][:n])
    agree, told = _agreement(after, near, k)
    believed = agree > _AGREE and told - _agreement(before, near, k)[1] > _GAIN
    state["since_fit"][()], state["believed"][()] = 0, believed
    return believed


def weigh(state: State, rows: Floats) -> tuple[Floats, Floats]:
    """Rows [N, K] as the prior corrects them, and how likely each is under it, [N].

    Where the prior was fitted in this call, a row's own part in it, an n-th of the row's posterior,
    is taken out first. What is left is at least the prior of a class that never came.
    """
    prior = state["absent"]
    weighed = rows * prior
    found = weighed.sum(axis=1)
    if state["since_fit"] == 0:
        weighed /= (-_kept(state) * found)[:, None]
        weighed += prior
        np.maximum(weighed, prior.min(), out=weighed)
        weighed *= rows
        found = weighed.sum(axis=1)
    weighed /= found[:, None]
    return weighed, found


def corrected(state: State, powers: tuple[float, ...]) -> tuple[Floats, int]:
    """Sums [powers, K] over the kept rows as the prior corrects them, to each power; their number.

    Only the top classes of a row are kept. The others share the rest of it evenly: a base in which
    they had nothing would make them look new.
    """
    n, k = _kept(state), len(state["absent"])
    prior, classes, probs = state["absent"], state["kept_classes"][:n], state["kept_probs"][:n]
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


def _kept(state: State) -> int:
    return min(int(state["kept_count"]), _ROWS)


def _maximize(classes: NDArray[np.int32], probs: Floats, k: int) -> tuple[Floats, float, Floats]:
    """Label-shift EM, smoothed by Witten and Bell's rule: a new class is as likely as before.

    With D distinct classes among n samples, a share D / (n + D) goes to all classes alike, which is
    little where ten classes are seen again and again, and most where each sample is of a new one.
    """
    flat = classes.ravel().astype(np.intp)
    prior: Floats = np.full(k, 1 / k, np.float32)
    distinct, posteriors = 0.0, probs
    for _ in range(_STEPS):
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
    cosines[cosines > _COPY] = -2
    np.fill_diagonal(cosines, -2)  # a zero row has a cosine of 0 with itself
    k = min(_NEIGHBORS, len(rows) // 4)
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
