"""Safetensors files: memory-mapped rows, streaming writes, text columns."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from lametta._checks import reading
from lametta.types import LamettaError

_TYPES = {
    "BOOL": np.dtype("?"),
    **{f"{kind}8": np.dtype(f"{kind.lower()}1") for kind in "IU"},
    **{f"{kind}{8 * n}": np.dtype(f"<{kind.lower()}{n}") for kind in "FIU" for n in (2, 4, 8)},
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
_MAX_HEADER = 10**8  # bytes, as for other readers of such files
_MAX_EMPTY = 2**31  # length of each side of an array that has no entries
_MAX_TEXT = 2**26  # characters of all strings of an array, each padded to the longest
_FIELD = "lametta"  # of the metadata, which takes strings alone
_TEXT = ".utf8"  # ends the name of an array that holds strings, a NUL after each

Header: TypeAlias = dict[str, Any]
"""What a file says of itself, as JSON can hold it."""


@dataclass(frozen=True)
class MappedArray:
    """An array in a file, of which rows are read when they are asked for.

    The file is mapped into memory for as long as it takes to gather them, so that memory does not
    grow with what was read, and a pickle holds a path instead of the data. ``np.asarray`` reads it
    whole. If the file was changed since, reading is an error: the array may now lie elsewhere.
    """

    path: Path
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    offset: int  # where in the file the array begins, in bytes
    changed: int | None = None  # when the file was, in nanoseconds; None to read it regardless

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return int(self.dtype.itemsize * math.prod(self.shape))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any, /) -> NDArray[np.generic]:
        """Read what the index asks for; what comes back is in memory and may be written to."""
        if self.changed not in (None, self.path.stat().st_mtime_ns):
            raise LamettaError(f"{self.path} was changed while it was read")
        if self.nbytes == 0:  # which cannot be mapped
            return np.asarray(np.empty(self.shape, self.dtype)[index])
        if index is Ellipsis:
            return self._read(0, self.shape)
        if self.shape and _is_run(index, len(self)):
            return self._read(int(index[0]), (len(index), *self.shape[1:]))
        mapped = np.memmap(self.path, self.dtype, "r", self.offset, self.shape)
        rows: NDArray[np.generic] = np.asarray(mapped)[index]
        return rows if rows.flags.owndata else rows.copy()

    def _read(self, start: int, shape: tuple[int, ...]) -> NDArray[np.generic]:
        """Read rows that follow each other, several times faster than through a map."""
        at = self.offset + start * math.prod(shape[1:]) * self.dtype.itemsize
        rows = np.fromfile(self.path, self.dtype, math.prod(shape), offset=at)
        return rows.reshape(shape)

    def __array__(
        self, dtype: DTypeLike | None = None, copy: bool | None = None
    ) -> NDArray[np.generic]:
        if copy is False:
            raise ValueError("an array in a file cannot be seen without a copy")
        return np.asarray(self[...], dtype)


def _is_run(index: object, n: int) -> bool:
    """Whether the index is an array of positions below n, each one more than the last."""
    if not isinstance(index, np.ndarray) or index.dtype.kind not in "iu" or index.ndim != 1:
        return False
    first = int(index[0]) if len(index) else -1
    return 0 <= first <= n - len(index) and np.array_equal(index, first + np.arange(len(index)))


Arrays: TypeAlias = Mapping[str, NDArray[np.generic]]
"""Arrays in memory, by name."""

Rows: TypeAlias = NDArray[np.generic] | MappedArray
"""An array in memory or in a file."""


def write_blocks(path: Path, arrays: Mapping[str, Sequence[Rows]], header: Header) -> None:
    """Write a safetensors file; the blocks of rows of its arrays are read one at a time."""
    types = {name: blocks[0].dtype.newbyteorder("<") for name, blocks in arrays.items()}
    content: Header = {"__metadata__": {_FIELD: json.dumps(header)}}
    # Wide numbers first, so that all are aligned.
    names = sorted(arrays, key=lambda name: (-types[name].itemsize, name))
    end = 0
    for name in names:
        shape = (sum(map(len, arrays[name])), *arrays[name][0].shape[1:])
        begin, end = end, end + types[name].itemsize * math.prod(shape)
        content[name] = {
            "dtype": _NAMES[types[name]],
            "shape": shape,
            "data_offsets": [begin, end],
        }
    text = json.dumps(content, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            for block in arrays[name]:
                file.write(np.ascontiguousarray(block, types[name]).data)


def read_layout(path: Path) -> tuple[dict[str, MappedArray], Header]:
    """Find the arrays of a safetensors file, and read its header, empty if lametta wrote none."""
    kinds = (AttributeError, KeyError, RecursionError, TypeError, ValueError)
    with reading(path, "a .safetensors file", kinds):
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= min(status.st_size - 8, _MAX_HEADER):
                raise ValueError("no header")
            content = json.loads(file.read(length))
        header = dict(json.loads(content.pop("__metadata__", {}).get(_FIELD, "{}")))
        places = {key: _place(path, 8 + length, status, **at) for key, at in content.items()}
        return places, header


def _place(
    path: Path,
    start: int,
    status: os.stat_result,
    dtype: str,
    shape: list[int],
    data_offsets: list[int],
) -> MappedArray:
    if dtype not in _TYPES:
        raise ValueError(f"NumPy has no {dtype}")
    if any(type(number) is not int for number in (*shape, *data_offsets)):  # True is none
        raise ValueError(f"shape and offsets must be integers, got {shape} and {data_offsets}")
    (begin, end), size = data_offsets, status.st_size
    array = MappedArray(path, _TYPES[dtype], tuple(shape), start + begin, status.st_mtime_ns)
    if min(begin, *shape, 0) < 0 or end - begin != array.nbytes or start + end > size:
        raise ValueError(f"bytes {begin}..{end} of {size - start} for {dtype} {shape}")
    if max(shape, default=0) > max(size, _MAX_EMPTY):
        raise ValueError(f"{dtype} {shape} in {size} bytes")
    return array


def encode_columns(
    columns: Mapping[str, Sequence[object] | NDArray[np.generic] | None],
) -> dict[str, NDArray[np.generic]]:
    """Make arrays of numbers from columns, of numbers or of strings; None is left out."""
    encoded: dict[str, NDArray[np.generic]] = {}
    for name, column in columns.items():
        if column is None:
            continue
        if np.asarray(column[:1]).dtype.kind == "U":
            text = "".join(f"{string}\0" for string in column)
            if text.count("\0") != len(column):
                raise LamettaError(f"{name} must be without NUL characters, got one that has them")
            try:
                encoded[name + _TEXT] = np.frombuffer(text.encode(), np.uint8)
            except UnicodeEncodeError as error:
                bad = text[max(error.start - 20, 0) : error.end + 20].replace("\0", " ")
                raise LamettaError(f"{name} must be valid Unicode, got {bad!r}") from None
        else:
            encoded[name] = np.asarray(column)
    return encoded


def decode_columns(arrays: Mapping[str, Rows]) -> dict[str, Rows]:
    """Give arrays as they are, but those of encoded strings as arrays of str."""
    return {
        name.removesuffix(_TEXT): _decode(name, x) if name.endswith(_TEXT) else x
        for name, x in arrays.items()
    }


def _decode(name: str, encoded: Rows) -> NDArray[np.str_]:
    try:
        strings = np.asarray(encoded).tobytes().decode().split("\0")[:-1]
    except UnicodeDecodeError as error:
        raise LamettaError(f"{name} must be UTF-8, got a file where it is not: {error}") from None
    # An array has room for the longest string at every place.
    longest = max(map(len, strings), default=0)
    if len(strings) * longest > max(_MAX_TEXT, 16 * encoded.nbytes):
        raise LamettaError(f"{name} must be short strings, got one of {longest} characters")
    return np.array(strings, dtype=str)
