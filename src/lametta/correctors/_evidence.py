"""Priors from the past, each weighed by how well it foretold what came: the experts of `Memory`.

An expert keeps a decaying sum C of its own posteriors, and M, the mean of all rows q so far, this
one included. Its prior for the next label is (C + M) / (|C| + 1), its likelihood is q / M. So a
prior is trusted only where it foretells the *order* of a stream: the mean evidence of a constant
prior is never positive, whatever bias the network has, since M has the same bias.

Two experts, because a network may be too sure: one reads q, the other q ** (1/4).
"""

import math

import numpy as np

from lametta.correctors._state import Floats, State

MEMORY = 8.0  # samples that an expert's memory reaches back
PRICE = 0.05  # nats a sample by which an expert must beat the source
_TRUST = 0.1  # what all experts share before the first sample; the source has the rest
_SHARE = 3e-4  # goes back to that with each sample, so that none is ever lost
_FLAT = 3.0  # samples that a uniform base weighs as much as
_E = 2
_WEIGHTS = np.array([1 - _TRUST, *[_TRUST / _E] * _E])


def begin(k: int, families: int = 1) -> State:
    """The state of families of experts, each on rows of its own."""
    shape = families, _E, k
    return {
        "past": np.zeros(shape, np.float32),  # C
        "base": np.full(shape, _FLAT / k, np.float32),  # M, not yet divided by its count
        "rows": np.zeros(shape, np.float32),  # of the sample that is not yet committed
        "posterior": np.zeros(shape, np.float32),
        "weights": np.tile(np.log(_WEIGHTS), (families, 1)),
        "evidence": np.zeros((families, _E)),
        "counts": np.zeros((families, 2)),  # of the past, of the base
    }


def restart(state: State, family: int, rows: Floats) -> None:
    """Forget what a family knows, but for the base, which is taken from these rows."""
    fresh = begin(rows.shape[1])
    for name in ("past", "rows", "posterior", "weights", "evidence", "counts"):
        state[name][family] = fresh[name][0]
    rebase(state, family, rows)


def rebase(state: State, family: int, rows: Floats) -> None:
    """Take the base of a family from these rows."""
    state["base"][family] = tempered(rows).sum(axis=0) + _FLAT / rows.shape[1]
    state["counts"][family, 1] = len(rows)


def tempered(rows: Floats) -> Floats:
    """The rows [..., K] as the experts read them, [..., 2, K]."""
    flat = np.sqrt(np.sqrt(rows))
    flat /= flat.sum(axis=-1, keepdims=True)
    return np.stack([rows, flat], axis=-2)


def judge(state: State, novelty: Floats, rows: Floats) -> tuple[Floats, Floats, Floats]:
    """Weigh the experts' answers for the next samples, whose rows are [N, families, 2, K].

    A sample becomes part of the past when the next one comes, as far as that is new.

    Returns the answers [N, families, K], the weight of the source [N, families], and the evidence
    of source and experts together [N, families], in nats over the source's alone.
    """
    f = slice(rows.shape[1])
    past, before, posterior = state["past"][f], state["rows"][f], state["posterior"][f]
    counts, news = state["counts"][f], novelty.astype(np.float32)
    base = np.concatenate([before[None], rows[:-1]])
    base *= news[:, None, None, None]
    base[0] += state["base"][f]
    np.cumsum(base, axis=0, out=base)
    state["base"][f] = base[-1]
    based = counts[:, 1] + np.cumsum(novelty)[:, None]
    base += rows  # this sample included
    gain = np.divide(rows, base, out=base)
    gain *= (based + 1 + _FLAT).astype(np.float32)[..., None, None]
    posteriors = np.empty_like(rows)
    sums, remembered = np.empty(rows.shape[:3]), np.empty(rows.shape[:2])
    for i, new in enumerate(novelty.tolist()):
        fade = math.exp(-new / MEMORY)
        past += posterior if new == 1 else np.float32(new) * posterior
        past *= np.float32(fade)
        counts[:, 0] = remembered[i] = (counts[:, 0] + new) * fade
        posterior = np.multiply(past, gain[i], out=posteriors[i])
        posterior += rows[i]
        posterior.sum(axis=-1, out=sums[i])
        posterior /= sums[i][..., None].astype(np.float32)
    state["rows"][f], state["posterior"][f], counts[:, 1] = rows[-1], posterior, based[-1]
    evidence = np.log(sums / (remembered[..., None] + 1)) - PRICE
    shares, together = _weigh(state, novelty, evidence)
    answers = shares[..., :1].astype(np.float32) * rows[:, :, 0]
    answers += np.matvec(posteriors.swapaxes(2, 3), shares[..., 1:].astype(np.float32))
    return answers, shares[..., 0], together


def _weigh(state: State, novelty: Floats, evidence: Floats) -> tuple[Floats, Floats]:
    """The weights [N, families, 3] of source and experts, and their evidence together."""
    f = slice(evidence.shape[1])
    weights, last = state["weights"][f], state["evidence"][f]
    shares, together = np.empty((*evidence.shape[:2], 1 + _E)), np.empty(evidence.shape[:2])
    for i, new in enumerate(novelty.tolist()):
        weights[:, 1:] += new * last
        weights[:] = np.exp(weights - np.logaddexp.reduce(weights, axis=1, keepdims=True))
        weights += _SHARE * new * (_WEIGHTS - weights)
        last = evidence[i]
        shares[i] = weights
        shares[i, :, 1:] *= np.exp(last)
        together[i] = shares[i].sum(axis=1)
        np.log(weights, out=weights)
    state["evidence"][f] = last
    shares /= together[..., None]
    return shares, np.log(together)
