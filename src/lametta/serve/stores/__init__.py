"""Store protocol: snapshot, log and version of each stream, in memory, a folder or Redis.

A stream is a snapshot of a corrector's state and a log of the requests since, so that a frame
writes itself alone and not the state. Its version grows with each request. Who adds a request names
the version that it was made for; of two who name the same, the second comes too late.
"""

import re
from pathlib import Path
from typing import NamedTuple, Protocol

from lametta.types import LamettaError

IDLE = 24 * 3600.0
MOST = 100_000
MEMORY = 2.0**30
ENDED = 60.0  # seconds for which a stream that has ended is kept, lest its last answer was lost
DURABLE = ("always", "interval", "never")  # when files are forced to the disk


class StoredState(NamedTuple):
    """State of a stream as a store has it.

    Attributes
    ----------
    version : int
        Which request came last: it grows with each, and 0 says that there was none.
    snapshot : bytes
        The state before the first entry of the log; empty at the start of a stream.
    log : list of bytes
        The requests since the snapshot, the last of which made this version.
    """

    version: int
    snapshot: bytes
    log: list[bytes]


EMPTY = StoredState(0, b"", [])


class Store(Protocol):
    """Where the states of streams survive. Threads may call it at the same time.

    Each method raises `StoreError` where the store cannot be reached; then whether a commit was
    made is not known, and the stream has to be loaded again.

    Attributes
    ----------
    blocking : bool
        Whether a call may wait for another machine, or for the disk.
    damaged : int
        How many streams were found that a power cut, say, had damaged.
    """

    blocking: bool
    damaged: int

    def load(self, stream: str) -> StoredState:
        """What is kept of a stream; version 0 if nothing is."""
        ...

    def commit(
        self,
        stream: str,
        version: int,
        entry: bytes,
        snapshot: bytes | None = None,
        *,
        end: bool = False,
    ) -> int | None:
        """Add an entry that was made for ``version``, and give the next; None if another did.

        With a snapshot, the state at ``version``, the log begins anew with this entry. A stream
        that ends with the entry makes room for others: it is forgotten when they need its place, or
        after a minute.

        Raises
        ------
        TooManyStreamsError
            The stream is new, and there are as many as there may be.
        """
        ...

    def check(self) -> None:
        """Raise unless the store can be reached."""
        ...

    def warnings(self) -> list[str]:
        """What an operator should know: settings by which states may be lost without an error."""
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...


def open_store(
    url: str,
    *,
    most: int = MOST,
    idle: float = IDLE,
    memory: float = MEMORY,
    durable: str | None = None,
    password: str | None = None,
) -> Store:
    """Open the store of a name: ``memory``, ``redis://...``, or else a folder.

    Parameters
    ----------
    url : str
        Which one.
    most : int
        How many streams it may keep; more are refused.
    idle : float
        Seconds without a request after which a stream is forgotten.
    memory : float
        Bytes that a store in memory may take; those unused longest make room.
    durable : {"always", "interval", "never"}, optional
        When a folder's files are forced to the disk: before each answer, every second (the
        default), or when the system likes.
    password : str, optional
        Of Redis.
    """
    is_redis = url.startswith(("redis://", "rediss://", "unix://"))
    is_folder = not is_redis and url != "memory"
    if durable is not None and not is_folder:
        raise LamettaError(f"durable must be for a folder, got {durable!r} with another store")
    if password is not None and not is_redis:
        raise LamettaError("password must be for redis://HOST, got one with another store")
    if not url:
        raise LamettaError("store must be memory, a folder or redis://HOST, got nothing")
    if url == "memory":
        from lametta.serve.stores.memory import MemoryStore

        return MemoryStore(most=most, idle=idle, memory=memory)
    if is_redis:
        from lametta.serve.stores.redis import RedisStore

        return RedisStore(url, most=most, idle=idle, password=password)
    if "://" in url:
        raise LamettaError(
            f"store must be memory, a folder or redis://HOST, got {without_password(url)!r}"
        )
    from lametta.serve.stores.folder import FolderStore

    return FolderStore(Path(url), most=most, idle=idle, durable=durable or DURABLE[1])


def without_password(url: str) -> str:
    """An address for messages.

    Examples
    --------
    >>> without_password("redis://me:secret@host:6379/0")
    'redis://***@host:6379/0'
    """
    return re.sub("://.*@", "://***@", url)
