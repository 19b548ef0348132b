"""The corrections that practitioners write by hand, and the literature's, against brute force."""

from dataclasses import replace

import numpy as np
import pytest

from lametta import LamettaError, methods
from lametta.correctors import (
    COFA,
    OATTA,
    Average,
    LabelShift,
    Majority,
    PriorCorrection,
    Product,
    Smoothing,
    Windowed,
    advance,
)
from tests.conftest import Library, softmax
from tests.correctors import golden

BASELINES = {
    "average": Average(),
    "majority": Majority(),
    "smoothing": Smoothing(),
    "product": Product(),
    "label_shift": LabelShift(),
    "prior_correction": PriorCorrection(),
    "cofa": COFA(),
    "oatta": OATTA(),
}


def stream(n=40, n_classes=5, seed=0):
    """Probabilities that stay with a class for a while."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(rng.integers(n_classes, size=n // 8 + 1), 8)[:n]
    return softmax(1.5 * np.eye(n_classes)[labels] + rng.normal(size=(n, n_classes)))


def answers(corrector, probs):
    return corrector.correct(np.ones((len(probs), 1)), probs).probs


def normalized(rows):
    return rows / rows.sum(axis=-1, keepdims=True)


def test_average():
    probs = stream()
    expected = [probs[: i + 1].mean(axis=0) for i in range(len(probs))]
    assert np.allclose(answers(Average(), probs), expected, atol=1e-12)


def test_majority():
    probs = stream()
    found = answers(Majority(), probs)
    for i, row in enumerate(found):
        votes = np.bincount(probs[: i + 1].argmax(axis=1), minlength=5)
        mean = probs[: i + 1].mean(axis=0)
        assert np.allclose(row, (votes + mean) / (i + 2), atol=1e-12)
        assert row.argmax() == max(range(5), key=lambda k, v=votes, m=mean: (v[k], m[k]))


def test_a_single_vote_outweighs_all_probabilities():
    probs = np.array([[0.51, 0.49], [0.51, 0.49], [0.0, 1.0]])
    assert np.array_equal(answers(Majority(), probs).argmax(axis=1), [0, 0, 0])
    tie = np.array([[0.51, 0.49], [0.0, 1.0]])
    assert np.array_equal(answers(Majority(), tie).argmax(axis=1), [0, 1])


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9])
def test_smoothing(decay):
    probs = stream()
    expected = [probs[0]]
    for q in probs[1:]:
        expected.append(decay * expected[-1] + (1 - decay) * q)
    assert np.allclose(answers(Smoothing(decay), probs), expected, atol=1e-12)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_product(temperature):
    probs = stream()
    expected = normalized(np.cumprod(probs ** (1 / temperature), axis=0))
    assert np.allclose(answers(Product(temperature), probs), expected, atol=1e-12)


def test_a_product_lasts():
    """After many samples nothing under- or overflows, and a class that was ruled out comes back."""
    probs = np.vstack([np.tile([[1.0, 0.0]], (500, 1)), np.tile([[0.0, 1.0]], (501, 1))])
    found = answers(Product(), probs)
    assert np.isfinite(found).all()
    assert np.array_equal(found[[499, 1000]].argmax(axis=1), [0, 1])


@pytest.mark.parametrize("concentration", [0.0, 0.5])
@pytest.mark.parametrize("size", [8, 256])
def test_label_shift(size, concentration):
    probs = stream()
    corrector = LabelShift(size=size, concentration=concentration, max_iter=30, tol=0)
    found = answers(corrector, probs)
    for i, row in enumerate(found):
        window, p = probs[max(0, i + 1 - size) : i + 1], np.full(5, 0.2)
        for _ in range(30):
            r = normalized(window * p)
            p = (r.sum(axis=0) + concentration) / (len(window) + 5 * concentration)
        assert np.allclose(row, normalized(probs[i] * p), atol=1e-5)


def test_label_shift_finds_the_most_likely_frequencies():
    """EM climbs: no other frequencies explain the window better."""
    probs = stream(60)
    p = LabelShift(max_iter=3000, tol=0)._frequencies(probs)
    best = np.log(probs @ p).sum()
    for other in np.random.default_rng(0).dirichlet(np.full(5, 0.3), size=2000):
        assert np.log(probs @ other).sum() <= best + 1e-9


@pytest.mark.slow
def test_label_shift_stops_where_the_frequencies_do():
    probs = stream()[:16]
    exact = answers(LabelShift(max_iter=5000, tol=0), probs)
    assert np.abs(answers(LabelShift(max_iter=5000, tol=1e-7), probs) - exact).max() < 1e-3
    smooth = answers(LabelShift(concentration=1e6), probs)
    assert np.allclose(smooth, probs, atol=1e-4)  # all is imagined: the source


@pytest.mark.parametrize("size", [4, 64])
def test_prior_correction_is_that_of_roid(size):
    probs = stream()
    found = answers(PriorCorrection(size), probs)
    for i, row in enumerate(found):
        window = probs[max(0, i + 1 - size) : i + 1]
        prior = window.mean(axis=0)
        smooth = max(1 / len(window), 1 / 5) / prior.max()
        smoothed = (prior + smooth) / (1 + smooth * 5)
        assert smoothed.sum() == pytest.approx(1)
        assert np.allclose(row, normalized(probs[i] * smoothed), atol=1e-6)


def test_cofa_is_the_mean_of_features_under_a_linear_head():
    rng = np.random.default_rng(1)
    features, head, bias = rng.normal(size=(40, 6)), rng.normal(size=(6, 5)), rng.normal(size=5)
    probs = softmax(features @ head + bias)
    mean = np.vstack([features[:1], (features[1:] + features[:-1]) / 2])
    joined = softmax(mean @ head + bias)
    better = joined.max(axis=1, keepdims=True) > probs.max(axis=1, keepdims=True)
    assert 0 < better.sum() < 40
    found = COFA().correct(features, probs).probs
    assert np.allclose(found, np.where(better, joined, probs), atol=1e-12)
    assert np.allclose(COFA(filter=False).correct(features, probs).probs, joined, atol=1e-12)


@pytest.mark.parametrize("dtype", golden.DTYPES)
@pytest.mark.parametrize(("name", "filtered"), [("cofa", True), ("cofa_nofilter", False)])
def test_cofa_gives_its_authors_numbers(name, filtered, dtype):
    found, _ = golden.run(COFA(filtered), golden.linear(dtype))
    golden.close(found, golden.vectors(name)["out"], dtype)


def test_oatta():
    probs = stream()
    found = answers(OATTA(smoothing=2.0, decay=0.8), probs)
    counts, before, evidence, opened = np.zeros((5, 5)), probs[0], 0.0, 0
    assert np.allclose(found[0], probs[0])
    for q, row in zip(probs[1:], found[1:], strict=True):
        matrix = (counts + 2.0 / 5) / (counts.sum(axis=1, keepdims=True) + 2.0)
        assert np.allclose(matrix.sum(axis=1), 1)
        prior = matrix.T @ before
        evidence = 0.8 * evidence + np.log((prior * q).sum() / (q / 5).sum())
        answer = normalized(prior * q) if evidence > 0 else q
        opened += evidence > 0
        assert np.allclose(row, answer, atol=1e-5)
        counts += np.outer(before, answer)
        before = answer
    assert 0 < opened < 39


def test_they_gain_on_streams_that_stay_with_a_class():
    """By accuracy against labels: an oracle could share a mistake."""
    rng = np.random.default_rng(3)
    labels = np.repeat(rng.integers(5, size=20), 30)
    probs = softmax(1.5 * np.eye(5)[labels] + rng.normal(size=(600, 5)))
    source = (probs.argmax(axis=1) == labels).mean()
    for name in ("smoothing", "oatta", "cofa"):
        found = answers(replace(BASELINES[name]), probs)
        assert (found.argmax(axis=1) == labels).mean() > source + 0.01, name
    for name in ("average", "majority", "product"):
        track = np.concatenate(
            [answers(replace(BASELINES[name]), probs[i : i + 10]) for i in range(0, 600, 10)]
        )
        assert (track.argmax(axis=1) == labels).mean() > source + 0.1, name


@pytest.mark.parametrize("name", BASELINES)
def test_names_traits_and_options(name):
    method = methods.find(name)
    assert (method.stateful, method.ordered, method.causal) == (True, True, True)
    (made,) = method.correctors({})
    assert made == BASELINES[name]


@pytest.mark.parametrize("name", [*BASELINES, "windowed"])
def test_all_libraries_give_the_same_answers(name, library: Library):
    corrector = BASELINES.get(name) or Windowed(size=8)
    probs = stream(24)
    features = np.abs(np.random.default_rng(0).normal(size=(24, 3)))
    _, expected = advance(corrector, {}, features, probs)
    for dtype, slack in (("float64", 1e-12), ("float32", 1e-5)):
        arrays = library.array(features, dtype), library.array(probs, dtype)
        _, found = advance(corrector, {}, *arrays)
        assert np.abs(library.numpy(found.probs) - expected.probs).max() < slack


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Smoothing(1.0), "decay must be a finite number >= 0 and < 1, got 1.0"),
        (lambda: Product(0), "temperature must be a finite number > 0, got 0"),
        (lambda: LabelShift(size=0), "size must be an integer >= 1, got 0"),
        (lambda: LabelShift(concentration=-1), "concentration must be a finite number >= 0"),
        (lambda: LabelShift(max_iter=1.5), "max_iter must be an integer >= 0, got 1.5"),
        (lambda: LabelShift(tol=-1), "tol must be a finite number >= 0, got -1"),
        (lambda: PriorCorrection("all"), "size must be an integer >= 1, got 'all'"),
        (lambda: OATTA(smoothing=0), "smoothing must be a finite number > 0, got 0"),
        (lambda: OATTA(decay=1), "decay must be a finite number >= 0 and < 1, got 1"),
    ],
)
def test_options_are_checked(make, message):
    with pytest.raises(LamettaError, match=message):
        make()
