"""Orders, priors and data sets for the tests of streams."""

import itertools

import numpy as np
import pytest
from hypothesis import strategies as st

from lametta.stream import (
    alone,
    as_is,
    by_class,
    by_group,
    dirichlet,
    each_group,
    effective_classes,
    few_classes,
    gradual,
    iid,
    interleaved,
    label_shift,
    long_tail,
    markov,
    mixed,
    ratios,
    recorded,
    recurring,
    tracks,
    zipf,
)

ORDERS = [
    iid(),
    recorded(),
    by_class(),
    by_class(shuffle_inside=False, sequence="random"),
    by_group(),
    by_group(shuffle_inside=True, sequence="random"),
    by_group(sequence="given"),
    dirichlet(),
    dirichlet(2, slots=5, bursts=False),
    dirichlet(0.5, within_groups=True),
    interleaved(),
    interleaved(1, inside=by_group()),
    interleaved(inside=dirichlet(1)),
    mixed(),
    mixed(shuffle_inside=False),
    gradual(),
    gradual(1, shuffle_inside=False, sequence="given"),
    recurring(),
    recurring(3, shuffle_inside=False),
    markov(),
    markov(0.2, stay_domain=0.85),
    markov("iid", stay_domain=1),
    label_shift(),
    label_shift("square", contrast=0.5),
    label_shift("sinusoidal", period=7),
    label_shift("bernoulli"),
    alone(),
    alone(shuffle_inside=True, sequence="random"),
    each_group(by_class()),
    each_group(iid(), same=True, fresh=True),
    tracks(3),
    few_classes(1, 2, size=5),
]
PRIORS = [
    *(as_is(), zipf(), zipf(1.5, "test"), ratios([1, 2, 1])),
    *(long_tail(), long_tail(2, 3), effective_classes(2)),
]
KEPT = [recorded(), *(o for o in ORDERS if getattr(o, "shuffle_inside", None) is False)]
every_order = pytest.mark.parametrize("order", ORDERS, ids=repr)


@st.composite
def data_sets(draw):
    """Labels and groups [N]."""
    n, rng = draw(st.integers(1, 40)), np.random.default_rng(draw(st.integers(0, 2**32)))
    labels, groups = rng.permutation(5), rng.permutation(list("abcd"))
    n_classes, n_groups = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    return labels[rng.integers(n_classes, size=n)], groups[rng.integers(n_groups, size=n)]


seeds = st.integers(0, 2**64)
batch_sizes = st.integers(1, 9)
sequences = st.sampled_from(["appearance", "random", "given", ("d", "a", "b", "c", "e")])


def runs(values):
    """The values, each once for as long as it stays the same."""
    return [value for value, _ in itertools.groupby(np.asarray(values).tolist())]


def make_data(n=600):
    rng = np.random.default_rng(0)
    return rng.integers(3, size=n), np.array([f"g{i}" for i in rng.integers(4, size=n)])


def repeats(values):
    """How often a value is that of the one before."""
    return np.mean(values[1:] == values[:-1])


def parts(stream):
    """The positions of each stream, by id."""
    found = {}
    for name, batch in zip(stream.ids, stream, strict=True):
        found.setdefault(name, []).extend(batch.tolist())
    return found
