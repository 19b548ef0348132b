"""LAME as a corrector: one batch, no memory."""

import warnings
from dataclasses import dataclass, field
from typing import ClassVar

from lametta._arrays import is_host_array
from lametta._lame import check_options, lame
from lametta.affinity import Affinity, knn
from lametta.correctors._params import Params
from lametta.signals import signals
from lametta.types import Array, Prediction


@dataclass
class LAME(Params):
    """The paper's method: similar samples of a batch pull each other's predictions together.

    This is `lametta.lame` as a `Corrector`, with no memory of the batch before. A batch of one
    sample has no neighbors (``info["neighbors"]`` is 0) and comes back as it was given: where
    samples come one by one, collect some, or take a corrector with memory. The second such batch
    in a row gives a warning; a single one may be the end of a stream.

    Parameters
    ----------
    affinity, weight, max_iter, tol
        As for `lametta.lame`.

    Examples
    --------
    >>> import numpy as np
    >>> features = np.array([[1.0, 0.0], [0.9, 0.1], [0.8, 0.1]])
    >>> probs = np.array([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]])
    >>> prediction = LAME().correct(features, probs)
    >>> prediction.probs.argmax(axis=1)
    array([0, 0, 0])
    >>> prediction.info["converged"], round(prediction.info["changed"], 2)
    (True, 0.33)
    """

    affinity: Affinity = knn(5)
    weight: float = 1.0
    max_iter: int = 100
    tol: float = 1e-5

    needs: ClassVar[frozenset[str]] = frozenset({"batch"})
    _alone: int = field(default=0, init=False, repr=False, compare=False)  # batches of one in a row

    def __post_init__(self) -> None:
        check_options(self.affinity, self.weight, self.max_iter, self.tol)

    def correct(self, features: Array, probs: Array, /) -> Prediction:
        """Correct one batch: features [N, d] and probs [N, K]."""
        result = lame(
            features,
            probs,
            affinity=self.affinity,
            weight=self.weight,
            max_iter=self.max_iter,
            tol=self.tol,
        )
        n = probs.shape[0]
        self._alone = self._alone + 1 if n == 1 else 0
        if self._alone == 2:
            warnings.warn(
                "LAME gets one sample at a time, and corrects nothing: give it batches, or take a "
                "corrector with memory, Prudent() or Windowed(LAME())",
                stacklevel=2,
            )
        info = {
            "neighbors": min(getattr(self.affinity, "k", n), max(n - 1, 0)),
            "n_iter": result.n_iter,
            "converged": result.converged,
            "energy": float(result.energy) if is_host_array(result.energy) else result.energy,
            **signals(result.probs, probs),
        }
        return Prediction(result.probs, features, info)

    def reset(self) -> None:
        """Forget how many samples came alone; there is no other state."""
        self._alone = 0
