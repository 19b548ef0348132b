"""T3A: classes by their confident samples, from the head's weights on (Iwasawa & Matsuo, 2021)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lametta._arrays import Floats, softmax, unit_rows
from lametta._checks import check_flag, check_integer, check_number
from lametta._locks import check_interrupt
from lametta.correctors.base import Invariant, State, StatefulCorrector, unit_or_zero, within
from lametta.types import LamettaError

_FREE = np.finfo(float).max  # the entropy of a free place, to which any sample is preferred


@dataclass
class T3A(StatefulCorrector):
    """T3A: replace the head's weights by the mean of each class's most confident samples.

    The samples that were predicted as class k, and at first the rows of the head's weights that
    are, are its supports, scaled to length 1. With S_k the ``keep`` of them whose predictions have
    the lowest entropy,

        w_k = sum of S_k, scaled to length 1,        answer = softmax(f w).

    A class without supports has the logit 0. A batch is answered when all of it was added.

    Parameters
    ----------
    keep : int
        Supports of a class; -1 keeps all, as their sum. The paper searches 1, 5, 20, 50, 100, -1.
    scale : float
        Multiplies the logits: 1 as published, for features with lengths of their own. CLIP's have
        length 1 and want its logit scale, 100, lest probabilities be flat; classes do not change.
    released : bool
        Lose the least confident support of each class in every batch, as the published code does
        where it is to keep all of them; here of at most ``keep``.

    Notes
    -----
    A stream's state is ``keep + 1`` times K d numbers: 86 MB at 1000 classes of 512 features.

    References
    ----------
    Y. Iwasawa and Y. Matsuo, "Test-time classifier adjustment module for model-agnostic domain
    generalization", NeurIPS (2021).

    Examples
    --------
    >>> import numpy as np
    >>> from lametta.types import Prototypes
    >>> features, head = np.array([[3.0, 2.0], [2.0, 3.1]]), Prototypes(np.eye(2))
    >>> t3a = T3A()
    >>> t3a.use(head)
    >>> t3a.correct(features, np.array([[0.7, 0.3], [0.2, 0.8]])).probs.round(2)
    array([[0.66, 0.34],
           [0.33, 0.67]])
    """

    keep: int = 20
    scale: float = 1.0
    released: bool = False

    needs: ClassVar[frozenset[str]] = frozenset({"prototypes"})
    ordered: ClassVar[bool] = False
    causal: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.keep != -1:
            check_integer("keep", self.keep, 1)
        check_number("scale", self.scale, above=0)
        check_flag("released", self.released)
        if self.released and self.keep == -1:
            raise LamettaError("keep must be a number of supports with released=True, got -1")

    def init_state(self, d: int, k: int) -> State:
        state = {"sums": np.zeros((k, d))}
        if self.keep > 0:
            shape = (k, self.keep)
            state |= {"samples": np.zeros((*shape, d)), "entropy": np.full(shape, _FREE)}
        assert self.prototypes is not None  # as `needs` says
        weight = self.prototypes.weight
        self._add(state, weight, softmax(np, self.prototypes.logits(weight)))
        return state

    def invariants(self) -> Mapping[str, Invariant]:
        sums = {"sums": within(-(2.0**53))}
        if self.keep == -1:
            return sums
        return {**sums, "samples": unit_or_zero(), "entropy": within(-1, _FREE)}

    def update(
        self, state: State, features: Floats, probs: Floats
    ) -> tuple[Floats, dict[str, float]]:
        self._add(state, features, probs)
        if self.released:
            self._lose(state["samples"], state["entropy"])
            state["sums"] = state["samples"].sum(axis=1)
        return softmax(np, self.scale * (features @ unit_rows(np, state["sums"]).T)), {}

    def _add(self, state: State, features: Floats, probs: Floats) -> None:
        labels, rows = probs.argmax(axis=1), unit_rows(np, features)
        if self.keep == -1:
            np.add.at(state["sums"], labels, rows)
            return
        entropy = -(probs * np.log(np.maximum(probs, 1e-30))).sum(axis=1)
        for label in np.unique(labels):
            check_interrupt()
            every = np.concatenate([state["entropy"][label], entropy[labels == label]])
            best = np.argsort(every, kind="stable")[: self.keep]
            samples = np.concatenate([state["samples"][label], rows[labels == label]])
            state["samples"][label], state["entropy"][label] = samples[best], every[best]
            state["sums"][label] = state["samples"][label].sum(axis=0)

    @staticmethod
    def _lose(samples: Floats, entropy: Floats) -> None:
        used = (entropy < _FREE).sum(axis=1)  # they are sorted, free places last
        at = np.nonzero(used)[0], used[used > 0] - 1
        samples[at], entropy[at] = 0, _FREE
