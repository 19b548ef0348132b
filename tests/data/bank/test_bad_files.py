"""Files that lie, are damaged or hold more than is needed: one clear line, and little memory."""

import io
import json
import os
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from lametta import ClassMap, LamettaError
from lametta.data.bank import Bank, open_images
from lametta.data.bank.bank import check_finite, read_arrays
from lametta.data.bank.safetensors import encode_columns, write_blocks
from tests.conftest import run_python

ROOT = Path(__file__).parents[3]
GOOD = {"features": np.ones((4, 3), np.float32), "logits": np.ones((4, 2), np.float32)}


def raw(path, content, tail=b""):
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + tail)
    return path


def field(shape, offsets=(0, 0), dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    "content",
    [
        {"features": field([10**9, 0]), "logits": field([10**9, 0])},
        {"features": field([0, 10**12]), "logits": field([0, 10**12])},
        {"features": field([10**5000, 0]), "logits": field([1, 0])},
        {"features": field([True, 1], (0, 4)), "logits": field([1, 1], (0, 4))},
        {"features": field([1.0, 1], (0, 4)), "logits": field([1, 1], (0, 4))},
        {"features": field([1, 1], (0.0, 4)), "logits": field([1, 1], (0, 4))},
        {"features": field([1, None], (0, 4)), "logits": field([1, 1], (0, 4))},
        {"features": field([[1], 1], (0, 4)), "logits": field([1, 1], (0, 4))},
        {"features": field([1, 1], (0, 4)), "logits": field([1, 0])},
        {"features": field([1, 1], (0, 4)), "logits": field([1, 1], (0, 4)), "labels": 3},
        {"__metadata__": {"lametta": "[" * 100_000}},
        {"__metadata__": {"lametta": 5}},
        {"__metadata__": 5},
        b"[" * 100_000,
        b'{"a":\xff}',
    ],
)
def test_headers_that_lie_are_named(tmp_path, content):
    path = tmp_path / "bank.safetensors"
    try:
        raw(path, content, bytes(8))
    except ValueError:  # a number that Python does not print
        raw(
            path,
            b'{"features":{"dtype":"F32","shape":[1%s,0],"data_offsets":[0,0]}}' % (b"0" * 5000),
        )
    tracemalloc.start()
    with pytest.raises(LamettaError) as error:
        Bank.open(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "\n" not in str(error.value)
    assert peak < 2**24


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"classes": 5}, "classes must be a list of names, got 5"),
        ({"classes": [1, 2]}, "classes must be a list of names"),
        ({"classes": None}, "classes must be a list of names"),
        ({"failed": {"a": 1}}, "failed must be a list of names"),
        ({"class_map": 3}, "class_map must be an object, got 3"),
        ({"class_map": {}}, "class map must be as to_dict gives it, got no 'groups'"),
        (
            {"class_map": {"groups": {"0": 10**9}, "n_source": None, "pooling": "mean"}},
            "integer class indices",
        ),
    ],
)
def test_malformed_headers_are_named(tmp_path, header, message):
    path = tmp_path / "bank.safetensors"
    write_blocks(path, {name: [x] for name, x in GOOD.items()}, header)
    with pytest.raises(LamettaError, match=message):
        Bank.open(path)


def test_a_malformed_cache_is_named(tmp_path):
    path = tmp_path / "images.safetensors"
    pixels = {"pixels": [np.zeros((1, 2, 2, 3), np.uint8)]}
    write_blocks(path, pixels, {"format": "lametta.Images/1"})
    with pytest.raises(
        LamettaError, match="a file that cache_images wrote, got .*: no 'class_map'"
    ):
        open_images(path)


def test_strings_that_are_no_utf8_are_named(tmp_path):
    path = tmp_path / "bank.safetensors"
    save_file(GOOD | {"keys.utf8": np.frombuffer(b"a\0\xff\0c\0d\0", np.uint8)}, path)
    with pytest.raises(LamettaError, match="keys.utf8 must be UTF-8, got .*0xff"):
        Bank.open(path)
    with pytest.raises(LamettaError, match=r"keys must be valid Unicode, got 'b\\udcff.jpg"):
        encode_columns({"keys": ["b\udcff.jpg", "c"]})


def test_one_long_string_does_not_widen_all(tmp_path):
    text = ("a" * 2**16 + "\0" + "\0" * 2**16).encode()
    path = tmp_path / "bank.safetensors"
    save_file(GOOD | {"keys.utf8": np.frombuffer(text, np.uint8)}, path)
    with pytest.raises(LamettaError, match="keys.utf8 must be short strings, got one of 65536"):
        Bank.open(path)


@pytest.mark.slow
def test_what_nobody_needs_is_not_read(tmp_path):
    path = tmp_path / "bank.npz"
    np.savez_compressed(path, extra=np.zeros(2**25, np.uint8), probs=np.ones((4, 2)), **GOOD)
    tracemalloc.start()
    arrays, _, _ = read_arrays(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert arrays.keys() == GOOD.keys()
    assert peak < 2**24


@pytest.mark.parametrize("shape", [(2**40, 2), (4, 2**40), (10**30, 0)])
def test_archives_that_claim_too_much_are_named(tmp_path, shape):
    file = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    path = tmp_path / "bank.npz"
    np.savez(path, **GOOD)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("labels.npy", file.getvalue() + bytes(64))
    with pytest.raises(LamettaError, match="as a .npz file: (labels.npy must|Python int too)"):
        Bank.open(path)


@pytest.mark.parametrize("kind", [">f8", ">f4", ">f2", "g"])
def test_other_floats_are_converted(tmp_path, kind):
    x = np.array([[1.5, -2.25], [3.0, 0.125]])
    np.savez(tmp_path / "bank.npz", features=x.astype(kind), logits=x.astype(kind))
    bank = Bank.open(tmp_path / "bank.npz")
    assert bank.features.dtype.isnative
    assert bank.features.dtype.itemsize <= 8
    output = bank([1, 0])
    assert output.logits.dtype in (np.float32, np.float64)
    assert output.logits.dtype.isnative
    assert output.logits.tolist() == x[[1, 0]].tolist()
    in_memory = Bank(x.astype(kind), x.astype(kind))([1, 0])
    assert in_memory.features.dtype == (np.float64 if kind in (">f8", "g") else np.float32)
    assert in_memory.features.tolist() == x[[1, 0]].tolist()


@pytest.mark.parametrize("kind", ["c8", "i4", "U3"])
def test_what_is_no_float_is_refused(tmp_path, kind):
    np.savez(tmp_path / "bank.npz", features=np.ones((2, 2), kind), logits=np.ones((2, 2)))
    with pytest.raises(LamettaError, match="features must be of a floating dtype"):
        Bank.open(tmp_path / "bank.npz")


@pytest.mark.parametrize("name", ["features", "logits"])
def test_no_columns_are_refused(name):
    given = {"features": np.ones((3, 2)), "logits": np.ones((3, 2))} | {name: np.ones((3, 0))}
    with pytest.raises(LamettaError, match=rf"{name} must have shape .* got \(3, 0\)"):
        Bank(**given)


def test_what_is_not_finite_is_found():
    x = np.zeros((5, 4), np.float32)
    check_finite("logits", x)
    x[3, 2], x[4, 0] = -np.inf, np.nan
    with pytest.raises(LamettaError, match="logits must be finite, got -inf in row 3, column 2"):
        check_finite("logits", x)


@pytest.mark.slow
def test_a_full_disk_ends_in_one_line(tmp_path):
    pytest.importorskip("resource")
    code = """
import resource, numpy as np
from lametta import LamettaError, Output
from lametta.data import arrays
from lametta.data.bank import extract
from tests.data.bank.kill_extraction import light
light()
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
x = np.random.default_rng(0).normal(size=(200, 64))
try:
    data = arrays(x, np.zeros(200, int))
    extract(lambda x: Output(x, x), data, None, "bank.safetensors", workers=0)
except LamettaError as error:
    print(error)
"""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = run_python(code, cwd=tmp_path, env=os.environ | {"PYTHONPATH": path})
    assert done.stdout.startswith("could not write "), done.stderr
    assert "File too large" in done.stdout
    assert not (tmp_path / "bank.safetensors").exists()
    assert not list(tmp_path.rglob(".lametta-*"))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    columns = encode_columns({"keys": list("abcd"), "groups": list("xxyy")})
    header = {"classes": ["a", "b"], "class_map": ClassMap([0, 1]).to_dict(), "failed": []}
    arrays = {name: [x] for name, x in (GOOD | columns).items()}
    write_blocks(folder / "good.safetensors", arrays, header)
    np.savez(folder / "good.npz", keys=np.array(list("abcd")), labels=np.arange(4) % 2, **GOOD)
    return folder


@given(st.data(), st.sampled_from([".safetensors", ".npz"]))
def test_damage_is_an_error_or_harmless(files, data, suffix):
    content = bytearray((files / f"good{suffix}").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    content = (
        content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content
    )
    path = files / f"bad{suffix}"
    path.write_bytes(content)
    try:
        bank = Bank.open(path)
        bank(np.arange(len(bank)))
    except LamettaError:
        pass
