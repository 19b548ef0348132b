"""Shards: checkpoints of a build, and rows of an earlier file that can be reused."""

import re
import reprlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from lametta._files import atomic_write, remove_temporary_files
from lametta.data.bank.safetensors import (
    Arrays,
    Header,
    MappedArray,
    Rows,
    decode_columns,
    encode_columns,
    read_layout,
    write_blocks,
)
from lametta.types import LamettaError

_FLUSH_SECONDS = 1.0  # between two writes: the work that a kill may cost
_FLUSH_BYTES = 2**25  # of rows in memory
_INDEX = "index"  # the array of a shard that says which samples its rows are of
_VERSIONS = "stamps"  # the array of a file with the versions of its samples' files
# Fields of a header that change when any sample does; versions say which samples did.
_DATA = ("fingerprint", "classes", "class_map")
_FIRST = 64  # rows that constants are compared with
_CONSTANTS = ("prototypes", "bias")  # of the network, which are no rows
_COLUMNS = ("keys.utf8", "labels", "groups", "groups.utf8", _VERSIONS)  # that are no rows
_FAILED, _MISSING = -1, -2  # a sample that could not be read, one without a reusable row


class Shards:
    """A folder of checkpoints: small files, each with the rows of some samples.

    ``<start>-<stop>.safetensors`` holds the rows of those samples from start to stop that could be
    read. Each file is whole or not there, so that after a kill at any moment the folder says up to
    which sample all work is done. `merge` makes one file of all; until `delete`, the rows take up
    twice their room on the disk.

    The header says what the rows are of; shards with another one are an error. Versions [N]
    tell whether the file of a sample has changed. With them, shards of a data set that was changed
    are no error: those whose samples changed are deleted, and work continues from the first.
    """

    def __init__(
        self, folder: Path, header: Header, versions: NDArray[np.uint64] | None = None
    ) -> None:
        self.folder, self.header, self.versions = folder, header, versions
        self.done = 0
        self._written: list[dict[str, MappedArray]] = []
        self._buffer: dict[str, list[NDArray[np.generic]]] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._stop = 0
        self._last_flush = time.monotonic()

    @property
    def failed(self) -> NDArray[np.intp]:
        """The samples that have no row though all work on them is done."""
        return np.flatnonzero(~self._present())

    def resume(self) -> None:
        """Find what is done already, and make the folder if it is not there."""
        if self.folder.is_file():
            raise LamettaError(
                f"{self.folder} is in the way: rows are kept in a folder of that name"
            )
        self.folder.mkdir(exist_ok=True)
        remove_temporary_files(self.folder)
        self._delete_changed()
        stops = dict(sorted((start, stop) for start, stop, _ in self._files()))
        while self.done in stops:
            self._register(stops[self.done])

    def add(self, stop: int, index: NDArray[np.int64], rows: Arrays) -> None:
        """Take the next rows, of the samples from the last call up to ``stop``.

        Those of them that could be read are ``index`` [M], with rows [M, ...]. The rows of several
        calls are written together.
        """
        for name, x in rows.items():
            _check_shape(name, x, self._shapes.setdefault(name, x.shape[1:]))
        for name, x in {_INDEX: index, **rows}.items():
            # A copy, since whoever computed the rows may use their memory again.
            self._buffer.setdefault(name, []).append(x.copy())
        self._stop = stop
        size = sum(x.nbytes for blocks in self._buffer.values() for x in blocks)
        if size > _FLUSH_BYTES or time.monotonic() - self._last_flush > _FLUSH_SECONDS:
            self._flush()

    def close(self) -> None:
        """Write what waits, so that a later run can continue from there."""
        self._flush()
        self._remove_if_empty()

    def merge(
        self,
        path: Path,
        keys: Sequence[str],
        columns: Mapping[str, Sequence[object] | NDArray[np.generic] | None],
        constants: Callable[[Arrays], Arrays] | None = None,
    ) -> None:
        """Write one file, whole or not there, with a row for each sample that could be read.

        ``keys`` name all samples; those without a row are ``failed`` in the header of the file,
        which has to be on the disk of the folder. ``columns`` say what else is known of samples,
        ``constants`` gives what is known of the network, prototypes and bias, when it has seen the
        first rows.
        """
        kept = np.flatnonzero(self._present()).tolist()
        kept_columns = {
            name: None if column is None else [column[i] for i in kept]
            for name, column in {"keys": keys, **columns}.items()
        }
        arrays: dict[str, Sequence[Rows]] = {
            name: self._blocks(name) for name in self._shapes if name not in (_INDEX, _VERSIONS)
        }
        first = {name: np.asarray(blocks[0][:_FIRST]) for name, blocks in arrays.items()}
        arrays |= {name: [column] for name, column in encode_columns(kept_columns).items()}
        if constants is not None:
            arrays |= {name: [x] for name, x in constants(first).items()}
        with atomic_write(path, self.folder) as temporary:
            write_blocks(temporary, arrays, self.header | self._failures(keys))

    def _failures(self, keys: Sequence[str]) -> Header:
        """The fields of a header that name samples without a row, and the versions of these."""
        failed: Header = {"failed": [keys[i] for i in self.failed]}
        if self.versions is not None and len(self.failed):
            failed["failed_stamps"] = self.versions[self.failed].tolist()
        return failed

    def delete(self) -> None:
        """Delete the shards, and the folder unless something else is in it."""
        for *_, file in self._files():
            file.unlink(missing_ok=True)
        remove_temporary_files(self.folder)
        self._remove_if_empty()

    def _files(self) -> list[tuple[int, int, Path]]:
        names = re.compile(r"(\d+)-(\d+)\.safetensors")
        found = [(names.fullmatch(file.name), file) for file in self.folder.glob("*-*")]
        return [(int(match[1]), int(match[2]), file) for match, file in found if match]

    def _flush(self) -> None:
        if self._stop > self.done:
            if self.versions is not None:
                self._buffer[_VERSIONS] = [self.versions[self.done : self._stop]]
            with atomic_write(self._file(self._stop)) as temporary:
                write_blocks(temporary, self._buffer, self.header)
            self._register(self._stop)
        self._buffer, self._last_flush = {}, time.monotonic()

    def _register(self, stop: int) -> None:
        """Register the next shard, whose samples up to ``stop`` are then done."""
        arrays, header = read_layout(self._file(stop))
        _check_header(self.folder, header, self.header, () if self.versions is None else _DATA)
        self._written.append(arrays)
        self._shapes |= {name: x.shape[1:] for name, x in arrays.items()}
        self.done = stop

    def _delete_changed(self) -> None:
        """Delete the shards of samples that are no longer what they were."""
        if self.versions is None:
            return
        for start, stop, file in self._files():
            arrays, header = read_layout(file)
            _check_header(self.folder, header, self.header, _DATA)
            stored = arrays.get(_VERSIONS)
            if stored is None or not np.array_equal(stored[...], self.versions[start:stop]):
                file.unlink()

    def _file(self, stop: int) -> Path:
        return self.folder / f"{self.done}-{stop}.safetensors"

    def _blocks(self, name: str) -> list[MappedArray]:
        return [arrays[name] for arrays in self._written if name in arrays]

    def _present(self) -> NDArray[np.bool_]:
        present = np.zeros(self.done, bool)
        for index in self._blocks(_INDEX):
            present[index[...]] = True
        return present

    def _remove_if_empty(self) -> None:
        with suppress(OSError):
            self.folder.rmdir()


@dataclass(frozen=True)
class ReusableRows:
    """The rows of an earlier file whose samples have not changed."""

    rows: Mapping[str, Rows]  # of the whole file
    row_of: NDArray[np.int64]  # [N], of each sample; _FAILED or _MISSING if it has none
    complete: bool = False  # the file is exactly what is asked for

    @classmethod
    def find(
        cls, path: Path, header: Header, keys: Sequence[str], versions: NDArray[np.uint64] | None
    ) -> Self:
        """Compare a file with what is asked for, or raise if it is of something else.

        A file without versions, of a data set in memory say, has to be of the same samples;
        whether these were changed is not known.
        """
        nothing = np.full(len(keys), _MISSING)
        if not path.exists():
            return cls({}, nothing)
        arrays, stored = read_layout(path)
        if versions is None or _VERSIONS not in arrays:
            _check_header(path, stored, header)
            return cls({}, nothing, complete=True)
        _check_header(path, stored, header, _DATA)
        columns = {name: arrays.pop(name) for name in _COLUMNS if name in arrays}
        arrays = {name: x for name, x in arrays.items() if name not in _CONSTANTS}
        names = np.asarray(decode_columns(columns)["keys"]).tolist()
        found = _rows_and_versions(names, columns[_VERSIONS][...].tolist(), stored)
        if not found.keys() & set(keys):  # not one: another data set altogether
            _check_header(path, stored, header)
        row_of = _rows_of(keys, versions.tolist(), found)
        same = all(stored.get(name) == header[name] for name in _DATA)
        return cls(arrays, row_of, same and not (row_of == _MISSING).any())

    @property
    def failed(self) -> NDArray[np.intp]:
        """The samples that could not be read."""
        return np.flatnonzero(self.row_of == _FAILED)

    def missing(self, positions: range) -> list[int]:
        """The samples among these without a reusable row."""
        return [i for i in positions if self.row_of[i] == _MISSING]

    def merge(
        self, positions: range, index: NDArray[np.int64], rows: Arrays
    ) -> tuple[NDArray[np.int64], Arrays]:
        """The rows of the samples at these positions: new rows are put among the reusable ones."""
        kept = np.array([i for i in positions if self.row_of[i] >= 0], np.int64)
        if not len(kept):
            return index, rows
        old = {name: x[self.row_of[kept]] for name, x in self.rows.items()}
        if not len(index):
            return kept, old
        for name, x in rows.items():
            _check_shape(name, x, old[name].shape[1:] if name in old else None)
        both = np.concatenate([kept, index])
        order = np.argsort(both)
        merged = {name: np.concatenate([old[name], x])[order] for name, x in rows.items()}
        return both[order], merged


def _rows_and_versions(
    keys: Sequence[str], versions: Sequence[int], header: Header
) -> dict[str, tuple[int, int]]:
    """The row of each sample in a file, and the version that it was of."""
    found = dict(zip(keys, enumerate(versions), strict=True))
    failed = zip(header["failed"], header.get("failed_stamps", []), strict=True)
    return found | {key: (_FAILED, version) for key, version in failed}


def _rows_of(
    keys: Sequence[str], versions: Sequence[int], found: Mapping[str, tuple[int, int]]
) -> NDArray[np.int64]:
    """The row of each sample that was found and is of the same version."""
    row_of = np.full(len(keys), _MISSING)
    for i, (key, now) in enumerate(zip(keys, versions, strict=True)):
        row, version = found.get(key, (_MISSING, None))
        if version == now:
            row_of[i] = row
    return row_of


def _check_shape(name: str, x: NDArray[np.generic], shape: tuple[int, ...] | None) -> None:
    """Raise unless rows have the shape of those before them."""
    if x.shape[1:] != shape:
        raise LamettaError(f"{name} must have rows of shape {shape} as before, got {x.shape[1:]}")


def _check_header(path: Path, stored: Header, header: Header, but: Collection[str] = ()) -> None:
    """Raise unless a file's header is the one expected, but for what failed and some fields."""
    for name in header | stored:
        theirs, ours = stored.get(name), header.get(name)
        if name not in ("failed", "failed_stamps", *but) and theirs != ours:
            raise LamettaError(
                f"{path} was made with {name} {reprlib.repr(theirs)}, not {reprlib.repr(ours)}; "
                "delete it, or use --restart (restart=True)"
            )
