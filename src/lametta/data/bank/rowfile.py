"""Safetensors files that are filled in row by row, and taken up again after a kill."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from lametta.data.bank.store import Header, MappedArray, encode_columns, lay_out, read_layout
from lametta.types import Array, LamettaError

_SECONDS = 1.0  # of work that a kill may cost
_ROWS = 1024  # that are copied at a time


class RowFile:
    """A safetensors file under way.

    It has its final size and layout from the start, and a tail until `seal` cuts it off: for each
    row whether it is there, and up to which row all work is done. What is done is on disk before
    the tail says so. The first eight bytes, without which the file means nothing, come last when
    it is made. A kill at any moment thus leaves a file without a beginning, one that says what is
    done, or a whole one.

    Parameters
    ----------
    path : Path
        The file, which has `begun`; `create` makes one.
    n : int
        The number of rows.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rows = {"features": np.ones((2, 3), np.float32)}
    ...     file = RowFile.create(Path(folder, "a"), rows, {"keys": ["x", "y"]}, {})
    ...     file.write(range(0, 2), np.array([0, 1]), rows)
    ...     file.seal()
    ...     file.close()
    ...     read_layout(Path(folder, "a"))[0]["features"][1]
    array([1., 1., 1.], dtype=float32)
    """

    def __init__(self, path: Path, n: int) -> None:
        self.arrays, _ = read_layout(path)
        self._end = _end(self.arrays)
        with path.open("rb") as file:
            file.seek(self._end)
            tail = file.read(n + 8)
        if len(tail) not in (0, n + 8):
            raise LamettaError(f"{path} must be whole, got {len(tail)} bytes for a tail of {n + 8}")
        self.sealed = not tail
        self.done = n if self.sealed else int.from_bytes(tail[n:], "little")
        self.present = np.frombuffer(tail[:n] or b"\1" * n, bool).copy()
        self._file = path.open("r+b")
        self._committed = time.monotonic()

    @classmethod
    def create(
        cls,
        path: Path,
        rows: Mapping[str, Array],
        columns: Mapping[str, Any],
        header: Header,
    ) -> Self:
        """Make a file without rows.

        Parameters
        ----------
        path : Path
            Where; a file that is there is overwritten.
        rows : mapping of str to array [M, ...]
            Any rows of each array that `write` will be given.
        columns : mapping of str to sequence of N numbers or strings, or None
            What is known of all rows already, at least their ``keys``.
        header : dict
            What it says of itself, as JSON can hold it.
        """
        n = len(columns["keys"])
        encoded = encode_columns(columns)
        kinds = {name: (x.dtype, (n, *x.shape[1:])) for name, x in rows.items()}
        kinds |= {name: (x.dtype, x.shape) for name, x in encoded.items()}
        start, arrays = lay_out(path, kinds, header)
        with path.open("wb") as file:
            file.truncate(_end(arrays) + n + 8)
            for name, column in encoded.items():
                file.seek(arrays[name].offset)
                file.write(np.ascontiguousarray(column, arrays[name].dtype).data)
            file.seek(8)
            file.write(start[8:])
            _sync(file)
            file.seek(0)
            file.write(start[:8])
        return cls(path, n)

    @property
    def failed(self) -> Array:
        """Positions of the rows that are not there though all work on them is done."""
        return np.flatnonzero(~self.present[: self.done])

    def write(self, positions: range, index: Array, rows: Mapping[str, Array]) -> None:
        """Write the next rows.

        Parameters
        ----------
        positions : range
            The rows that are done then.
        index : array of int [M]
            Those of them that are there.
        rows : mapping of str to array [M, ...]
            What they hold.
        """
        inside = np.asarray(index, int) - positions.start
        for name, x in rows.items():
            place = self.arrays[name]
            if x.shape[1:] != place.shape[1:]:
                raise LamettaError(
                    f"{name} must have rows of shape {place.shape[1:]} as before, got {x.shape[1:]}"
                )
            block = np.zeros((len(positions), *place.shape[1:]), place.dtype)
            block[inside] = x
            self._file.seek(place.offset + positions.start * (place.nbytes // len(place)))
            self._file.write(block.data)
        there = np.zeros(len(positions), bool)
        there[inside] = True
        self._file.seek(self._end + positions.start)
        self._file.write(there.data)
        self.present[positions.start : positions.stop] = there
        self.done = positions.stop
        if time.monotonic() - self._committed > _SECONDS:
            self.commit()

    def commit(self) -> None:
        """Say in the file what is done, once that is on disk."""
        _sync(self._file)
        self._file.seek(self._end + len(self.present))
        self._file.write(self.done.to_bytes(8, "little"))
        self._file.flush()
        self._committed = time.monotonic()

    def close(self) -> None:
        """Commit, and leave the file to be taken up again."""
        if not self.sealed and not self._file.closed:
            self.commit()
        self._file.close()

    def seal(self) -> None:
        """Cut the tail off, which makes the file whole."""
        _sync(self._file)
        self._file.truncate(self._end)
        _sync(self._file)
        self.sealed = True


def compact(source: RowFile, target: Path, columns: Mapping[str, Any], header: Header) -> None:
    """Copy the rows that are there to a file of their own, whose header names the others.

    Parameters
    ----------
    source : RowFile
        A file of which all work is done.
    target : Path
        Where to; a file that is there is overwritten.
    columns, header
        As the source was made with.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     columns, rows = {"keys": ["x", "y"]}, {"features": np.ones((1, 3), np.float32)}
    ...     file = RowFile.create(Path(folder, "a"), rows, columns, {})
    ...     file.write(range(0, 2), np.array([1]), rows)
    ...     file.close()
    ...     compact(file, Path(folder, "b"), columns, {})
    ...     arrays, header = read_layout(Path(folder, "b"))
    >>> arrays["features"].shape, header
    ((1, 3), {'failed': ['x']})
    """
    kept = np.flatnonzero(source.present)
    failed = [columns["keys"][i] for i in source.failed]
    columns = {
        name: None if column is None else [column[i] for i in kept]
        for name, column in columns.items()
    }
    names = sorted(source.arrays.keys() - encode_columns(columns).keys())
    rows = {name: source.arrays[name] for name in names}
    file = RowFile.create(target, rows, columns, header | {"failed": failed})
    for start in range(0, len(kept), _ROWS):
        block = kept[start : start + _ROWS]
        positions = range(start, start + len(block))
        file.write(positions, positions, {name: x[block] for name, x in rows.items()})
    file.seal()
    file.close()


def begun(path: Path) -> bool:
    """Whether there is a file that can be gone on with.

    Examples
    --------
    >>> begun(Path("no/such/file"))
    False
    """
    if not path.exists():
        return False
    with path.open("rb") as file:
        return any(file.read(8))


def _end(arrays: Mapping[str, MappedArray]) -> int:
    return max(array.offset + array.nbytes for array in arrays.values())


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())
