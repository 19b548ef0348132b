"""Outputs of the code that the paper's authors released, on fixed inputs."""

import json

import numpy as np
import pytest

import lametta
import torch
from tests.conftest import shared, softmax

CONVERTERS = {"numpy": np.asarray, "torch": torch.tensor}


@pytest.fixture(params=CONVERTERS.values(), ids=CONVERTERS)
def convert(request):
    return request.param


def runs():
    """Each stored batch with its runs; one of a name only where the folder is absent."""
    try:
        index = json.loads(shared("golden", "index.json").read_text())
    except pytest.skip.Exception:
        return ["absent"]
    return [entry["file"] for entry in index["lame"] if "runs" in entry]


def load(name):
    with np.load(shared("golden", name)) as archive:
        return {key: archive[key] for key in archive.files}


def affinity_of(run):
    options = {"symmetric": run["symmetric"]}
    if run["affinity"] == "kNN":
        return lametta.knn(run["k"], **options)
    if run["affinity"] == "rbf":  # the released code counts the sample itself as its first neighbor
        return lametta.rbf(max(run["k"] - 1, 1), **options)
    return lametta.linear(**options)


@pytest.mark.parametrize("name", runs())
def test_lame(name, convert):
    data = load(name)
    features = convert(data["features"].astype(np.float32))
    probs = convert(softmax(data["logits"].astype(np.float32)))
    index = json.loads(shared("golden", "index.json").read_text())
    (entry,) = (entry for entry in index["lame"] if entry["file"] == name)
    for run in entry["runs"]:
        affinity = affinity_of(run)
        values = np.asarray(lametta.lame(features, probs, affinity=affinity).probs)
        if run["has_nan"]:
            assert np.isfinite(values).all()
            assert np.allclose(values.sum(axis=1), 1, atol=1e-5)
            continue
        expected = data[f"Y_{run['tag']}"]
        assert np.abs(values - expected).max() < 5e-4, run["tag"]
        assert np.array_equal(values.argmax(axis=1), expected.argmax(axis=1)), run["tag"]
        for n in (1, 2):
            if (key := f"Y{n}_{run['tag']}") in data:
                few = lametta.lame(features, probs, affinity=affinity, max_iter=n, tol=0).probs
                assert np.abs(np.asarray(few) - data[key]).max() < 1e-5, key
        if (key := f"W_{run['tag']}") in data:
            w = np.asarray(affinity(features))
            assert np.abs(w - data[key].astype(np.float32)).max() <= (
                0 if run["affinity"] == "kNN" else 2e-6
            ), key


def test_pooled_pipeline(convert):
    data = load("pooled_pipeline.npz")
    pool = lametta.ClassMap(data["mapping"], pooling="sum")
    logits = data["logits"].astype(np.float32)
    pooled = np.asarray(pool.pool_probs(convert(softmax(logits))))
    assert np.abs(pooled - data["pooled_probs"]).max() < 1e-6
    assert np.abs(softmax(np.asarray(pool(convert(logits)))) - data["pooled_probs"]).max() < 1e-6
    features = convert(data["features"].astype(np.float32))
    tags = [key for key in data if key.startswith("Y_")]
    assert tags
    for tag in tags:
        kind, k = tag.split("_")[1:3]
        run = {"affinity": kind, "k": int(k[1:]), "symmetric": tag.endswith("sym")}
        values = lametta.lame(features, convert(pooled), affinity=affinity_of(run)).probs
        expected = data[tag]
        assert np.abs(np.asarray(values) - expected).max() < 5e-4, tag
        assert np.array_equal(np.asarray(values).argmax(axis=1), expected.argmax(axis=1)), tag


def test_edge_cases(convert):
    data = load("edge_cases.npz")
    one_hot = convert(data["sat_probs"].astype(np.float32))
    w = convert(data["sat_W"].astype(np.float32))
    features = convert(np.ones((len(data["sat_probs"]), 2), np.float32))
    values = np.asarray(lametta.lame(features, one_hot, affinity=lambda x: w).probs)
    assert np.abs(values - data["sat_Y"]).max() < 5e-4
    twins = convert(data["dup_features"].astype(np.float32))
    graph = np.asarray(lametta.knn(1)(twins))
    assert (np.diag(graph) == 0).all()
    assert np.isfinite(np.asarray(lametta.rbf(1)(twins))).all()
