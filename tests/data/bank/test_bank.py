"""Banks: the replay is the network."""

import json
import pickle
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import lametta
from lametta import LAME, ClassMap, Corrected, LamettaError, Output
from lametta.cli._predictions import read
from lametta.data.bank import Bank
from lametta.torch import Classifier
from tests.conftest import shared
from tests.data.bank.conftest import make_data, run


def test_replay_is_the_network(net, model, tmp_path):
    data = make_data()
    bank = run(model, data, tmp_path / "bank.safetensors")
    for index in ([0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]):
        output = model(torch.from_numpy(np.stack([data[i].x for i in index])))
        replayed = bank(index)
        assert isinstance(replayed, Output)
        assert np.array_equal(replayed.features, output.features.numpy())
        assert np.array_equal(replayed.logits, output.logits.numpy())
    assert np.array_equal(bank(np.array([9, 2])).features, np.asarray(bank.features)[[9, 2]])
    assert bank.labels.tolist() == data.labels.tolist()
    assert bank.groups.tolist() == data.groups.tolist()
    assert bank.keys == data.keys
    assert len(bank) == 11
    assert isinstance(bank, lametta.Model)
    assert not isinstance(bank, lametta.Adapter)


def test_other_readers_find_the_same(model, tmp_path):
    path = tmp_path / "bank.safetensors"
    bank = run(model, make_data(), path, header={"model": "net"})
    stored = load_file(path)
    assert np.array_equal(stored["features"], bank.features)
    assert bytes(stored["keys.utf8"]).decode().split("\0")[10] == "ü/10.jpg"
    with safe_open(path, "numpy") as file:
        header = json.loads(file.metadata()["lametta"])
    assert header == bank.header
    assert header["model"] == "net"
    assert header["dataset"] == "tiny"
    assert header["fingerprint"] == make_data().fingerprint
    assert header["failed"] == []


def test_correctors_run_on_a_bank(model, tmp_path):
    data, batch = make_data(), [3, 2, 1, 0]
    bank = run(model, data, tmp_path / "bank.safetensors", batch_size=11)
    x = torch.from_numpy(np.stack([data[i].x for i in batch]))
    replayed = Corrected(bank, LAME()).step(batch).probs
    np.testing.assert_allclose(replayed, Corrected(model, LAME()).step(x).probs, atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "sum", "max"])
def test_class_maps_act_on_a_bank_as_on_a_network(net, tmp_path, pooling):
    classes = ClassMap({"z": [3], "a": [0, 2]}, n_source=4, pooling=pooling)
    data = make_data(2, classes=("z", "a"), class_map=classes)
    with Classifier(net) as model:
        bank = run(model, data, tmp_path / "bank.safetensors")
    assert bank.class_map == classes
    assert (bank.n_classes, bank.mapped(bank.class_map).n_classes) == (4, 2)
    with Classifier(net, classes=classes) as model:
        pooled = model(torch.from_numpy(np.stack([x for x, _, _ in data]))).logits
    mapped = bank.mapped(bank.class_map)
    np.testing.assert_allclose(mapped([0, 1]).logits, pooled, atol=1e-6)
    assert np.array_equal(mapped.mapped(None)([1]).logits, bank([1]).logits)
    # The command corrects in the classes of the labels.
    given = read(tmp_path / "bank.safetensors", None)
    np.testing.assert_allclose(given.probs, torch.softmax(pooled, dim=1), atol=1e-6)
    assert given.groups.tolist() == bank.groups.tolist()


def test_labels_of_other_classes_are_no_labels_to_correct(model, tmp_path):
    bank = run(model, make_data(classes=tuple("abcde")), tmp_path / "bank.safetensors")
    assert bank.class_map is None
    assert read(tmp_path / "bank.safetensors", None).labels is None


def test_a_bank_is_never_read_whole(tmp_path):
    n, d = 4096, 1024
    features = np.ones((n, d), np.float32)
    save_file({"features": features, "logits": features}, tmp_path / "big.safetensors")
    del features
    bank = Bank.open(tmp_path / "big.safetensors")
    bank([0])
    before = resident_file_pages()
    tracemalloc.start()
    total = sum(bank(np.arange(i, i + 64)).features.sum() for i in range(0, n, 64))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert total == n * d
    assert peak < 2 * 2**20  # of 32
    assert resident_file_pages() - before < 2 * 2**20
    assert len(pickle.dumps(bank)) < 2000
    assert np.array_equal(pickle.loads(pickle.dumps(bank))([7]).logits, bank([7]).logits)


def resident_file_pages():
    """Bytes of mapped files in memory; where that cannot be known, 0."""
    status = Path("/proc/self/status")
    text = status.read_text() if status.exists() else ""
    return 1024 * sum(map(int, re.findall(r"RssFile:\s+(\d+) kB", text)))


def test_npz_files_are_banks(tmp_path):
    rng = np.random.default_rng(0)
    stored = {
        "features": rng.normal(size=(5, 3)).astype(np.float16),
        "logits": rng.normal(size=(5, 2)),
        "labels": np.array([0, 1, 0, 1, 1], np.int8),
        "groups": np.array([7, 7, 7, 8, 8]),
    }
    np.savez(tmp_path / "bank.npz", **stored)
    bank = Bank.open(tmp_path / "bank.npz")
    output = bank([4, 0])
    assert (output.features.dtype, output.logits.dtype) == (np.float32, np.float64)
    assert np.array_equal(output.features, stored["features"][[4, 0]].astype(np.float32))
    assert (bank.labels[4], bank.groups[3], bank.keys, bank.header) == (1, 8, (), {})


def test_a_stored_bank():
    bank = Bank.open(shared("data", "banks", "imagenette_val500_lite0.npz"))
    assert (bank(np.arange(500)).logits.argmax(axis=1) == bank.labels).mean() == 0.696


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ([[0]], r"index must be integers \[N\], got int64 of shape \(1, 1\)"),
        ([0.0], r"index must be integers \[N\], got float64"),
        ([0, 3], r"index must lie in 0..2, got 0..3"),
        ([-1], r"index must lie in 0..2, got -1..-1"),
    ],
)
def test_bad_positions_are_named(index, message):
    with pytest.raises(LamettaError, match=message):
        Bank(np.eye(3), np.eye(3))(index)


def test_an_empty_batch_is_a_batch():
    assert Bank(np.eye(3), np.eye(3)[:, :2])([]).logits.shape == (0, 2)


def test_bad_banks_are_named(tmp_path):
    with pytest.raises(LamettaError, match=r"logits must have shape \[N, K\] with N = 3"):
        Bank(np.eye(3), np.eye(2))
    with pytest.raises(LamettaError, match="keys must have one entry a sample, 3, got 1"):
        Bank(np.eye(3), np.eye(3), keys=("a",))
    np.savez(tmp_path / "probs.npz", features=np.eye(3), probs=np.eye(3))
    assert Bank.open(tmp_path / "probs.npz")([1]).logits.tolist() == [[-np.inf, 0, -np.inf]]
    np.savez(tmp_path / "probs.npz", features=np.eye(3), probs=-np.eye(3))
    with pytest.raises(LamettaError, match="probs must be >= 0, got -1 in .*probs"):
        Bank.open(tmp_path / "probs.npz")
    with pytest.raises(LamettaError, match="no such file: '.*absent.npz'"):
        Bank.open(tmp_path / "absent.npz")
