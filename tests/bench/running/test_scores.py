"""Metrics of a stream, against other libraries and by definition."""

import statistics
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy
from sklearn.calibration import calibration_curve
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    log_loss,
    recall_score,
    roc_auc_score,
)

from lametta.bench.running.scores import StreamingMetrics, soft_neighborhood_density
from lametta.types import LamettaError
from tests.conftest import softmax


def tallied(probs, labels, cuts=()):
    metrics = StreamingMetrics(probs.shape[1])
    parts = zip(np.split(probs, cuts), np.split(labels, cuts), strict=True)
    hits = sum(metrics.update(*part) for part in parts)
    return metrics.compute() | {"hits": hits}


def predictions(n=500, n_classes=7, seed=0, scale=2.0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(n_classes, size=n)
    logits = scale * np.eye(n_classes)[labels] + rng.normal(size=(n, n_classes)) * scale
    return softmax(logits), labels


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("scale", [0.1, 1.0, 4.0])
def test_agrees_with_other_libraries(seed, scale):
    probs, labels = predictions(seed=seed, scale=scale)
    found = tallied(probs, labels, cuts=[64, 128, 129])
    predicted = probs.argmax(axis=1)
    top = probs.max(axis=1)
    right, confidence = calibration_curve(predicted == labels, top, n_bins=20)
    counts, _ = np.histogram(top, bins=20, range=(0, 1))
    ece = np.average(np.abs(right - confidence), weights=counts[counts > 0])
    assert found["n"] == 500
    assert found["hits"] == (predicted == labels).sum()
    assert found["accuracy"] == pytest.approx(accuracy_score(labels, predicted))
    assert found["class_accuracy"] == pytest.approx(balanced_accuracy_score(labels, predicted))
    assert found["nll"] == pytest.approx(log_loss(labels, probs, labels=range(7)))
    assert found["ece"] == pytest.approx(ece)


def test_classes_that_never_occur_do_not_count():
    probs, labels = predictions()
    probs, labels = probs[labels < 3], labels[labels < 3]
    recall = recall_score(labels, probs.argmax(axis=1), labels=[0, 1, 2], average="macro")
    assert tallied(probs, labels)["class_accuracy"] == pytest.approx(recall)


@st.composite
def dyadic(draw):
    """Probabilities in 64ths, so that the edges of bins at 1/4, 1/2, 3/4 and 1 are met exactly."""
    n_classes = draw(st.integers(1, 4))
    n = draw(st.integers(1, 12))
    cuts = st.lists(st.integers(0, 64), min_size=n_classes - 1, max_size=n_classes - 1)
    rows = [np.diff([0, *sorted(draw(cuts)), 64]) / 64 for _ in range(n)]
    labels = draw(st.lists(st.integers(0, n_classes - 1), min_size=n, max_size=n))
    return np.array(rows, draw(st.sampled_from([np.float64, np.float32, np.float16]))), labels


@given(dyadic(), st.integers(0, 12))
def test_calibration_by_definition(batch, cut):
    probs, labels = batch
    bins = {}
    for row, label in zip(probs.tolist(), labels, strict=True):
        top = Fraction(max(row))
        right = row.index(max(row)) == label
        bins.setdefault(min(int(top * 20), 19), []).append(top - right)
    ece = sum(abs(sum(gaps)) for gaps in bins.values()) / len(labels)
    assert tallied(probs, np.array(labels), [cut])["ece"] == pytest.approx(float(ece))


@given(st.lists(st.integers(0, 60), max_size=5), st.sampled_from([np.float32, np.float64]))
def test_batches_do_not_matter(cuts, dtype):
    probs, labels = predictions(60)
    probs = probs.astype(dtype)
    found = tallied(probs, labels, sorted(cuts))
    assert found == pytest.approx(tallied(probs, labels), rel=1e-12)
    # Sums are in float64 whatever came.
    expected = -np.log(probs[np.arange(60), labels].astype(np.float64)).mean()
    assert found["nll"] == pytest.approx(expected, rel=1e-12)


def test_impossible_classes_have_a_finite_loss():
    found = tallied(np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([0, 1]))
    assert found["nll"] == pytest.approx(-np.log(np.finfo(np.float32).tiny) / 2)
    assert found["ece"] == 0.5


def test_a_diverged_network_is_wrong():
    probs = np.array([[np.nan, np.nan], [0.2, np.nan], [0.75, 0.25]])
    found = tallied(probs, np.array([0, 0, 0]))
    assert found["hits"] == 1
    assert found["accuracy"] == pytest.approx(1 / 3)
    assert found["nll"] == pytest.approx((2 * 87.3365 - np.log(0.75)) / 3, rel=1e-4)
    assert found["ece"] == pytest.approx(0.25 / 3)


@pytest.mark.parametrize(
    ("probs", "labels", "message"),
    [
        (np.ones((2, 4)) / 4, [0, 1], r"probs must be \[N, 3\], got shape \(2, 4\)"),
        (np.ones(3), [0], r"probs must be \[N, 3\]"),
        (np.eye(3), [0, 1], r"labels must be 3 integers, got int64 \(2,\)"),
        (np.eye(3), [0.0, 1.0, 2.0], "labels must be 3 integers, got float64"),
        (np.eye(3), [0, 1, 3], "labels must lie in 0..2, got 0..3"),
        (np.eye(3), [0, -1, 2], "labels must lie in 0..2, got -1..2"),
        (np.eye(3) * 7, [0, 1, 2], "probs must lie in 0..1, got rows with a top of 7.0"),
        (np.eye(3) - 2, [0, 1, 2], "probs must lie in 0..1"),
        (np.full((1, 3), np.inf), [0], "probs must lie in 0..1"),
    ],
)
def test_metrics_name_what_is_wrong(probs, labels, message):
    with pytest.raises(LamettaError, match=message):
        StreamingMetrics(3).update(probs, np.array(labels))


def test_metrics_need_classes_and_samples():
    with pytest.raises(LamettaError, match="n_classes must be >= 1, got 0"):
        StreamingMetrics(0)
    metrics = StreamingMetrics(3)
    assert metrics.update(np.zeros((0, 3)), np.zeros(0, int)) == 0
    with pytest.raises(LamettaError, match="at least one sample"):
        metrics.compute()


def known_and_not(n=300, n_classes=5, seed=0):
    """Predictions in 8ths, so that confidences tie, and labels of which some are of no class."""
    rng = np.random.default_rng(seed)
    probs = rng.multinomial(8, np.ones(n_classes) / n_classes, size=n) / 8
    return probs, rng.integers(n_classes + 1, size=n)


@pytest.mark.parametrize("seed", range(3))
def test_unknown_samples_count_in_the_auroc_alone(seed):
    probs, labels = known_and_not(seed=seed)
    metrics = StreamingMetrics(5, unknown=True)
    hits = sum(metrics.update(probs[i : i + 64], labels[i : i + 64]) for i in range(0, 300, 64))
    found, known = metrics.compute(), labels < 5
    of_known = tallied(probs[known], labels[known])
    assert {name: found[name] for name in ("accuracy", "class_accuracy", "nll", "ece")} == (
        pytest.approx(
            {name: of_known[name] for name in ("accuracy", "class_accuracy", "nll", "ece")}
        )
    )
    assert (hits, found["n"]) == (of_known["hits"], 300)
    assert found["auroc"] == pytest.approx(roc_auc_score(known, probs.max(axis=1)))
    mean = statistics.harmonic_mean([found["accuracy"], found["auroc"]])
    assert found["h_score"] == pytest.approx(mean)


def test_without_unknown_samples_their_label_is_an_error():
    with pytest.raises(LamettaError, match=r"labels must lie in 0\.\.4, got 0\.\.5"):
        StreamingMetrics(5).update(*known_and_not())
    with pytest.raises(LamettaError, match=r"labels must lie in 0\.\.5, got 6\.\.6"):
        StreamingMetrics(5, unknown=True).update(np.eye(5), np.full(5, 6))
    only = StreamingMetrics(5, unknown=True)
    only.update(np.eye(5), np.full(5, 5))
    with pytest.raises(LamettaError, match="at least one sample of a known class"):
        only.compute()


@pytest.mark.parametrize("n", [3, 4, 40])
def test_soft_neighborhood_density_by_its_definition(n):
    probs, _ = predictions(n)
    unit = probs / np.linalg.norm(probs, axis=1, keepdims=True)
    entropies = []
    for i in range(n):
        others = [j for j in range(n) if j != i]
        entropies.append(entropy(softmax(unit[[i]] @ unit[others].T / 0.05)[0]))
    assert soft_neighborhood_density(probs) == pytest.approx(np.mean(entropies), rel=1e-4)


def test_soft_neighborhood_density_of_few_many_and_diverged():
    assert soft_neighborhood_density(np.eye(2)) is None
    assert soft_neighborhood_density(np.full((4, 2), np.nan)) is None
    probs = np.tile(np.eye(2), (1000, 1))[:1999]
    assert soft_neighborhood_density(probs) == pytest.approx(np.log(999), abs=0.01)
