"""Priors from the past, each weighed by how well it foretold what came: the experts of `Memory`.

An expert keeps C, a decaying sum of its own posteriors p, and M, the mean of all rows q so far,
this one included, and of three uniform ones. Its prior for the next label is (C + M) / (|C| + 1),
its likelihood is q / M, and its evidence the logarithm of the sum of their product. When a sample
of novelty v comes, the one before becomes part of the past: C <- (C + v p) exp(-v / 8), |C|
likewise; q counts v times in M, and the evidence v times in the weights of source and experts.

So a prior is trusted only where it foretells the *order* of a stream: once M has settled, the mean
evidence of a constant prior is not positive, whatever the network's bias, which M has too.

Two experts, because a network may be too sure: one reads q, the other q ** (1/4).
"""

import math
from typing import TypeAlias

import numpy as np

from lametta._arrays import Floats
from lametta.correctors.base import State

Nats: TypeAlias = list[list[list[float]]]
"""Evidence by sample, family, and source and experts: few numbers, which arrays would slow down."""

MEMORY = 8.0  # samples that an expert's memory reaches back
PRICE = 0.05  # nats a sample by which an expert must beat the source
_TRUST = 0.1  # the weight of all experts before the first sample; the source has the rest
_SHARE = 3e-4  # the part of weights that returns to these with each sample, so that none is lost
_FLAT = 3.0  # samples that the uniform start of a base counts as
_MANY = 1e6  # samples after which a base is halved, since sums of float32 stop growing
_BLOCK = 32  # samples at a time, so that their arrays stay in the cache
POWERS = (1.0, 0.25)
_E = len(POWERS)
_WEIGHTS = [1 - _TRUST, *[_TRUST / _E] * _E]
_NAMES = ("past", "base", "rows", "posterior", "weights", "evidence", "counts")


def begin(k: int, families: int = 1) -> State:
    """The state of families of experts, each on rows of its own."""
    shape = families, _E, k
    return {
        "past": np.zeros(shape, np.float32),  # C
        "base": np.full(shape, _FLAT / k, np.float32),  # M, not yet divided by its count
        "rows": np.zeros(shape, np.float32),  # of the last sample, not yet part of the past
        "posterior": np.zeros(shape, np.float32),
        "weights": np.tile(_WEIGHTS, (families, 1)),
        "evidence": np.zeros((families, 1 + _E)),  # of that sample, over the source's
        "counts": np.zeros((families, 3)),  # of the past, of the base, pending
    }


def restart(state: State, family: int) -> None:
    """Forget all that a family knows except its base."""
    fresh = begin(state["base"].shape[-1])
    for name in set(_NAMES) - {"base"}:
        state[name][family] = fresh[name][0]


def rebase(state: State, family: int, base: Floats, count: int) -> None:
    """Set the base of a family to sums [2, K] of rows as the experts read them."""
    state["base"][family] = base + _FLAT / base.shape[-1]
    state["counts"][family, 1] = count


def read(*families: Floats) -> Floats:
    """Rows [N, K] of each family as the two experts read them, [N, families, 2, K]."""
    n, k = families[0].shape
    read: Floats = np.empty((n, len(families), _E, k), np.float32)
    for place, rows in enumerate(families):
        read[:, place, 0] = rows
        flat = np.sqrt(rows, out=read[:, place, 1])  # the fourth root; powers take 20 times as long
        np.sqrt(flat, out=flat)
        flat /= np.vecdot(flat, np.ones(k, np.float32))[:, None]
    return read


def judge(state: State, novelty: list[float], rows: Floats) -> tuple[Floats, Floats, Floats]:
    """Weigh the experts' answers for the next samples, whose rows are [N, families, 2, K].

    A sample becomes part of the past when the next one comes, as far as the next one is new.

    Returns the answers [N, families, K], the weight of the source [N, families], and the evidence
    of source and experts together [N, families], in nats over the source's alone.
    """
    starts = range(0, len(rows), _BLOCK)
    found = [_judge(state, novelty[i : i + _BLOCK], rows[i : i + _BLOCK]) for i in starts]
    if len(found) == 1:
        return found[0]
    answers, source, together = (np.concatenate(part) for part in zip(*found, strict=True))
    return answers, source, together


def _judge(state: State, novelty: list[float], rows: Floats) -> tuple[Floats, Floats, Floats]:
    own = {name: state[name][: rows.shape[1]] for name in _NAMES}  # views
    posteriors = _ratios(own, novelty, rows)
    evidence = _foretell(own, novelty, rows, posteriors)
    weighed, together = _weigh(own, novelty, evidence)
    own["rows"][:], own["posterior"][:], own["evidence"][:] = rows[-1], posteriors[-1], evidence[-1]
    shares = weighed.astype(np.float32)
    answers = np.vecmat(shares[..., 1:], posteriors)
    answers += shares[..., :1] * rows[:, :, 0]
    return answers, weighed[..., 0], together


def _ratios(own: State, novelty: list[float], rows: Floats) -> Floats:
    """The rows q over their mean M so far, each included."""
    before, base = own["rows"], own["base"]
    _, counts, pending = own["counts"].T.tolist()
    with_before = base + before
    ratios, totals = np.empty_like(rows), []
    for new, row, ratio in zip(novelty, rows, ratios, strict=True):
        base = with_before if new == 1 else base + np.float32(new) * before
        counts = [count + new * one for count, one in zip(counts, pending, strict=True)]
        pending = [1.0] * len(counts)
        with_before = np.add(base, row, out=ratio)
        totals.append([[[count + 1 + _FLAT]] for count in counts])
        before = row
    own["base"][:] = base
    base = own["base"]
    np.divide(rows, ratios, out=ratios)
    ratios *= np.array(totals, np.float32)
    for family, count in enumerate(counts):
        if count > _MANY:
            counts[family] = count / 2
            base[family] = base[family] / 2 + np.float32(_FLAT / 2 / base.shape[-1])
    own["counts"][:, 1] = counts
    return ratios


def _foretell(own: State, novelty: list[float], rows: Floats, ratios: Floats) -> Nats:
    """Turn ratios into the experts' posteriors; give the evidence of source and experts."""
    past, posterior = own["past"], own["posterior"]
    counts, _, pending = own["counts"].T.tolist()
    ones, evidence = np.ones(rows.shape[-1], np.float32), []
    for new, row, ratio in zip(novelty, rows, ratios, strict=True):
        fade = math.exp(-new / MEMORY)
        past += posterior if new == 1 else np.float32(new) * posterior
        past *= np.float32(fade)
        counts = [(count + new * one) * fade for count, one in zip(counts, pending, strict=True)]
        pending = [1.0] * len(counts)
        posterior = np.multiply(past, ratio, out=ratio)
        posterior += row
        sums = np.vecdot(posterior, ones)
        posterior *= (1 / sums)[..., None]
        evidence.append(
            [
                [0.0, *(math.log(told / (count + 1)) - PRICE for told in two)]  # the source's is 0
                for two, count in zip(sums.tolist(), counts, strict=True)
            ]
        )
    own["counts"][:, 0], own["counts"][:, 2] = counts, 1
    return evidence


def _weigh(own: State, novelty: list[float], evidence: Nats) -> tuple[Floats, Floats]:
    """Shares of source and experts in each answer [N, families, 3]; the evidence of all."""
    weights, nats = own["weights"].tolist(), own["evidence"].tolist()
    shares, together = [], []
    joint: list[list[float]] = [[] for _ in weights]  # the weights with the last sample's evidence
    for new, following in zip(novelty, evidence, strict=True):
        back = _SHARE * new
        for family, told in enumerate(following):
            # Written out for two experts: a loop over them takes three times as long.
            if new == 1 and joint[family]:
                source, sure, flat, total = joint[family]
            else:
                source, sure, flat = weights[family]
                sure *= math.exp(new * nats[family][1])
                flat *= math.exp(new * nats[family][2])
                total = source + sure + flat
            left = (1 - back) / total
            source = left * source + back * _WEIGHTS[0]
            sure = left * sure + back * _WEIGHTS[1]
            flat = left * flat + back * _WEIGHTS[2]
            weights[family] = source, sure, flat
            sure *= math.exp(told[1])
            flat *= math.exp(told[2])
            total = source + sure + flat
            joint[family] = [source, sure, flat, total]
            shares.append((source / total, sure / total, flat / total))
            together.append(math.log(total))
        nats = following
    own["weights"][:] = weights
    shape = len(novelty), len(weights)
    return np.array(shares).reshape(*shape, 1 + _E), np.array(together).reshape(shape)
