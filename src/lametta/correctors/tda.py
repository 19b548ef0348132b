"""TDA: caches of sure and of unsure samples, for zero-shot models (Karmanov et al., CVPR 2024)."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lametta._arrays import Floats, softmax, unit_rows
from lametta._checks import check_flag, check_integer, check_number
from lametta.correctors.base import (
    Invariant,
    State,
    StatefulCorrector,
    any_finite,
    filled,
    unit_or_zero,
    within,
)
from lametta.types import Array

_FREE = np.finfo(float).max  # the entropy of a free place


@dataclass
class TDA(StatefulCorrector):
    """TDA: add what near samples were taken for, and subtract what unsure ones might have been.

    With f of length 1, a positive cache of the samples predicted most confidently as each class,
    and a negative cache of samples of middling entropy, with the mask m_j of the classes that such
    a sample j gives a probability above ``floor``,

        logits = log p + alpha sum_j exp(-beta (1 - f f_j)) onehot_j
                       - negative_alpha sum_j exp(-negative_beta (1 - f f_j)) m_j.

    Each sample enters the caches before it is answered. Logits are those of the model up to a
    constant, so that CLIP's are its cosines times its own logit scale, 100.

    Parameters
    ----------
    alpha, beta : float
        Weight and sharpness of the positive cache. (2, 5) for ImageNet; the paper tunes them on
        each test set: (1, 8) for ImageNet-R and V2, (2.363, 7.45) for Sketch, (5, 5) for Caltech.
    negative_alpha, negative_beta : float
        Those of the negative cache.
    positives, negatives : int
        Samples of a class in each cache.
    least_entropy, most_entropy : float
        Between which the negative cache takes samples, as shares of the highest entropy, ln K.
    floor : float
        The probability above which, and below 1, a class is masked.
    released : bool
        Divide entropies by log2 K, as the published code does, and not by ln K: shares are then
        0.69 of what they should be, and samples of up to 0.72 are taken.

    Notes
    -----
    A stream's state at 1000 classes of 512 features is 22 MB: ``positives + negatives`` samples
    and ``negatives`` masks of K classes for each class. The paper's mean over augmented views of an
    image has to be made before: a corrector sees features, one for each sample.

    References
    ----------
    A. Karmanov et al., "Efficient test-time adaptation of vision-language models", CVPR (2024).

    Examples
    --------
    >>> import numpy as np
    >>> features = np.array([[1.0, 0.1], [1.0, 0.2], [1.0, 0.15]])
    >>> probs = np.array([[0.99, 0.01], [0.95, 0.05], [0.45, 0.55]])
    >>> TDA().correct(features, probs).probs.argmax(axis=1)
    array([0, 0, 0])
    """

    alpha: float = 2.0
    beta: float = 5.0
    negative_alpha: float = 0.117
    negative_beta: float = 1.0
    positives: int = 3
    negatives: int = 2
    least_entropy: float = 0.2
    most_entropy: float = 0.5
    floor: float = 0.03
    released: bool = False

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "negative_alpha", "negative_beta"):
            check_number(name, getattr(self, name), 0)
        check_integer("positives", self.positives, 1)
        check_integer("negatives", self.negatives, 1)
        check_number("least_entropy", self.least_entropy, 0)
        check_number("most_entropy", self.most_entropy, self.least_entropy)
        check_number("floor", self.floor, 0, below=1)
        check_flag("released", self.released)

    def init_state(self, d: int, k: int) -> State:
        positive, negative = (k, self.positives), (k, self.negatives)
        return {
            "positive": filled((*positive, d)),
            "positive_entropy": filled(positive, _FREE),
            "negative": filled((*negative, d)),
            "negative_entropy": filled(negative, _FREE),
            "masks": filled((*negative, k), 0, bool),
        }

    def invariants(self) -> Mapping[str, Invariant]:
        return {
            "positive": unit_or_zero(),
            "positive_entropy": within(-1, _FREE),
            "negative": unit_or_zero(),
            "negative_entropy": within(-1, _FREE),
            "masks": any_finite(),
        }

    def update_one(self, state: State, x: Floats, q: Floats) -> Floats:
        f, label, logs = unit_rows(np, x[None])[0], q.argmax(), np.log(np.maximum(q, 1e-30))
        entropy = float(-(q * logs).sum())
        _enter(state["positive_entropy"][label], entropy, (state["positive"][label], f))
        highest = np.log2(len(q)) if self.released else np.log(len(q))
        if self.least_entropy < entropy / highest < self.most_entropy:
            mask = (q > self.floor) & (q < 1)
            entries = (state["negative"][label], f), (state["masks"][label], mask)
            _enter(state["negative_entropy"][label], entropy, *entries)
        near = np.exp(self.beta * (state["positive"] @ f - 1))
        near[state["positive_entropy"] == _FREE] = 0
        logs = logs + self.alpha * near.sum(axis=1)
        used = state["negative_entropy"] < _FREE
        near = np.exp(self.negative_beta * (state["negative"][used] @ f - 1))
        row: Floats = softmax(np, logs - self.negative_alpha * (near @ state["masks"][used]))
        return row


def _enter(entropies: Floats, entropy: float, *entries: tuple[Array, Array]) -> None:
    """Put a sample in the place of the least sure one, or in a free one, where it is surer."""
    place = int(entropies.argmax())
    if entropy < entropies[place]:
        entropies[place] = entropy
        for cache, value in entries:
            cache[place] = value
