"""StatA: Gaussians anchored at the prototypes, within a batch (Zanella et al., CVPR 2025)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lametta._arrays import Floats, softmax, top_k, unit_rows
from lametta._checks import check_flag, check_integer, check_number
from lametta._locks import check_interrupt
from lametta.correctors.base import BatchCorrector

_INNER = 5  # updates of z between two of the Gaussians
_SHARE = 50  # by which the Gaussians' log-likelihoods are divided
_TINY = 1e-10  # the least variance, of features that do not vary


@dataclass
class StatA(BatchCorrector):
    """StatA: cluster a batch by Gaussians of the classes, which stay near the prototypes.

    With y the model's probabilities, f and the prototypes t_k of length 1, and W the cosines of
    each sample's ``neighbors`` nearest, these take turns, from z = y, mu = t and S = S_0 on::

        log z_ik = lambda_y log y_ik + log N(f_i; mu_k, S_k) / 50
                   + lambda_w ((W + W^T) z)_ik / (2 neighbors) + const,
        mu_k = unit(beta_k unit(mean_z f) + (1 - beta_k) t_k),
        S_k  = beta_k mean_z (f - mu_k)^2 + (1 - beta_k) (S_0 + (t_k - mu_k)^2),

    where beta_k = n_k / (n_k + alpha), n_k is the number of samples in class k, mean_z weighs by
    column k of z, variances S are diagonal, and S_0 is that of all samples around the prototypes,
    weighed by y. Classes that a batch does not have so stay where they are. CLIP's own logit scale
    is in y.

    Parameters
    ----------
    alpha : float
        How many samples of a class the anchor counts as.
    lambda_y, lambda_w : float
        The weights of the source's answer and of the neighbors'.
    soft : bool
        Take for n_k the sum of z_k, and not the number of samples whose largest entry it is.
    neighbors : int
        Of each sample.
    max_iter : int
        Updates of the Gaussians.

    Notes
    -----
    Nothing is kept from batch to batch. It runs in host memory; of samples of other devices, the
    host waits for features and probabilities.

    References
    ----------
    M. Zanella et al., "Realistic test-time adaptation of vision-language models", CVPR (2025).

    Examples
    --------
    >>> import numpy as np
    >>> from lametta.types import Prototypes
    >>> stata = StatA()
    >>> stata.use(Prototypes(np.eye(2)))
    >>> features = np.array([[1.0, 0.2], [1.0, 0.3], [0.9, 0.2], [1.0, 0.4]])
    >>> probs = np.array([[0.9, 0.1], [0.8, 0.2], [0.9, 0.1], [0.45, 0.55]])
    >>> stata.correct(features, probs).probs.argmax(axis=1)
    array([0, 0, 0, 0])
    """

    alpha: float = 1.0
    lambda_y: float = 1.0
    lambda_w: float = 1.0
    soft: bool = False
    neighbors: int = 3
    max_iter: int = 10

    needs: ClassVar[frozenset[str]] = frozenset({"prototypes", "batch"})

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha, above=0)
        check_number("lambda_y", self.lambda_y, 0)
        check_number("lambda_w", self.lambda_w, 0)
        check_flag("soft", self.soft)
        check_integer("neighbors", self.neighbors, 1)
        check_integer("max_iter", self.max_iter, 1)

    def answer(self, features: Floats, probs: Floats) -> tuple[Floats, dict[str, float]]:
        assert self.prototypes is not None  # as `needs` says
        f, probs = unit_rows(np, features.astype(float)), probs.astype(float)
        t = unit_rows(np, self.prototypes.weight.astype(float))
        log_y = self.lambda_y * np.log(np.maximum(probs, 1e-30))
        w = self.lambda_w / (2 * self.neighbors) * affinity(f, self.neighbors)
        z, mu, first = probs, t, shared_variance(f, t, probs)
        s = np.broadcast_to(first, t.shape)
        for _ in range(self.max_iter):
            check_interrupt()
            z = assign(log_y + log_gaussians(f, mu, s), w, z)
            n = z.sum(axis=0) if self.soft else np.bincount(z.argmax(axis=1), minlength=len(t))
            beta = (n / (n + self.alpha))[:, None]
            mu = unit_rows(np, beta * unit_rows(np, z.T @ f) + (1 - beta) * t)
            spread = variances(f, mu, z) / np.maximum(z.sum(axis=0), 1e-30)[:, None]
            s = beta * spread + (1 - beta) * (first + (t - mu) ** 2)
        return assign(log_y + log_gaussians(f, mu, s), w, z), {}


def affinity(f: Floats, k: int) -> Floats:
    """W + W^T [N, N], W the cosines of each sample with its k nearest others."""
    cosines = f @ f.T
    others = cosines.copy()
    np.fill_diagonal(others, -np.inf)
    w = np.zeros_like(cosines)
    near = top_k(np, others, min(k, len(f) - 1))
    np.put_along_axis(w, near, np.take_along_axis(cosines, near, axis=1), axis=1)
    return w + w.T


def variances(f: Floats, mu: Floats, z: Floats) -> Floats:
    """Sums [K, d] over samples of z (f - mu)^2."""
    total = z.sum(axis=0)[:, None]
    sums: Floats = np.maximum(z.T @ f**2 - 2 * mu * (z.T @ f) + total * mu**2, 0)
    return sums


def shared_variance(f: Floats, mu: Floats, z: Floats) -> Floats:
    """The diagonal [d] of the covariance around the means of all classes together."""
    diagonal: Floats = variances(f, mu, z).sum(axis=0) / len(f)
    return diagonal


def log_gaussians(f: Floats, mu: Floats, s: Floats) -> Floats:
    """A share of the log-likelihoods [N, K] of Gaussians with diagonal variances [K, d]."""
    s = np.maximum(s, _TINY)
    squares = f**2 @ (1 / s).T - 2 * f @ (mu / s).T + (mu**2 / s).sum(axis=1)
    logs: Floats = -(squares + np.log(s).sum(axis=1)) / (2 * _SHARE)
    return logs


def assign(logs: Floats, w: Floats, z: Floats) -> Floats:
    """Update the assignments z [N, K] a few times, given all but their neighbors' pull."""
    for _ in range(_INNER):
        z = softmax(np, logs + w @ z)
    return z
