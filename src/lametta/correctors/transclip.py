"""TransCLIP: transduction within a batch, for zero-shot models (Zanella et al., NeurIPS 2024)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lametta._arrays import Floats, unit_rows
from lametta._checks import check_integer, check_number
from lametta._locks import check_interrupt
from lametta.correctors.base import BatchCorrector
from lametta.correctors.stata import affinity, assign, log_gaussians, shared_variance


@dataclass
class TransCLIP(BatchCorrector):
    """TransCLIP: cluster a batch by Gaussians of the classes, with the source as prior.

    With y the model's probabilities, f of length 1, and W the cosines of each sample's
    ``neighbors`` nearest, these take turns, from z = y, mu_k = the prototype of length 1 and the
    variance 1/d on::

        log z_ik = lambda_y log y_ik + log N(f_i; mu_k, s) / 50
                   + lambda_w ((W + W^T) z)_ik / (2 neighbors) + const,
        mu_k = unit(mean_z f),        s = sum_ik z_ik (f_i - mu_k)^2 / N,

    where mean_z weighs by column k of z, and s is the diagonal of one covariance. Every class is
    moved to samples of the batch, also one that it does not have: give it batches with all classes,
    or take `StatA`. CLIP's own logit scale is in y.

    Parameters
    ----------
    lambda_y, lambda_w : float
        The weights of the source's answer and of the neighbors'.
    neighbors : int
        Of each sample.
    max_iter : int
        Updates of the Gaussians.

    Notes
    -----
    As for `StatA`.

    References
    ----------
    M. Zanella, B. Gérin and I. Ben Ayed, "Boosting vision-language models with transduction",
    NeurIPS (2024).

    Examples
    --------
    >>> import numpy as np
    >>> from lametta.types import Prototypes
    >>> transclip = TransCLIP()
    >>> transclip.use(Prototypes(np.eye(2)))
    >>> features = np.array([[1.0, 0.2], [1.0, 0.3], [0.2, 1.0], [1.0, 0.4]])
    >>> probs = np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.45, 0.55]])
    >>> transclip.correct(features, probs).probs.argmax(axis=1)
    array([0, 0, 1, 0])
    """

    lambda_y: float = 1.0
    lambda_w: float = 1.0
    neighbors: int = 3
    max_iter: int = 10

    needs: ClassVar[frozenset[str]] = frozenset({"prototypes", "batch"})

    def __post_init__(self) -> None:
        check_number("lambda_y", self.lambda_y, 0)
        check_number("lambda_w", self.lambda_w, 0)
        check_integer("neighbors", self.neighbors, 1)
        check_integer("max_iter", self.max_iter, 1)

    def answer(self, features: Floats, probs: Floats) -> tuple[Floats, dict[str, float]]:
        assert self.prototypes is not None  # as `needs` says
        f, probs = unit_rows(np, features.astype(float)), probs.astype(float)
        mu = unit_rows(np, self.prototypes.weight.astype(float))
        log_y = self.lambda_y * np.log(np.maximum(probs, 1e-30))
        w = self.lambda_w / (2 * self.neighbors) * affinity(f, self.neighbors)
        z, s = probs, np.full(mu.shape[1], 1 / mu.shape[1])
        for _ in range(self.max_iter):
            check_interrupt()
            z = assign(log_y + log_gaussians(f, mu, s[None]), w, z)
            sums = z.T @ f
            mu = unit_rows(np, np.where(sums.any(axis=1, keepdims=True), sums, mu))
            s = shared_variance(f, mu, z)
        return assign(log_y + log_gaussians(f, mu, s[None]), w, z), {}
