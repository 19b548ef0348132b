from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lametta import LamettaError
from lametta.stream import (
    Scenario,
    effective_classes,
    long_tail,
    ratios,
    zipf,
)
from lametta.stream._draws import generator
from lametta.stream.prior import _zipf_variates
from tests.stream.cases import data_sets, seeds


@pytest.mark.parametrize("a", [1.3, 2, 3.5])
def test_zipf_variates(a):
    n, top = 50_000, 20
    drawn = np.minimum(_zipf_variates(a, n, generator(1)), top)
    expected = stats.zipf(a).pmf(np.arange(1, top + 1))
    expected[-1] = 1 - expected[:-1].sum()
    assert stats.chisquare(np.bincount(drawn)[1:], expected * n).pvalue > 0.001
    assert all(v >= 1 for v in _zipf_variates(1.001, 1000, generator(2)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_classes", "variant", "rate"),
    [(1000, "validation", 0.48), (32, "validation", 0.80), (1000, "test", 0.93)],
)
def test_zipf_is_accepted_as_often_as_in_the_paper(n_classes, variant, rate, monkeypatch):
    n_draws, n_accepted, rng = 0, 1500, generator(0)

    def draw(*arguments):
        nonlocal n_draws
        n_draws += 1
        return _zipf_variates(*arguments)

    monkeypatch.setattr("lametta.stream.prior._zipf_variates", draw)
    for _ in range(n_accepted):
        zipf(2, variant)._counts(n_classes, 50_000, rng)
    assert n_accepted / n_draws == pytest.approx(rate, abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "x", "y", "largest", "top"),
    [("validation", 0.2, 0.8, 0.09, 0.76), ("test", 0.1, 0.9, 0.16, 0.72)],
)
def test_zipf_is_as_uneven_as_in_the_paper(variant, x, y, largest, top):
    labels = np.repeat(np.arange(1000), 50)
    medians = []
    for seed in range(300):
        index = zipf(2, variant)(labels, generator(seed))
        counts = np.sort(np.bincount(labels[index], minlength=1000))
        assert counts[-int(x * 1000) :].sum() < int(y * len(labels))
        assert 0.9 * len(labels) < counts.sum() <= len(labels)
        medians.append((counts[-1] / counts.sum(), counts[-int(x * 1000) :].sum() / counts.sum()))
    found = np.median(medians, axis=0)
    assert found[0] == pytest.approx(largest, abs=0.02)
    assert found[1] == pytest.approx(top, abs=0.02)


@pytest.mark.parametrize("variant", ["validation", "test"])
@pytest.mark.parametrize("n_classes", [1, 2, 3, 5, 9])
def test_zipf_ends_with_few_classes(variant, n_classes):
    labels = np.repeat(np.arange(n_classes) * 7, 50)  # classes that do not occur do not count
    for seed in range(20):
        shown = labels[Scenario(prior=zipf(variant=variant), seed=seed)(labels).index]
        largest = max(Counter(shown.tolist()).values())
        assert n_classes == 1 or largest < {"validation": 0.8, "test": 0.9}[variant] * len(labels)


def test_zipf_says_when_its_rule_cannot_hold():
    with pytest.raises(LamettaError, match="got 2 samples of 2 classes, in which 1000 draws"):
        Scenario(prior="zipf")([0, 1])


def test_zipf_draws_each_sample_of_a_class_alike():
    labels = np.repeat([0, 1, 2, 3], [3, 50, 50, 50])
    times = np.zeros(3)
    for seed in range(300):
        times += np.bincount(Scenario(prior=zipf(), seed=seed)(labels).index, minlength=153)[:3]
    assert times.min() > 300  # with replacement: more often than there are streams
    assert stats.chisquare(times).pvalue > 0.001


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=4),
    st.lists(st.decimals("0.1", "9", places=1).map(float), min_size=4, max_size=4),
    seeds,
)
def test_ratios(class_sizes, shares, seed):
    labels = np.repeat(np.arange(len(class_sizes)), class_sizes)
    shares = shares[: len(class_sizes)]
    index = Scenario("recorded", ratios(shares), seed=seed)(labels).index
    assert len(set(index.tolist())) == len(index)
    counts = np.bincount(labels[index], minlength=len(class_sizes))
    assert (counts == class_sizes).any()
    scale = min(size / share for size, share in zip(class_sizes, shares, strict=True))
    assert np.all(np.abs(counts - scale * np.array(shares)) < 1 + 1e-9)


def test_ratios_are_decimal_and_take_mappings():
    labels = np.repeat([0, 1, 2], [10, 70, 5])
    index = Scenario(prior=ratios({0: 0.1, 1: 0.7}))(labels).index
    assert np.bincount(labels[index]).tolist() == [10, 70]
    assert ratios({0: 0.5, 2: 1}) == ratios([0.5, 0, 1]) == ratios(np.array([0.5, 0, 1]))
    assert ratios({"1": 2}) == ratios([0, 2])
    assert hash(ratios([1, 2])) == hash(ratios((1, 2)))


@given(data_sets(), seeds)
def test_effective_classes(data, seed):
    labels, _ = data
    present = len(set(labels.tolist()))
    for n in range(1, present + 1):
        index = Scenario(prior=effective_classes(n), seed=seed)(labels).index
        kept = set(labels[index].tolist())
        assert len(kept) == n
        assert len(index) == sum(label in kept for label in labels.tolist())


def test_long_tail_by_definition():
    labels = np.repeat(np.arange(11), 1000)
    index = Scenario("recorded", long_tail(10), seed=1)(labels).index
    counts = np.bincount(labels[index])
    expected = [int(1000 * 10 ** (-i / 10) + 1e-9) for i in range(11)]
    assert sorted(counts.tolist(), reverse=True) == expected
    assert counts.tolist() != expected  # which class is rare is random
    assert len(set(index.tolist())) == len(index)
    groups = np.arange(11_000) % 5
    index = Scenario("recorded", long_tail(1, 5))(labels, groups).index
    per_domain = np.sort(np.bincount(groups[index]))
    assert per_domain.tolist() == sorted(11 * int(200 * 5 ** (-i / 4) + 1e-9) for i in range(5))
    assert set(np.bincount(labels[index]).tolist()) == {per_domain.sum() // 11}
    both = Scenario("recorded", long_tail(10, 5))(labels, groups).index
    assert len(both) < 0.6 * len(index)
    with pytest.raises(LamettaError, match="labels must leave room for long_tail.* got 2 samples"):
        [Scenario(prior=long_tail(9, 9), seed=s)([0, 1], [0, 1]) for s in range(20)]
