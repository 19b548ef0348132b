"""Where requests are computed: in threads, or at once where a thread would cost more."""

import asyncio
import itertools
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

T = TypeVar("T")

_QUICK = 0.003  # seconds that all others may have to wait for what is computed at once
_SLOW = 10 * _QUICK  # what takes less is tried at once now and then: it may have become quick
_RETRY = 64  # requests between two such tries
_LATELY = 16  # requests that an average goes back
_SMALL = 2**16  # bytes of a request that counts as quick until one was timed


class Kind(NamedTuple):
    """Requests that take about as long as each other.

    Attributes
    ----------
    model : str
        What they ask.
    n_bits : int
        The magnitude of their length.
    """

    model: str
    n_bits: int


class Workers:
    """Compute requests, while the thread that reads them may go on reading.

    Threads that compute small things take the interpreter's lock from each other with every array,
    which makes each of them several times slower; and the way to a thread and back takes as long as
    the correction of a frame. So the thread that reads a request also computes it, if requests like
    it are quick and nothing that takes long is being computed, for which it might have to wait.

    Parameters
    ----------
    threads : int or None
        Threads, which compute everything; None: one a core, for what is not quick.
    waits : bool
        Whether a job may wait for another machine; then threads compute everything, too.
    """

    def __init__(self, threads: int | None, *, waits: bool = False) -> None:
        self._at_once = threads is None and not waits
        self._pool = ThreadPoolExecutor(threads or os.cpu_count() or 1, "lametta")
        self._seconds: dict[Kind, float] = {}  # lately
        self._n_asked = itertools.count(1)
        self._n_running = self._n_slow = 0  # in threads

    def computes_at_once(self, kind: Kind) -> bool:
        """Whether such a request does not go to a thread now."""
        if not self._at_once or self._n_slow:
            return False
        return self._is_quick(kind) or (
            self._seconds.get(kind, _SLOW) < _SLOW and next(self._n_asked) % _RETRY == 0
        )

    async def do(self, kind: Kind, job: Callable[[], T]) -> T:
        """Do a job to its end, even if the client has gone: its stream may have moved on."""
        if self.computes_at_once(kind):
            return self.timed(kind, job)
        is_slow = not self._is_quick(kind)
        self._n_running += 1
        self._n_slow += is_slow
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._pool, self.timed, kind, job)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise
        finally:
            del future  # else it and a failure's traceback hold each other, with all the data
            self._n_running -= 1
            self._n_slow -= is_slow

    def timed(self, kind: Kind, job: Callable[[], T]) -> T:
        """Do a job, and remember how long one of this kind takes."""
        begun, others = time.perf_counter(), self._n_running > 1
        try:
            return job()
        finally:
            seconds = max(time.perf_counter() - begun, 1e-9)  # some clocks stand still for longer
            if not (others or self._n_running > 1):  # else this is not its own time
                before = self._seconds.get(kind, seconds)
                # The geometric mean, to which a single stall of the machine matters little.
                self._seconds[kind] = before * (seconds / before) ** (1 / _LATELY)

    def _is_quick(self, kind: Kind) -> bool:
        seconds = self._seconds.get(kind)
        return kind.n_bits <= _SMALL.bit_length() if seconds is None else seconds < _QUICK
