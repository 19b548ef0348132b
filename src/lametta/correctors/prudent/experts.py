"""Mixture of experts: temporal priors, weighed by log evidence.

An expert keeps C, a decaying sum of its own posteriors p, and M, the mean of all rows q so far,
this one included, and of three uniform ones. Its prior for the next label is (C + M) / (|C| + 1),
its likelihood is q / M, and its evidence the logarithm of the sum of their product. When a sample
of novelty v comes, the one before becomes part of the past: C <- (C + v p) exp(-v / 8), |C|
likewise; q counts v times in M, and the evidence v times in the weights of source and experts.

So a prior gains weight only where it predicts the *order* of a stream: once M has settled, the mean
evidence of a constant prior is not positive, whatever the network's bias, which M has too.

Two experts, because a network may be too sure: one reads q, the other q ** (1/4).
"""

import math
from typing import TypeAlias

import numpy as np

from lametta._arrays import Floats
from lametta.correctors.base import State
from lametta.correctors.prudent.constants import (
    HALVE_AT,
    MEMORY,
    PENALTY,
    POWERS,
    PRIOR_WEIGHT,
    PSEUDO_COUNT,
    SWITCH_RATE,
)

LogEvidence: TypeAlias = list[list[list[float]]]
"""By sample, group, and source and experts: few numbers, which arrays would slow down."""

_BLOCK = 32  # samples at a time, so that their arrays stay in the cache
_E = len(POWERS)
_START = [1 - PRIOR_WEIGHT, *[PRIOR_WEIGHT / _E] * _E]  # weights of source and experts
_NAMES = (
    "decayed_counts",
    "marginal",
    "pending_rows",
    "pending_posterior",
    "weights",
    "log_evidence",
    "counts",
)


def init_state(k: int, groups: int = 1) -> State:
    """The state of groups of experts, each on rows of its own."""
    shape = groups, _E, k
    return {
        "decayed_counts": np.zeros(shape, np.float32),  # C
        "marginal": np.full(shape, PSEUDO_COUNT / k, np.float32),  # M, not yet divided by its count
        "pending_rows": np.zeros(shape, np.float32),  # of the last sample, not yet part of the past
        "pending_posterior": np.zeros(shape, np.float32),
        "weights": np.tile(_START, (groups, 1)),
        "log_evidence": np.zeros((groups, 1 + _E)),  # of that sample, over the source's
        "counts": np.zeros((groups, 3)),  # of decayed_counts, of marginal, pending
    }


def reset_group(state: State, group: int) -> None:
    """Forget all that a group of experts knows except its marginal."""
    fresh = init_state(state["marginal"].shape[-1])
    for name in set(_NAMES) - {"marginal"}:
        state[name][group] = fresh[name][0]


def set_marginal(state: State, group: int, sums: Floats, count: int) -> None:
    """Set the marginal of a group to sums [2, K] of rows as the experts read them."""
    state["marginal"][group] = sums + PSEUDO_COUNT / sums.shape[-1]
    state["counts"][group, 1] = count


def temper(*groups: Floats) -> Floats:
    """Rows [N, K] of each group to the powers that the two experts read, [N, groups, 2, K]."""
    n, k = groups[0].shape
    tempered: Floats = np.empty((n, len(groups), _E, k), np.float32)
    for place, rows in enumerate(groups):
        tempered[:, place, 0] = rows
        # The fourth root: powers take 20 times as long.
        flat = np.sqrt(rows, out=tempered[:, place, 1])
        np.sqrt(flat, out=flat)
        flat /= np.vecdot(flat, np.ones(k, np.float32))[:, None]
    return tempered


def mix(state: State, novelty: list[float], rows: Floats) -> tuple[Floats, Floats, Floats]:
    """Mix the experts' answers to the next samples, whose rows are [N, groups, 2, K].

    A sample becomes part of the past when the next one comes, as far as the next one is new.

    Returns the answers [N, groups, K], the weight of the source [N, groups], and the log
    evidence of source and experts together [N, groups], in nats over the source's alone.
    """
    starts = range(0, len(rows), _BLOCK)
    found = [_mix_block(state, novelty[i : i + _BLOCK], rows[i : i + _BLOCK]) for i in starts]
    if len(found) == 1:
        return found[0]
    answers, source, together = (np.concatenate(part) for part in zip(*found, strict=True))
    return answers, source, together


def _mix_block(state: State, novelty: list[float], rows: Floats) -> tuple[Floats, Floats, Floats]:
    own = {name: state[name][: rows.shape[1]] for name in _NAMES}  # views
    posteriors = _likelihood_ratios(own, novelty, rows)
    evidence = _log_evidence(own, novelty, rows, posteriors)
    weighed, together = _mixture_weights(own, novelty, evidence)
    own["pending_rows"][:], own["pending_posterior"][:] = rows[-1], posteriors[-1]
    own["log_evidence"][:] = evidence[-1]
    shares = weighed.astype(np.float32)
    answers = np.vecmat(shares[..., 1:], posteriors)
    answers += shares[..., :1] * rows[:, :, 0]
    return answers, weighed[..., 0], together


def _likelihood_ratios(own: State, novelty: list[float], rows: Floats) -> Floats:
    """The rows q over their mean M so far, each included."""
    before, marginal = own["pending_rows"], own["marginal"]
    _, counts, pending = own["counts"].T.tolist()
    with_before = marginal + before
    ratios, totals = np.empty_like(rows), []
    for new, row, ratio in zip(novelty, rows, ratios, strict=True):
        marginal = with_before if new == 1 else marginal + np.float32(new) * before
        counts = [count + new * one for count, one in zip(counts, pending, strict=True)]
        pending = [1.0] * len(counts)
        with_before = np.add(marginal, row, out=ratio)
        totals.append([[[count + 1 + PSEUDO_COUNT]] for count in counts])
        before = row
    own["marginal"][:] = marginal
    marginal = own["marginal"]
    np.divide(rows, ratios, out=ratios)
    ratios *= np.array(totals, np.float32)
    for group, count in enumerate(counts):
        if count > HALVE_AT:
            counts[group] = count / 2
            uniform = np.float32(PSEUDO_COUNT / 2 / marginal.shape[-1])
            marginal[group] = marginal[group] / 2 + uniform
    own["counts"][:, 1] = counts
    return ratios


def _log_evidence(own: State, novelty: list[float], rows: Floats, ratios: Floats) -> LogEvidence:
    """Turn ratios into the experts' posteriors; give the log evidence of source and experts."""
    decayed, posterior = own["decayed_counts"], own["pending_posterior"]
    counts, _, pending = own["counts"].T.tolist()
    ones, evidence = np.ones(rows.shape[-1], np.float32), []
    for new, row, ratio in zip(novelty, rows, ratios, strict=True):
        fade = math.exp(-new / MEMORY)
        decayed += posterior if new == 1 else np.float32(new) * posterior
        decayed *= np.float32(fade)
        counts = [(count + new * one) * fade for count, one in zip(counts, pending, strict=True)]
        pending = [1.0] * len(counts)
        posterior = np.multiply(decayed, ratio, out=ratio)
        posterior += row
        sums = np.vecdot(posterior, ones)
        posterior *= (1 / sums)[..., None]
        evidence.append(
            [
                [0.0, *(math.log(one / (count + 1)) - PENALTY for one in two)]  # the source's is 0
                for two, count in zip(sums.tolist(), counts, strict=True)
            ]
        )
    own["counts"][:, 0], own["counts"][:, 2] = counts, 1
    return evidence


def _mixture_weights(
    own: State, novelty: list[float], evidence: LogEvidence
) -> tuple[Floats, Floats]:
    """Weights of source and experts in each answer [N, groups, 3]; the log evidence of all."""
    weights, before = own["weights"].tolist(), own["log_evidence"].tolist()
    shares, together = [], []
    joint: list[list[float]] = [[] for _ in weights]  # the weights with the last sample's evidence
    for new, following in zip(novelty, evidence, strict=True):
        back = SWITCH_RATE * new
        for group, log_evidence in enumerate(following):
            # Written out for two experts: a loop over them takes three times as long.
            if new == 1 and joint[group]:
                source, sure, flat, total = joint[group]
            else:
                source, sure, flat = weights[group]
                sure *= math.exp(new * before[group][1])
                flat *= math.exp(new * before[group][2])
                total = source + sure + flat
            left = (1 - back) / total
            source = left * source + back * _START[0]
            sure = left * sure + back * _START[1]
            flat = left * flat + back * _START[2]
            weights[group] = source, sure, flat
            sure *= math.exp(log_evidence[1])
            flat *= math.exp(log_evidence[2])
            total = source + sure + flat
            joint[group] = [source, sure, flat, total]
            shares.append((source / total, sure / total, flat / total))
            together.append(math.log(total))
        before = following
    own["weights"][:] = weights
    shape = len(novelty), len(weights)
    return np.array(shares).reshape(*shape, 1 + _E), np.array(together).reshape(shape)
