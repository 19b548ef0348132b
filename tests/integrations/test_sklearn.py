"""Corrected scikit-learn classifiers: the library's own checks, and the core bit for bit."""

import pickle
import re
import runpy
from pathlib import Path

import numpy as np
import pandas
import pytest
import sklearn
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import (
    GridSearchCV,
    StratifiedKFold,
    cross_val_predict,
    cross_val_score,
)
from sklearn.naive_bayes import GaussianNB, MultinomialNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import check_is_fitted

import lametta
from lametta import LAME, LamettaError, Prudent, Windowed, knn
from lametta.integrations.sklearn import CorrectedClassifier

X, y = load_digits(return_X_y=True)
TRAIN, STREAM = slice(0, 900), np.argsort(y[900:1200], kind="stable") + 900
FITTED = GaussianNB(var_smoothing=0.5).fit(X[TRAIN], y[TRAIN])

TRANSDUCTIVE = {
    "check_methods_subset_invariance": "a row is corrected by the rows beside it, so that what is "
    "said of it depends on them: that is the method",
}
REMEMBERS = {
    "check_methods_sample_order_invariance": "the order of rows is time for a corrector with "
    "memory",
}


def expected_failures(estimator):
    """What cannot hold; where a stream has no order, Prudent keeps still, and the rest does."""
    if estimator.corrector == "lame":
        return TRANSDUCTIVE
    return REMEMBERS if isinstance(estimator.estimator, KNeighborsClassifier) else {}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(
    [
        CorrectedClassifier(KNeighborsClassifier(3)),
        CorrectedClassifier(KNeighborsClassifier(3), "lame"),
        CorrectedClassifier(make_pipeline(StandardScaler(), GaussianNB()), Prudent()),
    ],
    expected_failed_checks=expected_failures,
    xfail_strict=True,
)
def test_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


# The core, bit for bit


def test_a_call_is_a_batch():
    corrected = CorrectedClassifier(FrozenEstimator(FITTED), LAME(), batch_size=None)
    rows = X[STREAM]
    expected = lametta.lame(rows, FITTED.predict_proba(rows)).probs
    np.testing.assert_array_equal(corrected.predict_proba(rows), expected)
    np.testing.assert_array_equal(corrected.predict(rows), expected.argmax(axis=1))
    assert corrected.score(rows, y[STREAM]) > FITTED.score(rows, y[STREAM]) + 0.02
    np.testing.assert_array_equal(
        corrected.predict_proba(rows.astype(np.float32)),
        lametta.lame(rows.astype(np.float32), FITTED.predict_proba(rows)).probs,
    )


def test_batches_in_order():
    corrector = LAME(knn(3), weight=0.5)
    corrected = CorrectedClassifier(FITTED, corrector)
    rows = X[STREAM]
    parts = [rows[start : start + 64] for start in range(0, 300, 64)]
    expected = [corrector.correct(part, FITTED.predict_proba(part)).probs for part in parts]
    np.testing.assert_array_equal(corrected.predict_proba(rows), np.concatenate(expected))


def test_a_stream_goes_on_from_call_to_call():
    given, reference = Prudent(), Prudent()
    corrected = CorrectedClassifier(FrozenEstimator(FITTED), given, batch_size=None)
    rows, probs = X[STREAM], FITTED.predict_proba(X[STREAM])
    parts = [slice(0, 100), *(slice(i, i + 1) for i in range(100, 120)), slice(120, 300)]
    expected = [reference.correct(rows[part], probs[part]).probs for part in parts]
    assert np.abs(np.concatenate(expected) - probs)[100:120].max() > 1e-3
    np.testing.assert_array_equal(corrected.predict_proba(rows[:100]), expected[0])
    for continued in (pickle.loads(pickle.dumps(corrected)), corrected):
        for part, probs in zip(parts[1:], expected[1:], strict=True):
            np.testing.assert_array_equal(continued.predict_proba(rows[part]), probs)
    used = Prudent()
    used.correct(rows[200:], FITTED.predict_proba(rows[200:]))
    others = clone(corrected), CorrectedClassifier(FITTED, used, batch_size=None)
    corrected.reset()
    for anew in (corrected, *others):
        np.testing.assert_array_equal(anew.predict_proba(rows[:100]), expected[0])
    assert given.state_dict() == {}


def test_a_clone_for_each_stream():
    camera = CorrectedClassifier(FrozenEstimator(FITTED), batch_size=None)
    cameras = {"door": clone(camera), "yard": clone(camera)}
    rows, probs = X[STREAM], FITTED.predict_proba(X[STREAM])
    for name, corrected in cameras.items():
        own = slice(0, 300, 2) if name == "door" else slice(1, 300, 2)
        expected = Prudent().correct(rows[own], probs[own]).probs
        np.testing.assert_array_equal(corrected.predict_proba(rows[own]), expected)
        assert corrected.estimator_ is camera.estimator


@pytest.mark.slow
def test_the_example_gains(capsys):
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "sklearn_stream.py"))
    alone, batches, prudent = map(float, re.findall(r"([\d.]+)%", capsys.readouterr().out))
    assert alone + 5 < min(batches, prudent)


# Features


def test_features_of_a_pipeline_are_what_its_last_step_gets():
    pipeline = make_pipeline(StandardScaler(), PCA(10), GaussianNB()).fit(X[TRAIN], y[TRAIN])
    rows = X[STREAM]
    expected = lametta.lame(pipeline[:-1].transform(rows), pipeline.predict_proba(rows)).probs
    for estimator in (pipeline, FrozenEstimator(pipeline)):
        got = CorrectedClassifier(estimator, "lame", batch_size=None).predict_proba(rows)
        np.testing.assert_array_equal(got, expected)
    last = CorrectedClassifier(GaussianNB(), "lame", batch_size=None)
    outside = make_pipeline(*clone(pipeline)[:-1], last)
    got = outside.fit(X[TRAIN], y[TRAIN]).predict_proba(rows)
    np.testing.assert_array_equal(got, expected)
    alone = make_pipeline(FITTED)
    np.testing.assert_array_equal(
        CorrectedClassifier(alone).predict_proba(rows),
        CorrectedClassifier(FITTED).predict_proba(rows),
    )


def test_features_by_transformer_and_by_function():
    rows, scaler = X[STREAM], StandardScaler()
    options = {"corrector": "lame", "batch_size": None}
    corrected = CorrectedClassifier(GaussianNB(var_smoothing=0.5), features=scaler, **options)
    got = corrected.fit(X[TRAIN], y[TRAIN]).predict_proba(rows)
    assert not hasattr(scaler, "mean_")
    fitted = scaler.fit(X[TRAIN])
    expected = lametta.lame(fitted.transform(rows), FITTED.predict_proba(rows)).probs
    np.testing.assert_array_equal(got, expected)
    for features in (fitted, FrozenEstimator(fitted), fitted.transform):
        got = CorrectedClassifier(FITTED, features=features, **options).predict_proba(rows)
        np.testing.assert_array_equal(got, expected)


def test_sparse_text():
    texts = np.array(["a red fox", "the red fox", "a blue whale", "one blue whale", "a fox"] * 3)
    labels = np.array(["fox", "fox", "whale", "whale", "fox"] * 3)
    pipeline = make_pipeline(TfidfVectorizer(), MultinomialNB())
    corrected = CorrectedClassifier(pipeline, "lame", batch_size=4).fit(texts, labels)
    assert list(corrected.predict(texts)[:5]) == list(labels[:5])
    assert list(corrected.classes_) == ["fox", "whale"]
    features = corrected.estimator_[:-1].transform(texts[:4]).toarray()
    expected = lametta.lame(features, corrected.estimator_.predict_proba(texts[:4])).probs
    np.testing.assert_array_equal(corrected.predict_proba(texts)[:4], expected)
    with pytest.raises(LamettaError, match="features must be numbers .*, got .*: give a transform"):
        CorrectedClassifier(pipeline.fit(texts, labels), features=lambda x: x).predict(texts)


def test_frames():
    frame = pandas.DataFrame(X[:, :6], columns=list("abcdef"))
    scaler = StandardScaler().set_output(transform="pandas")
    pipeline = make_pipeline(scaler, GaussianNB())
    corrected = CorrectedClassifier(pipeline, "lame", batch_size=None)
    corrected.fit(frame[TRAIN], y[TRAIN])
    assert list(corrected.feature_names_in_) == list("abcdef")
    assert corrected.n_features_in_ == 6
    rows = frame.iloc[STREAM]
    pipeline = corrected.estimator_
    features = pipeline[:-1].transform(rows)
    assert isinstance(features, pandas.DataFrame)
    expected = lametta.lame(np.asarray(features), pipeline.predict_proba(rows)).probs
    np.testing.assert_array_equal(corrected.predict_proba(rows), expected)


# Fitted and frozen estimators


def test_a_fitted_estimator_needs_no_fit():
    corrected = CorrectedClassifier(FITTED)
    check_is_fitted(corrected)
    assert corrected.n_features_in_ == 64
    np.testing.assert_array_equal(corrected.classes_, np.arange(10))
    with pytest.raises(NotFittedError):
        clone(corrected).predict(X)
    with pytest.raises(NotFittedError):
        check_is_fitted(clone(corrected))
    with pytest.raises(NotFittedError):
        CorrectedClassifier(FITTED, features=StandardScaler()).predict(X)


def test_a_frozen_estimator_stays_as_it_is():
    frozen = CorrectedClassifier(FrozenEstimator(FITTED))
    expected = frozen.predict_proba(X[STREAM])
    for corrected in (clone(frozen), clone(frozen).fit(X[:20], y[:20] % 2)):
        np.testing.assert_array_equal(corrected.predict_proba(X[STREAM]), expected)
        assert corrected.estimator_.estimator is FITTED
    got = cross_val_predict(frozen, X[STREAM], y[STREAM], cv=3, method="predict_proba")
    assert got.shape == (300, 10)


def test_a_grid_over_correctors():
    correctors = [LAME(weight=0.0), LAME(knn(3)), Prudent()]
    grid = {"corrector": correctors, "batch_size": [None, 32], "estimator__var_smoothing": [0.05]}
    search = GridSearchCV(CorrectedClassifier(GaussianNB()), grid, cv=2, error_score="raise")
    search.fit(X[STREAM], y[STREAM])
    assert len(search.cv_results_["params"]) == 6
    assert search.best_estimator_.estimator_.var_smoothing == 0.05
    assert search.predict_proba(X[:3]).shape == (3, 10)


def test_a_grid_over_options_of_the_corrector():
    grid = {"corrector__affinity__k": [1, 5], "corrector__weight": [0.0, 1.0]}
    corrected = CorrectedClassifier(FrozenEstimator(FITTED), "lame")
    search = GridSearchCV(corrected, grid, cv=2, error_score="raise").fit(X[STREAM], y[STREAM])
    found = search.cv_results_
    scores = found["mean_test_score"].tolist()
    for params, score in zip(found["params"], scores, strict=True):
        k, weight = params.values()
        by_hand = CorrectedClassifier(FrozenEstimator(FITTED), LAME(knn(k), weight=weight))
        assert score == cross_val_score(by_hand, X[STREAM], y[STREAM], cv=2).mean()
    assert len({*scores}) == 3  # a weight of 0 is the classifier, whatever k is
    best = search.best_params_["corrector__affinity__k"]
    assert search.best_estimator_.corrector_.affinity == knn(best)
    assert corrected.corrector == "lame"


def test_options_of_a_corrector_given_by_name():
    corrected = CorrectedClassifier(FITTED, "lame")
    rows = X[STREAM]
    assert corrected.set_params(corrector__affinity=knn(1), batch_size=None) is corrected
    expected = lametta.lame(rows, FITTED.predict_proba(rows), affinity=knn(1)).probs
    np.testing.assert_array_equal(corrected.predict_proba(rows), expected)
    corrected.set_params(corrector="windowed", corrector__size=3, corrector__corrector__weight=2)
    assert corrected.corrector == Windowed(LAME(weight=2), size=3)
    with pytest.raises(LamettaError, match="affinity is no option of Prudent, which has none"):
        CorrectedClassifier(FITTED).set_params(corrector__affinity=knn(1))
    with pytest.raises(LamettaError, match="weigth is no option of LAME.*did you mean 'weight'"):
        CorrectedClassifier(FITTED, LAME()).set_params(corrector__weigth=1)


def test_lame_row_by_row_gives_a_warning():
    corrected = CorrectedClassifier(FITTED, "lame")
    corrected.predict(X[:1])  # which may be the end of a stream
    with pytest.warns(UserWarning, match="LAME gets one sample"):
        corrected.predict(X[1:2])


@pytest.mark.parametrize("corrector", ["prudent", "lame"])
def test_a_fold_says_what_batches_in_production_would(corrector):
    """A whole fold as one batch of LAME gains what no batch in production does."""
    pipeline = make_pipeline(StandardScaler(), LogisticRegression(C=0.01))
    own = cross_val_score(pipeline, X, y)
    corrected = CorrectedClassifier(pipeline, corrector)
    said = cross_val_score(corrected, X, y)
    for (train, test), score in zip(StratifiedKFold().split(X, y), said, strict=True):
        corrected.fit(X[train], y[train])
        parts = [test[start : start + 64] for start in range(0, len(test), 64)]
        labels = np.concatenate([corrected.predict(X[part]) for part in parts])
        assert score == np.mean(labels == y[test])
    if corrector == "prudent":  # the default: digits in no order leave nothing to correct
        assert abs(np.mean(said - own)) < 0.01


@pytest.mark.parametrize("routing", [False, True])
def test_weights_of_samples_reach_the_estimator(routing):
    weights = np.where(y[TRAIN] < 5, 1.0, 0.01)
    expected = GaussianNB().fit(X[TRAIN], y[TRAIN], sample_weight=weights).class_prior_
    with sklearn.config_context(enable_metadata_routing=routing):
        estimator = GaussianNB().set_fit_request(sample_weight=True) if routing else GaussianNB()
        corrected = CorrectedClassifier(estimator)
        corrected.fit(X[TRAIN], y[TRAIN], sample_weight=weights)
        np.testing.assert_array_equal(corrected.estimator_.class_prior_, expected)
        assert "estimator" in repr(corrected.get_metadata_routing())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"estimator": LinearSVC()}, "estimator must have predict_proba, got .*CalibratedClassif"),
        ({"corrector": "lam"}, "corrector must be one of .*, got 'lam'; did you mean 'lame'"),
        ({"corrector": "tent"}, "corrector must see outputs alone, got 'tent', which needs"),
        ({"corrector": LAME}, "corrector must .* got the class LAME: write LAME"),
        ({"corrector": None}, "corrector must have correct and reset, got NoneType"),
        ({"features": 3}, "features must be a transformer or a callable, got 3"),
        ({"batch_size": 0}, "batch_size must be an integer >= 1, got 0"),
    ],
)
def test_what_it_cannot_take(options, message):
    corrected = CorrectedClassifier(**{"estimator": GaussianNB(), **options})
    with pytest.raises(LamettaError, match=message):
        corrected.fit(X[:20, :4], y[:20])
