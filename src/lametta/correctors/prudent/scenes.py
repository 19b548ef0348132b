"""Frames are not independent samples: near-copies are gathered into scenes, which count once.

A sample is a near-copy of the one before if it is much closer to it than samples of this stream
usually are to the nearest one from long ago. Its novelty is then 0; that of photographs is 1.
"""

import math

import numpy as np
from numpy.typing import NDArray

from lametta._arrays import Floats, count_sketch
from lametta.correctors.base import State

_SKETCH = 256  # numbers that are kept of a sample's features; distances are off by some percent
# A near-copy is closer than this share of the usual distance. The share grows where the last ones
# were near-copies too, as in a video: there few are near by chance. The fourth power makes the edge
# sharp.
_NEAR, _WIDER = 0.3, 0.4
_POWER = 4
# In a video the sample before is nearer than this share of the distance to one 16 to 31 before. The
# median share is a quarter in seven videos, and 1 in photographs, however tight their features are.
_DRIFT = 0.7
_HABIT = 1 / 8  # how fast it is learned whether the last samples were near-copies
_EVERY, _MARKS, _RECENT = 16, 20, 4  # a mark every 16 samples; those of the last 64 don't count
_USUAL = 0.5  # the usual distance, 1 - cosine, before there are marks
_COPIES = 0.2  # n near-copies weigh as much as n ** 0.2 independent samples
TINY = 1e-9


def sketch(features: Floats) -> NDArray[np.float32]:
    """Rows of length one whose cosines are about those of the features, in few columns."""
    with np.errstate(over="ignore", invalid="ignore"):
        folded = count_sketch(features, _SKETCH)
        norms = np.sqrt(np.vecdot(folded, folded))
    rough = ~((norms > 1e-15) & (norms < 1e15))
    if rough.any():  # their squares leave the range of the dtype, or they are zero
        rows = features[rough]
        peaks = np.abs(rows).max(axis=1, keepdims=True)
        folded = folded.copy() if folded is features else folded
        folded[rough] = rows = count_sketch(rows / np.where(peaks > 0, peaks, 1), _SKETCH)
        norms[rough] = np.maximum(np.sqrt(np.vecdot(rows, rows)), TINY)
    unit: NDArray[np.float32] = (folded / norms[:, None]).astype(np.float32, copy=False)
    return unit


def width(d: int) -> int:
    """How many columns the sketches of d features have."""
    return min(d, _SKETCH)


def begin(d: int, k: int) -> State:
    """The state before the first sample: the last sketch, marks of the past, the scene so far."""
    return {
        "sketch": np.zeros(width(d), np.float32),
        "marks": np.zeros((_MARKS, width(d)), np.float32),
        "scene": np.zeros(k, np.float32),  # the mean of its log-probabilities
        "anchor": np.zeros(width(d), np.float32),  # the mean of its sketches
        "scene_size": np.zeros(()),  # samples of it
        "seen": np.zeros(()),  # samples of the stream
        "usual": np.array(_USUAL),  # the usual distance
        "usual_count": np.ones(()),  # distances that it is the mean of
        "habit": np.zeros(()),  # the share of near-copies of late
    }


def arrive(state: State, features: Floats, probs: Floats) -> tuple[list[float], Floats, Floats]:
    """Take the next samples, and give their novelty [N], their scenes' rows [N, K] and sketches.

    With a sample of novelty v and probabilities q, a scene has n <- (1 - v) n + 1 samples, and the
    mean of their log-probabilities is L <- L + (log q - L) / n. The scene's row is proportional to
    exp(n ** 0.2 L), which is q itself where the sample is new. A camera can turn to something else
    frame by frame, so a scene also ends where a sample is at the usual distance from its mean.
    """
    sketches = sketch(features)
    novelty, usual = _novelty(state, sketches)
    rows = probs.astype(np.float32)
    rows /= rows.sum(axis=1, keepdims=True)
    scene, anchor, size = state["scene"], state["anchor"], float(state["scene_size"])
    for i, new in enumerate(novelty):
        if new == 1:
            continue
        if i and novelty[i - 1] == 1:  # a scene begins with the sample before
            _log(rows[i - 1], scene)
            anchor[:] = sketches[i - 1]
            size = 1.0
        cosine = float(anchor @ sketches[i]) / max(math.sqrt(float(anchor @ anchor)), TINY)
        size = (1 - max(new, _share(cosine, usual[i]))) * size + 1
        anchor += (sketches[i] - anchor) / np.float32(size)
        scene += (_log(rows[i]) - scene) / np.float32(size)
        weighed = scene * np.float32(size**_COPIES)
        weighed = np.exp(weighed - weighed.max())
        rows[i] = weighed / weighed.sum()
    if novelty[-1] == 1:
        _log(rows[-1], scene)
        anchor[:] = sketches[-1]
        size = 1.0
    state["scene_size"][()] = size
    return novelty, rows, sketches


def _novelty(state: State, sketches: NDArray[np.float32]) -> tuple[list[float], list[float]]:
    """How new each sample is, and the usual distance when it came."""
    marks, last, seen = state["marks"], state["sketch"], int(state["seen"])
    usual, known, habit = (float(state[name]) for name in ("usual", "usual_count", "habit"))
    cosines = [float(last @ sketches[0])]
    cosines += np.vecdot(sketches[1:], sketches[:-1]).tolist() if len(sketches) > 1 else []
    novelty, usuals = [], []
    for row, cosine in zip(sketches, cosines, strict=True):
        near = (_NEAR + _WIDER * habit) * usual
        novelty.append(_share(cosine, near) if seen else 1.0)
        usuals.append(usual)
        if habit or novelty[-1] < 1:
            away = 1 - float(marks[max(seen // _EVERY - 1, 0) % _MARKS] @ row)
            still = _share(cosine, _DRIFT * max(away, TINY))
            habit += _HABIT * (1 - max(novelty[-1], still) - habit)
        if seen % _EVERY == 0:
            old = seen // _EVERY - _RECENT
            if old > 0:
                places = np.arange(max(old - (_MARKS - _RECENT), 0), old) % _MARKS
                known += 1
                usual += (max(1 - float((marks[places] @ row).max()), 1e-6) - usual) / known
            marks[seen // _EVERY % _MARKS] = row
        seen += 1
    last[:] = sketches[-1]
    state["seen"][()], state["usual"][()] = seen, usual
    state["usual_count"][()], state["habit"][()] = known, habit
    return novelty, usuals


def _share(cosine: float, near: float) -> float:
    """How new a sample is beside one at this cosine: 0 for a copy, 1 where it is not near."""
    return min((max(1 - cosine, 0.0) / near) ** _POWER, 1.0)


def _log(probs: Floats, out: Floats | None = None) -> Floats:
    logs: Floats = np.log(np.maximum(probs, TINY), out=out, dtype=np.float32, casting="same_kind")
    return logs
