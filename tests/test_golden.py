"""Fixed inputs and what must come out of them.

Files in ``equation`` come from the definition in float64; those in ``released`` are outputs of the
code that the paper's authors released, on fixed inputs. ``scripts/make_golden.py`` makes both.
"""

import json
import runpy
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

import lametta
from tests.conftest import GOLDEN, SHARED, shared, softmax

CONVERTERS = {"numpy": np.asarray, "torch": torch.tensor}


@pytest.fixture(params=CONVERTERS.values(), ids=CONVERTERS)
def convert(request):
    return request.param


@cache
def read(path):
    with np.load(path) as archive:
        return {key: archive[key] for key in archive.files}


def load(path):
    return dict(read(path))


# By the definition


def equation_files(cut_short):
    paths = sorted((GOLDEN / "equation").glob("*.npz"))
    return [pytest.param(p, id=p.stem) for p in paths if ("-iter" in p.stem) == cut_short]


def load_case(path, dtype, convert):
    data = load(path)
    options = json.loads(str(data["options"]))
    names = {"knn": ("k", "symmetric"), "rbf": ("k", "row_sum", "symmetric")}
    chosen = names.get(options["affinity"], ("row_sum", "symmetric"))
    make = getattr(lametta, options["affinity"])
    affinity = make(**{name: options[name] for name in chosen})
    features = convert(data["features"].astype(dtype))
    probs = convert(softmax(data["logits"].astype(np.float64)).astype(dtype))
    return data, options, affinity, features, probs


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("path", equation_files(cut_short=False))
def test_fixed_points(path, dtype, convert):
    data, options, affinity, features, probs = load_case(path, dtype, convert)
    result = lametta.lame(features, probs, affinity=affinity, weight=options["weight"])
    values, expected = np.asarray(result.probs), data["z"]
    assert np.abs(values - expected).max() < 5e-4
    assert np.array_equal(values.argmax(axis=1), expected.argmax(axis=1))
    slack = 1e-4 * max(options["n"], 1)
    assert float(result.energy) == pytest.approx(float(data["energy"]), rel=1e-5, abs=slack)
    if "w" in data:
        exact = options["affinity"] == "knn" and options["batch"] != "duplicates"
        w = np.asarray(affinity(features))
        if options["batch"] == "duplicates" and options["affinity"] == "knn":
            # Which of several like samples is a neighbor is open; how many are is not.
            w, data["w"] = w.sum(axis=1), data["w"].sum(axis=1)
        assert np.abs(w - data["w"]).max() <= (0 if exact else 2e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("path", equation_files(cut_short=True))
def test_runs_cut_short(path, dtype, convert):
    data, options, affinity, features, probs = load_case(path, dtype, convert)
    options = {"affinity": affinity, "weight": options["weight"], "max_iter": options["max_iter"]}
    exact = lametta.lame(features, probs, tol=0, **options)
    assert np.abs(np.asarray(exact.probs) - data["z"]).max() < 1e-5
    result = lametta.lame(features, probs, **options)
    assert np.abs(np.asarray(result.probs) - data["z"]).max() < 1e-3


@pytest.mark.slow
def test_the_stored_files_are_those_of_the_equation(tmp_path):
    script = runpy.run_path(str(Path(__file__).parents[1] / "scripts" / "make_golden.py"))
    script["write_equation"](tmp_path)
    assert script["differing"](tmp_path, GOLDEN / "equation") == []


def test_the_stored_files_stay_small():
    sizes = [path.stat().st_size for path in GOLDEN.rglob("*.npz")]
    assert len(sizes) > 70
    assert sum(sizes) <= 3e6


# By the released code


def released_files(start):
    """The files that are stored here; then all of them, where they are, or one that skips."""
    stored = sorted((GOLDEN / "released").glob(f"{start}*.npz"))
    complete = sorted((SHARED / "golden").glob(f"{start}*.npz"))
    complete = complete or [SHARED / "golden" / f"{start}.npz"]
    return [
        *(pytest.param(path, id=path.stem) for path in stored),
        *(pytest.param(path, id=f"complete {path.stem}") for path in complete),
    ]


def load_released(path):
    return load(path if path.is_relative_to(GOLDEN) else shared("golden", path.name))


def affinity_of(tag):
    """The affinity of an array named, for example, Y_kNN_k5_sym, or W_linear_k0."""
    kind, k, *symmetric = tag.split("_")[1:]
    options = {"symmetric": bool(symmetric)}
    if kind == "kNN":
        return lametta.knn(int(k[1:]), **options)
    if kind == "rbf":  # the released code counts the sample itself as its first neighbor
        return lametta.rbf(max(int(k[1:]) - 1, 1), **options)
    return lametta.linear(**options)


@pytest.mark.slow
@pytest.mark.parametrize("path", released_files("lame"))
def test_released_lame(path, convert):
    data = load_released(path)
    features = convert(data["features"].astype(np.float32))
    probs = convert(softmax(data["logits"].astype(np.float32)))
    tags = [key for key in data if key.startswith("Y_")]
    assert tags
    for tag in tags:
        affinity, expected = affinity_of(tag), data[tag]
        values = np.asarray(lametta.lame(features, probs, affinity=affinity).probs)
        if np.isnan(expected).any():  # a bandwidth of 0 there
            assert np.isfinite(values).all()
            assert np.allclose(values.sum(axis=1), 1, atol=1e-5)
            continue
        assert np.abs(values - expected).max() < 5e-4, tag
        assert np.array_equal(values.argmax(axis=1), expected.argmax(axis=1)), tag
        for n in (1, 2):
            if (key := tag.replace("Y", f"Y{n}")) in data:
                few = lametta.lame(features, probs, affinity=affinity, max_iter=n, tol=0).probs
                assert np.abs(np.asarray(few) - data[key]).max() < 1e-5, key
        if (key := tag.replace("Y", "W")) in data:
            w, exact = np.asarray(affinity(features)), "kNN" in key
            assert np.abs(w - data[key].astype(np.float32)).max() <= (0 if exact else 2e-6), key


@pytest.mark.parametrize("path", released_files("pooled_pipeline"))
def test_released_pooled_pipeline(path, convert):
    data = load_released(path)
    pool = lametta.ClassMap(data["mapping"], pooling="sum")
    logits = data["logits"].astype(np.float32)
    pooled = np.asarray(pool.pool_probs(convert(softmax(logits))))
    assert np.abs(pooled - data["pooled_probs"]).max() < 1e-6
    assert np.abs(softmax(np.asarray(pool(convert(logits)))) - data["pooled_probs"]).max() < 1e-6
    features = convert(data["features"].astype(np.float32))
    tags = [key for key in data if key.startswith("Y_")]
    assert tags
    for tag in tags:
        values = lametta.lame(features, convert(pooled), affinity=affinity_of(tag)).probs
        assert np.abs(np.asarray(values) - data[tag]).max() < 5e-4, tag
        assert np.array_equal(np.asarray(values).argmax(axis=1), data[tag].argmax(axis=1)), tag


@pytest.mark.parametrize("path", released_files("edge_cases"))
def test_released_edge_cases(path, convert):
    data = load_released(path)
    one_hot = convert(data["sat_probs"].astype(np.float32))
    w = convert(data["sat_W"].astype(np.float32))
    features = convert(np.ones((len(data["sat_probs"]), 2), np.float32))
    values = np.asarray(lametta.lame(features, one_hot, affinity=lambda x: w).probs)
    assert np.abs(values - data["sat_Y"]).max() < 5e-4
    twins = convert(data["dup_features"].astype(np.float32))
    graph = np.asarray(lametta.knn(1)(twins))
    assert (np.diag(graph) == 0).all()
    assert np.isfinite(np.asarray(lametta.rbf(1)(twins))).all()
