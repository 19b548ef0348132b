"""Which run foresees more, on streams made so that one surely does."""

from dataclasses import replace

import numpy as np
import pytest

from lametta.bench.trial import Outputs, Trial
from lametta.bench.trial.foresight import foreseeing, foresight
from lametta.bench.trial.runs import Candidate, Run, candidates, run_one
from lametta.types import Prototypes

METHODS = ["prudent", "smoothing", "track", "neo", "memory", "cofa", "lame"]


def made(order, n=1500, right=0.75, seed=0):
    """Five classes in runs or shuffled, and a network that guesses in a quarter of them."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(5), n // 5)
    labels = rng.permutation(labels) if order == "shuffled" else labels
    features = np.eye(5)[labels] + 0.35 * rng.normal(size=(n, 5))
    logits = 6 * features
    wrong = rng.random(n) > right
    logits[wrong] = 6 * np.eye(5)[rng.integers(5, size=wrong.sum())]
    features[wrong] = logits[wrong] / 6 + 0.35 * rng.normal(size=(wrong.sum(), 5))
    probs = np.exp(logits - logits.max(axis=1, keepdims=True))
    return Outputs(features, probs / probs.sum(axis=1, keepdims=True), labels)


def tried(outputs):
    found, left = candidates(outputs, METHODS)
    runs = tuple(run_one(outputs, one, np.inf) for one in found)
    return Trial(outputs, runs, left, len(outputs))


@pytest.fixture(scope="module")
def sorted_trial():
    return tried(made("sorted"))


def test_foresight_against_counting():
    rng = np.random.default_rng(0)
    answers, view = rng.integers(3, size=(2, 60))
    streams = [np.arange(0, 40), np.arange(40, 60)]
    alike = room = 0
    for rows in streams:
        now, then = answers[rows[:-1]], view[rows[1:]]
        chance = sum((now == k).mean() * (then == k).mean() for k in range(3))
        alike += sum(a == b for a, b in zip(now, then, strict=True)) - len(now) * chance
        room += len(now) * (1 - chance)
    assert np.isclose(foresight(answers, view, streams, 3), alike / room)


def test_nothing_is_foreseen_in_a_single_sample_or_class():
    assert foresight(np.zeros(1, int), np.zeros(1, int), [np.arange(1)], 2) == 0
    assert foresight(np.zeros(9, int), np.zeros(9, int), [np.arange(9)], 2) == 0


@pytest.mark.slow(1)
def test_long_runs_are_smoothed(sorted_trial):
    """Runs of 300 samples: what follows the class alone is nearly always right."""
    gains = {run.candidate.title: sorted_trial.gain(run) for run in sorted_trial.runs}
    own = max(gain for title, gain in gains.items() if title.startswith("prudent"))
    best = sorted_trial.foreseeing[0]
    assert best.candidate.method in ("smoothing", "track")
    assert gains[best.candidate.title] > own
    assert sorted_trial.advice.title == best.candidate.title
    assert "what the next sample is seen as" in sorted_trial.advice.reason
    one = sorted_trial.estimates[best.candidate.title]
    assert one.low <= gains[best.candidate.title] <= one.high
    assert one.verdict == "helps"


@pytest.mark.slow(2)
def test_nothing_is_foreseen_in_shuffled_samples():
    for seed in range(3):
        assert tried(made("shuffled", seed=seed)).foreseeing == []


@pytest.mark.slow(1)
def test_a_network_that_collapsed_is_freed_where_classes_stay():
    """A constant shift of all features makes one answer common; neo takes it back."""
    rng = np.random.default_rng(1)
    labels = np.concatenate([np.full(10, k) for k in rng.permutation(np.repeat(np.arange(5), 30))])
    features = np.eye(5)[labels] + 0.3 * rng.normal(size=(1500, 5)) + 4.0 * np.eye(5)[0]
    weight = np.eye(5)
    logits = 6 * features @ weight.T
    probs = np.exp(logits - logits.max(axis=1, keepdims=True))
    outputs = Outputs(
        features, probs / probs.sum(axis=1, keepdims=True), labels, prototypes=Prototypes(weight)
    )
    trial = tried(outputs)
    neo = next(run for run in trial.runs if run.candidate.title == "neo, one by one")
    assert trial.gain(neo) > 0.1
    assert trial.advice.method == "neo"


def test_videos_and_domains_are_no_sign(sorted_trial):
    outputs, runs, look = sorted_trial.outputs, sorted_trial.runs, sorted_trial.look
    assert foreseeing(outputs, runs, look)
    assert foreseeing(outputs, runs, replace(look, copies=0.9)) == []
    assert foreseeing(outputs, runs, replace(look, by_classes=0.3, by_other=0.4)) == []
    assert foreseeing(outputs, runs, replace(look, evidence=0.01)) == []
    assert foreseeing(outputs, runs[2:], look) == []  # without Prudent there is nothing to beat


def test_a_memory_is_not_asked_where_a_run_without_one_frees_the_classes(sorted_trial):
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(4), 100)
    before, remembered = (
        np.where(rng.random(400) < wrong, rng.integers(4, size=400), truth) for wrong in (0.4, 0.6)
    )
    outputs = Outputs(np.eye(4)[before], np.eye(4)[before])
    answers = {"prudent": remembered, "neo": truth, "smoothing": truth}
    runs = [
        Run(Candidate(method, 1), after, np.ones(400), np.ones(400), 0.0)
        for method, after in answers.items()
    ]
    named = [
        [run.candidate.method for run in foreseeing(outputs, some, sorted_trial.look)]
        for some in (runs, runs[::2])
    ]
    assert named == [["neo"], ["smoothing"]]
