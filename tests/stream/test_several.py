from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lametta.stream import (
    Scenario,
    interleaved,
)
from tests.stream.cases import batch_sizes, data_sets, seeds


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
