"""Recentering for domains: log-probabilities less their mean over the current domain (NEO).

Where the order of a stream is not that of its classes, a shift of all outputs is the domain's, and
taking the moving mean of log q off undoes what of it is the same for every sample. It would undo a
change of classes as well. So it is heard only where the order test has spoken against classes,
where most classes occur, and where labels of neighbors agree about as well afterwards as before.
"""

import numpy as np

from lametta._arrays import Floats, top_k
from lametta.correctors.base import State
from lametta.correctors.prudent import order
from lametta.correctors.prudent.constants import TINY, Constants
from lametta.correctors.prudent.label_prior import agreement


def init_state(k: int) -> State:
    """The state before the first sample."""
    return {
        "log_mean": np.zeros(k, np.float32),  # of the last 64 samples or so
        "domain": np.zeros(2),  # how many samples it knows, and what neighbors say of it
    }


def recenter(c: Constants, state: State, novelty: list[float], rows: Floats) -> Floats:
    """Rows [N, K] less the mean of the samples so far, each included; the mean moves on."""
    logs, mean, count = _log(rows), state["log_mean"], float(state["domain"][0])
    centered = np.empty_like(logs)
    for i, new in enumerate(novelty):
        count = min(count + new, c.domain_length)
        mean += np.float32(new / max(count, 1.0)) * (logs[i] - mean)
        centered[i] = logs[i] - np.float32(_share(c, count)) * mean
    state["domain"][0] = count
    centered -= centered.max(axis=1, keepdims=True)
    out: Floats = np.exp(centered, out=centered)
    out /= out.sum(axis=1, keepdims=True)
    return out


def look(c: Constants, state: State, cosines: Floats, rows: Floats) -> None:
    """Compare labels of neighbors before and after, over the latest samples of the window."""
    mean, k = rows.mean(axis=0), rows.shape[1]
    change = -1.0  # of few classes the mean is theirs, not the domain's
    if np.exp(-(mean * _log(mean)).sum()) >= c.domain_classes * k:
        logs = _log(rows[-c.domain_look :])
        cosines = cosines[-c.domain_look :, -c.domain_look :].copy()
        np.fill_diagonal(cosines, -2)
        near = top_k(np, cosines, max(1, len(logs) // c.group_share))
        centered = logs - _share(c, float(state["domain"][0])) * state["log_mean"]
        before, after = (agreement(x.argmax(axis=1), near, k) for x in (logs, centered))
        change = after - before
    state["domain"][1] += c.domain_step * (change + c.domain_slack - state["domain"][1])


def is_heard(c: Constants, state: State) -> bool:
    """Whether to recenter."""
    return order.against_classes(c, state) and bool(state["domain"][1] > 0)


def _share(c: Constants, count: float) -> float:
    """How much of a mean of so few samples to take off."""
    return count / (count + c.domain_shrinkage)


def _log(rows: Floats) -> Floats:
    logs: Floats = np.log(np.maximum(rows, TINY), dtype=np.float32)
    return logs
