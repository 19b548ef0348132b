"""LRU cache of per-stream state, bounded in entries, bytes and idle time; one user at a time."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from lametta._locks import FairLock, Turn, renew_after_fork

Value = TypeVar("Value")


@dataclass
class _Entry(Generic[Value]):
    value: Value
    lock: FairLock = field(default_factory=FairLock)
    users: int = 0  # who lease it or wait for it; while there are any, it stays
    size: int = 0
    last: float = 0.0


class LRUCache(Generic[Value]):
    """Values by stream, one user of each at a time; the least recently used are evicted.

    Parameters
    ----------
    make : callable
        Makes the value of a new stream.
    measure : callable
        How many bytes a value takes.
    max_entries, max_bytes, ttl
        How many values there may be, their bytes in all, and for how many seconds one may lie
        unused; what is in use stays, whatever the bounds.
    clock : callable
        Seconds that never go back.
    """

    def __init__(
        self,
        make: Callable[[], Value],
        measure: Callable[[Value], int],
        *,
        max_entries: int,
        max_bytes: float,
        ttl: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make, self._measure, self._clock = make, measure, clock
        self._max_entries, self._max_bytes, self._ttl = max_entries, max_bytes, ttl
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, _Entry[Value]] = OrderedDict()  # last used come last
        self.size = 0  # bytes in all
        self.evicted = 0  # how many were dropped to keep the bounds
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Drop what other threads had in use when this process was forked: it may be half done."""
        self._lock = threading.Lock()
        for stream in [stream for stream, entry in self._entries.items() if entry.users]:
            self._drop(stream)

    def __len__(self) -> int:
        with self._lock:
            self._evict()
            return len(self._entries)

    def __contains__(self, stream: Hashable) -> bool:
        with self._lock:
            self._evict()
            return stream in self._entries

    def lease(self, stream: Hashable, wait: float = -1) -> "Lease[Value]":
        """The value of a stream, for a ``with``; who comes first has it first.

        Raises
        ------
        TimeoutError
            It was not free within ``wait`` seconds; -1 waits as long as it takes.
        """
        return Lease(self, stream, wait)

    def join(self, stream: Hashable) -> tuple[_Entry[Value], Turn]:
        """The entry of a stream, made if it is new, and a place in its queue."""
        with self._lock:
            self._evict()
            entry = self._entries.get(stream)
            if entry is None:
                entry = self._entries[stream] = _Entry(self._make())
            entry.users += 1
            return entry, entry.lock.queue()

    def leave(self, stream: Hashable, entry: _Entry[Value], turn: Turn, *, used: bool) -> None:
        """Leave the queue, and measure the value if it was used."""
        size = None
        try:
            if used:
                size = self._measure(entry.value)
        finally:
            turn.leave()
            with self._lock:
                entry.users -= 1
                if size is not None and self._entries.get(stream) is entry:
                    self.size += size - entry.size
                    entry.size, entry.last = size, self._clock()
                    self._entries.move_to_end(stream)
                self._evict()

    def peek(self, stream: Hashable) -> Value | None:
        """The value of a stream, if there is one that nobody leases."""
        with self._lock:
            entry = self._entries.get(stream)
            return None if entry is None or entry.users else entry.value

    def discard(self, stream: Hashable) -> None:
        """Drop the value of a stream; whoever leases it now keeps it until done."""
        with self._lock:
            self._drop(stream)

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._entries.clear()
            self.size = 0

    def streams(self) -> list[Hashable]:
        """The streams, the least recently used first."""
        with self._lock:
            self._evict()
            return list(self._entries)

    def _drop(self, stream: Hashable) -> None:
        if (entry := self._entries.pop(stream, None)) is not None:
            self.size -= entry.size

    def _evict(self) -> None:
        """Drop the least recently used, until the bounds hold."""
        while (victim := self._victim()) is not None:
            self._drop(victim[0])
            self.evicted += 1

    def _victim(self) -> tuple[Hashable] | None:
        """The stream that has to go next, if any; a single one may be of any size."""
        n, expired = len(self._entries), self._clock() - self._ttl
        crowded = n > self._max_entries or (self.size > self._max_bytes and n > 1)
        for stream, entry in self._entries.items():
            if not entry.users:
                return (stream,) if crowded or entry.last < expired else None
        return None


class Lease(Generic[Value]):
    """The use of a stream's value, which `LRUCache.lease` gives."""

    __slots__ = ("_cache", "_entry", "_stream", "_turn", "_wait")

    def __init__(self, cache: LRUCache[Value], stream: Hashable, wait: float) -> None:
        self._cache, self._stream, self._wait = cache, stream, wait

    def __enter__(self) -> Value:
        self._entry, self._turn = self._cache.join(self._stream)
        has_come = False
        try:
            has_come = self._turn.wait(self._wait)
        finally:
            if not has_come:
                self._cache.leave(self._stream, self._entry, self._turn, used=False)
        if not has_come:
            raise TimeoutError(f"stream must be free within {self._wait:g} s")
        return self._entry.value

    def __exit__(self, *_: object) -> None:
        self._cache.leave(self._stream, self._entry, self._turn, used=True)
