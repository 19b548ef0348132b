"""Invariants of the states of Prudent and Memory, array by array, which loading checks."""

import numpy as np
from numpy.typing import NDArray

from lametta.correctors.base import Invariant, State, distribution, unit_or_zero, within

_LIMIT = 60.0  # frames of a scene, and samples of a memory, which forget
_TINY = 1e-12  # less than any probability of a class that is never ruled out


def _adds_up_to(total: str) -> Invariant:
    """Rows whose sum is the first number of another array."""
    return Invariant(
        f"rows that add up to {total}[0]",
        lambda x, state: bool((abs(x.sum(axis=-1) - state[total][0]) <= 0.02 * _LIMIT).all()),
    )


def _are_classes(classes: NDArray[np.int32], state: State) -> bool:
    return bool(
        classes.min() >= 0
        and classes.max() < state["sizes"][1]
        and (np.diff(np.sort(classes[_used(state)], axis=1)) > 0).all()
    )


def _are_likely(probs: NDArray[np.float32], state: State) -> bool:
    sums = probs[_used(state)].sum(axis=1)
    least = 0.98 * probs.shape[1] / state["sizes"][1]  # of the most likely of all
    return bool(probs.min() >= 0 and ((sums >= min(least, 0.98)) & (sums <= 1.02)).all())


def _used(state: State) -> slice:
    return slice(int(state["window_count"]))


def _each(*bounds: tuple[float, float]) -> Invariant:
    """One range for each number."""
    low, high = np.array(bounds).T
    return Invariant(
        f"from {low.tolist()} to {high.tolist()}",
        lambda x, _: bool((x >= low).all() and (x <= high).all()),
    )


INVARIANTS = {
    "seen": within(0),
    "recent": unit_or_zero(),
    "references": unit_or_zero(),
    "usual_distance": within(1e-7, 2.01),
    "usual_count": within(1),
    "video": within(-_LIMIT, _LIMIT),
    "scene": within(0, _LIMIT),
    "scene_probs": within(0, _LIMIT) & _adds_up_to("scene"),
    "scene_votes": within(0, _LIMIT) & _adds_up_to("scene"),
    "scene_sketch": within(-_LIMIT, _LIMIT),
    "last_probs": distribution(or_zero=True),
    "window_count": within(0),
    "window": unit_or_zero(),
    "window_classes": Invariant("different numbers of classes in each row", _are_classes),
    "window_probs": Invariant("the probabilities of the likeliest classes", _are_likely),
    "pending": within(0, 1.01),
    "since_look": within(0)
    & Invariant("no more than came", lambda x, state: bool(x <= state["window_count"] + 1.01)),
    "order": within(-1e6, 1e6),
    "label_prior": within(_TINY, 1.01) & distribution(),
    "belief": within(0, 1),
    "things": within(0),
    "median_distance": _each((0, 2.01), (1, 2.0**53)),
    "log_mean": within(-_LIMIT, 1),
    "domain": within(-2, 2),
    "decayed_counts": within(0, _LIMIT) & _adds_up_to("counts"),
    "marginals": within(0, 1e4),
    "weights": distribution(),
    "counts": _each((0, _LIMIT), (0, 1e4), (0, 1e4)),
    "prior": distribution(),
    "posterior": distribution(),
}
