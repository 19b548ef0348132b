"""In-memory store: streams live as long as the process."""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from lametta.serve.protocol import TooLargeError, TooManyStreamsError
from lametta.serve.stores import EMPTY, ENDED, IDLE, MEMORY, MOST, StoredState

logger = logging.getLogger("lametta.serve")

_OVERHEAD = 1024  # bytes of Python's objects for a stream


class MemoryStore:
    """A store in this process's memory; its options are those of `open_store`."""

    blocking = False
    damaged = 0

    def __init__(
        self,
        *,
        most: int = MOST,
        idle: float = IDLE,
        memory: float = MEMORY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most, self._idle, self._memory, self._clock = most, idle, memory, clock
        # The newest come last.
        self._streams: OrderedDict[str, tuple[float, StoredState]] = OrderedDict()
        self._ended: OrderedDict[str, None] = OrderedDict()
        self.nbytes = 0  # of all streams
        self.evicted = 0  # streams that made room for others
        self._lock = threading.Lock()

    def load(self, stream: str) -> StoredState:
        with self._lock:
            self._forget()
            return self._get(stream)

    def commit(
        self,
        stream: str,
        version: int,
        entry: bytes,
        snapshot: bytes | None = None,
        *,
        end: bool = False,
    ) -> int | None:
        with self._lock:
            self._forget()
            before = self._get(stream)
            if before.version != version:
                return None
            if snapshot is None:
                stored = StoredState(version + 1, before.snapshot, [*before.log, entry])
            else:
                stored = StoredState(version + 1, snapshot, [entry])
            if (size := _size(stored)) > self._memory:
                raise TooLargeError("the state of the stream is larger than the server's memory")
            if stream not in self._streams and len(self._streams) >= self._most:
                if not self._ended:
                    raise TooManyStreamsError(
                        f"there are {self._most} streams, as many as are kept"
                    )
                self._delete(next(iter(self._ended)))
            self._delete(stream)
            while self.nbytes + size > self._memory:
                self._evict()
            self._streams[stream] = self._clock(), stored
            self.nbytes += size
            if end:
                self._ended[stream] = None
            return stored.version

    def check(self) -> None: ...

    def warnings(self) -> list[str]:
        """What may lose states without an error."""
        return ["streams live as long as the server (--store memory)"]

    def close(self) -> None: ...

    def _get(self, stream: str) -> StoredState:
        _, stored = self._streams.get(stream, (0.0, EMPTY))
        return stored._replace(log=list(stored.log))

    def _delete(self, stream: str) -> None:
        _, stored = self._streams.pop(stream, (0.0, None))
        self._ended.pop(stream, None)
        self.nbytes -= 0 if stored is None else _size(stored)

    def _evict(self) -> None:
        """Forget a stream that has ended, or else the one that was unused longest."""
        if not self.evicted and not self._ended:
            logger.warning(
                "the memory of the store is full (--memory): the streams that were unused longest "
                "begin anew; a folder or Redis would keep them"
            )
        self.evicted += not self._ended
        self._delete(next(iter(self._ended or self._streams)))

    def _forget(self) -> None:
        now = self._clock()
        for streams, seconds in (
            (self._streams, self._idle),
            (self._ended, min(ENDED, self._idle)),
        ):
            while streams and now - self._streams[next(iter(streams))][0] > seconds:
                self._delete(next(iter(streams)))


def _size(stored: StoredState) -> int:
    return len(stored.snapshot) + sum(map(len, stored.log)) + _OVERHEAD
