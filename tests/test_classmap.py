import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lametta import ClassMap, LamettaError
from tests.conftest import Library, shared, softmax

POOLINGS = ("mean", "sum", "max")


def by_definition(probs, groups, pooling):
    pooled = np.stack([getattr(probs[:, list(g)], pooling)(axis=1) for g in groups], axis=1)
    return pooled / pooled.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_pooling_by_definition(library: Library, pooling):
    logits = np.random.default_rng(0).normal(size=(9, 7)) * 3
    groups = [(0, 4, 6), (1,), (2, 3)]  # source 5 is dropped
    classes = ClassMap(groups, n_source=7, pooling=pooling)
    expected = by_definition(softmax(logits), groups, pooling)
    pooled = library.numpy(classes.pool_probs(library.array(softmax(logits))))
    assert np.allclose(pooled, expected)
    assert np.allclose(softmax(library.numpy(classes(library.array(logits)))), expected)


@st.composite
def maps(draw):
    n = draw(st.integers(1, 12))
    targets = draw(st.lists(st.integers(-1, 3), min_size=n, max_size=n))
    used = sorted({t for t in targets if t >= 0})
    return [used.index(t) if t >= 0 else -1 for t in targets] if used else [0] * n


@given(maps(), st.sampled_from(POOLINGS), st.integers(0, 2**32 - 1))
def test_logits_and_probs_agree(index, pooling, seed):
    logits = np.random.default_rng(seed).normal(size=(4, len(index))) * 20
    classes = ClassMap(index, pooling=pooling)
    pooled = classes.pool_probs(softmax(logits))
    assert np.allclose(softmax(classes.pool_logits(logits)), pooled, atol=1e-9)
    assert np.allclose(pooled.sum(axis=1), 1)


SAME = {
    "index list": [0, 0, 1, -1],
    "index array": np.array([0, 0, 1, -1], np.int16),
    "index tensor": torch.tensor([0, 0, 1, -1]),
    "groups": [[0, 1], [2]],
    "groups of arrays": [np.array([0, 1]), np.array([2])],
    "dict of groups": {"0": [0, 1], "1": [2]},
    "dict of numbered targets": {0: 0, 1: 0, 2: 1, 3: -1},
    "dict with None": {0: 0, 1: 0, 2: 1, 3: None},
    "dict of named targets": {0: "0", 1: "0", 2: "1"},
}


@pytest.mark.parametrize("mapping", SAME.values(), ids=SAME)
def test_every_form_of_map(mapping):
    classes = ClassMap(mapping, n_source=4)
    assert classes == ClassMap([[0, 1], [2]], n_source=4)
    assert hash(classes) == hash(ClassMap([[0, 1], [2]], n_source=4))
    assert classes.groups == ((0, 1), (2,))
    assert classes.names == ("0", "1")
    assert len(classes) == 2
    assert classes.pool_probs(np.full((1, 4), 0.25)).shape == (1, 2)


def test_names_keep_the_order_of_a_dict():
    classes = ClassMap({2: "dog", 0: "cat", 1: "cat"})
    assert classes.names == ("dog", "cat")
    assert classes.groups == ((2,), (0, 1))


@pytest.mark.parametrize("pooling", POOLINGS)
def test_save_and_load(tmp_path, pooling):
    for mapping in SAME.values():
        classes = ClassMap(mapping, n_source=4, pooling=pooling)
        classes.save(tmp_path / "map.json")
        assert ClassMap.load(tmp_path / "map.json") == classes
    open_ended = ClassMap({"a": [0]}, pooling=pooling)
    open_ended.save(tmp_path / "map.json")
    assert ClassMap.load(tmp_path / "map.json") == open_ended


def test_dicts_come_back_through_json():
    classes = ClassMap({"b": [0], "a": [2, 1]}, n_source=5, pooling="max")
    packed = json.loads(json.dumps(classes.to_dict()))
    assert packed == {"names": ["b", "a"], "groups": [[0], [2, 1]], "n_source": 5, "pooling": "max"}
    assert ClassMap.from_dict(packed) == classes


def test_the_stored_form(tmp_path):
    ClassMap({"b": [0], "a": [2, 1]}, n_source=5, pooling="max").save(tmp_path / "map.json")
    assert json.loads((tmp_path / "map.json").read_text()) == {
        "format": "lametta.ClassMap/1",
        "pooling": "max",
        "n_source": 5,
        "groups": {"b": [0], "a": [2, 1]},
    }


def test_far_apart_logits_keep_their_order(library: Library):
    # A common shift for all classes would send the second target to -inf.
    logits = library.array([[0.0, -300.0, -301.0]], "float32")
    pooled = library.numpy(ClassMap([[0], [1, 2]], pooling="sum")(logits))
    assert np.allclose(pooled, [[0.0, -300 + np.log1p(np.exp(-1))]])


def test_no_probability_on_any_target(library: Library):
    pooled = ClassMap([[0], [1, 2]], n_source=4).pool_probs(library.array([[0.0, 0.0, 0.0, 1.0]]))
    assert np.allclose(library.numpy(pooled), 0.5)
    logits = library.array([[0.0, -np.inf, -np.inf, 1.0]])
    assert library.numpy(ClassMap([[0], [1, 2]])(logits)).tolist() == [[0.0, -np.inf]]


def test_dtype_is_kept(library: Library):
    for dtype in ("float32", "float64", *library.halves):
        logits = library.array(np.zeros((2, 3)), dtype)
        classes = ClassMap([[0, 1], [2]])
        assert classes(logits).dtype == classes.pool_probs(logits + 1).dtype == logits.dtype


def test_paper_map():
    groups = json.loads(shared("reference", "vid_target_to_imagenet_indices.json").read_text())
    classes = ClassMap(groups, n_source=1000)
    assert len(classes) == 30
    assert sum(map(len, classes.groups)) == 279
    logits = np.random.default_rng(0).normal(size=(3, 1000))
    expected = by_definition(softmax(logits), classes.groups, "mean")
    assert np.allclose(softmax(classes(logits)), expected)


@pytest.mark.parametrize(
    ("mapping", "options", "message"),
    [
        ([[0], [0]], {}, "a class one target at most, got '0' and '1' for class 0"),
        ([[0], []], {}, "each target a class, got none for '1'"),
        ({0: 0, 1: 2}, {}, "each target a class, got none for '1'"),
        ([[0, 5]], {"n_source": 4}, "classes >= 0 and < n_source = 4, got 5"),
        ([[-1]], {}, "classes >= 0, got -1"),
        ([0, -2], {}, "targets >= 0, or -1 for none, got -2"),
        ([], {}, "at least one target, got none"),
        ({0: 10**9}, {}, "each target a class, got none for '0'"),  # and no list of 10**9 targets
        ([10**9], {}, "each target a class, got none for '0'"),
        ([-1, -1], {}, "at least one target, got none"),
        ("cat", {}, "mapping must be an index array, .* got str"),
        ([[0.5]], {}, "integer class indices, got 0.5"),
        ([[0]], {"pooling": "median"}, "pooling must be one of .* got 'median'"),
        ([[0]], {"n_source": "many"}, "n_source must be an integer >= 1, got 'many'"),
    ],
)
def test_bad_maps_are_named(mapping, options, message):
    with pytest.raises(LamettaError, match=message):
        ClassMap(mapping, **options)


def test_bad_arrays_are_named():
    with pytest.raises(LamettaError, match="logits must have K = 4 classes, got 5"):
        ClassMap([0, 1, -1, -1])(np.ones((2, 5)))
    with pytest.raises(LamettaError, match="probs must have K = at least 3 classes, got 2"):
        ClassMap({"a": [2]}).pool_probs(np.ones((2, 2)))
    with pytest.raises(LamettaError, match="logits must be 2-D"):
        ClassMap([0])(np.ones(3))


def test_files_that_are_no_map_are_named(tmp_path):
    path = tmp_path / "map.json"
    for text in ("{", "[]", '{"a": 1}'):
        path.write_text(text)
        with pytest.raises(LamettaError, match=r"map\.json' is (not valid JSON|no class map)"):
            ClassMap.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"groups": {"0": 10**9}}, "integer class indices, got '0'"),
        ({"groups": 5}, "got int"),
        ({"names": 5}, "not iterable|no len"),
        ({"names": ["a", "b"]}, "shorter"),
        ({"names": [["a"]]}, "unhashable"),
        ({"names": ["a", "a"], "groups": [[0], [1]]}, "one name for two targets"),
        ({"n_source": True}, "n_source must be an integer >= 1, got True"),
        ({"pooling": []}, "pooling must be one of"),
    ],
)
def test_malformed_maps_are_named(tmp_path, change, message):
    content = {"groups": [[0]], "names": ["a"], "n_source": None, "pooling": "mean"} | change
    if not isinstance(content["groups"], list):
        del content["names"]
    with pytest.raises(
        LamettaError, match=f"class map must be as to_dict gives it, got .*{message}"
    ):
        ClassMap.from_dict(content)
    path = tmp_path / "map.json"
    path.write_text(json.dumps(content | {"format": "lametta.ClassMap/1"}))
    with pytest.raises(LamettaError, match=rf"map\.json' is no class map: .*{message}"):
        ClassMap.load(path)
    del content["groups"]
    with pytest.raises(LamettaError, match="got no 'groups'"):
        ClassMap.from_dict(content)


@pytest.mark.parametrize(
    "content", [b"[" * 100_000, b"\xff{}", b'{"groups": ' + b"1" * 5000 + b"}"]
)
def test_files_that_are_no_json_are_named(tmp_path, content):
    path = tmp_path / "map.json"
    path.write_bytes(content)
    with pytest.raises(LamettaError, match=r"map\.json' is not valid JSON: "):
        ClassMap.load(path)
    with pytest.raises(LamettaError, match=r"no such file: '.*absent\.json'"):
        ClassMap.load(tmp_path / "absent.json")


@pytest.mark.slow
def test_a_map_that_would_not_fit_into_memory_is_refused():
    """One target of many classes makes room for as many at each of the others."""
    n = 20_000
    classes = ClassMap([0] * n + list(range(1, n + 1)))
    message = "mapping must have at most 67108864 places, .* got 20001 times 20000"
    with pytest.raises(LamettaError, match=message):
        classes(np.zeros((1, 2 * n)))
