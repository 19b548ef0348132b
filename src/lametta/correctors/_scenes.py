"""Frames are not independent samples: near-copies are gathered into scenes, which count once.

A sample is a near-copy of the one before where it is much closer to it than samples of this stream
are to their nearest among others from long ago. Its novelty is 0 then, and 1 for photographs.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from lametta.correctors._state import Floats, State

_SKETCH = 256  # numbers that are kept of a sample's features; distances are off by some percent
_NEAR = 0.5  # closer than half the usual distance is a near-copy; the fourth power makes it sharp
_POWER = 4
_EVERY, _MARKS, _RECENT = 16, 20, 4  # a mark every 16 samples; those of the last 64 don't count
_USUAL = 0.5  # the usual distance, 1 - cosine, before there are marks
_COPIES = 0.2  # n near-copies weigh as much as n ** 0.2 independent samples
TINY = 1e-9


def sketch(features: Floats) -> NDArray[np.float32]:
    """Rows of length one whose cosines are about those of the features, in few columns."""
    n, d = features.shape
    if d > _SKETCH:  # the columns fall into bins, with random signs
        folds = -(-d // _SKETCH)
        signed = np.zeros((n, folds * _SKETCH), features.dtype)
        np.multiply(features, _signs(d), out=signed[:, :d], casting="same_kind")
        features = signed.reshape(n, folds, _SKETCH).sum(axis=1)
    with np.errstate(over="ignore"):
        norms = np.sqrt(np.vecdot(features, features))[:, None]
    if not np.isfinite(norms).all():  # squares of large numbers overflow
        return sketch(features / np.abs(features).max())
    unit: NDArray[np.float32] = (features / np.maximum(norms, 1e-30)).astype(np.float32, copy=False)
    return unit


@lru_cache(maxsize=8)
def _signs(d: int) -> NDArray[np.float32]:
    # Bits of a multiplicative hash, which no version of a generator changes.
    bits = (np.arange(d, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)
    return (1 - 2 * (bits & np.uint64(1)).astype(np.float32)).astype(np.float32)


def begin(d: int, k: int) -> State:
    """The state before the first sample: the last sketch, marks of the past, the scene so far."""
    width = min(d, _SKETCH)
    return {
        "sketch": np.zeros(width, np.float32),
        "marks": np.zeros((_MARKS, width), np.float32),
        "scene": np.zeros(k, np.float32),  # log-probabilities, summed over the scene
        # Samples seen, usual distance, the distances in it, samples of the scene.
        "pace": np.array([0, _USUAL, 1, 0], np.float64),
    }


def arrive(state: State, features: Floats, probs: Floats) -> tuple[list[float], Floats, Floats]:
    """Take the next samples, and give their novelty [N], their scenes' rows [N, K] and sketches.

    A scene's row is the mean of its samples' log-probabilities so far, as probabilities.
    """
    sketches = sketch(features)
    novelty = [_novelty(state, row) for row in sketches]
    rows = probs.astype(np.float32)
    scene, pace = state["scene"], state["pace"]
    for i, new in enumerate(novelty):
        if new == 1:
            continue
        if i and novelty[i - 1] == 1:  # a scene begins with the sample before
            _log(probs[i - 1], scene)
            pace[3] = 1
        scene *= 1 - new
        scene += _log(probs[i])
        pace[3] = (1 - new) * pace[3] + 1
        weighed = scene * (pace[3] ** _COPIES / pace[3])
        weighed = np.exp(weighed - weighed.max())
        rows[i] = weighed / weighed.sum()
    if novelty[-1] == 1:
        _log(probs[-1], scene)
        pace[3] = 1
    return novelty, rows, sketches


def _novelty(state: State, row: NDArray[np.float32]) -> float:
    pace, marks = state["pace"], state["marks"]
    seen = int(pace[0])
    novelty = 1.0
    if seen:
        distance = max(1.0 - float(row @ state["sketch"]), 0.0)
        novelty = min((distance / (_NEAR * float(pace[1]))) ** _POWER, 1.0)
    if seen % _EVERY == 0:
        old = seen // _EVERY - _RECENT
        if old > 0:
            places = np.arange(max(old - (_MARKS - _RECENT), 0), old) % _MARKS
            usual = max(1.0 - float((marks[places] @ row).max()), 1e-6)
            pace[2] += 1
            pace[1] += (usual - pace[1]) / pace[2]
        marks[seen // _EVERY % _MARKS] = row
    state["sketch"][:] = row
    pace[0] += 1
    return novelty


def _log(probs: Floats, out: Floats | None = None) -> Floats:
    logs: Floats = np.log(np.maximum(probs, TINY), out=out, dtype=np.float32, casting="same_kind")
    return logs
