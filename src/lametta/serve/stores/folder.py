"""Append-only log in a folder, one file per stream, which survives kills and power cuts."""

import ctypes
import hashlib
import logging
import os
import struct
import sys
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from lametta._checks import check_choice
from lametta._files import atomic_write, folder_lock, remove_temporary_files
from lametta.serve.protocol import HTTPError, StoreError, TooManyStreamsError
from lametta.serve.stores import DURABLE, EMPTY, ENDED, IDLE, MOST, StoredState
from lametta.types import LamettaError

logger = logging.getLogger("lametta.serve")

_HEAD = struct.Struct("<QII")  # of a record: version, length, checksum of both and of the content
_LOCK_WAIT = 5.0  # seconds that the server before may take to end
_INTERVAL = 1.0  # seconds between two times that files are forced to the disk
_DRIFT = 5.0  # seconds by which the system's clock may be off before it counts as set
_FEW = 16  # streams that a request may have to forget
_MANY = 32  # files, from which on the whole file system is synced at once


@dataclass(slots=True)
class _Known:
    """A stream's file, as it was last seen."""

    used: float  # when, by the monotonic clock
    version: int | None = None  # None: to be read
    inode: int = 0
    length: int = 0


class FolderStore:
    """A store in a folder, which one process may use at a time; see `open_store`.

    A stream's file is a record with the snapshot and a record for each request since. A request is
    added in one write, a snapshot replaces the file by a new one: a kill at any moment leaves at
    most half a record at the end, of a request that was not answered, which the next load cuts
    off.

    Against power cuts, files are forced to the disk: before a request is answered (``durable``
    is always), every second (interval), or when the system likes (never). In the second case, the
    file before a snapshot stays, as ``.before``, until the new one is on the disk. Of a stream that
    has ended, the file is called ``.ended``.

    How long a stream was not used is measured by clocks that nobody sets; at the start, by the
    times of files among each other. So the time while no server runs does not count.
    """

    def __init__(
        self,
        folder: Path,
        *,
        most: int = MOST,
        idle: float = IDLE,
        durable: str = DURABLE[1],
    ) -> None:
        check_choice("durable", durable, DURABLE)
        self.blocking = durable == "always"
        self.damaged = 0
        self._folder, self._most, self._idle, self._durable = folder, most, idle, durable
        self._root = str(folder)
        self._lock = threading.Lock()  # of what follows
        self._files: OrderedDict[str, _Known] = OrderedDict()  # of all streams, last used come last
        self._ended: OrderedDict[str, float] = OrderedDict()  # and when they did
        self._before: set[str] = set()  # have a file from before their snapshot
        self._dirty: set[str] = set()  # are not on the disk yet
        self._failure = ""  # of the last sync
        self._ends = ExitStack()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            newest = folder.stat().st_mtime  # the lock changes it
            self._ends.enter_context(folder_lock(folder, _LOCK_WAIT))
            self._scan(newest)
        except OSError as error:
            self._ends.close()
            raise LamettaError(
                f"could not write to the store in {folder}: {error.strerror}"
            ) from error
        self._closing = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="lametta-store", daemon=True)
        self._keeper.start()

    def load(self, stream: str) -> StoredState:
        with self._lock, _reported:
            self._forget(_FEW)
            return self._read(_name(stream))

    def commit(
        self,
        stream: str,
        version: int,
        entry: bytes,
        snapshot: bytes | None = None,
        *,
        end: bool = False,
    ) -> int | None:
        name = _name(stream)
        with _reported:
            with self._lock:  # to the end, or a sweep might take what is being written
                self._forget(_FEW)
                known = self._current(name)
                if (known.version if known else 0) != version:
                    return None
                if known is None:
                    self._make_room()
                    known = self._files[name] = _Known(0.0)
                known.version, record = None, _record(version + 1, entry)  # until all went well
                if snapshot is not None or version == 0:
                    record = _record(version, snapshot or b"") + record
                    descriptor = self._replace(name, record)
                    known.length, known.inode = len(record), os.fstat(descriptor).st_ino
                else:
                    descriptor = self._append(name, known.length, record)
                    known.length += len(record)
                known.used = time.monotonic()
                self._files.move_to_end(name)
                if end:
                    self._end(name)
                known.version = version + 1
                if self._durable == "interval":
                    self._dirty.add(name)
            try:
                if self._durable == "always":  # others need not wait for it
                    _sync_data(descriptor)
            except OSError:
                known.version = None
                raise
            finally:
                os.close(descriptor)
            return version + 1

    def check(self) -> None:
        if not os.access(self._folder, os.W_OK):
            raise StoreError("the folder of the streams' states cannot be written to")
        if self._failure:
            raise StoreError("the streams' states cannot be forced to the disk")

    def warnings(self) -> list[str]:
        """What may lose states without an error."""
        if self._durable == "never":
            return ["a power cut may lose streams (--durable never)"]
        return []

    def close(self) -> None:
        self._closing.set()
        self._keeper.join()
        self._ends.close()

    def _path(self, name: str) -> str:
        return self._beside(name, "ended") if name in self._ended else f"{self._root}/{name}"

    def _beside(self, name: str, kind: str) -> str:
        return f"{self._root}/{name.removesuffix('stream')}{kind}"

    def _before_path(self, name: str) -> str:
        return self._beside(name, "before")

    def _current(self, name: str) -> _Known | None:
        """What is known of a stream, compared with its file: another process may have written."""
        known = self._files.get(name)
        if known is None:
            if not os.path.exists(self._path(name)):
                return None
            self._read(name)
        elif known.version is not None:
            status = os.stat(self._path(name))
            if (status.st_ino, status.st_size) != (known.inode, known.length):
                known.version = None
        if known is not None and known.version is None:
            self._read(name)
        return self._files.get(name)

    def _read(self, name: str) -> StoredState:
        """What a stream's file has, less what a kill or a power cut left at its end."""
        path, used = self._path(name), time.monotonic()
        known = self._files.get(name)
        if known is not None:
            known.version, used = None, known.used  # until all went well
        try:
            found = _State.of(path)
        except FileNotFoundError:
            found = None
        if name in self._before:
            found = self._restore(name, path, found)
        if found is None:
            self._files.pop(name, None)
            self._ended.pop(name, None)
            return EMPTY
        if not found.size:
            self.damaged += 1
            logger.warning("%s is empty, as after a power cut", path)
        elif found.length < found.size:
            self.damaged += 1
            logger.warning("%s ends with %d bytes of no use", path, found.size - found.length)
        if not found.state.version:  # nothing of it can be read
            os.unlink(path)
            self._files.pop(name, None)
            self._ended.pop(name, None)
            return EMPTY
        if found.length < found.size:
            os.truncate(path, found.length)
        self._files[name] = _Known(used, found.state.version, found.inode, found.length)
        return found.state

    def _restore(self, name: str, path: str, found: "_State | None") -> "_State | None":
        """The file from before a snapshot, if the one after it was lost in a power cut."""
        before = self._before_path(name)
        with suppress(FileNotFoundError):
            older = _State.of(before)
            if older.state.version > (found.state.version if found else 0):
                self.damaged += 1
                logger.warning("%s was lost in a power cut, but for what came before", path)
                os.replace(before, path)
                self._before.discard(name)
                return older
        return found

    def _append(self, name: str, length: int, record: bytes) -> int:
        # Without O_CREAT: a file that someone deleted must not come back without its snapshot.
        self._revive(name)
        descriptor = os.open(self._path(name), os.O_WRONLY | os.O_APPEND)
        try:
            if os.write(descriptor, record) < len(record):
                os.ftruncate(descriptor, length)
                raise OSError("the disk is full")
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _replace(self, name: str, content: bytes) -> int:
        """Put a new file in the place of a stream's; give it, still open."""
        with ExitStack() as on_error:
            with atomic_write(self._folder / name, sync=False) as temporary:
                descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT, 0o666)
                on_error.callback(os.close, descriptor)
                if os.write(descriptor, content) < len(content):
                    raise OSError("the disk is full")
                if self._durable == "always":
                    _sync_data(descriptor)
                self._revive(name)
                if self._durable == "interval" and name not in self._before:
                    with suppress(FileNotFoundError):  # of a new stream
                        os.rename(self._path(name), self._before_path(name))
                        self._before.add(name)
            if self._durable == "always":
                self._sync_folder()
            on_error.pop_all()
        return descriptor

    def _revive(self, name: str) -> None:
        """A stream that had ended goes on."""
        if name in self._ended:
            os.rename(self._path(name), self._folder / name)
            del self._ended[name]

    def _end(self, name: str) -> None:
        path = self._path(name)
        self._ended[name] = time.monotonic()
        os.rename(path, self._path(name))
        if name in self._before:
            self._before.discard(name)
            os.unlink(self._before_path(name))

    def _make_room(self) -> None:
        """Forget a stream that has ended, if there are as many as there may be."""
        if len(self._files) >= self._most:
            if not self._ended:
                raise TooManyStreamsError(f"there are {self._most} streams, as many as are kept")
            self._delete(next(iter(self._ended)))

    def _forget(self, most: int) -> None:
        """Forget some streams that came last, or ended, too long ago."""
        now = time.monotonic()
        for _ in range(most):
            name, known = next(iter(self._files.items()), ("", None))
            ended, when = next(iter(self._ended.items()), ("", now))
            if now - when > min(ENDED, self._idle):
                name = ended
            elif known is None or now - known.used <= self._idle:
                return
            self._delete(name)

    def _delete(self, name: str) -> None:
        for path in (self._path(name), self._before_path(name)):
            with suppress(FileNotFoundError):
                os.unlink(path)
        self._before.discard(name)
        self._files.pop(name, None)
        self._ended.pop(name, None)

    def _scan(self, newest: float) -> None:
        """Find all streams, and how long before the newest file, or the last change, each came."""
        remove_temporary_files(self._folder)
        times: dict[str, float] = {}
        for file in os.scandir(self._folder):
            stem, _, kind = file.name.rpartition(".")
            if kind not in ("stream", "before", "ended"):
                continue
            name, changed = f"{stem}.stream", file.stat().st_mtime
            times[name] = max(times.get(name, changed), changed)
            if kind == "before":
                self._before.add(name)
            elif kind == "ended":
                self._ended[name] = 0.0
        newest = max(newest, *times.values()) if times else newest
        now = time.monotonic()
        self._offset = newest - now  # of the system's clock
        for name, changed in sorted(times.items(), key=lambda item: item[1]):
            self._files[name] = _Known(changed - self._offset)
        for name in [name for name in self._files if name in self._ended]:
            if os.path.exists(self._folder / name):  # it had just gone on
                os.unlink(self._path(name))
                del self._ended[name]
            else:
                self._ended[name] = self._files[name].used
                self._ended.move_to_end(name)
        self._dirty |= self._before
        self._forget(len(self._files))

    def _keep(self) -> None:
        """Force files to the disk every second; see whether someone set the clock."""
        is_last = False
        while not is_last:
            is_last = self._closing.wait(_INTERVAL)
            try:
                self._sync()
                self._follow_clock()
                self._failure = ""
            except OSError as error:
                if not self._failure:
                    logger.error("the store: %s cannot be synced: %s", self._folder, error)
                self._failure = str(error)

    def _sync(self) -> None:
        with self._lock:
            dirty, self._dirty = self._dirty, set()
            inodes = {
                name: known.inode for name in dirty if (known := self._files.get(name)) is not None
            }
        if not dirty:
            return
        try:
            if len(inodes) < _MANY or not _sync_file_system(self._folder):
                for name in inodes:
                    self._sync_file(name)
            self._sync_folder()
        except OSError:
            with self._lock:
                self._dirty |= dirty
            raise
        for name, inode in inodes.items():
            with self._lock:  # of one file at a time: a request waits for no others
                self._drop_before(name, inode)

    def _drop_before(self, name: str, inode: int) -> None:
        """Delete the file from before a snapshot, whose file is on the disk now."""
        if name not in self._before:
            return
        known = self._files.get(name)
        if known is None or known.version is None:
            self._dirty.add(name)  # not read yet: which of the two counts is not known
        elif known.inode == inode:
            os.unlink(self._before_path(name))
            self._before.discard(name)

    def _sync_file(self, name: str) -> None:
        with suppress(FileNotFoundError):  # forgotten meanwhile
            descriptor = os.open(self._path(name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _sync_folder(self) -> None:
        if sys.platform != "win32":
            descriptor = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _follow_clock(self) -> None:
        """Write ages to the files anew if the system's clock was set, for the next start."""
        now, monotonic = time.time(), time.monotonic()
        if abs(now - monotonic - self._offset) <= _DRIFT:
            return
        with self._lock:
            self._offset = now - monotonic
            ages = [(self._path(name), known.used) for name, known in self._files.items()]
        _set_times((path, used + self._offset) for path, used in ages)
        os.utime(self._folder, (now, now))


@dataclass(frozen=True)
class _State:
    """What a file holds: the state, where its last whole record ends, its size and its inode."""

    state: StoredState
    length: int
    size: int
    inode: int

    @classmethod
    def of(cls, path: str) -> "_State":
        with open(path, "rb") as file:
            inode, content = os.fstat(file.fileno()).st_ino, file.read()
        records = list(_records(content))
        version, _, length = records[-1] if records else (0, b"", 0)
        log = [entry for _, entry, _ in records[1:]]
        state = StoredState(version, records[0][1] if records else b"", log)
        return cls(state, length, len(content), inode)


def _set_times(times: Iterable[tuple[str, float]]) -> None:
    for path, when in times:
        with suppress(FileNotFoundError):
            os.utime(path, (when, when))


def _sync_data(descriptor: int) -> None:
    getattr(os, "fdatasync", os.fsync)(descriptor)


def _sync_file_system(folder: Path) -> bool:
    """Force all of a file system to the disk, where the system can; False where it cannot."""
    sync = getattr(ctypes.CDLL(None), "syncfs", None) if sys.platform == "linux" else None
    if sync is None:
        return False
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        return int(sync(descriptor)) == 0
    finally:
        os.close(descriptor)


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
