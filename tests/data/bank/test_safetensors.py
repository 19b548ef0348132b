"""Files of arrays: the layout is safetensors', and rows come as they would from memory."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load_file, save_file

from lametta import LamettaError
from lametta.data.bank import Bank
from lametta.data.bank.safetensors import decode_columns, encode_columns, read_layout, write_blocks

dtypes = st.sampled_from(["?", "u1", "i1", "<i2", "<u2", "<i4", "<u4", "<i8", "<f2", "<f4", "<f8"])


@st.composite
def filled(draw):
    """An array of any bits."""
    dtype, shape = np.dtype(draw(dtypes)), draw(hnp.array_shapes(min_dims=0, min_side=0))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    bits = rng.integers(256, size=(*shape, dtype.itemsize), dtype=np.uint8)
    return (bits % 2 if dtype.kind == "b" else bits).view(dtype).reshape(shape)


tables = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(
        lambda name: name != "__metadata__"
    ),
    filled(),
    max_size=4,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tables")  # one for all examples


@pytest.mark.slow
@given(tables.map(lambda table: {name: x for name, x in table.items() if x.ndim}))
def test_layout_is_safetensors(folder, table):
    path = folder / "table.safetensors"
    write_blocks(path, {name: [x] for name, x in table.items()}, {"size": len(table)})
    places, header = read_layout(path)
    assert header == {"size": len(table)}
    size = int.from_bytes(path.read_bytes()[:8], "little") + 8
    for place in sorted(places.values(), key=lambda place: place.offset):
        assert place.offset % place.dtype.itemsize == 0
        if place.nbytes:
            assert place.offset == size
            size += place.nbytes
    assert path.stat().st_size == size
    loaded = load_file(path)
    assert loaded.keys() == places.keys() == table.keys()
    for name, x in table.items():
        assert loaded[name].tobytes() == np.asarray(places[name]).tobytes() == x.tobytes()
        assert loaded[name].shape == places[name].shape == x.shape


@pytest.mark.slow
@given(tables, st.integers(1, 3))
def test_blocks_make_the_same_file(folder, table, size):
    table = {name: x for name, x in table.items() if x.ndim}
    write_blocks(folder / "whole", {name: [x] for name, x in table.items()}, {"a": 1})
    parts = {
        name: [x[i : i + size] for i in range(0, max(len(x), 1), size)] for name, x in table.items()
    }
    write_blocks(folder / "parts", parts, {"a": 1})
    mapped, _ = read_layout(folder / "whole")
    write_blocks(folder / "mapped", {name: [x] for name, x in mapped.items()}, {"a": 1})
    whole, *others = ((folder / name).read_bytes() for name in ("whole", "parts", "mapped"))
    assert others == [whole, whole]


@given(tables)
def test_safetensors_are_mapped(folder, table):
    path = folder / "table.safetensors"
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
    st.integers(0, 2**32).map(lambda seed: np.random.default_rng(seed).random(300) < 0.5),
    hnp.basic_indices((300, 2, 3)),
)


@pytest.fixture(scope="module")
def mapped(folder):
    save_file({"x": MAPPED}, folder / "mapped.safetensors")
    return read_layout(folder / "mapped.safetensors")[0]["x"]


@given(indices)
def test_any_index_reads_what_it_would_from_memory(mapped, index):
    found, expected = mapped[index], MAPPED[index]
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
    with pytest.raises(LamettaError, match=rf"broken.* as a .safetensors file: .*{reason}"):
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
    with pytest.raises(LamettaError, match=r"cannot read '.*' as a \.safetensors file: "):
        read_layout(path)
