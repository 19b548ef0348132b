"""Append-only log in a folder, one file per stream, which survives the death of the process."""

import hashlib
import logging
import os
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from lametta._files import atomic_write, file_lock, remove_temporary_files
from lametta.serve.protocol import HTTPError, StoreError, TooManyStreamsError
from lametta.serve.stores import EMPTY, IDLE, MOST, StoredState
from lametta.types import LamettaError

logger = logging.getLogger("lametta.serve")

_HEAD = struct.Struct("<QII")  # of a record: version, length, checksum of both and of the content
_SWEEP = 60.0  # seconds between two looks for streams to forget
_LOCK_WAIT = 5.0  # seconds that the server before may take to end


class _Known(NamedTuple):
    version: int
    length: int  # of the file


class FolderStore:
    """A store in a folder, which one process may use at a time; see `open_store`.

    A stream's file is a record with the snapshot and a record for each request since. A request is
    added in one write, a snapshot replaces the file by a new one: a kill at any moment leaves at
    most half a record at the end, of a request that was not answered, which the next load cuts
    off. Files are not forced to the disk, so that a power cut may cost the last seconds.
    """

    blocking = False

    def __init__(self, folder: Path, *, most: int = MOST, idle: float = IDLE) -> None:
        self._folder, self._most, self._idle = folder, most, idle
        self._lock = threading.Lock()  # of what follows
        self._files: dict[str, _Known | None] = {}  # of all streams; None: to be read
        self._ends = ExitStack()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._ends.enter_context(file_lock(folder / ".lock", _LOCK_WAIT))
            remove_temporary_files(folder)
        except OSError as error:
            raise LamettaError(
                f"could not write to the store in {folder}: {error.strerror}"
            ) from error
        self._sweep()

    def load(self, stream: str) -> StoredState:
        with self._lock, _reported:
            return self._read(_name(stream))

    def commit(
        self, stream: str, version: int, entry: bytes, snapshot: bytes | None = None
    ) -> int | None:
        name = _name(stream)
        with self._lock, _reported:  # to the end, or a sweep might take what is being written
            if time.monotonic() >= self._next_sweep:
                self._sweep()
            if name in self._files and self._files[name] is None:
                self._read(name)
            known = self._files.get(name)
            if (known.version if known else 0) != version:
                return None
            if name in self._files:
                self._files[name] = None  # until all went well
            elif len(self._files) >= self._most:
                raise TooManyStreamsError(f"there are {self._most} streams, as many as are kept")
            record = _record(version + 1, entry)
            if known is None or snapshot is not None:
                record = _record(version, snapshot or b"") + record
                with atomic_write(self._folder / name, sync=False) as temporary:
                    temporary.write_bytes(record)
                length = len(record)
            else:
                self._append(name, known.length, record)
                length = known.length + len(record)
            self._files[name] = _Known(version + 1, length)
            return version + 1

    def check(self) -> None:
        if not os.access(self._folder, os.W_OK):
            raise StoreError("the folder of the streams' states cannot be written to")

    def close(self) -> None:
        self._ends.close()

    def _read(self, name: str) -> StoredState:
        """What a stream's file has, less what a kill left at its end."""
        path = self._folder / name
        self._files[name] = None  # until all went well
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            del self._files[name]
            return EMPTY
        records = list(_records(content))
        version, _, length = records[-1] if records else (0, b"", 0)
        if length < len(content):
            logger.warning("%s ends with %d bytes of no use", path, len(content) - length)
            os.truncate(path, length)
        if not records:
            return EMPTY
        self._files[name] = _Known(version, length)
        return StoredState(version, records[0][1], [entry for _, entry, _ in records[1:]])

    def _append(self, name: str, length: int, record: bytes) -> None:
        # Without O_CREAT: a file that someone deleted must not come back without its snapshot.
        descriptor = os.open(f"{self._folder}/{name}", os.O_WRONLY | os.O_APPEND)
        try:
            if os.write(descriptor, record) < len(record):
                os.ftruncate(descriptor, length)
                raise OSError("the disk is full")
        finally:
            os.close(descriptor)

    def _sweep(self) -> None:
        """Forget the streams that came last too long ago."""
        self._next_sweep = time.monotonic() + min(_SWEEP, self._idle)
        unused = time.time() - self._idle
        before, self._files = self._files, {}
        for file in os.scandir(self._folder):
            if file.name.endswith(".stream"):
                if file.stat().st_mtime >= unused:
                    self._files[file.name] = before.get(file.name)
                else:
                    Path(file.path).unlink()


class _Reported:
    """What goes wrong with a file is for the log; a client need not know the server's paths."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError | LamettaError) and not isinstance(error, HTTPError):
            logger.error("the store: %s", error)
            raise StoreError("the state of a stream cannot be read or written") from error


_reported = _Reported()


@lru_cache(maxsize=4096)
def _name(stream: str) -> str:
    """The file of a stream, whatever characters its id has."""
    return f"{hashlib.sha256(stream.encode()).hexdigest()}.stream"


def _record(version: int, content: bytes) -> bytes:
    checksum = zlib.crc32(content, zlib.crc32(struct.pack("<QI", version, len(content))))
    return _HEAD.pack(version, len(content), checksum) + content


def _records(content: bytes) -> Iterator[tuple[int, bytes, int]]:
    """The whole records at the start of a file: version, content, and where each ends."""
    start, expected = 0, None
    while start + _HEAD.size <= len(content):
        version, length, _ = _HEAD.unpack_from(content, start)
        end = start + _HEAD.size + length
        inside = content[start + _HEAD.size : end]
        if content[start:end] != _record(version, inside) or version != (expected or version):
            return
        yield version, inside, end
        start, expected = end, version + 1
