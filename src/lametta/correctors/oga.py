"""OGA: Gaussians of cached samples, with the zero-shot model as prior (Fuchs et al., 2025)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lametta._arrays import Floats, softmax, unit_rows
from lametta._checks import check_flag, check_integer, check_number
from lametta._locks import check_interrupt
from lametta.correctors.base import (
    Invariant,
    State,
    StatefulCorrector,
    filled,
    unit_or_zero,
    within,
)


@dataclass
class OGA(StatefulCorrector):
    """OGA: fit a Gaussian to the most confident samples of each class, and multiply by the source.

    With f of length 1, a mean mu_k for each class and one precision P for all,

        g_k = -1/2 (f - mu_k)^T P (f - mu_k),        answer ~ p_k softmax(tau g)_k.

    Each class keeps the ``capacity`` samples that were predicted as it with the lowest entropy. Of
    two or more, their mean is mu_k; before, it is the class's prototype, of length 1. Once a class
    has three, P is the inverse of the covariance of all kept samples around their means, shrunk
    towards a multiple of the identity up to 4 d samples; before, it is d times the identity.
    p is what the model says: CLIP's own logit scale is in it.

    Parameters
    ----------
    capacity : int
        Samples of a class.
    tau : float
        The weight of the Gaussians.
    unit_means : bool
        Scale the means to length 1.
    released : bool
        Divide a class's sum by the capacity, as the published code does, and not by how many
        samples it has: until it is full, its mean is too short.

    Notes
    -----
    A batch is in memory before it is answered. A stream's state is ``capacity`` K d + K d + d d
    numbers: 39 MB at 1000 classes of 512 features. The covariance is inverted again, d^3 steps,
    whenever a sample was kept.

    References
    ----------
    C. Fuchs, M. Zanella and C. De Vleeschouwer, "Online Gaussian test-time adaptation of
    vision-language models", arXiv 2501.04352 (2025).

    Examples
    --------
    >>> import numpy as np
    >>> from lametta.types import Prototypes
    >>> oga = OGA()
    >>> oga.use(Prototypes(np.eye(2)))
    >>> features = np.array([[1.0, 0.3], [1.0, 0.4], [1.0, 0.2], [1.0, 0.3]])
    >>> probs = np.array([[0.9, 0.1], [0.8, 0.2], [0.9, 0.1], [0.49, 0.51]])
    >>> oga.correct(features, probs).probs.argmax(axis=1)
    array([0, 0, 0, 0])
    """

    capacity: int = 8
    tau: float = 0.05
    unit_means: bool = False
    released: bool = False

    needs: ClassVar[frozenset[str]] = frozenset({"prototypes"})
    ordered: ClassVar[bool] = False
    causal: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_integer("capacity", self.capacity, 1)
        check_number("tau", self.tau, 0)
        check_flag("unit_means", self.unit_means)
        check_flag("released", self.released)

    def init_state(self, d: int, k: int) -> State:
        assert self.prototypes is not None  # as `needs` says
        return {
            "samples": filled((k, self.capacity, d)),
            "entropy": filled((k, self.capacity), np.log(k)),  # of a free place
            "means": unit_rows(np, self.prototypes.weight.astype(float)),
            "precision": d * np.eye(d),
        }

    def invariants(self) -> Mapping[str, Invariant]:
        return {
            "samples": unit_or_zero(),
            "entropy": within(-1),
            "means": within(-1.01, 1.01),
            "precision": within(-1e100, 1e100),
        }

    def update(
        self, state: State, features: Floats, probs: Floats
    ) -> tuple[Floats, dict[str, float]]:
        f = unit_rows(np, features.astype(float))
        entered = self._add(state, f, probs)
        if entered:
            self._fit(state)
        means, precision = state["means"], state["precision"]
        moved = means @ precision
        g = f @ moved.T - (np.vecdot(f @ precision, f)[:, None] + np.vecdot(moved, means)) / 2
        logs = np.log(np.maximum(probs, 1e-30)) + self.tau * g
        return softmax(np, logs), {"entered": entered / len(f)}

    @staticmethod
    def _add(state: State, f: Floats, probs: Floats) -> int:
        entropy = -(probs * np.log(probs + 1e-9)).sum(axis=1)
        entered = 0
        for x, label, own in zip(f, probs.argmax(axis=1), entropy, strict=True):
            check_interrupt()
            held = state["entropy"][label]
            place = held.argmax()
            if own < held[place]:
                held[place], state["samples"][label, place] = own, x
                entered += 1
        return entered

    def _fit(self, state: State) -> None:
        samples, means = state["samples"], state["means"]
        d, used = samples.shape[2], state["entropy"] < np.log(len(means))
        count = used.sum(axis=1)
        fitted = count >= 2
        divisor = np.full(len(count), self.capacity) if self.released else count
        means[fitted] = samples[fitted].sum(axis=1) / divisor[fitted, None]
        if self.unit_means:
            means[fitted] = unit_rows(np, means[fitted])
        if count.max() <= 2:
            return
        n = int(count.sum())
        rest = (samples - means[:, None])[used]
        rest -= rest.mean(axis=0)
        covariance = rest.T @ rest / (n - 1)
        if n > 4 * d:
            state["precision"] = np.linalg.pinv(
                covariance, rcond=d * np.finfo(float).eps, hermitian=True
            )
        elif (trace := np.trace(covariance)) > 0:  # or all samples are the same
            state["precision"] = d * np.linalg.inv((n - 1) * covariance + trace * np.eye(d))
