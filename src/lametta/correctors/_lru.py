"""LRU cache of per-stream state, bounded in entries, bytes and idle time; one user at a time."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from lametta._locks import FairLock

Kept = TypeVar("Kept")


@dataclass
class _Place(Generic[Kept]):
    kept: Kept
    lock: FairLock = field(default_factory=FairLock)
    users: int = 0  # who hold it or wait for it; while there are any, it stays
    size: int = 0
    last: float = 0.0


class Shelf(Generic[Kept]):
    """Things by stream: one user of each at a time, the least recently used make room.

    Parameters
    ----------
    make : callable
        Makes what is kept of a new stream.
    measure : callable
        How many bytes it takes.
    most, memory, idle
        How many things there may be, their bytes in all, and for how many seconds one may lie
        unused; what is in use stays, whatever the bounds.
    clock : callable
        Seconds that never go back.
    """

    def __init__(
        self,
        make: Callable[[], Kept],
        measure: Callable[[Kept], int],
        *,
        most: int,
        memory: float,
        idle: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make, self._measure, self._clock = make, measure, clock
        self._most, self._memory, self._idle = most, memory, idle
        self._lock = threading.Lock()
        self._places: OrderedDict[Hashable, _Place[Kept]] = OrderedDict()  # the last used come last
        self.size = 0  # bytes in all
        self.evicted = 0  # how many were dropped to keep the bounds

    def __len__(self) -> int:
        with self._lock:
            self._tidy()
            return len(self._places)

    def __contains__(self, stream: Hashable) -> bool:
        with self._lock:
            self._tidy()
            return stream in self._places

    @contextmanager
    def held(self, stream: Hashable, wait: float = -1) -> Iterator[Kept]:
        """What is kept of a stream, made if it is new; others wait their turn, first come first.

        Raises
        ------
        TimeoutError
            It was not free within ``wait`` seconds; -1 waits as long as it takes.
        """
        with self._lock:
            self._tidy()
            place = self._places.get(stream)
            if place is None:
                place = self._places[stream] = _Place(self._make())
            place.users += 1
            turn = place.lock.queue()
        size = None
        try:
            with turn:
                if not turn.wait(wait):
                    raise TimeoutError(f"stream must be free within {wait:g} s")
                try:
                    yield place.kept
                finally:
                    size = self._measure(place.kept)
        finally:
            with self._lock:
                place.users -= 1
                if size is not None and self._places.get(stream) is place:
                    self.size += size - place.size
                    place.size, place.last = size, self._clock()
                    self._places.move_to_end(stream)
                self._tidy()

    def forget(self, stream: Hashable) -> None:
        """Drop what is kept of a stream; whoever holds it now keeps it until done."""
        with self._lock:
            self._drop(stream)

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._places.clear()
            self.size = 0

    def streams(self) -> list[Hashable]:
        """The streams, the least recently used first."""
        with self._lock:
            self._tidy()
            return list(self._places)

    def _drop(self, stream: Hashable) -> None:
        if (place := self._places.pop(stream, None)) is not None:
            self.size -= place.size

    def _tidy(self) -> None:
        """Drop the longest unused, until the bounds hold."""
        while (stream := self._superfluous()) is not None:
            self._drop(stream[0])
            self.evicted += 1

    def _superfluous(self) -> tuple[Hashable] | None:
        """The stream that has to go next, if any; a single one may be of any size."""
        n, unused = len(self._places), self._clock() - self._idle
        crowded = n > self._most or (self.size > self._memory and n > 1)
        for stream, place in self._places.items():
            if not place.users:
                return (stream,) if crowded or place.last < unused else None
        return None
