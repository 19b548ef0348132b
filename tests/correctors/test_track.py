"""The corrector for tracks, against its equation, and against what people write by hand."""

import numpy as np
import pytest

from lametta import LamettaError, methods
from lametta.correctors import Average, Majority, Track
from lametta.stream import Scenario, tracks
from tests.conftest import make_batch, shared, softmax


@pytest.mark.parametrize("memory", [1, 3.5, 20])
@pytest.mark.parametrize("stay", [1, 5])
def test_equation(memory, stay):
    features, probs = make_batch(30, 5)
    features, probs = (np.repeat(x, stay, axis=0)[:30] for x in (features, probs))
    found = Track(memory).correct(features, probs).probs
    roots, weights = np.sqrt(probs), []
    for i, row in enumerate(found):
        usual = [roots[j] @ roots[: j - 1].mean(axis=0) for j in range(2, i + 1)]
        near = [roots[j] @ roots[j - 1] for j in range(2, i + 1)]
        a = max(0, np.sum(near) - np.sum(usual)) / (1 + np.sum(np.subtract(1, usual)))
        weights.append(min(1, a / 0.3))
        v = min(1, a / 0.1)
        fade = (1 - 1 / memory) ** np.arange(i, -1, -1)
        n = fade.sum()
        product, mean = fade @ np.log(probs[: i + 1]) / n, np.log(fade @ probs[: i + 1] / n)
        z = (1 - weights[-1]) * product + weights[-1] * mean
        change = np.abs(np.diff(probs[: i + 1], axis=0)).sum(axis=1) / 2 / probs[1 : i + 1].max(1)
        x = fade[:-1] @ np.minimum(change, 1)
        power = (1 - v) / 3 + 0.12 * v
        assert np.allclose(row, softmax(min(n, 1 + 10 * x) ** power * z[None])[0], atol=1e-12)
    assert weights[-1] == 1 if stay == 5 else weights[-1] < 0.5


def test_the_first_answer_and_those_without_memory_are_the_source():
    features, probs = make_batch(8, 4)
    assert np.allclose(Track().correct(features, probs).probs[0], probs[0])
    assert np.allclose(Track(1).correct(features, probs).probs, probs)


def test_a_class_that_was_ruled_out_once_comes_back():
    probs = np.array([[1.0, 0.0], *[[0.05, 0.95], [0.15, 0.85]] * 15])
    found = Track().correct(np.ones((31, 1)), probs).probs[:, 1]
    assert (np.diff(found[:6]) > 0).all()
    assert found[5:].min() > 0.8


def test_near_copies_make_no_answer_surer():
    q = np.random.default_rng(0).dirichlet(np.ones(5))
    assert np.allclose(Track().correct(np.ones((40, 1)), np.tile(q, (40, 1))).probs, q)


def test_by_name():
    assert methods.find("track").correctors({"memory": 5}) == [Track(5)]
    with pytest.raises(LamettaError, match="memory must be a finite number >= 1, got 0.5"):
        Track(0.5)


@pytest.mark.parametrize(
    ("name", "length"), [("imagenette_val500_lite0", 5), ("cifar10_resnet20_clean", 5)]
)
def test_tracks_of_real_images(name, length):
    with np.load(shared("data", "banks", f"{name}.npz")) as bank:
        probs, labels = softmax(bank["logits"].astype(np.float32)), bank["labels"].astype(int)
    scores = {}
    for corrector in (Track(), Average(), Majority()):
        hits = []
        for own in Scenario(tracks(length=length), batch_size=length, limit=1000)(labels):
            corrector.reset()
            answers = corrector.correct(np.ones((len(own), 1), np.float32), probs[own]).probs
            hits.extend(answers.argmax(axis=1) == labels[own])
        scores[type(corrector).__name__] = 100 * np.mean(hits)
    assert scores["Track"] > scores["Average"] - 0.3
    assert scores["Track"] > scores["Majority"]
