"""The orders and priors of newer protocols, by their definitions."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lametta import LamettaError
from lametta.stream import (
    Scenario,
    alone,
    by_class,
    by_group,
    dirichlet,
    effective_classes,
    few_classes,
    iid,
    label_shift,
    long_tail,
    markov,
    tracks,
)
from tests.pages import ROOT
from tests.stream.cases import batch_sizes, data_sets, runs, seeds, sequences


def repeats(values):
    """How often a value is that of the one before."""
    return np.mean(values[1:] == values[:-1])


def parts(stream):
    """The positions of each stream, by id."""
    found = {}
    for name, batch in zip(stream.ids, stream, strict=True):
        found.setdefault(name, []).extend(batch.tolist())
    return found


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


def second_half(labels):
    """Which classes make the second distribution: those that a monotone stream ends with."""
    shown = labels[Scenario(label_shift())(labels).index]
    early, late = (np.bincount(half) for half in np.split(shown, 2))
    return (late > early)[labels]


@pytest.mark.parametrize("contrast", [1.0, 0.6])
@pytest.mark.parametrize("shape", ["monotone", "square", "sinusoidal", "bernoulli"])
def test_label_shift_follows_its_schedule(shape, contrast):
    n, period = 40_000, 4000
    labels = np.arange(n) % 10
    is_second = second_half(labels)
    assert len(set(labels[is_second].tolist())) == 5
    order = label_shift(shape, contrast=contrast, period=period)
    share = is_second[Scenario(order)(labels).index].reshape(-1, 200).mean(axis=1)
    time = np.arange(n).reshape(-1, 200).mean(axis=1)
    expected = {
        "monotone": time / n,
        "square": (time % period >= period / 2).astype(float),
        "sinusoidal": 0.5 + 0.5 * np.sin(2 * np.pi * time / period),
    }
    if shape in expected:
        moved = 0.5 + contrast * (expected[shape] - 0.5)
        assert np.abs(share - moved).max() < 0.12
        return
    # One of two levels, for long; both are moved by what one half has more than its time.
    high = share > share.mean()
    assert share[high].mean() - share[~high].mean() > 0.6 * contrast
    assert max(share[high].std(), share[~high].std()) < 0.1
    assert 3 <= np.count_nonzero(np.diff(high.astype(int))) <= 25  # 10 are expected


def test_label_shift_takes_the_root_of_the_length_as_its_period():
    labels = np.arange(900) % 2
    one, two = (Scenario(label_shift("square", period=p))(labels) for p in (None, 30))
    assert one.index.tolist() == two.index.tolist()
    assert len(runs(labels[two.index])) == 60
    flat = labels[Scenario(label_shift("square", contrast=0))(labels).index]
    assert repeats(flat) == pytest.approx(0.5, abs=0.06)


@given(data_sets(), seeds, sequences, st.booleans(), batch_sizes)
def test_alone_is_by_group_with_streams_of_their_own(data, seed, sequence, shuffle, batch_size):
    labels, groups = data
    options = {"shuffle_inside": shuffle, "sequence": sequence}
    stream = Scenario(alone(**options), batch_size=batch_size, seed=seed)(labels, groups)
    together = Scenario(by_group(**options), seed=seed)(labels, groups)
    assert stream.index.tolist() == together.index.tolist()
    for name, batch in zip(stream.ids, stream, strict=True):
        assert set(groups[batch].tolist()) == {name}


@given(data_sets(), seeds, st.integers(1, 6))
def test_tracks_are_of_one_class_and_length(data, seed, length):
    labels, groups = data
    found = parts(Scenario(tracks(length), batch_size=1, seed=seed)(labels, groups))
    sizes = {}
    for own in found.values():
        (label,) = set(labels[own].tolist())
        sizes.setdefault(label, []).append(len(own))
    for own in sizes.values():
        assert sorted(own, reverse=True)[:-1] == [length] * (len(own) - 1)
    assert sum(map(len, found.values())) == len(labels)


def test_tracks_are_dealt_and_ordered_at_random():
    labels = np.repeat([0, 1], 200)
    index = Scenario(tracks(4))(labels).index
    assert 0.3 < repeats(labels[index[::4]]) < 0.7
    assert 0.3 < np.mean(np.diff(index[labels[index] == 0]) > 0) < 0.7


@given(data_sets(), seeds, st.integers(1, 3), st.integers(0, 2), st.integers(1, 12))
def test_few_classes_in_every_task(data, seed, least, more, size):
    labels, _ = data
    order = few_classes(least, least + more, size=size)
    left = np.bincount(labels, minlength=5)
    for own in parts(Scenario(order, batch_size=3, seed=seed)(labels)).values():
        taken = np.bincount(labels[own], minlength=5)
        assert np.count_nonzero(taken) <= least + more
        # A task is small only where its classes have no more.
        assert len(own) == size or np.array_equal(taken[taken > 0], left[taken > 0])
        left -= taken
    assert not left.any()


@pytest.mark.slow
def test_few_classes_are_as_many_as_they_should_be():
    labels = np.arange(40_000) % 100
    counts = [len(set(labels[own])) for own in parts(Scenario(few_classes(2, 5))(labels)).values()]
    early = np.bincount(counts[:500], minlength=6)
    assert early[:2].sum() == 0
    assert stats.chisquare(early[2:]).pvalue > 0.001


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


# As docs/streams.md has it; 20 classes of 60 samples.
PROTOCOLS = {
    "RoTTA": dirichlet(0.1),
    "StatA": dirichlet(0.1, slots=10, bursts=False),
    "no bursts": dirichlet(0.1, bursts=False),
    "StatA, separate": by_class(),
    "UniTTA": markov(0.95),
    "i.i.d.": iid(),
}


def test_protocols_differ_as_their_papers_say():
    """At equal gamma whole chunks of classes are far more correlated than shuffled slots."""
    labels = np.repeat(np.arange(20), 60)
    same = {
        name: np.mean([repeats(labels[Scenario(order, seed=s)(labels).index]) for s in range(5)])
        for name, order in PROTOCOLS.items()
    }
    assert same["i.i.d."] < 0.1
    assert 0.15 < same["StatA"] < 0.6 < 0.8 < same["RoTTA"] < 0.99
    assert same["UniTTA"] == pytest.approx(0.95, abs=0.02)
    assert same["StatA, separate"] > 0.98
    page = re.sub(r"\s+", " ", (ROOT / "docs" / "streams.md").read_text(encoding="utf-8"))
    ours, theirs = (f"{same[name]:.0%}".replace("%", " %") for name in ("RoTTA", "no bursts"))
    assert f"in {ours} of the cases in the former and in {theirs} in the latter" in page


@pytest.mark.parametrize("order", [alone(), tracks(2), few_classes(size=4), markov()])
def test_only_what_the_prior_chose_arrives(order):
    labels = np.arange(60) % 3
    chosen = Scenario("recorded", effective_classes(1))(labels).index
    stream = Scenario(order, effective_classes(1))(labels, labels)
    assert sorted(stream.index.tolist()) == chosen.tolist()
