"""What threads need of each other: a fair lock, and computations that can be given up."""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol, Self
from weakref import WeakSet


class _Renewed(Protocol):
    """Base of what has locks, which other threads may hold when a process is forked."""

    def after_fork(self) -> None: ...


_renewed: WeakSet[_Renewed] = WeakSet()


def renew_after_fork(one: _Renewed) -> None:
    """Call ``after_fork`` in a forked process, which has no thread but the one that forked."""
    _renewed.add(one)


def _renew() -> None:
    for one in list(_renewed):
        one.after_fork()


if hasattr(os, "register_at_fork"):  # Windows forks nothing
    os.register_at_fork(after_in_child=_renew)


_check: ContextVar[Callable[[], None] | None] = ContextVar("check", default=None)


@contextmanager
def interruptible(check: Callable[[], None]) -> Iterator[None]:
    """Let ``check`` end what is computed inside: it is called now and then, and may raise.

    Examples
    --------
    >>> def late():
    ...     raise TimeoutError("too late")
    >>> with interruptible(late):
    ...     check_interrupt()
    Traceback (most recent call last):
    TimeoutError: too late
    """
    token = _check.set(check)
    try:
        yield
    finally:
        _check.reset(token)


def check_interrupt() -> None:
    """Raise if nobody waits for what is being computed: between two parts of what takes long."""
    check = _check.get()
    if check is not None:
        check()


class FairLock:
    """A lock that is handed on first in, first out; its holder may take it again.

    Python's own locks promise no order: a thread that has just let go may overtake all who wait.
    A copy, deep or pickled, is a new lock that nobody holds; so is the lock of a forked process,
    unless the thread that forked holds it.

    Examples
    --------
    >>> lock = FairLock()
    >>> with lock, lock:
    ...     pass
    >>> with lock.queue() as turn:  # others who come from here on are behind
    ...     turn.wait()
    True
    """

    def __init__(self) -> None:
        self._begin()
        renew_after_fork(self)

    def _begin(self) -> None:
        self._guard = threading.Lock()
        self._queue: deque[Turn] = deque()  # the first of them has the lock
        self._alone = Turn(self._guard, self._queue)  # of who finds nobody: no new one, since hot
        self._holder: int | None = None  # of those who come by ``with lock``
        self._depth = 0

    def after_fork(self) -> None:
        """Forget threads that are not there any more."""
        holder, depth = self._holder, self._depth
        self._begin()
        if holder == threading.get_ident():
            self._holder, self._depth = holder, depth
            self._queue.append(self._alone)

    def __reduce__(self) -> tuple[type["FairLock"], tuple[()]]:
        return FairLock, ()

    def queue(self) -> "Turn":
        """Join the queue; leave it by ``with``, or by ``leave``."""
        turn = Turn(self._guard, self._queue)
        with self._guard:
            self._queue.append(turn)
            if len(self._queue) == 1:
                turn.ready.release()
        return turn

    def __enter__(self) -> Self:
        me = threading.get_ident()
        if self._holder != me:
            with self._guard:
                is_free = not self._queue
                if is_free:
                    self._queue.append(self._alone)
            if not is_free:
                self._wait()
            self._holder = me
        self._depth += 1
        return self

    def _wait(self) -> None:
        turn = self.queue()
        try:
            turn.wait()
        except BaseException:  # an interrupt from the keyboard
            turn.leave()
            raise

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._holder = None
            with self._guard:
                self._queue.popleft()
                if self._queue:
                    self._queue[0].ready.release()


class Turn:
    """A place in the queue of a `FairLock`."""

    __slots__ = ("_guard", "_queue", "ready")

    def __init__(self, guard: threading.Lock, queue: deque["Turn"]) -> None:
        self._guard, self._queue = guard, queue
        self.ready = threading.Lock()  # let go when this place is the first
        self.ready.acquire()

    def wait(self, seconds: float = -1) -> bool:
        """Wait for the turn; False if it has not come after so many seconds, -1 for no limit."""
        return self.ready.acquire(timeout=seconds)

    def leave(self) -> None:
        """Leave the queue, whether the turn had come or not; the next one has the lock then."""
        with self._guard:
            was_first = self._queue[0] is self
            self._queue.remove(self)
            if was_first and self._queue:
                self._queue[0].ready.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()
