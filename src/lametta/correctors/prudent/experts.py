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

from lametta._arrays import Floats, row_sums
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
    """Rows [N, K] as the two experts read them, [N, 2, K]."""
    tempered: Floats = np.empty((len(rows), 2, rows.shape[1]), np.float32)
    tempered[:, 0] = rows
    flat = np.sqrt(rows, out=tempered[:, 1])
    flat /= row_sums(np, flat)[:, None]
    return tempered


def set_marginal(state: State, rows: Floats) -> None:
    """Set the mean of corrected rows to that of rows [N, K]."""
    roots = np.sqrt(rows)
    state["marginals"][1] = rows.sum(axis=0), (1 / row_sums(np, roots)) @ roots
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
    found: tuple[Floats, Floats, float] = rows, np.ones(len(rows), np.float32), 0.0
    if heard:
        joint, totals = _predict(c, state, novelty, read, kind)
        shares, together = _weigh(c, state, novelty, totals)
        joint *= (shares[:, 1:] / totals)[:, :, None]
        answers: Floats = shares[:, :1] * read[:, 0]
        answers += joint[:, 0]
        answers += joint[:, 1]
        found = answers, shares[:, 0], together
    else:
        state["decayed_counts"][:], counts[0], state["weights"][:] = 0, 0, _start(c)
    fade = math.exp(-sum(novelty) / c.base_memory)
    past += np.tensordot(new, read, axes=1)
    past *= np.float32(fade)
    counts[1 + kind] = (counts[1 + kind] + sum(novelty)) * fade
    return found


def _predict(
    c: Constants, state: State, novelty: list[float], read: Floats, kind: int
) -> tuple[Floats, Floats]:
    """Learn from samples in turn; probabilities [N, 2, K] of past and sample, and their sums.

    Both are times |C| + 1.
    """
    (n, _, k), new = read.shape, np.array(novelty, np.float32)
    # Likelihoods q / M, of all samples at once: M does not depend on what the experts say.
    counted = np.tril(np.broadcast_to(new, (n, n)), -1) + np.eye(n, dtype=np.float32)
    joint: Floats = np.tensordot(counted, read, axes=1)
    joint += state["marginals"][kind] + np.float32(c.pseudo_count / k)
    np.divide(read, joint, out=joint)
    known = np.float32(state["counts"][1 + kind] + c.pseudo_count)
    joint *= (counted.sum(axis=1) + known)[:, None, None]
    memory, ones = state["decayed_counts"], np.ones(k, np.float32)
    learned, totals = np.empty_like(memory), np.empty((n, 2), np.float32)
    for row, sample, total, v in zip(joint, read, totals, novelty, strict=True):
        row *= memory
        row += sample
        np.matmul(row, ones, out=total)
        fade = math.exp(-v / c.memory)
        memory *= np.float32(fade)
        memory += np.multiply(row, (np.float32(v * fade) / total)[:, None], out=learned)
    return joint, totals


def _weigh(
    c: Constants, state: State, novelty: list[float], totals: Floats
) -> tuple[Floats, float]:
    """Weigh source and experts by their evidence: shares [N, 3], and the log evidence of all."""
    size, start = float(state["counts"][0]), _start(c).tolist()
    weights, price = state["weights"].tolist(), math.exp(-c.penalty)
    shares, together = [], 0.0
    for v, (first, second) in zip(novelty, totals.tolist(), strict=True):
        evidence = 1.0, price * first / (size + 1), price * second / (size + 1)
        found = [w * x for w, x in zip(weights, evidence, strict=True)]
        mixed = sum(found)
        shares.append([x / mixed for x in found])
        together += math.log(mixed)
        learned = [w * x**v for w, x in zip(weights, evidence, strict=True)]
        keep, back = (1 - c.switch_rate * v) / sum(learned), c.switch_rate * v
        weights = [keep * w + back * w0 for w, w0 in zip(learned, start, strict=True)]
        size = (size + v) * math.exp(-v / c.memory)
    state["counts"][0], state["weights"][:] = size, weights
    return np.array(shares, np.float32), together
