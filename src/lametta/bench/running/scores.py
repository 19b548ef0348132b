"""Streaming metrics of one run: accuracy, class accuracy, NLL, ECE."""

import numpy as np

from lametta.types import Array, LamettaError

_N_BINS = 20
_FLOOR = float(np.finfo(np.float32).tiny)


class StreamingMetrics:
    """Metrics of a stream, gathered batch by batch; no prediction is kept.

    Parameters
    ----------
    n_classes : int
        The number of classes K.

    Examples
    --------
    >>> metrics = StreamingMetrics(n_classes=2)
    >>> metrics.update(np.array([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7]]), np.array([0, 1, 1]))
    2
    >>> {name: round(value, 3) for name, value in metrics.compute().items()}
    {'accuracy': 0.667, 'class_accuracy': 0.75, 'nll': 0.459, 'ece': 0.333, 'n': 3}
    """

    def __init__(self, n_classes: int) -> None:
        if n_classes < 1:
            raise LamettaError(f"n_classes must be >= 1, got {n_classes}")
        self.n_classes = n_classes
        self._seen = np.zeros(n_classes, dtype=np.int64)
        self._right = np.zeros(n_classes, dtype=np.int64)
        self._overconfidence = np.zeros(_N_BINS)
        self._loss = 0.0

    def update(self, probs: Array, labels: Array, /) -> int:
        """Count one batch, probs [N, K] and labels [N], and give how many were right.

        A network that adapts itself may diverge, which is a result and no error: a row with NaN
        predicts nothing, and so is wrong, with no confidence and no likelihood.
        """
        probs, labels = np.asarray(probs), np.asarray(labels)
        self._check(probs, labels)
        rows = np.arange(len(probs))
        predicted = probs.argmax(axis=1)
        confidence = probs[rows, predicted].astype(np.float64)
        diverged = np.isnan(confidence)  # argmax stops at NaN, wherever in the row
        confidence[diverged] = 0
        if not np.all((confidence >= 0) & (confidence <= 1.001)):  # room for float16
            raise LamettaError(f"probs must lie in 0..1, got rows with a top of {confidence.max()}")
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
            weighted by their samples; ``n``, the number of samples.
        """
        n = int(self._seen.sum())
        if n == 0:
            raise LamettaError("compute needs at least one sample, got none")
        occurred = self._seen > 0
        return {
            "accuracy": float(self._right.sum() / n),
            "class_accuracy": float(np.mean(self._right[occurred] / self._seen[occurred])),
            "nll": self._loss / n,
            "ece": float(np.abs(self._overconfidence).sum() / n),
            "n": n,
        }

    def _check(self, probs: Array, labels: Array) -> None:
        k = self.n_classes
        if probs.ndim != 2 or probs.shape[1] != k:
            raise LamettaError(f"probs must be [N, {k}], got shape {probs.shape}")
        if labels.shape != probs.shape[:1] or labels.dtype.kind not in "iu":
            raise LamettaError(
                f"labels must be {len(probs)} integers, got {labels.dtype} {labels.shape}"
            )
        if len(labels) and not 0 <= labels.min() <= labels.max() < k:
            raise LamettaError(f"labels must lie in 0..{k - 1}, got {labels.min()}..{labels.max()}")
