from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lametta.stream._draws import below, generator, permutation, uniform
from tests.stream.cases import PRIORS, every_order, make_data, seeds


@given(seeds, st.integers(1, 2**40))
def test_below(seed, limit):
    drawn = below(generator(seed), np.full(50, limit))
    assert drawn.min() >= 0
    assert drawn.max() < limit
    # The largest number there is must not round up to the limit.
    highest = SimpleNamespace(
        bit_generator=SimpleNamespace(random_raw=lambda n: np.full(n, 2**64 - 1, np.uint64))
    )
    assert below(highest, np.array([limit])) == limit - 1


def test_uniform_and_permutation():
    assert stats.kstest(uniform(generator(0), 10_000), "uniform").pvalue > 0.001
    assert sorted(permutation(generator(0), 100)) == list(range(100))
    assert uniform(generator(3), 5).tolist() == generator(3).random(5).tolist()


@every_order
def test_only_raw_integers_are_drawn(order):
    labels, groups = make_data()
    for prior in PRIORS:
        rng = SimpleNamespace(bit_generator=np.random.PCG64(0))  # no distributions of NumPy
        chosen = prior(labels, rng, *([groups] if getattr(prior, "grouped", False) else []))
        assert chosen.tolist() == sorted(chosen.tolist())
        order(labels[chosen], groups[chosen], rng)
