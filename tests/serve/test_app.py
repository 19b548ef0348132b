"""What is computed at once, and what in threads."""

import asyncio
import threading
import time

import httpx
import pytest

from lametta.serve.app import Kind, Workers
from lametta.serve.config import Plan, Served

SMALL, LARGE = Kind("prudent", 14), Kind("prudent", 24)


def took(seconds):
    """A clock for a job of so many seconds; nobody has to wait."""
    times = iter((0.0, seconds))
    return lambda: next(times)


def see(workers, kind, seconds, monkeypatch, n=1):
    for _ in range(n):
        monkeypatch.setattr(time, "perf_counter", took(seconds))
        workers.timed(kind, lambda: None)


def test_small_requests_are_believed_to_be_quick_until_they_were_seen(monkeypatch):
    workers = Workers(None)
    assert workers.computes_at_once(SMALL)
    assert not workers.computes_at_once(LARGE)
    see(workers, LARGE, 0.001, monkeypatch)
    see(workers, SMALL, 1.0, monkeypatch)
    assert workers.computes_at_once(LARGE)
    assert not any(workers.computes_at_once(SMALL) for _ in range(1000))
    assert workers.computes_at_once(Kind("lame", 14))


def test_one_stall_says_little(monkeypatch):
    workers = Workers(None)
    see(workers, SMALL, 0.001, monkeypatch)
    see(workers, SMALL, 0.1, monkeypatch)
    assert workers.computes_at_once(SMALL)
    see(workers, SMALL, 0.1, monkeypatch, n=10)
    assert not workers.computes_at_once(SMALL)


def test_what_has_become_quick_is_found_out(monkeypatch):
    workers = Workers(None)
    see(workers, SMALL, 0.01, monkeypatch)
    asked = [workers.computes_at_once(SMALL) for _ in range(640)]
    assert sum(asked) == 10
    see(workers, SMALL, 0.0005, monkeypatch, n=10)
    assert workers.computes_at_once(SMALL)


def test_a_clock_may_stand_still(monkeypatch):
    workers = Workers(None)
    see(workers, SMALL, 0.0, monkeypatch, n=2)
    assert workers.computes_at_once(SMALL)


def test_threads_that_are_asked_for_compute_everything():
    assert not Workers(4).computes_at_once(SMALL)


@pytest.mark.parametrize(
    ("waits", "threads", "inside"), [(False, None, True), (True, None, False), (False, 2, False)]
)
def test_who_computes_a_request(waits, threads, inside, monkeypatch):
    """Only where no store and no user speaks against it, the thread that reads requests."""
    found = []

    def answer(*_):
        found.append(threading.current_thread() is threading.main_thread())
        return b"{}", None

    monkeypatch.setattr("lametta.serve.service.Service.answer", answer)
    monkeypatch.setattr("lametta.serve.stores.memory.MemoryStore.waits", waits)
    app = Plan({"average": Served("average", {})}, "memory", threads=threads).app()

    async def ask():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return (await client.post("/v2/models/average/infer", content=b"{}")).status_code

    assert asyncio.run(ask()) == 200
    assert found == [inside]


def test_nothing_is_computed_at_once_beside_what_takes_long(monkeypatch):
    """It might have to wait for it, and with it everyone."""
    workers, go = Workers(None), threading.Event()

    async def main():
        see(workers, SMALL, 0.001, monkeypatch)
        monkeypatch.undo()
        slow = asyncio.create_task(workers.do(LARGE, go.wait))
        await asyncio.sleep(0)
        assert not workers.computes_at_once(SMALL)
        assert await workers.do(SMALL, threading.current_thread) is not threading.main_thread()
        go.set()
        assert await slow
        assert workers.computes_at_once(SMALL)

    asyncio.run(main())


def test_who_goes_away_keeps_the_place_until_the_work_is_done():
    workers, go, done = Workers(None), threading.Event(), []

    async def main():
        task = asyncio.create_task(workers.do(LARGE, lambda: (go.wait(), done.append(1))))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0.01)
        assert not task.done()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done

    asyncio.run(main())
