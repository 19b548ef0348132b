"""Near-copies, such as the frames of a video, joined into scenes that keep their doubt.

Frames of a video are not independent samples. Whether a stream is a video is told by order: among
exchangeable samples the one before is the nearest of the last m with probability 1 / m, however
tight their features are. A near-copy is then much closer to the one before than usual. Its novelty
is near 0; that of a photograph is 1.
"""

import math

import numpy as np
from numpy.typing import NDArray

from lametta._arrays import Floats, count_sketch, row_sums
from lametta._locks import check_interrupt
from lametta.correctors.base import State
from lametta.correctors.prudent.constants import TINY, Constants

_RECENT = 4  # references of late, which are too recent to compare with


def sketch(features: Floats, width: int) -> NDArray[np.float32]:
    """Rows of length one whose cosines are about those of the features, in few columns."""
    with np.errstate(over="ignore", invalid="ignore"):
        folded = count_sketch(features, width)
        norms = np.sqrt(np.vecdot(folded, folded))
    rough = ~((norms > 1e-15) & (norms < 1e15))
    if rough.any():  # their squares leave the range of the dtype, or they are zero
        rows = features[rough]
        peaks = np.abs(rows).max(axis=1, keepdims=True)
        folded = folded.copy() if folded is features else folded
        folded[rough] = rows = count_sketch(rows / np.where(peaks > 0, peaks, 1), width)
        norms[rough] = np.maximum(np.sqrt(np.vecdot(rows, rows)), TINY)
    unit: NDArray[np.float32] = (folded / norms[:, None]).astype(np.float32, copy=False)
    return unit


def init_state(c: Constants, d: int, k: int) -> State:
    """The state before the first sample."""
    width = min(d, c.sketch_width)
    return {
        "seen": np.zeros(()),  # samples of the stream
        "recent": np.zeros((c.recent, width), np.float32),  # the last sketches, oldest first
        "references": np.zeros((c.references, width), np.float32),
        "usual_distance": np.array(c.usual_distance),  # to the nearest reference, as a mean
        "usual_count": np.ones(()),  # of the distances in that mean
        "video": np.array(c.video_start),  # log odds that the stream is one
        "scene_probs": np.zeros(k, np.float32),  # S, the decayed sum of its rows
        "scene_votes": np.zeros(k, np.float32),  # V, that of the labels that they vote for
        "scene_sketch": np.zeros(width, np.float32),
        "scene": np.zeros(2),  # its size n, and how much its rows differ, x
        "last_probs": np.zeros(k, np.float32),
    }


def is_video(state: State) -> bool:
    """Whether the stream is more likely a video than not."""
    return bool(state["video"] > 0)


def observe(
    c: Constants, state: State, features: Floats, probs: Floats
) -> tuple[list[float], Floats, Floats]:
    """Take the next samples, and give their novelty [N], their scenes' rows [N, K] and sketches.

    A sample of novelty v and probabilities q makes a scene of n <- e n + 1 samples, where e is
    (1 - v) exp(-1/50); its sum of rows S <- e S + q and its votes V <- e V + [argmax q] likewise.
    A camera can turn to something else frame by frame, so v is also that of the sample beside the
    whole scene. The row of `_scene_row` is q itself where the sample is new.
    """
    sketches = sketch(features, c.sketch_width)
    novelty, usual, video = _novelty(c, state, sketches)
    rows = probs.astype(np.float32)
    rows /= row_sums(np, rows)[:, None]
    own = rows if min(novelty) == 1 else rows.copy()
    for i, new in enumerate(novelty):
        if new < 1:
            check_interrupt()
            if i and novelty[i - 1] == 1:
                _begin(state, own[i - 1], sketches[i - 1])
            before = own[i - 1] if i else state["last_probs"]
            share = 1 - (1 - c.own_share) * video[i]
            rows[i] = _scene_row(c, state, own[i], before, sketches[i], (new, usual[i], share))
    if novelty[-1] == 1:
        _begin(state, own[-1], sketches[-1])
    state["last_probs"][:] = own[-1]
    return novelty, rows, sketches


def _begin(state: State, row: Floats, sketch: Floats) -> None:
    """Begin a scene with a sample."""
    state["scene_probs"][:], state["scene_sketch"][:] = row, sketch
    state["scene_votes"][:] = 0
    state["scene_votes"][row.argmax()] = 1
    state["scene"][:] = 1, 0


def _scene_row(
    c: Constants,
    state: State,
    q: Floats,
    before: Floats,
    sketch: Floats,
    seen: tuple[float, float, float],
) -> Floats:
    """The scene's answer to a frame, sharper than the mean row only as far as frames vote for it.

    The frame's own row has a share in it, nearly all of it where the stream is no video. With x the
    variation of its rows, a scene is as sure as (1 + x) ** 0.14 independent samples, so that
    identical frames tell nothing; and no surer than the share h of its frames that voted so.
    """
    total, votes, anchor = state["scene_probs"], state["scene_votes"], state["scene_sketch"]
    (size, varied), (new, usual, share) = state["scene"].tolist(), seen
    cosine = float(anchor @ sketch) / max(math.sqrt(float(anchor @ anchor)), TINY)
    new = max(new, _novelty_at(1 - cosine, usual, c.edge))
    keep = (1 - new) * math.exp(-1 / c.scene_length)
    top = int(q.argmax())
    change = float(np.abs(q - before).sum()) / 2 / float(q[top])
    size, varied = keep * size + 1, keep * varied + (1 - new) * min(change, 1.0)
    for kept, one in ((total, q), (anchor, sketch)):
        kept *= np.float32(keep)
        kept += one
    votes *= np.float32(keep)
    votes[top] += 1
    state["scene"][:] = size, varied
    mean: Floats = np.float32((1 - share) / size) * total + np.float32(share) * q
    best = int(mean.argmax())
    sharp = np.exp((1 + varied) ** c.sharpening * np.log(np.maximum(mean, TINY), dtype=np.float32))
    sharp /= sharp.sum()
    voted = (1 - share) * float(votes[best]) / size + share * (best == top)
    gap = (voted - float(mean[best])) * varied / (1 + varied)
    sharper = min(max(gap / max(float(sharp[best] - mean[best]), TINY), 0.0), 1.0)
    mean += np.float32(sharper) * (sharp - mean)
    return mean


def _novelty(
    c: Constants, state: State, sketches: NDArray[np.float32]
) -> tuple[list[float], list[float], list[float]]:
    """How new each sample is, the usual distance and the chance of a video when it came."""
    seen, log_odds = int(state["seen"]), float(state["video"])
    usual, count = float(state["usual_distance"]), float(state["usual_count"])
    n, past = len(sketches), np.concatenate([state["recent"], sketches])
    # Cosines [N, 8] to the samples before, the last one first.
    lags = range(1, c.recent + 1)
    cosines = np.stack(
        [np.vecdot(sketches, past[c.recent - j : c.recent - j + n]) for j in lags], 1
    )
    novelty, distances, chances = [], [], []
    for i, row in enumerate(cosines.tolist()):
        m = min(seen, c.recent)
        if m > 1:
            nearest = row[0] > max(row[1:m])  # a picture that comes again and again is no video
            odds = c.video_share * m if nearest else (1 - c.video_share) * m / (m - 1)
            log_odds = max(min(log_odds + math.log(odds), c.video_limit), -c.video_limit)
        chances.append(1 / (1 + math.exp(-log_odds)))
        near = (c.near + c.near_in_video * chances[-1]) * usual
        novelty.append(_novelty_at(1 - row[0], near, c.edge) if seen else 1.0)
        distances.append(usual)
        if seen % c.reference_interval == 0:
            nearest_reference = _add_reference(c, state, seen, sketches[i])
            if nearest_reference is not None:
                count += 1
                usual += (nearest_reference - usual) / count
        seen += 1
    state["recent"][:] = past[n:]
    state["seen"][()], state["video"][()] = seen, log_odds
    state["usual_distance"][()], state["usual_count"][()] = usual, count
    return novelty, distances, chances


def _add_reference(c: Constants, state: State, seen: int, row: Floats) -> float | None:
    """Keep a reference; give its distance to the nearest one from long ago, if there is any."""
    references, number = state["references"], seen // c.reference_interval
    first, end = max(number - len(references), 0), number - _RECENT
    nearest = None
    if end > 0:
        places = np.arange(first, end) % len(references)
        nearest = max(1 - float((references[places] @ row).max()), 1e-6)
    references[number % len(references)] = row
    return nearest


def _novelty_at(distance: float, near: float, edge: float) -> float:
    """How new a sample is at this distance from another: 0 for a copy, 1 where it is not near."""
    return float(min((max(distance, 0.0) / near) ** edge, 1.0))
