"""Mixture of experts: temporal priors, weighed by log evidence.

An expert keeps C, a decaying sum of its own posteriors p, and M, the mean of all rows q so far,
this one included, and of three uniform ones. Its prior for the next label is (C + M) / (|C| + 1),
its likelihood is q / M, and its evidence the logarithm of the sum of their product. When a sample
of novelty v comes, the one before becomes part of the past: C <- (C + v p) exp(-v / 8), |C|
likewise; q counts v times in M, and the evidence v times in the weights of source and experts.

So a prior gains weight only where it predicts the *order* of a stream: once M has settled, the mean
evidence of a constant prior is not positive, whatever the network's bias, which M has too.

Two experts, because a network may be too sure: one reads q, the other sqrt(q). There are two means
M: of the network's rows, and of those that a label prior corrects.
"""

import math

import numpy as np

from lametta._arrays import Floats
from lametta._locks import check_interrupt
from lametta.correctors.base import State
from lametta.correctors.prudent.constants import Constants


def init_state(c: Constants, k: int) -> State:
    """The state before the first sample."""
    return {
        "decayed_counts": np.zeros((2, k), np.float32),  # C
        "marginals": np.full((2, 2, k), c.pseudo_count / k, np.float32),  # M, as sums, by kind
        "pending_rows": np.zeros((2, k), np.float32),  # of the last sample, not yet in the past
        "pending_posterior": np.zeros((2, k), np.float32),
        "weights": _start(c),
        "log_evidence": np.zeros(3),  # of that sample, over the source's
        # Of C, of either M, of the pending sample, and which M it is part of.
        "counts": np.zeros(5),
    }


def _start(c: Constants) -> Floats:
    return np.array([1 - c.prior_weight, c.prior_weight / 2, c.prior_weight / 2])


def temper(rows: Floats) -> Floats:
    """Rows [N, K] as the two experts read them, [N, 2, K]."""
    tempered: Floats = np.empty((len(rows), 2, rows.shape[1]), np.float32)
    tempered[:, 0] = rows
    flat = np.sqrt(rows, out=tempered[:, 1])
    flat /= flat.sum(axis=1, keepdims=True)
    return tempered


def set_marginal(c: Constants, state: State, rows: Floats) -> None:
    """Set the mean of corrected rows to that of rows [N, K]."""
    state["marginals"][1] = temper(rows).sum(axis=0) + c.pseudo_count / rows.shape[1]
    state["counts"][2] = len(rows)


def mix(
    c: Constants, state: State, novelty: list[float], rows: Floats, *, kind: int, heard: bool
) -> tuple[Floats, Floats, float]:
    """Mix the experts' answers to the next samples, rows [N, K] of a kind.

    Returns the answers [N, K], the weight of the source [N], and the mean log evidence of source
    and experts together, in nats over the source's alone. Experts that are not heard learn on.
    """
    answers, source, total = rows.copy(), np.ones(len(rows), np.float32), 0.0
    for i, (new, row) in enumerate(zip(novelty, temper(rows), strict=True)):
        check_interrupt()
        _pass(c, state, new, heard)
        posterior, evidence = _posterior(c, state, row, kind)
        weights = state["weights"] * np.exp(evidence)
        together = float(weights.sum())
        state["pending_rows"][:], state["pending_posterior"][:] = row, posterior
        state["counts"][3:] = 1, kind
        if heard:
            state["log_evidence"][:] = evidence
            shares = (weights / together).astype(np.float32)
            answers[i] = shares[0] * row[0] + shares[1:] @ posterior
            source[i] = shares[0]
            total += math.log(together)
    return answers, source, total / len(rows)


def _pass(c: Constants, state: State, new: float, heard: bool) -> None:
    """Make the last sample part of the past, as far as the next one is new."""
    size, _, _, pending, kind = state["counts"].tolist()
    marginal, kind = state["marginals"][int(kind)], int(kind)
    fade, share = math.exp(-new / c.memory), np.float32(new * pending)
    state["decayed_counts"] += share * state["pending_posterior"]
    state["decayed_counts"] *= np.float32(fade)
    marginal += share * state["pending_rows"]
    state["counts"][0] = (size + new * pending) * fade
    state["counts"][1 + kind] += new * pending
    if state["counts"][1 + kind] > c.base_memory:
        state["counts"][1 + kind] /= 2
        marginal /= 2
        marginal += np.float32(c.pseudo_count / 2 / marginal.shape[1])
    if not heard:
        state["weights"][:] = _start(c)
        state["log_evidence"][:] = 0
        return
    weights = state["weights"] * np.exp(new * state["log_evidence"])
    back = c.switch_rate * new
    state["weights"][:] = (1 - back) * weights / weights.sum() + back * _start(c)


def _posterior(c: Constants, state: State, row: Floats, kind: int) -> tuple[Floats, Floats]:
    """The experts' posteriors [2, K], and the log evidence of source and experts [3]."""
    size, total = state["counts"][0], state["counts"][1 + kind] + 1 + c.pseudo_count
    ratio = row / (state["marginals"][kind] + row)
    ratio *= np.float32(total)
    posterior = state["decayed_counts"] * ratio
    posterior += row
    sums = posterior.sum(axis=1)
    posterior /= sums[:, None]
    evidence = np.zeros(3)
    evidence[1:] = np.log(sums / (size + 1)) - c.penalty
    return posterior, evidence
