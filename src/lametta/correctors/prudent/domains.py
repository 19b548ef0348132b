"""Recentering for domains: log-probabilities less their mean over the current domain (NEO).

Where the order of a stream is not that of its classes, a shift of all outputs is the domain's, and
taking the mean of log q over the last samples off undoes what of it is the same for every sample.
It would undo a change of classes as well. So it is heard only where the order test has spoken
against classes, where most classes occur, and where labels of neighbors agree about as well
afterwards as before.
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
        "log_mean": np.zeros(k, np.float32),  # what is taken off
        "domain": np.zeros(()),  # what neighbors say of it
    }


def recenter(state: State, rows: Floats) -> Floats:
    """Rows [N, K] less the mean of the last look."""
    centered = _log(rows) - state["log_mean"]
    centered -= centered.max(axis=1, keepdims=True)
    out: Floats = np.exp(centered, out=centered)
    out /= out.sum(axis=1, keepdims=True)
    return out


def look(c: Constants, state: State, cosines: Floats, rows: Floats) -> None:
    """Take the mean of the latest samples; compare labels of neighbors before and after."""
    mean, k = rows.mean(axis=0), rows.shape[1]
    logs = _log(rows[-c.domain_look :])
    state["log_mean"][:] = np.float32(c.domain_share) * logs.mean(axis=0)
    change = -1.0  # of few classes the mean is theirs, not the domain's
    if np.exp(-(mean * _log(mean)).sum()) >= c.domain_classes * k:
        cosines = cosines[-c.domain_look :, -c.domain_look :].copy()
        np.fill_diagonal(cosines, -2)
        near = top_k(np, cosines, max(1, len(logs) // c.group_share))
        after = agreement((logs - state["log_mean"]).argmax(axis=1), near, k)
        change = after - agreement(logs.argmax(axis=1), near, k)
    state["domain"] += c.domain_step * (change + c.domain_slack - state["domain"])


def is_heard(c: Constants, state: State) -> bool:
    """Whether to recenter."""
    return order.against_classes(c, state) and bool(state["domain"] > 0)


def _log(rows: Floats) -> Floats:
    logs: Floats = np.log(np.maximum(rows, TINY), dtype=np.float32)
    return logs
