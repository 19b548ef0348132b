"""The window: sketches and likely classes of the last samples, near-copies only once."""

import numpy as np
from numpy.typing import NDArray

from lametta._arrays import Floats, row_sums
from lametta.correctors.base import State
from lametta.correctors.prudent.constants import Constants


def init_state(c: Constants, d: int, k: int) -> State:
    """The state before the first sample."""
    top = min(k, c.window_classes)
    return {
        "window": np.zeros((c.window, min(d, c.sketch_width)), np.float32),
        "window_classes": np.zeros((c.window, top), np.int32),
        "window_probs": np.zeros((c.window, top), np.float32),
        "window_count": np.zeros(()),  # samples put there in all
        "pending": np.zeros(()),  # novelty of which no sample is there yet
        "since_look": np.zeros(()),  # novelty since the last look
    }


def add(state: State, novelty: list[float], sketches: Floats, rows: Floats) -> None:
    """Put in a sample whenever the novelties add up to one."""
    size, top = state["window_classes"].shape
    new, pending = [], float(state["pending"])
    for i, novel in enumerate(novelty):
        pending += novel
        if pending > 1 - 1e-9:
            pending -= 1
            new.append(i)
    state["pending"][()] = pending
    state["since_look"] += sum(novelty)
    state["window_count"] += len(new)
    new = new[-size:]
    if new:
        count = int(state["window_count"])
        places, rows = np.arange(count - len(new), count) % size, rows[new]
        classes = np.argpartition(rows, -top, axis=1)[:, -top:]
        state["window"][places] = sketches[new]
        state["window_classes"][places] = classes
        state["window_probs"][places] = np.take_along_axis(rows, classes, axis=1)


def should_look(c: Constants, state: State) -> bool:
    """Whether it is time to look at the window again."""
    return bool(state["since_look"] >= c.interval)


def share_of_new(state: State) -> float:
    """The share of the window that came since the last look."""
    size = min(float(state["window_count"]), len(state["window"]))
    return min(float(state["since_look"]) / max(size, 1.0), 1.0)


def in_order(state: State) -> tuple[Floats, NDArray[np.int32], Floats]:
    """Sketches [n, w], likely classes [n, 32] and their probabilities, the oldest first."""
    size, count = len(state["window"]), int(state["window_count"])
    places = np.arange(max(count - size, 0), count) % size
    return state["window"][places], state["window_classes"][places], state["window_probs"][places]


def dense(classes: NDArray[np.int32], probs: Floats, k: int) -> Floats:
    """Rows [n, K]: classes that were not kept share the rest of a row evenly.

    A marginal in which they had nothing would make them look new.
    """
    rest = np.maximum(1 - probs.sum(axis=1, keepdims=True), 0) / max(k - classes.shape[1], 1)
    rows = np.repeat(rest.astype(np.float32), k, axis=1)
    np.put_along_axis(rows, classes, probs, axis=1)
    return rows


def alike(rows: Floats) -> Floats:
    """O: how alike rows [N, K] are. With a = sqrt(q) / sum sqrt(q), sum_k a_ik a_jk / mean a_k."""
    roots = np.sqrt(rows)
    shares = 1 / row_sums(np, roots)
    roots /= np.sqrt(np.maximum(shares @ roots / np.float32(len(roots)), 1e-30))
    likeness: Floats = roots @ roots.T
    likeness *= shares
    likeness *= shares[:, None]
    return likeness
