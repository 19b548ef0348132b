"""In-memory store: streams live as long as the process."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from lametta.serve.protocol import TooManyStreamsError
from lametta.serve.stores import EMPTY, IDLE, MOST, StoredState


class MemoryStore:
    """A store in this process's memory; its options are those of `open_store`."""

    blocking = False

    def __init__(
        self,
        *,
        most: int = MOST,
        idle: float = IDLE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most, self._idle, self._clock = most, idle, clock
        # The newest come last.
        self._streams: OrderedDict[str, tuple[float, StoredState]] = OrderedDict()
        self._lock = threading.Lock()

    def load(self, stream: str) -> StoredState:
        with self._lock:
            self._forget()
            return self._get(stream)

    def commit(
        self, stream: str, version: int, entry: bytes, snapshot: bytes | None = None
    ) -> int | None:
        with self._lock:
            self._forget()
            stored = self._get(stream)
            if stored.version != version:
                return None
            if not stored.version and len(self._streams) >= self._most:
                raise TooManyStreamsError(f"there are {self._most} streams, as many as are kept")
            if snapshot is None:
                stored.log.append(entry)
                stored = StoredState(version + 1, stored.snapshot, stored.log)
            else:
                stored = StoredState(version + 1, snapshot, [entry])
            self._streams[stream] = self._clock(), stored
            self._streams.move_to_end(stream)
            return stored.version

    def check(self) -> None: ...

    def close(self) -> None: ...

    def _get(self, stream: str) -> StoredState:
        _, stored = self._streams.get(stream, (0.0, EMPTY))
        return stored._replace(log=list(stored.log))

    def _forget(self) -> None:
        unused = self._clock() - self._idle
        while self._streams and next(iter(self._streams.values()))[0] < unused:
            self._streams.popitem(last=False)
