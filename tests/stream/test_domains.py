import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lametta.stream import (
    Scenario,
    gradual,
    recurring,
)
from tests.stream.cases import data_sets, runs, seeds


@given(data_sets(), seeds, st.integers(1, 5))
def test_recurring_by_definition(data, seed, rounds):
    labels, groups = data
    order = recurring(rounds, shuffle_inside=False, sequence=("c", "a", "d", "b"))
    expected, parts = [], {g: [] for g in "cadb"}
    for visit in range(rounds):
        for g, sizes in parts.items():
            own = np.flatnonzero(groups == g)
            part = [i for turn, i in enumerate(own) if turn * rounds // len(own) == visit]
            expected += part
            sizes.append(len(part))
    assert Scenario(order, seed=seed)(labels, groups).index.tolist() == expected
    assert all(max(sizes) - min(sizes) <= 1 for sizes in parts.values())


def test_gradual_fades_linearly():
    n, overlap = 40_000, 0.5
    domain = np.repeat([0, 1], n)
    shown = domain[Scenario(gradual(overlap, sequence="given"))(domain, domain).index]
    # A quarter of a unit before the border the change begins, a quarter after it it ends.
    at = np.linspace(0, 2, 2 * n, endpoint=False)
    expected = np.clip((at - 1) / overlap + 0.5, 0, 1)
    seen = shown.reshape(-1, 1000).mean(axis=1)
    assert np.abs(seen - expected.reshape(-1, 1000).mean(axis=1)).max() < 0.06
    abrupt = Scenario(gradual(0))(domain, domain)
    assert len(runs(domain[abrupt.index])) == 2
