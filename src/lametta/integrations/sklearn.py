"""A scikit-learn classifier whose probabilities are corrected: a meta-estimator."""

import copy
from typing import Any, Self

import numpy as np
import sklearn
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.validation import check_is_fitted

from lametta._checks import check_integer
from lametta.correctors import LAME
from lametta.types import Corrector, LamettaError

__all__ = ["CorrectedClassifier"]


class CorrectedClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier with a corrector on top.

    The rows of a call to ``predict_proba`` or ``predict`` are one batch, or batches of
    ``batch_size``: what is said of a row depends on the rows beside it. A corrector with memory,
    such as `lametta.Prudent`, goes on from one call to the next, each of which is the next part of
    the stream; ``reset`` begins a new one.

    An estimator that is fitted already needs no call of ``fit``. So that a ``clone``, a grid search
    or ``fit`` leave it as it is, put it into a ``sklearn.frozen.FrozenEstimator``. For many
    streams, take a ``clone`` for each: they share a frozen estimator, and remember apart.

    Parameters
    ----------
    estimator : classifier
        One with ``predict_proba``; ``fit`` fits a clone of it.
    corrector : Corrector, optional
        What corrects its probabilities, by default `lametta.LAME`; a copy of it is used.
    features : transformer or callable, optional
        What rows are compared by: a transformer, of which ``fit`` fits a clone, or a callable from
        X to an array [N, d]. By default it is what goes into the classifier: X itself, or, if the
        estimator is a ``Pipeline``, what its last step gets. Only the directions of features
        matter, so that standardized ones are best.
    batch_size : int, optional
        Rows that are corrected together, in their order; all rows of a call by default.

    Attributes
    ----------
    estimator_, features_, corrector_
        What is used: fitted, and with the memory of the stream.
    classes_, n_features_in_, feature_names_in_
        Those of the estimator.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.frozen import FrozenEstimator
    >>> from sklearn.naive_bayes import GaussianNB
    >>> X, y = load_digits(return_X_y=True)
    >>> classifier = GaussianNB(var_smoothing=0.5).fit(X[:900], y[:900])
    >>> corrected = CorrectedClassifier(FrozenEstimator(classifier), batch_size=32)
    >>> stream = 900 + y[900:].argsort(kind="stable")  # one digit after another
    >>> [round(c.score(X[stream], y[stream]), 3) for c in (classifier, corrected)]
    [0.885, 0.933]
    """

    def __init__(
        self,
        estimator: Any,
        corrector: Corrector | None = None,
        *,
        features: Any = None,
        batch_size: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.corrector = corrector
        self.features = features
        self.batch_size = batch_size

    def fit(self, X: Any, y: Any, **params: Any) -> Self:  # noqa: N803 - as scikit-learn has it
        """Fit a clone of the estimator, and one of the features' transformer; forget the stream.

        Further parameters, ``sample_weight`` say, go to the estimator's ``fit``.
        """
        if sklearn.get_config()["enable_metadata_routing"]:
            params = process_routing(self, "fit", **params).estimator.fit
        estimator = clone(self.estimator).fit(X, y, **params)
        features = self.features
        if hasattr(features, "transform"):
            features = clone(features).fit(X, y)
        return self._begin(estimator, features)

    def predict_proba(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """Corrected probabilities [N, K] of the next rows."""
        if not hasattr(self, "estimator_"):
            check_is_fitted(self.estimator)
            self._begin(self.estimator, self.features)
        features, probs = self._source(X)
        size = self.batch_size or max(len(probs), 1)
        corrected = [
            self.corrector_.correct(_rows(features, rows), probs[rows]).probs
            for rows in (slice(start, start + size) for start in range(0, len(probs), size))
        ]
        return np.concatenate(corrected)

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """The likeliest class [N] of each of the next rows; a call is a step in the stream, too."""
        probs = self.predict_proba(X)
        labels: NDArray[Any] = self.classes_[probs.argmax(axis=1)]
        return labels

    def reset(self) -> None:
        """Forget the stream: return to exactly the state after ``fit``."""
        if hasattr(self, "corrector_"):
            self.corrector_.reset()

    def _begin(self, estimator: Any, features: Any) -> Self:
        if not hasattr(estimator, "predict_proba"):
            raise LamettaError(
                f"estimator must have predict_proba, got {estimator!r}: "
                "sklearn.calibration.CalibratedClassifierCV around it has one"
            )
        if not (features is None or callable(features) or hasattr(features, "transform")):
            raise LamettaError(f"features must be a transformer or a callable, got {features!r}")
        if self.batch_size is not None:
            check_integer("batch_size", self.batch_size, 1)
        corrector = LAME() if self.corrector is None else copy.deepcopy(self.corrector)
        if not isinstance(corrector, Corrector) or isinstance(corrector, type):
            raise LamettaError(f"corrector must be a Corrector, got {corrector!r}")
        corrector.reset()
        self.estimator_, self.features_, self.corrector_ = estimator, features, corrector
        return self

    def _source(self, X: Any) -> tuple[Any, NDArray[Any]]:  # noqa: N803
        """Features and probabilities, as yet uncorrected."""
        frozen, features = self.estimator_, self.features_
        estimator = frozen.estimator if isinstance(frozen, FrozenEstimator) else frozen
        if features is None and isinstance(estimator, Pipeline) and len(estimator.steps) > 1:
            X = estimator[:-1].transform(X)  # noqa: N806
            return X, estimator[-1].predict_proba(X)
        probs: NDArray[Any] = frozen.predict_proba(X)  # first, since it checks X
        if features is None:
            return X, probs
        return (features.transform if hasattr(features, "transform") else features)(X), probs

    @property
    def classes_(self) -> Any:
        return self._fitted.classes_

    @property
    def n_features_in_(self) -> Any:
        return self._fitted.n_features_in_

    @property
    def feature_names_in_(self) -> Any:
        return self._fitted.feature_names_in_

    @property
    def _fitted(self) -> Any:
        return getattr(self, "estimator_", self.estimator)

    def get_metadata_routing(self) -> MetadataRouter:
        """What goes where, if scikit-learn's routing of metadata is switched on."""
        fit = MethodMapping().add(caller="fit", callee="fit")
        router = MetadataRouter(owner=self).add_self_request(self)
        return router.add(estimator=self.estimator, method_mapping=fit)

    def __sklearn_is_fitted__(self) -> bool:
        try:
            check_is_fitted(self._fitted)
        except NotFittedError:
            return False
        return True

    def __sklearn_tags__(self) -> Any:
        tags, inner = super().__sklearn_tags__(), get_tags(self.estimator)
        tags.input_tags, tags.classifier_tags = inner.input_tags, inner.classifier_tags
        tags.classifier_tags.multi_label = False
        tags.non_deterministic = inner.non_deterministic
        return tags


def _rows(features: Any, rows: slice) -> NDArray[Any]:
    """Some rows of features, which may be sparse or a frame, as an array of floats."""
    x = features.tocsr()[rows].toarray() if hasattr(features, "tocsr") else features
    x = x if x is not features else np.asarray(features)[rows]
    try:
        return x if x.dtype.kind == "f" else x.astype(np.float64)
    except (TypeError, ValueError):
        raise LamettaError(
            f"features must be numbers [N, d], got {x.dtype}: give a transformer or a callable "
            "that makes them of X"
        ) from None
