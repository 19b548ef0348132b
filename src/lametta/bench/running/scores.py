"""Streaming metrics of one run: accuracy, class accuracy, NLL, ECE, AUROC; soft neighborhoods."""

import numpy as np

from lametta.types import Array, LamettaError

_N_BINS = 20
_FLOOR = float(np.finfo(np.float32).tiny)
_TEMPERATURE = 0.05  # of Saito et al.
_NEIGHBORHOOD = 1000  # samples of a batch that are compared with each other


class StreamingMetrics:
    """Metrics of a stream, gathered batch by batch; of predictions, confidences alone are kept.

    Parameters
    ----------
    n_classes : int
        The number of classes K.
    unknown : bool
        Whether there are samples of unknown classes, whose label is K. They count in the AUROC
        alone.

    Examples
    --------
    >>> metrics = StreamingMetrics(n_classes=2)
    >>> metrics.update(np.array([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7]]), np.array([0, 1, 1]))
    2
    >>> {name: round(value, 3) for name, value in metrics.compute().items()}
    {'accuracy': 0.667, 'class_accuracy': 0.75, 'nll': 0.459, 'ece': 0.333, 'n': 3}
    """

    def __init__(self, n_classes: int, *, unknown: bool = False) -> None:
        if n_classes < 1:
            raise LamettaError(f"n_classes must be >= 1, got {n_classes}")
        self.n_classes, self.unknown = n_classes, unknown
        self._confidence: dict[bool, list[Array]] = {True: [], False: []}  # known, unknown
        self._seen = np.zeros(n_classes, dtype=np.int64)
        self._right = np.zeros(n_classes, dtype=np.int64)
        self._overconfidence = np.zeros(_N_BINS)
        self._loss, self._n = 0.0, 0

    def update(self, probs: Array, labels: Array, /) -> int:
        """Count one batch, probs [N, K] and labels [N], and give how many known ones were right.

        A network that adapts itself may diverge, which is a result and no error: a row with NaN
        predicts nothing, and so is wrong, with no confidence and no likelihood.
        """
        probs, labels = np.asarray(probs), np.asarray(labels)
        self._check(probs, labels)
        self._n += len(labels)
        rows = np.arange(len(probs))
        predicted = probs.argmax(axis=1)
        confidence = probs[rows, predicted].astype(np.float64)
        diverged = np.isnan(confidence)  # argmax stops at NaN, wherever in the row
        confidence[diverged] = 0
        if not np.all((confidence >= 0) & (confidence <= 1.001)):  # room for float16
            raise LamettaError(f"probs must lie in 0..1, got rows with a top of {confidence.max()}")
        if self.unknown:
            known = labels < self.n_classes
            for kind, chosen in ((True, known), (False, ~known)):
                self._confidence[kind].append(confidence[chosen])
            probs, labels, predicted = probs[known], labels[known], predicted[known]
            confidence, diverged, rows = confidence[known], diverged[known], rows[: known.sum()]
        right = (predicted == labels) & ~diverged
        likelihood = np.where(diverged, 0, probs[rows, labels].astype(np.float64))
        self._loss -= float(np.log(np.maximum(likelihood, _FLOOR)).sum())
        self._seen += np.bincount(labels, minlength=self.n_classes)
        self._right += np.bincount(labels[right], minlength=self.n_classes)
        bins = np.minimum((confidence * _N_BINS).astype(np.int64), _N_BINS - 1)
        self._overconfidence += np.bincount(bins, confidence - right, minlength=_N_BINS)
        return int(right.sum())

    def compute(self) -> dict[str, float]:
        """The metrics of all batches so far.

        Returns
        -------
        dict
            ``accuracy``, the share of samples predicted right; ``class_accuracy``, the mean of
            that share over the classes that occurred; ``nll``, the mean negative log-likelihood in
            nats, where a probability counts as no less than the smallest normal float32, about
            1e-38, so that it is finite; ``ece``, the expected calibration error: the mean
            distance of confidence and accuracy over 20 bins of the top probability, equally wide,
            weighted by their samples; ``n``, the number of samples, unknown ones too, which only
            count here and in what follows. With unknown samples also ``auroc``, how often a known
            sample is predicted with more confidence than an unknown one, ties counting half; and
            ``h_score``, the harmonic mean of that and the accuracy.
        """
        n = int(self._seen.sum())
        if n == 0:
            raise LamettaError("compute needs at least one sample of a known class, got none")
        occurred = self._seen > 0
        found = {
            "accuracy": float(self._right.sum() / n),
            "class_accuracy": float(np.mean(self._right[occurred] / self._seen[occurred])),
            "nll": self._loss / n,
            "ece": float(np.abs(self._overconfidence).sum() / n),
            "n": self._n,
        }
        return found | self._compute_open(found["accuracy"]) if self.unknown else found

    def _compute_open(self, accuracy: float) -> dict[str, float]:
        known, unknown = (np.concatenate(self._confidence[kind]) for kind in (True, False))
        if not len(unknown):
            return {}
        area = area_under_roc(known, unknown)
        both = accuracy + area
        return {"auroc": area, "h_score": 2 * accuracy * area / both if both else 0.0}

    def _check(self, probs: Array, labels: Array) -> None:
        k = self.n_classes
        if probs.ndim != 2 or probs.shape[1] != k:
            raise LamettaError(f"probs must be [N, {k}], got shape {probs.shape}")
        if labels.shape != probs.shape[:1] or labels.dtype.kind not in "iu":
            raise LamettaError(
                f"labels must be {len(probs)} integers, got {labels.dtype} {labels.shape}"
            )
        most = k if self.unknown else k - 1
        if len(labels) and not 0 <= labels.min() <= labels.max() <= most:
            raise LamettaError(f"labels must lie in 0..{most}, got {labels.min()}..{labels.max()}")


def area_under_roc(positive: Array, negative: Array, /) -> float:
    """The share of pairs in which the positive score is the higher one; ties count half.

    Examples
    --------
    >>> area_under_roc(np.array([0.9, 0.5]), np.array([0.5, 0.1]))
    0.875
    """
    ordered = np.sort(negative)
    below, upto = (np.searchsorted(ordered, positive, side) for side in ("left", "right"))
    return float((below + upto).sum() / (2 * len(positive) * len(negative)))


def soft_neighborhood_density(probs: Array, /) -> float | None:
    """How densely the predictions of a batch [N, K] lie, without labels; more is better.

    The mean entropy of each sample's similarities to the others: cosines of the probabilities, in a
    softmax at the temperature 0.05 (Saito et al., ICCV 2021). Of more than 1000 samples, 1000 are
    compared; fewer than three have no density.

    Examples
    --------
    >>> round(np.exp(soft_neighborhood_density(np.eye(2)[[0] * 4 + [1] * 4])), 3)
    np.float64(3.0)
    """
    probs = np.asarray(probs)[:: -(-len(probs) // _NEIGHBORHOOD) or 1].astype(np.float32)
    n = len(probs)
    if n < 3 or not np.isfinite(probs).all():
        return None
    unit = probs / np.maximum(np.linalg.norm(probs, axis=1, keepdims=True), _FLOOR)
    similar = (unit @ unit.T - 1) / _TEMPERATURE  # cosines are at most 1
    weight = np.exp(similar)
    np.fill_diagonal(weight, 0)
    total = np.maximum(weight.sum(axis=1), _FLOOR)
    # The entropy of w / sum w is log(sum w) - sum w log w / sum w.
    return float(np.mean(np.log(total) - (weight * similar).sum(axis=1) / total))
