"""scikit-learn: a meta-estimator that corrects the probabilities of a classifier."""

from collections.abc import Callable
from typing import Any, Self, TypeAlias

import numpy as np
import sklearn
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils import Tags, get_tags
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.validation import check_is_fitted

from lametta._checks import ONE_OF_SEVERAL, check_integer
from lametta.correctors.base import clone as clone_corrector
from lametta.methods import as_corrector
from lametta.types import Array, Corrector, LamettaError

__all__ = ["CorrectedClassifier"]

_Transform: TypeAlias = BaseEstimator | Callable[[Any], Array]


class CorrectedClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier with a corrector on top.

    The rows of a call to ``predict_proba`` or ``predict`` are a stream, in batches of
    ``batch_size``: the prediction for a row depends on the rows beside it. A corrector with memory,
    such as the default, takes each call as the next part of one stream; ``fit`` and ``reset`` begin
    a new one.

    An estimator that is fitted already needs no call of ``fit``. Put it into a
    ``sklearn.frozen.FrozenEstimator`` to keep a ``clone``, a grid search or ``fit`` from changing
    it. For many streams, take a ``clone`` for each: they share a frozen estimator, not the memory.

    Parameters
    ----------
    estimator : classifier
        One with ``predict_proba``; ``fit`` fits a clone of it.
    corrector : str or Corrector
        What corrects its probabilities, or its name, such as ``"lame"``; a copy of it is used. By
        default it is `lametta.Prudent`. Its options are parameters, too: ``corrector__affinity__k``
        for ``"lame"``.
    features : transformer or callable, optional
        What rows are compared by: a transformer, of which ``fit`` fits a clone, or a callable from
        X to an array [N, d]. By default it is what goes into the classifier: X itself, or, if the
        estimator is a ``Pipeline``, what its last step gets. Only the directions of features
        matter, so that standardized ones are best.
    batch_size : int, optional
        Rows that are corrected together, in their order; None for all rows of a call. `LAME` gains
        from larger batches, so that a whole fold of a cross-validation as one batch would promise
        what the batches in production do not hold.

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
    >>> corrected = CorrectedClassifier(FrozenEstimator(classifier))
    >>> stream = 900 + y[900:].argsort(kind="stable")  # one digit after another
    >>> [round(c.score(X[stream], y[stream]), 3) for c in (classifier, corrected)]
    [0.885, 0.919]
    """

    def __init__(
        self,
        estimator: BaseEstimator,
        corrector: str | Corrector = "prudent",
        *,
        features: _Transform | None = None,
        batch_size: int | None = 64,
    ) -> None:
        self.estimator = estimator
        self.corrector = corrector
        self.features = features
        self.batch_size = batch_size

    def fit(self, X: object, y: object, **params: object) -> Self:  # noqa: N803 - scikit-learn's
        """Fit a clone of the estimator, and one of the features' transformer; forget the stream.

        Further parameters, such as ``sample_weight``, go to the estimator's ``fit``.
        """
        if sklearn.get_config()["enable_metadata_routing"]:
            params = process_routing(self, "fit", **params).estimator.fit
        estimator = clone(self.estimator).fit(X, y, **params)
        features = self.features
        if hasattr(features, "transform"):
            features = clone(features).fit(X, y)
        return self._begin(estimator, features)

    def predict_proba(self, X: object) -> NDArray[np.floating]:  # noqa: N803
        """Corrected probabilities [N, K] of the next rows."""
        if not hasattr(self, "estimator_"):
            check_is_fitted(self.estimator)
            self._begin(self.estimator, self.features)
        features, probs = self._source(X)
        size = self.batch_size or max(len(probs), 1)
        cuts = [slice(i, i + size) for i in range(0, len(probs), size)]
        correct = self.corrector_.correct
        return np.concatenate([correct(_rows(features, cut), probs[cut]).probs for cut in cuts])

    def predict(self, X: object) -> NDArray[np.generic]:  # noqa: N803
        """The likeliest class [N] of each of the next rows; a call is a step in the stream, too."""
        probs = self.predict_proba(X)
        labels: NDArray[np.generic] = self.classes_[probs.argmax(axis=1)]
        return labels

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name; ``corrector__`` is before those of the corrector.

        A corrector that was given by its name is made, so that its options can be set.
        """
        if any(name.startswith("corrector__") for name in params):
            params["corrector"] = as_corrector(params.get("corrector", self.corrector))
        super().set_params(**params)
        return self

    def reset(self) -> None:
        """Forget the stream: return to exactly the state after ``fit``."""
        if hasattr(self, "corrector_"):
            self.corrector_.reset()

    def _begin(self, estimator: BaseEstimator, features: _Transform | None) -> Self:
        several = getattr(estimator, "multilabel_", False) or isinstance(
            getattr(estimator, "classes_", None), list
        )
        if several or is_regressor(estimator):
            what = "several classes or values" if several else "numbers"
            raise LamettaError(
                f"estimator must choose one class of several, got {estimator!r}, which answers "
                f"with {what}; {ONE_OF_SEVERAL}"
            )
        if not hasattr(estimator, "predict_proba"):
            raise LamettaError(
                f"estimator must have predict_proba, got {estimator!r}: "
                "sklearn.calibration.CalibratedClassifierCV around it has one"
            )
        if not (features is None or callable(features) or hasattr(features, "transform")):
            raise LamettaError(f"features must be a transformer or a callable, got {features!r}")
        if self.batch_size is not None:
            check_integer("batch_size", self.batch_size, 1)
        corrector = clone_corrector(as_corrector(self.corrector))
        self.estimator_, self.features_, self.corrector_ = estimator, features, corrector
        return self

    def _source(self, X: object) -> tuple[object, NDArray[np.floating]]:  # noqa: N803
        """The features, and the estimator's own probabilities."""
        frozen, features = self.estimator_, self.features_
        estimator = frozen.estimator if isinstance(frozen, FrozenEstimator) else frozen
        if features is None and isinstance(estimator, Pipeline) and len(estimator.steps) > 1:
            X = estimator[:-1].transform(X)  # noqa: N806
            return X, estimator[-1].predict_proba(X)
        probs: NDArray[np.floating] = frozen.predict_proba(X)  # first, since it checks X
        if features is None:
            return X, probs
        return getattr(features, "transform", features)(X), probs

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
    def _fitted(self) -> BaseEstimator:
        return getattr(self, "estimator_", self.estimator)

    def get_metadata_routing(self) -> MetadataRouter:
        """Which parameters go where, if scikit-learn's routing of metadata is switched on."""
        fit = MethodMapping().add(caller="fit", callee="fit")
        router = MetadataRouter(owner=self).add_self_request(self)
        return router.add(estimator=self.estimator, method_mapping=fit)

    def __sklearn_is_fitted__(self) -> bool:
        try:
            check_is_fitted(self._fitted)
        except NotFittedError:
            return False
        return True

    def __sklearn_tags__(self) -> Tags:
        tags, inner = super().__sklearn_tags__(), get_tags(self.estimator)
        tags.input_tags, tags.classifier_tags = inner.input_tags, inner.classifier_tags
        tags.classifier_tags.multi_label = False
        tags.non_deterministic = inner.non_deterministic
        return tags


def _rows(x: object, rows: slice) -> NDArray[np.floating]:
    """Some rows of features, which may be sparse or a frame, as an array of floats."""
    part = x.tocsr()[rows].toarray() if hasattr(x, "tocsr") else np.asarray(x)[rows]
    try:
        return part if part.dtype.kind == "f" else part.astype(np.float64)
    except (TypeError, ValueError):
        raise LamettaError(
            f"features must be numbers [N, d], got {part.dtype}: give a transformer or a callable "
            "that makes them of X"
        ) from None
