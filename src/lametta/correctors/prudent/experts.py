"""Mixture of experts: temporal priors, weighed by log evidence.

An expert keeps C, a decaying sum of its own posteriors p, and M, the mean of all rows q so far,
this one included, and of three uniform ones. Its prior for the next label is (C + M) / (|C| + 1),
its likelihood is q / M, and its evidence the logarithm of the sum of their product. A sample of
novelty v then becomes part of the past: C <- (C + v p) exp(-v / 8), |C| likewise; it counts v times
in M, and its evidence v times in the weights of source and experts.

So a prior gains weight only where it predicts the *order* of a stream: once M has settled, the mean
evidence of a constant prior is not positive, whatever the network's bias, which M has too.

Two experts, because a network may be too sure: one reads q, the other sqrt(q). There are two means
M: of the network's rows, and of those that a label prior corrects.
"""

import math

import numpy as np

from lametta._arrays import Floats
from lametta.correctors.base import State
from lametta.correctors.prudent.constants import Constants


def init_state(c: Constants, k: int) -> State:
    """The state before the first sample."""
    return {
        "decayed_counts": np.zeros((2, k), np.float32),  # C
        "marginals": np.zeros((2, 2, k), np.float32),  # M, as sums without the uniform, by kind
        "counts": np.zeros(3),  # samples in C, and in either M
        "weights": _start(c),
    }


def _start(c: Constants) -> Floats:
    return np.array([1 - c.prior_weight, c.prior_weight / 2, c.prior_weight / 2])


def temper(rows: Floats) -> Floats:
    """Rows [N, K] as the two experts read them, [2, N, K]."""
    tempered: Floats = np.empty((2, *rows.shape), np.float32)
    tempered[0] = rows
    flat = np.sqrt(rows, out=tempered[1])
    flat /= flat.sum(axis=1, keepdims=True)
    return tempered


def set_marginal(state: State, rows: Floats) -> None:
    """Set the mean of corrected rows to that of rows [N, K]."""
    state["marginals"][1] = temper(rows).sum(axis=1)
    state["counts"][2] = len(rows)


def mix(
    c: Constants, state: State, novelty: list[float], rows: Floats, *, kind: int, heard: bool
) -> tuple[Floats, Floats, float]:
    """Mix the experts' answers to the next samples, rows [N, K] of a kind.

    Returns the answers [N, K], the weight of the source [N], and the mean log evidence of source
    and experts together, in nats over the source's alone. Experts that are not heard keep M alone.
    """
    read, new = temper(rows), np.array(novelty, np.float32)
    past, counts = state["marginals"][kind], state["counts"]
    if heard:
        found = _predict(c, state, novelty, read, kind)
    else:
        state["decayed_counts"][:], counts[0], state["weights"][:] = 0, 0, _start(c)
        found = rows, np.ones(len(rows), np.float32), 0.0
    fade = math.exp(-sum(novelty) / c.base_memory)
    past += new @ read
    past *= np.float32(fade)
    counts[1 + kind] = (counts[1 + kind] + sum(novelty)) * fade
    return found


def _predict(
    c: Constants, state: State, novelty: list[float], read: Floats, kind: int
) -> tuple[Floats, Floats, float]:
    """Predict each sample from those before it, and learn from it."""
    (_, n, k), new = read.shape, np.array(novelty, np.float32)
    size, known = float(state["counts"][0]), float(state["counts"][1 + kind])
    # Likelihoods q / M, of all samples at once: M does not depend on what the experts say.
    likelihoods = read * new[:, None]
    likelihoods = np.cumsum(likelihoods, axis=1, out=likelihoods)
    likelihoods += read * (1 - new)[:, None]
    likelihoods += (state["marginals"][kind] + np.float32(c.pseudo_count / k))[:, None]
    np.divide(read, likelihoods, out=likelihoods)
    likelihoods *= (known + np.cumsum(new) - new + 1 + c.pseudo_count).astype(np.float32)[:, None]
    memory, posteriors = state["decayed_counts"], np.empty_like(read)
    start, shares, together = _start(c), np.empty((n, 3), np.float32), 0.0
    for i, v in enumerate(novelty):
        posterior = posteriors[:, i]
        np.multiply(memory, likelihoods[:, i], out=posterior)
        posterior += read[:, i]
        sums = posterior.sum(axis=1)
        posterior /= sums[:, None]
        evidence = np.array([1.0, *(sums * (math.exp(-c.penalty) / (size + 1)))])
        joint = state["weights"] * evidence
        total = float(joint.sum())
        shares[i], together = joint / total, together + math.log(total)
        weights = state["weights"] * evidence**v
        back = c.switch_rate * v
        state["weights"][:] = (1 - back) / weights.sum() * weights + back * start
        fade = math.exp(-v / c.memory)
        memory += np.float32(v) * posterior
        memory *= np.float32(fade)
        size = (size + v) * fade
    state["counts"][0] = size
    answers = shares[:, :1] * read[0]
    for posterior, share in zip(posteriors, shares.T[1:], strict=True):
        posterior *= share[:, None]
        answers += posterior
    return answers, shares[:, 0], together / n
