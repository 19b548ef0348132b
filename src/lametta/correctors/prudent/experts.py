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
from lametta._locks import check_interrupt
from lametta.correctors.base import State
from lametta.correctors.prudent.constants import Constants

_BLOCK = 64  # samples at a time, since sums over those before each take the square of this


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
    n = len(novelty)
    parts = [slice(i, i + _BLOCK) for i in range(0, n, _BLOCK)]
    found = [_mix(c, state, novelty[part], rows[part], kind, heard) for part in parts]
    answers, source, evidence = zip(*found, strict=True)
    return np.concatenate(answers), np.concatenate(source), sum(evidence) / n


def _mix(
    c: Constants, state: State, novelty: list[float], rows: Floats, kind: int, heard: bool
) -> tuple[Floats, Floats, float]:
    """As `mix`, for a block of samples, with the sum of the evidence."""
    check_interrupt()
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
    counted = np.tril(np.broadcast_to(new, (n, n)), -1) + np.eye(n, dtype=np.float32)
    likelihoods = counted @ read
    likelihoods += (state["marginals"][kind] + np.float32(c.pseudo_count / k))[:, None]
    np.divide(read, likelihoods, out=likelihoods)
    likelihoods *= (counted.sum(axis=1) + np.float32(known + c.pseudo_count))[:, None]
    # Joint probabilities of past and sample, times |C| + 1; they add up to the evidence.
    memory, joint, ones = state["decayed_counts"], likelihoods, np.ones(k, np.float32)
    totals, learned = np.empty((n, 2, 1), np.float32), np.empty_like(memory)
    shares, together = np.empty((n, 3), np.float32), 0.0
    start, weights = _start(c).tolist(), state["weights"].tolist()
    for i, v in enumerate(novelty):
        row, fade = joint[:, i], math.exp(-v / c.memory)
        row *= memory
        row += read[:, i]
        np.matmul(row, ones, out=totals[i, :, 0])
        memory *= np.float32(fade)
        memory += np.multiply(row, np.float32(v * fade) / totals[i], out=learned)
        price = math.exp(-c.penalty) / (size + 1)
        evidence = [1.0, *(price * float(x) for x in totals[i, :, 0])]
        mixed = sum(w * x for w, x in zip(weights, evidence, strict=True))
        shares[i] = [w * x / mixed for w, x in zip(weights, evidence, strict=True)]
        together += math.log(mixed)
        weights = [w * x**v for w, x in zip(weights, evidence, strict=True)]
        keep, back = (1 - c.switch_rate * v) / sum(weights), c.switch_rate * v
        weights = [keep * w + back * w0 for w, w0 in zip(weights, start, strict=True)]
        size = (size + v) * fade
    state["counts"][0], state["weights"][:] = size, weights
    answers = shares[:, :1] * read[0]
    for e in (0, 1):
        joint[e] *= shares[:, e + 1, None] / totals[:, e]
        answers += joint[e]
    return answers, shares[:, 0], together
