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
_MANY = 1e6  # samples of a base, from which it forgets the oldest: sums of float32 stop growing
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
        "rows": np.zeros(shape, np.float32),  # of the sample that is not yet committed
        "posterior": np.zeros(shape, np.float32),
        "weights": np.tile(_WEIGHTS, (families, 1)),
        "evidence": np.zeros((families, 1 + _E)),  # of that sample, over the source's
        "counts": np.zeros((families, 2)),  # of the past, of the base
    }


def restart(state: State, family: int) -> None:
    """Forget what a family knows, but for its base."""
    fresh = begin(state["base"].shape[-1])
    for name in set(_NAMES) - {"base"}:
        state[name][family] = fresh[name][0]


def rebase(state: State, family: int, base: Floats, count: int) -> None:
    """Take the base of a family from sums of rows as the experts read them, [2, K]."""
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
        flat /= flat.sum(axis=-1, keepdims=True)
    return read


def judge(state: State, novelty: list[float], rows: Floats) -> tuple[Floats, Floats, Floats]:
    """Weigh the experts' answers for the next samples, whose rows are [N, families, 2, K].

    A sample becomes part of the past when the next one comes, as far as that is new.

    Returns the answers [N, families, K], the weight of the source [N, families], and the evidence
    of source and experts together [N, families], in nats over the source's alone.
    """
    n, families, _, k = rows.shape
    answers = np.empty((n, families, k), np.float32)
    source, together = np.empty((n, families)), np.empty((n, families))
    for family in range(families):
        experts = _Experts(state, family)
        for i, new in enumerate(novelty):
            experts.commit(new)
            shares, together[i, family] = experts.look(rows[i, family])
            np.vecmat(np.array(shares[1:], np.float32), experts.posterior, out=answers[i, family])
            answers[i, family] += np.float32(shares[0]) * rows[i, family, 0]
            source[i, family] = shares[0]
        experts.save(state, family)
    return answers, source, together


class _Experts:
    """One family: its arrays, and its few numbers as Python's, which are ten times as fast."""

    def __init__(self, state: State, family: int) -> None:
        self.past, self.base = state["past"][family], state["base"][family]
        self.rows, self.posterior = state["rows"][family], state["posterior"][family]
        self.weights = state["weights"][family].tolist()
        self.evidence = state["evidence"][family].tolist()
        self.past_count, self.base_count = state["counts"][family].tolist()

    def save(self, state: State, family: int) -> None:
        state["rows"][family] = self.rows
        state["weights"][family] = self.weights
        state["evidence"][family] = self.evidence
        state["counts"][family] = self.past_count, self.base_count

    def commit(self, new: float) -> None:
        """Let the sample before become the past, as far as the next is new."""
        fade = math.exp(-new / MEMORY)
        self.past += self.posterior if new == 1 else np.float32(new) * self.posterior
        self.past *= np.float32(fade)
        self.base += self.rows if new == 1 else np.float32(new) * self.rows
        self.past_count = (self.past_count + new) * fade
        self.base_count += new
        if self.base_count > _MANY:
            self.base_count /= 2
            self.base /= 2
            self.base += np.float32(_FLAT / 2 / self.base.shape[-1])
        weights, _ = _times(self.weights, [new * nats for nats in self.evidence])
        back = _SHARE * new
        self.weights = [w + back * (o - w) for w, o in zip(weights, _WEIGHTS, strict=True)]

    def look(self, rows: Floats) -> tuple[list[float], float]:
        """Form posteriors of a sample; give weights of source and experts, and their evidence."""
        self.rows, posterior = rows, self.posterior
        np.add(self.base, rows, out=posterior)  # this sample included
        np.divide(self.past, posterior, out=posterior)
        posterior *= np.float32(self.base_count + 1 + _FLAT)
        posterior += 1
        posterior *= rows
        sums = posterior.sum(axis=1)
        posterior /= sums[:, None]
        self.evidence = [math.log(s / (self.past_count + 1)) - PRICE for s in sums.tolist()]
        self.evidence.insert(0, 0.0)  # the source's, by definition
        return _times(self.weights, self.evidence)


def _times(weights: list[float], nats: list[float]) -> tuple[list[float], float]:
    """Weights times exp(nats), as shares, and the logarithm of their sum."""
    weighed = [w * math.exp(x) for w, x in zip(weights, nats, strict=True)]
    total = sum(weighed)
    return [w / total for w in weighed], math.log(total)
