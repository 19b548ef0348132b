"""Memory that calls reuse: fresh pages cost more than the arithmetic on them."""

import math
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

_KEPT = 2**19  # entries of the largest array that is kept for the next call


class Memory:
    """Arrays by name, with whatever was in them before."""

    def __init__(self) -> None:
        self._held: dict[str, NDArray[Any]] = {}

    def __call__(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        size = math.prod(shape)
        if size > _KEPT:
            return np.empty(shape, dtype)
        held = self._held.get(name)
        if held is None or held.size < size or held.dtype != dtype:
            held = self._held[name] = np.empty(size, dtype)
        return held[:size].reshape(shape)


# A call owns what it takes from here until it puts it back: so calls from other threads, and from a
# signal handler that interrupts a call, never write to each other's arrays.
_free: deque[Memory] = deque(maxlen=8)


@contextmanager
def borrowed() -> Iterator[Memory]:
    """Memory for one call."""
    try:
        memory = _free.pop()
    except IndexError:
        memory = Memory()
    try:
        yield memory
    finally:
        _free.append(memory)
