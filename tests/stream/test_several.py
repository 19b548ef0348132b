from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lametta.stream import (
    Scenario,
    alone,
    by_group,
    few_classes,
    interleaved,
    tracks,
)
from tests.stream.cases import (
    batch_sizes,
    data_sets,
    parts,
    repeats,
    seeds,
    sequences,
)


@given(data_sets(), seeds, batch_sizes)
def test_interleaved_by_definition(data, seed, batch_size):
    labels, groups = data
    waiting = {g: np.flatnonzero(groups == g).tolist() for g in dict.fromkeys(groups.tolist())}
    expected = []
    while any(waiting.values()):
        for g, own in waiting.items():
            if own:
                expected.append((g, own[:batch_size]))
                waiting[g] = own[batch_size:]
    stream = Scenario(interleaved(), batch_size=batch_size, seed=seed)(labels, groups)
    assert [(g, b.tolist()) for g, b in zip(stream.ids, stream, strict=True)] == expected


@given(data_sets(), seeds, st.integers(1, 4), st.booleans())
def test_cameras_share_no_group(data, seed, n_cameras, with_groups):
    labels, groups = data if with_groups else (data[0], None)
    units = len(labels) if groups is None else len(set(groups.tolist()))
    n_cameras = min(n_cameras, units)
    stream = Scenario(interleaved(n_cameras), batch_size=3, seed=seed)(labels, groups)
    assert set(stream.ids) == {str(i) for i in range(n_cameras)}
    owners = {}
    for name, batch in zip(stream.ids, stream, strict=True):
        for unit in batch.tolist() if groups is None else groups[batch].tolist():
            assert owners.setdefault(unit, name) == name
    counts = Counter(owners.values())
    assert max(counts.values()) - min(counts.values()) <= 1


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
