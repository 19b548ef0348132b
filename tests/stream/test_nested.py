"""Orders made of another one, and those in which samples come more than once."""

import numpy as np
import pytest

from lametta import LamettaError
from lametta.bench.experiment.schema import ScenarioSpec
from lametta.stream import (
    Scenario,
    balanced_dirichlet,
    by_class,
    by_group,
    dirichlet,
    each_group,
    iid,
    imbalanced,
    interleaved,
    repeated,
    severity_ramp,
)
from tests.stream.cases import make_data, repeats, runs


def corrupted(n=200, domains=("fog", "snow", "frost")):
    """The same samples under several corruptions."""
    labels = np.random.default_rng(0).integers(10, size=n)
    return np.tile(labels, len(domains)), np.repeat(np.array(domains), n)


def test_correlated_stream_of_the_benchmark():
    """Corruption by corruption, class by class, the images in the same order in each."""
    labels, groups = corrupted()
    order = each_group(by_class(sequence=tuple(range(10))), same=True)
    index = Scenario(order, seed=1)(labels, groups).index
    assert sorted(index) == list(range(600))
    assert runs(groups[index]) == ["fog", "snow", "frost"]
    assert runs(labels[index]) == 3 * list(range(10))
    images = index.reshape(3, 200) % 200
    assert np.array_equal(images[0], images[1])
    assert np.array_equal(images[0], images[2])
    assert not np.array_equal(images[0], np.argsort(labels[:200], kind="stable"))
    other = Scenario(order, seed=2)(labels, groups).index
    assert not np.array_equal(index, other)


def test_groups_draw_their_own_unless_asked():
    labels, groups = corrupted()
    images = Scenario(each_group(iid()))(labels, groups).index.reshape(3, 200) % 200
    assert not np.array_equal(images[0], images[1])
    sequence = ("snow", "frost", "fog")
    index = Scenario(each_group(iid(), sequence=sequence))(labels, groups).index
    assert runs(groups[index]) == list(sequence)


def test_fresh_groups_are_streams():
    labels, groups = corrupted()
    stream = Scenario(each_group(iid(), fresh=True), batch_size=64)(labels, groups)
    assert runs(stream.ids) == ["fog", "snow", "frost"]
    assert all(len(set(groups[batch])) == 1 for batch in stream)
    together = Scenario(each_group(iid()), batch_size=64)(labels, groups)
    assert np.array_equal(stream.index, together.index)


def test_repeated():
    labels, groups = corrupted()
    inside = dirichlet(0.1, within_groups=True)
    once, thrice = (
        Scenario(order, seed=4)(labels, groups).index
        for order in (inside, repeated(inside, rounds=3))
    )
    assert np.array_equal(thrice, np.tile(once, 3))


def test_by_name_and_in_files():
    spec = {"kind": "repeated", "rounds": 2, "inside": {"kind": "each_group", "inside": "by_class"}}
    order = repeated(each_group(by_class()), rounds=2)
    assert Scenario(spec) == Scenario(order)
    assert Scenario(**Scenario(order).parameters) == Scenario(order)
    assert ScenarioSpec(dataset="d", order=spec).scenario(64, 0).order == order


@pytest.mark.parametrize("make", [each_group, repeated])
def test_only_orders_of_one_stream_fit_inside(make):
    labels, groups = make_data(40)
    with pytest.raises(LamettaError, match="inside must be an order of one stream"):
        Scenario(make(interleaved()))(labels, groups)
    with pytest.raises(LamettaError, match="inside must be an order of one stream"):
        make(by_group)


def test_severity_ramp():
    names = [f"{c}/{s}" for c in ("fog", "jpeg") for s in (2, 1, 3)]
    groups = np.repeat(np.array(names), 7)
    index = Scenario(severity_ramp())([0] * 42, groups).index
    assert runs(groups[index]) == [f"{c}/{s}" for c in ("fog", "jpeg") for s in (1, 2, 3, 2, 1)]
    counts = np.bincount(index)
    assert counts.tolist() == [2 if not g.endswith("3") else 1 for g in groups]
    first, again = (
        np.flatnonzero(groups[index] == "fog/1")[part] for part in (slice(7), slice(7, 14))
    )
    assert not np.array_equal(index[first], index[again])  # shuffled anew
    with pytest.raises(LamettaError, match="must be <corruption>/<severity>.*got 'fog'"):
        Scenario(severity_ramp())([0], ["fog"])


def test_balanced_dirichlet_has_its_slots():
    labels = np.repeat(np.arange(10), 100)
    index = Scenario(balanced_dirichlet(0.1), seed=1)(labels).index
    assert sorted(index) == list(range(1000))
    assert repeats(labels[index]) > 0.9
    order = balanced_dirichlet(0.1)
    for seed in range(5):
        slot = order._draw(labels, 10, np.random.default_rng(seed))
        sizes = np.bincount(slot, minlength=10)
        # A slot is closed once it has its part, so it may exceed that by one class at most.
        assert sizes.max() < 100 + 100
    plain = dirichlet(0.1, slots=10)(labels, None, np.random.default_rng(0))
    assert sorted(plain) == list(range(1000))


@pytest.mark.slow
def test_balanced_shares_are_those_of_a_dirichlet():
    """Where no slot is full, shares of one class have the mean and variance of Dirichlet(gamma)."""
    labels, order = np.repeat([0, 1], [200, 10_000]), balanced_dirichlet(0.5)
    shares = np.stack(
        [
            np.bincount(order._draw(labels, 4, np.random.default_rng(i))[:200], minlength=4) / 200
            for i in range(2000)
        ]
    )
    assert shares.mean(axis=0) == pytest.approx([0.25] * 4, abs=0.02)
    # Dirichlet(.5, .5, .5, .5): p (1 - p) / (2 + 1), and the noise of 200 draws on top.
    assert shares.var(axis=0).mean() == pytest.approx(0.25 * 0.75 / 3 * (1 + 2 / 200), rel=0.05)


@pytest.mark.slow
def test_a_stream_that_cannot_end_says_so():
    with pytest.raises(LamettaError, match="at least 10 samples for each of 20 slots.*got 60"):
        Scenario(balanced_dirichlet(0.1))(np.repeat(np.arange(20), 3))
    with pytest.raises(LamettaError, match="1000 draws did not"):
        Scenario(balanced_dirichlet(0.1))(np.repeat(np.arange(20), 10))


@pytest.mark.parametrize(("ratio", "share"), [(1, 0.1), (9, 0.5), (500_000, 1)])
def test_imbalanced(ratio, share):
    labels = np.repeat(np.arange(10), [50, 5] * 5)
    stream = Scenario(imbalanced(ratio, draws=2000), seed=3)(labels)
    drawn = labels[stream.index].reshape(10, 2000)
    prevailing = [np.bincount(row).argmax() for row in drawn]
    if ratio > 1:
        assert sorted(prevailing) == list(range(10))
        found = np.mean([np.mean(row == p) for row, p in zip(drawn, prevailing, strict=True)])
        assert found == pytest.approx(share, abs=0.02)
    # Classes are drawn alike, however many samples they have, and so are samples of a class.
    assert np.bincount(drawn.ravel()) / 20_000 == pytest.approx([0.1] * 10, abs=0.02)
    own = np.bincount(stream.index, minlength=len(labels))[labels == 1]
    assert own / own.sum() == pytest.approx([0.2] * 5, abs=0.04)
