"""Store protocol: snapshot, log and version of each stream, in memory, a folder or Redis.

A stream is a snapshot of a corrector's state and a log of the requests since, so that a frame
writes itself alone and not the state. Its version grows with each request. Who adds a request names
the version that it was made for; of two who name the same, the second comes too late.
"""

from pathlib import Path
from typing import NamedTuple, Protocol

from lametta.types import LamettaError

IDLE = 24 * 3600.0
MOST = 100_000


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
        Whether a call may wait for another machine.
    """

    blocking: bool

    def load(self, stream: str) -> StoredState:
        """What is kept of a stream; version 0 if nothing is."""
        ...

    def commit(
        self, stream: str, version: int, entry: bytes, snapshot: bytes | None = None
    ) -> int | None:
        """Add an entry that was made for ``version``, and give the next; None if another did.

        With a snapshot, the state at ``version``, the log begins anew with this entry.

        Raises
        ------
        TooManyStreamsError
            The stream is new, and there are as many as there may be.
        """
        ...

    def check(self) -> None:
        """Raise unless the store can be reached."""
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...


def open_store(url: str, *, most: int = MOST, idle: float = IDLE) -> Store:
    """Open the store of a name: ``memory``, ``redis://...``, or else a folder.

    Parameters
    ----------
    url : str
        Which one.
    most : int
        How many streams it may keep; more are refused.
    idle : float
        Seconds without a request after which a stream is forgotten.
    """
    if not url:
        raise LamettaError("store must be memory, a folder or redis://HOST, got nothing")
    if url == "memory":
        from lametta.serve.stores.memory import MemoryStore

        return MemoryStore(most=most, idle=idle)
    if url.startswith(("redis://", "rediss://", "unix://")):
        from lametta.serve.stores.redis import RedisStore

        return RedisStore(url, most=most, idle=idle)
    if "://" in url:
        raise LamettaError(f"store must be memory, a folder or redis://HOST, got {url!r}")
    from lametta.serve.stores.folder import FolderStore

    return FolderStore(Path(url), most=most, idle=idle)
