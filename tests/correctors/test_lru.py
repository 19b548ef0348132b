"""The LRU cache of per-stream state: its bounds, and who may use an entry."""

import pytest

from lametta.correctors._lru import LRUCache


def test_idle_streams_are_forgotten():
    now = [0.0]
    cache = LRUCache(list, len, max_entries=9, max_bytes=9, ttl=10, clock=lambda: now[0])
    for now[0], stream in ((0, "a"), (5, "b"), (9, "a")):
        with cache.lease(stream):
            pass
    now[0] = 15.5
    assert cache.streams() == ["a"]
    now[0] = 19.5
    assert len(cache) == 0
    assert cache.evicted == 2


def test_what_is_in_use_stays():
    cache = LRUCache(list, len, max_entries=1, max_bytes=9, ttl=9)
    assert cache.peek("a") is None
    with cache.lease("a") as first:
        assert cache.peek("a") is None
        with cache.lease("b"):
            pass
        with cache.lease("c"):
            assert cache.streams() == ["a", "c"]
        first.append(1)
    assert cache.peek("a") is first
    with cache.lease("a") as again:
        assert again is first
    with cache.lease("a"), pytest.raises(TimeoutError), cache.lease("a", wait=0.01):
        pass
