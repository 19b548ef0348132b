"""Markov order, by its definition."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from scipy import stats

from lametta.stream import (
    Scenario,
    markov,
)
from tests.stream.cases import data_sets, repeats, runs, seeds


@pytest.mark.slow
@pytest.mark.parametrize(("stay", "stay_domain"), [(0.95, 0.85), (0.95, 0.067), (0.1, 0.85)])
def test_markov_has_the_transitions_of_the_product(stay, stay_domain):
    n_classes, n_domains = 10, 15
    labels = np.arange(18_000) % n_classes
    groups = np.arange(18_000) // n_classes % n_domains
    index = Scenario(markov(stay, stay_domain=stay_domain), limit=6000)(labels, groups).index
    shown, domain = labels[index], groups[index]
    same_class, same_domain = shown[1:] == shown[:-1], domain[1:] == domain[:-1]
    seen = [np.sum(a & b) for a in (same_class, ~same_class) for b in (same_domain, ~same_domain)]
    product = np.outer([stay, 1 - stay], [stay_domain, 1 - stay_domain]).ravel()
    assert stats.chisquare(seen, product * len(same_class)).pvalue > 1e-4
    # Where the chain moves, all other classes are equally likely.
    step = (shown[1:] - shown[:-1])[~same_class] % n_classes
    assert stats.chisquare(np.bincount(step, minlength=n_classes)[1:]).pvalue > 1e-4


def test_markov_runs_through_domains_that_always_stay():
    labels, groups = np.arange(900) % 3, np.arange(900) // 300
    index = Scenario(markov(0.9, stay_domain=1))(labels, groups).index
    assert len(runs(groups[index])) == 3
    assert repeats(labels[index]) == pytest.approx(0.9, abs=0.05)


@pytest.mark.slow
def test_markov_without_looking_is_iid():
    """Every order is equally likely, as in `iid`."""
    labels, groups = [0, 0, 1], ["a", "b", "a"]
    seen = {}
    for seed in range(1200):
        order = tuple(Scenario(markov("iid"), seed=seed)(labels, groups).index.tolist())
        seen[order] = seen.get(order, 0) + 1
    assert len(seen) == 6
    assert stats.chisquare(list(seen.values())).pvalue > 0.001


def test_markov_lasts_to_the_end():
    """Classes are drawn by what they have left, so that none is used up long before the others."""
    labels = np.repeat(np.arange(50), np.arange(1, 51) * 8)
    shown = labels[Scenario(markov(0.8), seed=1)(labels).index]
    last = shown[-len(shown) // 10 :]
    assert repeats(last) == pytest.approx(0.8, abs=0.06)
    assert len(set(last.tolist())) > 30


@given(data_sets(), seeds)
def test_markov_ends_a_class_only_when_it_must(data, seed):
    labels, _ = data
    index = Scenario(markov(1), seed=seed)(labels).index
    assert len(runs(labels[index])) == len(set(labels.tolist()))  # like by_class
    index = Scenario(markov(0), seed=seed)(labels).index
    shown, left = labels[index], np.bincount(labels, minlength=5)
    for before, now in itertools.pairwise(shown):
        left[before] -= 1
        assert before != now or left.sum() == left[now]  # nothing else was left
