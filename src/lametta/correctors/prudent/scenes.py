"""Near-duplicate frames, merged into scenes that count once.

Frames of a video are not independent samples. One is a near-duplicate of the one before if it is
much closer to it than samples of this stream usually are to the nearest one from long ago. Its
novelty is then 0; that of photographs is 1.
"""

import math

import numpy as np
from numpy.typing import NDArray

from lametta._arrays import Floats, count_sketch
from lametta.correctors.base import State
from lametta.correctors.prudent.constants import (
    BASELINE_DISTANCE,
    DRIFT,
    DUPLICATE_EXPONENT,
    DUPLICATE_RATE_STEP,
    EDGE_POWER,
    N_RECENT,
    N_REFERENCES,
    NEAR,
    NEAR_IN_VIDEO,
    REFERENCE_INTERVAL,
    SKETCH_WIDTH,
    TINY,
)


def sketch(features: Floats) -> NDArray[np.float32]:
    """Rows of length one whose cosines are about those of the features, in few columns."""
    with np.errstate(over="ignore", invalid="ignore"):
        folded = count_sketch(features, SKETCH_WIDTH)
        norms = np.sqrt(np.vecdot(folded, folded))
    rough = ~((norms > 1e-15) & (norms < 1e15))
    if rough.any():  # their squares leave the range of the dtype, or they are zero
        rows = features[rough]
        peaks = np.abs(rows).max(axis=1, keepdims=True)
        folded = folded.copy() if folded is features else folded
        folded[rough] = rows = count_sketch(rows / np.where(peaks > 0, peaks, 1), SKETCH_WIDTH)
        norms[rough] = np.maximum(np.sqrt(np.vecdot(rows, rows)), TINY)
    unit: NDArray[np.float32] = (folded / norms[:, None]).astype(np.float32, copy=False)
    return unit


def width(d: int) -> int:
    """How many columns the sketches of d features have."""
    return min(d, SKETCH_WIDTH)


def init_state(d: int, k: int) -> State:
    """The state before the first sample: the last sketch, references from the past, the scene."""
    return {
        "sketch": np.zeros(width(d), np.float32),
        "references": np.zeros((N_REFERENCES, width(d)), np.float32),
        "scene": np.zeros(k, np.float32),  # the mean of its log-probabilities
        "scene_mean": np.zeros(width(d), np.float32),  # the mean of its sketches
        "scene_size": np.zeros(()),  # samples of it
        "seen": np.zeros(()),  # samples of the stream
        "baseline_distance": np.array(BASELINE_DISTANCE),  # to the nearest reference, as a mean
        "baseline_count": np.ones(()),  # of the distances in that mean
        "duplicate_rate": np.zeros(()),  # the share of near-duplicates of late
    }


def observe(state: State, features: Floats, probs: Floats) -> tuple[list[float], Floats, Floats]:
    """Take the next samples, and give their novelty [N], their scenes' rows [N, K] and sketches.

    With a sample of novelty v and probabilities q, a scene has n <- (1 - v) n + 1 samples, and the
    mean of their log-probabilities is L <- L + (log q - L) / n. The scene's row is proportional to
    exp(n ** 0.2 L), which is q itself where the sample is new. A camera can turn to something else
    frame by frame, so a scene also ends where a sample is at the baseline distance from its mean.
    """
    sketches = sketch(features)
    novelty, baselines = _novelty(state, sketches)
    rows = probs.astype(np.float32)
    rows /= rows.sum(axis=1, keepdims=True)
    scene, mean, size = state["scene"], state["scene_mean"], float(state["scene_size"])
    for i, new in enumerate(novelty):
        if new == 1:
            continue
        if i and novelty[i - 1] == 1:  # a scene begins with the sample before
            _log(rows[i - 1], scene)
            mean[:] = sketches[i - 1]
            size = 1.0
        cosine = float(mean @ sketches[i]) / max(math.sqrt(float(mean @ mean)), TINY)
        size = (1 - max(new, _novelty_at(cosine, baselines[i]))) * size + 1
        mean += (sketches[i] - mean) / np.float32(size)
        scene += (_log(rows[i]) - scene) / np.float32(size)
        weighed = scene * np.float32(size**DUPLICATE_EXPONENT)
        weighed = np.exp(weighed - weighed.max())
        rows[i] = weighed / weighed.sum()
    if novelty[-1] == 1:
        _log(rows[-1], scene)
        mean[:] = sketches[-1]
        size = 1.0
    state["scene_size"][()] = size
    return novelty, rows, sketches


def _novelty(state: State, sketches: NDArray[np.float32]) -> tuple[list[float], list[float]]:
    """How new each sample is, and the baseline distance when it came."""
    references, last, seen = state["references"], state["sketch"], int(state["seen"])
    baseline, count = float(state["baseline_distance"]), float(state["baseline_count"])
    rate = float(state["duplicate_rate"])
    cosines = [float(last @ sketches[0])]
    cosines += np.vecdot(sketches[1:], sketches[:-1]).tolist() if len(sketches) > 1 else []
    novelty, baselines = [], []
    for row, cosine in zip(sketches, cosines, strict=True):
        near = (NEAR + NEAR_IN_VIDEO * rate) * baseline
        novelty.append(_novelty_at(cosine, near) if seen else 1.0)
        baselines.append(baseline)
        if rate or novelty[-1] < 1:
            earlier = references[max(seen // REFERENCE_INTERVAL - 1, 0) % N_REFERENCES]
            away = 1 - float(earlier @ row)
            still = _novelty_at(cosine, DRIFT * max(away, TINY))
            rate += DUPLICATE_RATE_STEP * (1 - max(novelty[-1], still) - rate)
        if seen % REFERENCE_INTERVAL == 0:
            old = seen // REFERENCE_INTERVAL - N_RECENT
            if old > 0:
                places = np.arange(max(old - (N_REFERENCES - N_RECENT), 0), old) % N_REFERENCES
                count += 1
                nearest = max(1 - float((references[places] @ row).max()), 1e-6)
                baseline += (nearest - baseline) / count
            references[seen // REFERENCE_INTERVAL % N_REFERENCES] = row
        seen += 1
    last[:] = sketches[-1]
    state["seen"][()], state["baseline_distance"][()] = seen, baseline
    state["baseline_count"][()], state["duplicate_rate"][()] = count, rate
    return novelty, baselines


def _novelty_at(cosine: float, near: float) -> float:
    """How new a sample is beside one at this cosine: 0 for a copy, 1 where it is not near."""
    return min((max(1 - cosine, 0.0) / near) ** EDGE_POWER, 1.0)


def _log(probs: Floats, out: Floats | None = None) -> Floats:
    logs: Floats = np.log(np.maximum(probs, TINY), out=out, dtype=np.float32, casting="same_kind")
    return logs
