"""Data sets: samples in memory, some of them, and super-classes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lametta import ClassMap, LamettaError
from lametta.data import arrays


def test_arrays():
    x = np.arange(6.0).reshape(3, 2)
    data = arrays(x, [2, 0, 2], groups=[7, 7, 8])
    assert data.classes == ("0", "1", "2")
    assert data[2].x.tolist() == [4.0, 5.0]
    assert data[2][1:] == (2, "8")
    pets = ClassMap({"cat": [0], "dog": [1]})
    named = arrays(x, np.array([1, 0, 1]), classes=["cat", "dog"], class_map=pets, name="pets")
    assert (named.name, named.classes, named.class_map) == ("pets", ("cat", "dog"), pets)
    for y, message in [
        ([0, 1], "labels must have one entry a sample, 3, got 2"),
        ([0.0, 1.0, 2.0], "labels must be integers"),
        (["a", "b", "c"], "labels must be integers"),
        ([0, 1, 10**9], "classes must be given for labels >= 1000000, got 1000000000"),
    ]:
        with pytest.raises(LamettaError, match=message):
            arrays(x, y)


@given(st.lists(st.integers(0, 5), max_size=12), st.permutations(range(6)), st.integers(1, 5))
def test_super_classes_by_definition(labels, order, n):
    classes = {f"c{i}": order[i::n][:2] for i in range(n)}
    data = arrays(np.array(labels, float), np.array(labels, int), classes=tuple("abcdef"))
    found = data.relabeled(classes)
    owner = {member: i for i, group in enumerate(classes.values()) for member in group}
    kept = [i for i, label in enumerate(labels) if label in owner]
    assert found.labels.tolist() == [owner[labels[i]] for i in kept]
    assert found.samples.tolist() == [labels[i] for i in kept]
    assert found.keys == tuple(str(i) for i in kept)
    assert found.classes == tuple(classes)
    assert found.class_map == ClassMap(classes, n_source=6)


def test_super_classes_of_super_classes_are_refused():
    data = arrays(np.eye(3), [0, 1, 2]).relabeled({"low": [0, 1]})
    with pytest.raises(LamettaError, match="classes must not be given for arrays, which has its o"):
        data.relabeled({"all": [0]})
    with pytest.raises(LamettaError, match="classes >= 0 and < n_source = 3, got 3"):
        arrays(np.eye(3), [0, 1, 2]).relabeled({"low": [3]})


def test_a_part_of_an_array_is_an_array():
    data = arrays(np.arange(4.0), [0, 1, 2, 3], list("abcd"))
    part = data.take([3, 1])
    assert isinstance(part.samples, np.ndarray)
    assert [tuple(sample) for sample in part] == [(3.0, 3, "d"), (1.0, 1, "b")]
    part.samples[:] = 0
    assert data.samples.tolist() == [0, 1, 2, 3]
    listed = arrays(["w", "x", "y", "z"], [0, 1, 2, 3]).take([3, 1])
    assert [sample.x for sample in listed] == ["z", "x"]
