"""Banks and class maps that lie or are damaged: an error of ours, and no half file."""

import io
import json
import zipfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lametta import ClassMap
from lametta.data.bank import Bank
from lametta.data.bank.bank import read_arrays
from lametta.data.bank.safetensors import encode_columns, write_blocks
from tests.fuzz.hostile import changed, damaged, json_leaves, one_of
from tests.fuzz.outcomes import attempt, check_probs, command

PLACE = Path()  # of this process, by the fixture
RNG = np.random.default_rng(0)
ARRAYS = {
    "features": RNG.normal(size=(6, 3)).astype(np.float32),
    "logits": RNG.normal(size=(6, 4)).astype(np.float32),
    "labels": np.array([0, 1, 0, 1, 0, 1]),
}
CLASSES = ClassMap({"cat": [0, 1], "dog": [3]}, n_source=4)
HEADER = {"classes": ["cat", "dog"], "class_map": CLASSES.to_dict(), "failed": [], "model": "net"}
MANY = settings(max_examples=400)
SOME = settings(max_examples=40)


@cache
def safetensors():
    """The content of a bank, split: its JSON, and the bytes after it."""
    columns = encode_columns({"keys": list("abcdef"), "groups": list("xxxyyy")})
    path = PLACE / "whole.safetensors"
    write_blocks(path, {name: [x] for name, x in (ARRAYS | columns).items()}, HEADER)
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return content[8 : 8 + length], content[8 + length :]


def npy(header, tail):
    text = repr(header).encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + tail


@pytest.fixture(autouse=True, scope="session")
def place(tmp_path_factory):
    global PLACE
    PLACE = tmp_path_factory.mktemp("files")
    np.savez(PLACE / "whole.npz", groups=np.array(list("xxxyyy")), **ARRAYS)
    safetensors()
    # Before memory is scarce: what is loaded once.
    command("correct", PLACE / "whole.npz", "-o", PLACE / "out.npz", memory=None)
    return PLACE


@st.composite
def banks(draw):
    """A file that might be a bank."""
    kind = one_of(draw, ["header", "header", "ours", "bytes", "zip", "npy", "npy"])
    if kind in ("header", "ours"):
        text, tail = safetensors()
        tree = json.loads(text)
        for _ in range(draw(st.integers(1, 2))):
            if kind == "header":
                tree = draw(changed(tree, json_leaves))
            else:
                ours = json.loads(tree["__metadata__"]["lametta"])
                tree["__metadata__"]["lametta"] = json.dumps(draw(changed(ours, json_leaves)))
        text = json.dumps(tree).encode()
        if draw(st.integers(0, 9)) == 0:
            text = draw(damaged(text))
        return write("bad.safetensors", len(text).to_bytes(8, "little") + text + tail)
    if kind == "bytes":
        return write("bad.safetensors", draw(damaged((PLACE / "whole.safetensors").read_bytes())))
    if kind == "zip":
        return write("bad.npz", draw(damaged((PLACE / "whole.npz").read_bytes())))
    return write("bad.npz", draw(archives()))


npy_leaves = st.sampled_from(
    [
        *("<f4", ">f8", "<f2", "<c8", "|O", "<g", "<U9", "|V0", "|S0", "<U0", "<M8[s]", "|b1", "x"),
        *([("a", "<f4")], [("a", "<f4", (10**9,))], (6, 3), (6,), (), (0, 3), (6, 0), (10**18, 0)),
        *(
            (2**40, 2),
            (-1, 3),
            (6, -3),
            (True, 3),
            (6.0, 3),
            6,
            None,
            True,
            "a",
            10**30,
            (10**9, 0),
        ),
    ]
)


@st.composite
def archives(draw):
    """An archive with arrays whose headers do not tell the truth."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", one_of(draw, [0, zipfile.ZIP_DEFLATED])) as archive:
        for name, x in (ARRAYS | {"groups": np.array(list("xxxyyy"))}).items():
            header = {"descr": x.dtype.str, "fortran_order": False, "shape": x.shape}
            if draw(st.integers(0, 2)) == 0:
                key = one_of(draw, [*header, "more"])
                header[key] = draw(npy_leaves)
            content = npy(header, x.tobytes())
            if draw(st.integers(0, 5)) == 0:
                content = draw(damaged(content))
            names = [f"{name}.npy"] * 9 + [name, f"../{name}.npy", f"{name}.npy.npy"]
            archive.writestr(one_of(draw, names), content)
    return buffer.getvalue()


def write(name, content):
    path = PLACE / name
    path.write_bytes(content)
    return path


def try_bank(path):
    bank = attempt(Bank.open, path)
    if bank is not None:
        attempt(bank, np.arange(len(bank))[:100])
        attempt(bank.mapped, CLASSES)


def try_correct(path, suffix, old):
    target = PLACE / f"target{suffix}"
    target.unlink(missing_ok=True)
    if old is not None:
        target.write_bytes(old)
    before = {*PLACE.iterdir()} - {target}
    result = command("correct", path, "-o", target)
    assert {*PLACE.iterdir()} - {target} == before
    if result.exit_code:
        assert len(result.stderr.splitlines()) == 1
        assert target.exists() == (old is not None)
        assert old is None or target.read_bytes() == old
    else:
        whole = read_probs(target)
        check_probs(whole, (len(whole), whole.shape[1]))


def read_probs(path):
    if path.suffix == ".npz":
        with np.load(path) as file:
            return file["probs"]
    from safetensors.numpy import load_file

    return load_file(path)["probs"]


endings = st.sampled_from([".npz", ".safetensors"])
old_content = st.sampled_from([None, b"", b"old"])


@given(banks())
def test_banks(path):
    try_bank(path)


@pytest.mark.slow
@SOME
@given(banks(), endings, old_content)
def test_correct(path, suffix, old):
    try_correct(path, suffix, old)


@pytest.mark.slow
@MANY
@given(banks())
def test_many_banks(path):
    try_bank(path)


@pytest.mark.slow
@settings(max_examples=150)
@given(banks(), endings, old_content)
def test_correct_many(path, suffix, old):
    try_correct(path, suffix, old)


def test_whole_files_are_read(place):
    for suffix in (".npz", ".safetensors"):
        assert read_arrays(place / f"whole{suffix}")[0]["features"].shape == (6, 3)
