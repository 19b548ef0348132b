import itertools
import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lametta.stream import (
    Scenario,
    as_is,
    by_class,
    by_group,
    dirichlet,
    gradual,
    iid,
    markov,
    mixed,
    recurring,
    zipf,
)
from lametta.stream._draws import generator
from lametta.stream.order import _polya_slots
from tests.pages import ROOT
from tests.stream.cases import (
    KEPT,
    data_sets,
    make_data,
    repeats,
    runs,
    seeds,
    sequences,
)


@pytest.mark.slow
@settings(max_examples=200)
@given(st.sampled_from([as_is(), zipf()]), st.booleans(), sequences, data_sets(), seeds)
def test_groups_are_contiguous(prior, shuffle, sequence, data, seed):
    labels, groups = data
    if isinstance(prior, zipf):  # it needs some samples to be able to keep its rule
        labels, groups = np.repeat(labels, 20), np.repeat(groups, 20)
    order = by_group(shuffle_inside=shuffle, sequence=sequence)
    index = Scenario(order, prior, seed=seed)(labels, groups).index
    shown = runs(groups[index])
    assert len(shown) == len(set(shown))
    if isinstance(sequence, tuple):
        assert shown == [group for group in sequence if group in shown]
    if sequence == "given" and isinstance(prior, as_is):
        assert shown == list(dict.fromkeys(groups.tolist()))
    order = by_class(shuffle_inside=shuffle, sequence="random")
    index = Scenario(order, prior, seed=seed)(labels).index
    shown = runs(labels[index])
    assert len(shown) == len(set(shown))


@pytest.mark.slow
@settings(max_examples=200)
@given(st.sampled_from(KEPT), data_sets(), seeds)
def test_time_runs_forward_in_a_group(order, data, seed):
    values = data[0] if isinstance(order, by_class) else data[1]
    index = Scenario(order, seed=seed)(*data).index
    for value in set(values.tolist()):
        own = index[values[index] == value]
        assert own.tolist() == sorted(own)


def test_shuffled_inside_is_shuffled():
    labels, groups = make_data()
    for order in (by_group(shuffle_inside=True), by_class(), mixed(), gradual(), recurring()):
        values = labels if isinstance(order, by_class) else groups
        index = Scenario(order)(labels, groups).index
        for value in set(values.tolist()):
            rising = np.mean(np.diff(index[values[index] == value]) > 0)
            assert 0.3 < rising < 0.7


@pytest.mark.slow
def test_every_permutation_is_equally_likely():
    count = Counter(tuple(Scenario(seed=seed)([0, 0, 0]).index.tolist()) for seed in range(3000))
    assert len(count) == 6
    assert stats.chisquare(list(count.values())).pvalue > 0.001


@pytest.mark.slow
@pytest.mark.parametrize(("sequence", "share"), [("appearance", 0.9), ("random", 0.5)])
def test_large_groups_come_early_by_appearance(sequence, share):
    groups = ["small"] + ["large"] * 9
    order = by_group(sequence=sequence)
    first = [Scenario(order, seed=seed)([0] * 10, groups).index[0] for seed in range(1500)]
    assert np.mean(np.array(first) > 0) == pytest.approx(share, abs=0.04)


@pytest.mark.parametrize("gamma", [0.1, 1, 10])
def test_dirichlet_slots_are_dirichlet_multinomial(gamma):
    n, slots, n_classes = 4, 3, 20_000
    slot = _polya_slots(np.repeat(np.arange(n_classes), n), slots, gamma, generator(0))
    counts = np.array([(slot == s).reshape(-1, n).sum(axis=1) for s in range(slots)]).T
    seen = Counter(map(tuple, counts.tolist()))
    possible = [c for c in itertools.product(range(n + 1), repeat=slots) if sum(c) == n]
    expected = stats.dirichlet_multinomial([gamma] * slots, n).pmf(np.array(possible)) * n_classes
    assert sum(seen.values()) == n_classes
    assert stats.chisquare([seen[c] for c in possible], expected).pvalue > 0.001


def test_dirichlet_shows_bursts():
    labels, groups = make_data()
    one_slot = Scenario(dirichlet(1, slots=1))(labels).index
    assert len(runs(labels[one_slot])) == 3
    one_slot = Scenario(dirichlet(1, slots=1, bursts=False))(labels).index
    assert len(runs(labels[one_slot])) > 300
    index = Scenario(dirichlet(within_groups=True))(labels, groups).index
    assert runs(groups[index]) == list(dict.fromkeys(groups.tolist()))
    # The less gamma, the longer the bursts.
    lengths = [len(runs(labels[Scenario(dirichlet(g, 50))(labels).index])) for g in (1e-3, 0.1, 10)]
    assert lengths[0] < 10 < lengths[1] < lengths[2]


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
