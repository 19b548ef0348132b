"""Paths and what OpenAPI says of them; what is computed at once, and what in threads."""

import asyncio
import threading
import time

import httpx2
import numpy as np
import pytest
from starlette.testclient import TestClient

import lametta
from lametta.serve.app import Executor, RequestClass
from lametta.serve.config import CorrectorSpec, ServerConfig
from lametta.serve.middleware import BodyReader, ServerLimits
from lametta.serve.protocol import (
    DTYPES,
    INPUT,
    OUTPUT,
    REQUEST,
    Deadline,
    DeadlineError,
    InferRequest,
)

TENSOR = {"name": "x", "shape": [1], "datatype": "INT8", "data": [3]}
SMALL, LARGE = RequestClass("prudent", (1, 11, 10)), RequestClass("prudent", (13, 24, 24))


def took(seconds):
    """A clock for a job of so many seconds; nobody has to wait."""
    times = iter((0.0, seconds))
    return lambda: next(times)


def see(executor, kind, seconds, monkeypatch, n=1):
    for _ in range(n):
        monkeypatch.setattr(time, "thread_time", took(seconds))
        executor.timed(kind, lambda: None)


def test_no_request_is_believed_to_be_quick_before_one_like_it_was(monkeypatch):
    executor = Executor(None)
    assert not executor.runs_inline(SMALL)
    assert not executor.runs_inline(LARGE)
    see(executor, LARGE, 0.001, monkeypatch)
    see(executor, SMALL, 1.0, monkeypatch)
    assert executor.runs_inline(LARGE)
    assert not any(executor.runs_inline(SMALL) for _ in range(1000))
    assert not executor.runs_inline(SMALL._replace(model="lame"))


def test_files_of_images_are_never_computed_at_once(monkeypatch):
    """A few bytes may be millions of pixels."""
    executor, files = Executor(None), SMALL._replace(is_bounded=False)
    see(executor, files, 0.001, monkeypatch, n=10)
    assert not executor.runs_inline(files)


def test_requests_are_alike_by_their_shapes_not_by_their_bytes():
    def kind(n, d, k, dtype="f4"):
        inputs = {"features": np.zeros((n, d), dtype), "probs": np.zeros((n, k), dtype)}
        return RequestClass.of("prudent", InferRequest("", inputs, {}, None))

    assert kind(1, 1280, 1000) == kind(1, 1281, 1001)
    assert kind(1, 1280, 1000) == kind(1, 1280, 1000, "f8")
    others = {kind(1, 1000, 10), kind(1, 10, 1000), kind(100, 10, 100), kind(1000, 10, 10)}
    assert len(others) == 4
    images = {"image": np.array([b"a file"], object)}
    assert not RequestClass.of("prudent", InferRequest("", images, {}, None)).is_bounded


def test_one_stall_says_little(monkeypatch):
    executor = Executor(None)
    see(executor, SMALL, 0.001, monkeypatch)
    see(executor, SMALL, 0.1, monkeypatch)
    assert executor.runs_inline(SMALL)
    see(executor, SMALL, 0.1, monkeypatch)
    assert not executor.runs_inline(SMALL)


def test_slow_ones_are_not_hidden_among_quick_ones(monkeypatch):
    executor = Executor(None)
    for seconds in 20 * (0.0003, 0.03):
        see(executor, SMALL, seconds, monkeypatch)
    assert not executor.runs_inline(SMALL)


def test_what_has_become_quick_is_found_out(monkeypatch):
    executor = Executor(None)
    see(executor, SMALL, 0.01, monkeypatch)
    asked = [executor.runs_inline(SMALL) for _ in range(640)]
    assert sum(asked) == 10
    see(executor, SMALL, 0.0005, monkeypatch, n=10)
    assert executor.runs_inline(SMALL)


def test_a_clock_may_stand_still(monkeypatch):
    executor = Executor(None)
    see(executor, SMALL, 0.0, monkeypatch, n=2)
    assert executor.runs_inline(SMALL)


def test_threads_that_are_asked_for_compute_everything():
    assert not Executor(4).runs_inline(SMALL)


@pytest.mark.parametrize(
    ("blocking", "threads", "inside"), [(False, None, True), (True, None, False), (False, 2, False)]
)
def test_who_computes_a_request(blocking, threads, inside, monkeypatch):
    """Only where no store and no user speaks against it, the thread that reads requests."""
    found = []

    def answer(*_):
        found.append(threading.current_thread() is threading.main_thread())
        return b"{}", None

    monkeypatch.setattr("lametta.serve.protocol.Codec.answer", answer)
    monkeypatch.setattr("lametta.serve.stores.memory.MemoryStore.blocking", blocking)
    app = ServerConfig({"average": CorrectorSpec("average", {})}, "memory", threads=threads).app()

    async def ask():
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://server") as client:
            path = "/v2/models/average/infer"
            answers = [await client.post(path, json={"inputs": [TENSOR]}) for _ in range(2)]
            return [answer.status_code for answer in answers]

    assert asyncio.run(ask()) == [200, 200]
    assert found == [False, inside]  # the first of its kind is timed in a thread


def test_nothing_is_computed_at_once_beside_what_takes_long(monkeypatch):
    """It might have to wait for it, and with it everyone."""
    executor, go = Executor(None), threading.Event()

    async def main():
        see(executor, SMALL, 0.001, monkeypatch)
        monkeypatch.undo()
        slow = asyncio.create_task(executor.submit(LARGE, go.wait))
        await asyncio.sleep(0)
        assert not executor.runs_inline(SMALL)
        assert await executor.submit(SMALL, threading.current_thread) is not threading.main_thread()
        go.set()
        assert await slow
        assert executor.runs_inline(SMALL)

    asyncio.run(main())


def test_who_goes_away_keeps_the_place_until_the_work_is_done():
    executor, go, done = Executor(None), threading.Event(), []

    async def main():
        task = asyncio.create_task(executor.submit(LARGE, lambda: (go.wait(), done.append(1))))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0.01)
        assert not task.done()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done

    asyncio.run(main())


def test_what_is_late_is_given_up_on_time_and_keeps_its_place_until_it_ends():
    executor, go, reader = Executor(None), threading.Event(), BodyReader(ServerLimits())

    async def main():
        begun = time.monotonic()
        with reader.reserve(7) as room, pytest.raises(DeadlineError):
            await executor.submit(LARGE, go.wait, Deadline(0.05), room)
        assert time.monotonic() - begun < 10
        assert (reader.n_requests, reader.n_bytes) == (1, 7)
        assert not executor.runs_inline(SMALL)  # it is still there
        go.set()
        while reader.n_requests:
            await asyncio.sleep(0.001)
        assert reader.n_bytes == 0

    asyncio.run(main())


def test_what_is_being_committed_is_not_given_up():
    executor, deadline, committed, go = Executor(None), Deadline(0.05), threading.Event(), []

    def job():
        deadline.commit()
        committed.set()
        while not go:
            time.sleep(0.001)
        return "answer"

    async def main():
        task = asyncio.create_task(executor.submit(LARGE, job, deadline))
        while deadline.left() or not committed.is_set():
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        go.append(1)
        assert await task == "answer"

    asyncio.run(main())


def test_what_computes_for_too_long_is_not_tried_again_at_once(monkeypatch):
    executor = Executor(None, deadline=3.0)
    monkeypatch.setattr(time, "thread_time", took(4.0))
    executor.timed(LARGE, lambda: None)
    monkeypatch.undo()
    with pytest.raises(DeadlineError, match="took longer than the deadline just now"):
        asyncio.run(executor.submit(LARGE, lambda: None, Deadline(3.0)))
    assert asyncio.run(executor.submit(SMALL, lambda: 7, Deadline(3.0))) == 7
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 17)
    assert asyncio.run(executor.submit(LARGE, lambda: 7)) == 7


@pytest.fixture(scope="module")
def application():
    return ServerConfig({"prudent": "prudent"}).app()


@pytest.fixture(scope="module")
def document(application):
    return TestClient(application).get("/openapi.json").json()


def test_openapi_has_the_paths_that_there_are(application, document):
    described = {
        (path.format(model="prudent", version="1"), method.upper())
        for path, methods in document["paths"].items()
        for method in methods
    }
    served = {
        (path, method)
        for path, route in application.handler.routes.items()
        for method in set(route.methods) - {"HEAD"}  # which every GET has
    }
    for_people = {(path, "GET") for path, _ in served if path.startswith("/static/")}
    assert described == served - for_people - {("/", "GET"), ("/openapi.json", "GET")}
    assert document["info"]["version"] == lametta.__version__


@pytest.mark.parametrize("prefix", ["/v2/models/{model}", "/v2/models/{model}/versions/{version}"])
def test_openapi_has_the_fields_that_are_read(document, prefix):
    infer = document["paths"][f"{prefix}/infer"]["post"]
    request = infer["requestBody"]["content"]["application/json"]["schema"]
    reply = infer["responses"]["200"]["content"]["application/json"]["schema"]
    inputs, outputs = (request["properties"][name]["items"] for name in ("inputs", "outputs"))
    for level, schema in ((REQUEST, request), (INPUT, inputs), (OUTPUT, outputs)):
        assert set(schema["properties"]) == set(level.fields)
        assert set(schema["properties"]["parameters"]["properties"]) == set(level.parameters)
    for tensor in (inputs, reply["properties"]["outputs"]["items"]):
        assert tensor["properties"]["datatype"]["enum"] == list(DTYPES)
    assert [one["name"] for one in infer["parameters"]] == [
        *(name for name in ("model", "version") if f"{{{name}}}" in prefix),
        "Inference-Header-Content-Length",
    ]


def test_versioned_paths_are_described_as_the_others(document):
    for path, methods in document["paths"].items():
        if "/versions/{version}" in path:
            (same,) = document["paths"][path.replace("/versions/{version}", "")].values()
            (own,) = methods.values()
            for part in ("summary", "responses", "requestBody"):
                assert own.get(part) == same.get(part), (path, part)


def test_a_path_that_gives_answers_head_without_a_body(application):
    client = TestClient(application)
    for path in ("/v2/health/live", "/metrics", "/", "/openapi.json"):
        answer = client.head(path)
        assert (answer.status_code, answer.content) == (200, b"")
    assert client.head("/v2/models/prudent/infer").headers["allow"] == "POST"
    assert client.post("/v2").headers["allow"] == "GET, HEAD"
    assert client.get("/v3").json() == {"error": "Not Found"}


def test_a_stream_in_the_address_is_refused(application):
    """Otherwise the request would be answered without its memory."""
    answer = TestClient(application).post("/v2/models/prudent/infer?sequnce_id=7", json={})
    assert answer.status_code == 400
    assert "got '?sequnce_id=7'; parameters belong into the body" in answer.json()["error"]
