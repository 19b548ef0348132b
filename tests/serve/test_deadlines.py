"""Requests that take longer than they may, and small ones that are slow: nobody else waits."""

import asyncio
import json
import threading
import time
from dataclasses import dataclass

import httpx2
import numpy as np
import pytest

from lametta import Prediction, Prudent
from lametta.correctors import Average, LabelShift
from lametta.correctors.base import StatefulCorrector, give_prototypes
from lametta.methods import as_corrector
from lametta.serve import sessions
from lametta.serve.config import ServerConfig
from lametta.serve.middleware import ServerLimits
from lametta.serve.protocol import Deadline, DeadlineError, RequestLimits
from lametta.serve.sessions import Samples, SessionManager
from lametta.serve.stores.memory import MemoryStore
from lametta.types import LamettaError, Prototypes
from tests.conftest import make_batch

LONG = 30


@dataclass
class Slow(Average):
    """An average that takes its time for each sample."""

    def update_one(self, state, x, q):
        time.sleep(0.02)
        return super().update_one(state, x, q)


class SlowAtOnce(Slow):
    """The same, by its own word not to be cut into pieces."""

    causal = False


def _body(features, probs, stream="s", **parameters):
    inputs, tail = [], b""
    for name, array in (("features", features), ("probs", probs)):
        raw = array.astype("<f8").tobytes()
        about = {"name": name, "shape": list(array.shape), "datatype": "FP64"}
        inputs.append({**about, "parameters": {"binary_data_size": len(raw)}})
        tail += raw
    named = {} if stream is None else {"sequence_id": stream}
    head = json.dumps({"inputs": inputs, "parameters": {**named, **parameters}}).encode()
    return {"content": head + tail, "headers": {"Inference-Header-Content-Length": str(len(head))}}


def _play(config, play):
    async def session():
        transport = httpx2.ASGITransport(config.app())
        async with httpx2.AsyncClient(transport=transport, base_url="http://server") as client:
            return await play(client)

    return asyncio.run(session())


def _probs(answer):
    assert answer.status_code == 200, answer.text
    return {one["name"]: one for one in answer.json()["outputs"]}["probs"]["data"]


@pytest.mark.parametrize("corrector", [Slow(), SlowAtOnce()], ids=["pieces", "at once"])
@pytest.mark.parametrize("own", [False, True], ids=["server's", "client's"])
def test_a_late_answer_is_refused_on_time_and_the_stream_is_unchanged(corrector, own):
    """250 samples take 5 s; the deadline is a tenth of a second."""
    features, probs = make_batch(250, 5, 7)
    limits = ServerLimits(deadline=60.0 if own else 0.1)
    timeout = {"timeout": 100_000} if own else {}

    async def play(client):
        path = "/v2/models/slow/infer"
        first = await client.post(path, **_body(features[:2], probs[:2]))
        begun = time.monotonic()
        late = await client.post(path, **_body(features, probs, **timeout))
        seconds = time.monotonic() - begun
        for _ in range(1000):  # until it is not busy
            last = await client.post(path, **_body(features[2:3], probs[2:3]))
            if last.status_code != 504:
                return first, late, last, seconds
        raise AssertionError("the stream stays busy")

    first, late, last, seconds = _play(ServerConfig({"slow": corrector}, limits=limits), play)
    assert late.status_code == 504
    assert seconds < 4  # and not 5
    expected = Average().correct(features[:3], probs[:3]).probs
    np.testing.assert_array_equal(_probs(first) + _probs(last), expected.ravel())


@pytest.mark.slow
@pytest.mark.parametrize(("method", "n"), [("label_shift", 1024), ("prudent", 4096)])
def test_the_methods_that_took_minutes(method, n):
    """At 4096 x 2040, label_shift took 112 s and prudent 6 s, whatever the deadline was."""
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.full(2040, 0.1), n)
    features = rng.normal(size=(n, 16))
    request = RequestLimits(2**28, n, 4096)
    limits = ServerLimits(deadline=0.5, request=request, pending=2**28)

    async def play(client):
        begun = time.monotonic()
        late = await client.post(f"/v2/models/{method}/infer", **_body(features, probs))
        return late, time.monotonic() - begun

    late, seconds = _play(ServerConfig({method: method}, limits=limits), play)
    assert late.status_code == 504
    assert seconds < 0.5 * 10


def test_pieces_stop_at_the_deadline():
    """The thread is free again, not only the client."""
    features, probs = make_batch(2000, 5, 7)  # 40 s, a piece 1.3
    manager, begun = SessionManager(Slow(), "slow", MemoryStore()), time.monotonic()
    with pytest.raises(DeadlineError):
        manager.correct(Samples(features, probs), "s", Deadline(0.1))
    assert time.monotonic() - begun < LONG
    assert manager.store.load(manager._prefix + "s").version == 0


@pytest.mark.parametrize("corrector", [LabelShift(), Average(), Prudent()], ids=repr)
def test_pieces_give_the_same_bits(corrector, monkeypatch):
    """Those who look ahead are not cut."""
    features, probs = make_batch(50, 5, 7)
    whole = corrector.correct(features, probs)
    for piece in (12, 60, 500):  # numbers: a sample, five, all but a few
        monkeypatch.setattr(sessions, "_PIECE", piece)
        cut = SessionManager(corrector, "x", MemoryStore()).correct(Samples(features, probs), "s")
        np.testing.assert_array_equal(cut.probs, whole.probs)
        assert cut.info == pytest.approx(whole.info)


def test_a_wrong_sample_in_the_last_piece_is_named_as_ever(monkeypatch):
    monkeypatch.setattr(sessions, "_PIECE", 12)
    features, probs = make_batch(50, 5, 7)
    probs[49] = np.nan
    manager, said = SessionManager(Average(), "x", MemoryStore()), []
    for correct in (
        lambda: manager.correct(Samples(features, probs), "s"),
        lambda: Average().correct(features, probs),
    ):
        with pytest.raises(LamettaError) as error:
            correct()
        said.append(str(error.value))
    assert said[0] == said[1]
    assert manager.store.load(manager._prefix + "s").version == 0


@pytest.mark.parametrize(
    "method", ["lame", "prudent", "memory", "windowed", "label_shift", "oga", "t3a"]
)
def test_who_sees_a_batch_at_once_looks_at_the_clock(method, monkeypatch):
    """So its thread is free again: looks are a block of samples or an iteration apart."""
    features, probs = make_batch(500, 5, 7)
    corrector = as_corrector(method)
    shape = probs.shape[1], features.shape[1]
    give_prototypes(corrector, Prototypes(np.eye(*shape)), "nobody")
    manager = SessionManager(corrector, method, MemoryStore())
    manager.correct(Samples(features[:2], probs[:2]), "s")
    left = 5
    deadline = Deadline()

    def check():
        nonlocal left
        left -= 1
        if left < 0:
            raise DeadlineError("too late")

    monkeypatch.setattr(deadline, "check", check)
    monkeypatch.setattr(deadline, "commit", lambda: pytest.fail("it was computed to its end"))
    with pytest.raises(DeadlineError):
        manager.correct(Samples(features[2:], probs[2:]), "s", deadline)
    monkeypatch.undo()
    last = manager.correct(Samples(features[2:], probs[2:]), "s").probs  # as if that had not been
    other = SessionManager(corrector, method, MemoryStore())
    for part in (slice(0, 2), slice(2, None)):
        expected = other.correct(Samples(features[part], probs[part]), "s").probs
    np.testing.assert_array_equal(last, expected)


def test_an_answer_and_a_504_never_both():
    """A deadline that ends while the stream is being committed does not count."""
    features, probs = make_batch(3, 5, 7)

    class Store(MemoryStore):
        def commit(self, *given, **options):
            while deadline.left():
                time.sleep(0.001)
            assert not deadline.expire()
            return super().commit(*given, **options)

    manager, deadline = SessionManager(Average(), "x", Store()), Deadline(0.1)
    found = manager.correct(Samples(features, probs), "s", deadline)
    np.testing.assert_array_equal(found.probs, Average().correct(features, probs).probs)
    deadline = Deadline(60)
    assert deadline.expire()
    with pytest.raises(DeadlineError):
        manager.correct(Samples(features, probs), "s", deadline)


class Stubborn(StatefulCorrector):
    """Answers when it is told to."""

    causal = False
    go, begun = threading.Event(), threading.Event()

    def init_state(self, d, k):
        return {"x": np.zeros(1)}

    def update(self, state, features, probs):
        self.begun.set()
        assert self.go.wait(LONG)
        return probs, {}


def test_small_slow_requests_keep_nobody_waiting():
    """A few bytes may take seconds: what is not known to be quick is not run where all wait."""
    features, probs = make_batch(1, 5, 7)

    async def play(client):
        path = "/v2/models/stubborn/infer"
        body = _body(features, probs, None)  # of no stream, whose state would be loaded first
        slow = asyncio.create_task(client.post(path, **body))
        await asyncio.to_thread(Stubborn.begun.wait, LONG)
        live = await client.get("/v2/health/live")
        ready = await client.get("/v2/health/ready")
        assert not slow.done()
        Stubborn.go.set()
        return live.status_code, ready.status_code, (await slow).status_code

    assert _play(ServerConfig({"stubborn": Stubborn()}), play) == (200, 200, 200)


def test_a_state_that_is_loaded_first_keeps_nobody_waiting(tmp_path):
    """A frame of a stream that is not held ready may mean to repeat a large request before it."""
    features, probs = make_batch(100, 5, 7)  # 2 s

    async def play(client):
        path = "/v2/models/slow/infer"
        await client.post(path, **_body(features, probs, "long"))
        for _ in range(4):  # now a frame is known to be quick: sleep takes no processor's time
            await client.post(path, **_body(features[:1], probs[:1], "short"))
        slow = asyncio.create_task(client.post(path, **_body(features[:1], probs[:1], "long")))
        await asyncio.sleep(0.1)
        live = await client.get("/v2/health/live")
        assert not slow.done()
        return live.status_code, (await slow).status_code

    config = ServerConfig({"slow": Slow()}, store=str(tmp_path), memory=10_000)  # of one stream
    assert _play(config, play) == (200, 200)


def test_a_place_is_kept_until_a_late_job_ends():
    """Else late jobs would pile up, and their bytes."""
    features, probs = make_batch(100, 5, 7)  # 2 s
    limits = ServerLimits(deadline=0.1, queue=1)

    async def play(client):
        path = "/v2/models/slow/infer"
        answers = [await client.post(path, **_body(features, probs, stream=i)) for i in (1, 2)]
        return [answer.status_code for answer in answers]

    config = ServerConfig({"slow": SlowAtOnce()}, limits=limits)
    assert _play(config, play) == [504, 429]


def test_correctors_of_others_are_cut_too():
    """Whatever says that it is causal: it need not have a base of ours."""

    class Own:
        causal = True
        rows = 0

        def correct(self, features, probs):
            self.rows = max(self.rows, len(probs))
            return Prediction(probs, features, {"mine": float(len(probs))})

    own = Own()
    features, probs = make_batch(10_000, 5, 7)
    found = sessions._correct(own, Samples(features, probs), Deadline())
    np.testing.assert_array_equal(found.probs, probs)
    assert own.rows == 64
    assert 63 < found.info["mine"] < 64
