"""Atomic writes, file locks, and text that is safe in a spreadsheet."""

import errno
import math
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from lametta.types import LamettaError

PathLike: TypeAlias = str | os.PathLike[str]

_POLL = 0.05  # seconds between two tries of a lock
_FORMULA = re.compile(r"[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)


@contextmanager
def atomic_write(path: Path, folder: Path | None = None, *, sync: bool = True) -> Iterator[Path]:
    """A file to write to, which takes the name ``path`` at the end, or is deleted on an error.

    Whoever looks, also after a kill or a power cut, finds the whole file or none; without ``sync``,
    which takes milliseconds, a power cut may leave less. The temporary file lies in ``folder``, by
    default beside ``path``; only a kill leaves it there.
    """
    # Random, since processes on two machines may have the same number, and short, since the
    # name of the file itself may be as long as names can be.
    temporary = (folder or path.parent) / f".lametta-{os.urandom(8).hex()}.tmp"
    descriptor = None
    try:
        if sys.platform != "win32":  # which replaces no open file
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            with suppress(OSError):  # of a disk without locks
                _lock(descriptor)  # says that it is in use, until this process ends
        yield temporary
        if sync:
            with temporary.open("r+b") as file:
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        if error.filename is not None:
            raise  # it says which file
        reason = error.strerror or error
        raise LamettaError(f"could not write {path}: {reason}") from error
    finally:
        temporary.unlink(missing_ok=True)
        if descriptor is not None:
            os.close(descriptor)


def plain_error(error: OSError) -> str:
    """Say what went wrong with which file, without the number that the system has for it.

    Examples
    --------
    >>> plain_error(FileNotFoundError(2, "No such file or directory", "a.json"))
    "no such file: 'a.json'"
    >>> plain_error(PermissionError(13, "Permission denied", "a.json"))
    "'a.json': Permission denied"
    """
    if error.filename is None:
        return str(error.strerror or error)
    name = repr(os.fspath(error.filename))
    return f"no such file: {name}" if error.errno == errno.ENOENT else f"{name}: {error.strerror}"


def remove_temporary_files(folder: Path) -> None:
    """Delete the temporary files that kills left in a folder which no one else writes to."""
    for temporary in folder.glob(".lametta-*.tmp"):
        temporary.unlink(missing_ok=True)


def remove_abandoned_files(folder: Path) -> None:
    """Delete the temporary files in a folder whose writers were killed; others write on."""
    if sys.platform == "win32":  # where writers lock nothing
        return
    for temporary in folder.glob(".lametta-*.tmp"):
        with suppress(OSError):  # of another user, or gone
            descriptor = os.open(temporary, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if _lock(descriptor):
                    temporary.unlink()
            finally:
                os.close(descriptor)


def check_regular_file(name: str, path: Path) -> None:
    """Raise unless there is a file: a pipe may never end, and a device has no end."""
    if not path.exists():
        raise LamettaError(f"no such file: {str(path)!r}")
    if not path.is_file():
        what = "a folder" if path.is_dir() else "a pipe or device"
        raise LamettaError(f"{name} must be a file, got {path}, which is {what}")


def check_destination(name: str, path: Path) -> None:
    """Raise unless a file can have this place: no folder has it, and the folder around it is there.

    Examples
    --------
    >>> check_destination("path", Path("/no/folder/x.json"))
    Traceback (most recent call last):
    lametta.types.LamettaError: no such folder: '/no/folder'
    """
    if path.is_dir():
        raise LamettaError(f"{name} must be a file, got {path}, which is a folder")
    if not path.parent.is_dir():
        raise LamettaError(f"no such folder: {str(path.parent)!r}")


def memory_limit() -> float:
    """Bytes of memory that this process may take at most; infinity if it is not known."""
    limits = [math.inf]
    with suppress(OSError, ValueError):  # "max" is none
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    with suppress(AttributeError, OSError, ValueError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min(limits)


def write_text(path: PathLike, text: str) -> None:
    """Write a text file, whole or not at all; a pipe or device is written to directly."""
    path = Path(path)
    if path == Path("/dev/stdout"):
        sys.stdout.write(text)  # which may be a file: what is printed next has to come after it
        return
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def escape_formula(text: str) -> str:
    """Text with an apostrophe before it where a spreadsheet would run it as a formula.

    Examples
    --------
    >>> [escape_formula(text) for text in ("=1+1", "@cmd", "-a", "-1.5e3", "cat")]
    ["'=1+1", "'@cmd", "'-a", '-1.5e3', 'cat']
    """
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


@contextmanager
def folder_lock(folder: Path, wait: float) -> Iterator[None]:
    """Be the only one who uses a folder; raise after ``wait`` seconds, or if it cannot be locked.

    The folder itself is locked beside a file in it: a cleaner may delete the file, and one of
    another user may not be readable.
    """
    end = time.monotonic() + wait
    with file_lock(folder / ".lock", wait) as has_file, ExitStack() as ends:
        has_folder = sys.platform != "win32"  # which opens no folders
        if has_folder:
            descriptor = os.open(folder, os.O_RDONLY)
            ends.callback(os.close, descriptor)
            try:
                while not _lock(descriptor):
                    if time.monotonic() >= end:
                        raise LamettaError(
                            f"{folder} is locked by another process; waited {wait:g} s"
                        )
                    time.sleep(_POLL)
                ends.callback(_unlock, descriptor)
            except OSError:  # a network's disk may lock files alone
                has_folder = False
        if not (has_file or has_folder):
            raise LamettaError(f"{folder} cannot be locked, so that others might write to it too")
        yield


@contextmanager
def file_lock(path: Path, wait: float | None = None) -> Iterator[bool]:
    """Be the only one, of all threads and processes, that holds this lock.

    The system frees the lock when its holder ends, however it ends: a kill leaves at most the
    file, which the next holder takes over and deletes. Who waits is told who holds it, through the
    logger ``lametta``. Where the folder cannot be written to, there is nothing to protect and
    nothing is locked, which it says by False.
    """
    descriptor = _acquire(path, wait)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            # While it is held: later the file may be another's. Windows deletes no open file.
            with suppress(OSError):
                path.unlink()
            _unlock(descriptor)
            os.close(descriptor)
            if sys.platform == "win32":
                with suppress(OSError):
                    path.unlink()


def _acquire(path: Path, wait: float | None) -> int | None:
    """The descriptor of a file that is locked; None where there is nothing to lock."""
    end, told = None if wait is None else time.monotonic() + wait, False
    while (descriptor := _open_lock_file(path)) is not None:
        try:
            free = _lock(descriptor)
        except OSError as error:  # a network's disk without locks, say
            os.close(descriptor)
            _warn("%s cannot be locked: %s", path, error.strerror)
            return None
        if free:
            with suppress(OSError):  # of a file that was deleted in between
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    _write_owner(descriptor)
                    return descriptor
            os.close(descriptor)
            continue
        os.lseek(descriptor, 0, os.SEEK_SET)
        holder = os.read(descriptor, 200).decode(errors="replace") or "another process"
        os.close(descriptor)
        if end is not None and time.monotonic() >= end:
            raise LamettaError(f"{path} is locked by {holder}; waited {wait:g} s")
        if not told:
            _warn("waiting for %s, which holds %s", holder, path)
            told = True
        time.sleep(_POLL)
    return None


def _open_lock_file(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError:
        try:
            return os.open(path, os.O_RDONLY)  # another user's
        except OSError:
            return None
    except OSError as error:
        if error.errno == errno.EROFS:
            return None
        raise


def _warn(message: str, *values: object) -> None:
    import logging  # only who waits needs it, and it would slow down the import

    logging.getLogger("lametta").warning(message, *values)


def _write_owner(descriptor: int) -> None:
    import platform

    with suppress(OSError):  # another user's file is only read
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {platform.node()}".encode())


if sys.platform == "win32":
    import msvcrt

    _AT = 2**30  # past the text, which others may read

    def _lock(descriptor: int) -> bool:
        os.lseek(descriptor, _AT, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        os.lseek(descriptor, 0, os.SEEK_SET)
        return True

    def _unlock(descriptor: int) -> None:
        os.lseek(descriptor, _AT, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _unlock(descriptor: int) -> None:
        # Not by closing alone: a process that was forked meanwhile has the file open, too.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
