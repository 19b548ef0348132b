"""Whatever is killed under load: every stream goes on from its last answer, to the same bits."""

import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
import pytest

from lametta.correctors import Average
from tests.serve.client import Client
from tests.serve.load import MODELS, Load
from tests.serve.server import Server, serving

pytestmark = pytest.mark.slow(3)
OPTIONS = [word for model in MODELS for word in ("--corrector", model)]


@pytest.fixture(params=["always", "interval", "never", "redis"])
def store(request, tmp_path):
    """Options of a store: a folder in each manner of syncing, or Redis."""
    if request.param == "redis":
        return "--store", request.getfixturevalue("redis_server").url
    return "--store", tmp_path / "streams", "--durable", request.param


def check_refusals(load, within=3.0):
    """Where the store was out of reach, clients were told so at once, and when to come again."""
    for reply, seconds in load.refusals:
        assert (reply.status, reply.retry_after) == (503, "1")
        assert reply.error == "the store of the streams' states cannot be reached"
        assert seconds < within


def test_kills_of_the_server(store):
    with serving(*OPTIONS, *store) as server, Load(server.port) as load:
        for _ in range(4):
            load.go_on(4)
            server.kill()
            server.start()
        load.go_on(4)
        load.check()
        assert load.n_broken >= 4
        assert not load.refusals


def test_kills_of_redis(redis_server):
    with serving(*OPTIONS, "--store", redis_server.url) as server, Load(server.port) as load:
        for _ in range(3):
            load.go_on(4)
            redis_server.kill()
            load.be_refused()
            with pytest.raises(HTTPError) as error:
                urlopen(f"{server.url}/v2/health/ready")
            assert error.value.code == 503
            error.value.close()
            redis_server.start()
        load.go_on(4)
        load.check()
        assert load.n_broken == 0
        assert load.refusals
        check_refusals(load)


def test_kills_of_both(redis_server):
    with serving(*OPTIONS, "--store", redis_server.url) as server, Load(server.port) as load:
        load.go_on(4)
        redis_server.kill()
        server.kill()
        server.start()  # it does not wait for Redis
        load.be_refused(4)
        redis_server.start()
        load.go_on(4)
        load.check()
        check_refusals(load)


def test_a_redis_that_hangs(redis_server):
    """It may do later what nobody waits for any more, and that counts once, too.

    More clients than the server has threads need not wait for each other.
    """
    with (
        serving(*OPTIONS, "--store", redis_server.url) as server,
        Load(server.port, threads=24, streams=1) as load,
    ):
        load.go_on(3)
        os.kill(redis_server.pid, signal.SIGSTOP)
        try:
            load.be_refused(24)
        finally:
            os.kill(redis_server.pid, signal.SIGCONT)
        load.go_on(3)
        load.check()
        check_refusals(load, within=4)


def test_a_server_that_is_told_to_end_answers_what_it_accepted(tmp_path):
    """Requests without an id: one that was counted and not answered would count twice."""
    with serving(*OPTIONS, "--store", tmp_path / "streams") as server:
        with Load(server.port, threads=6, ids=False) as load:
            for _ in range(4):
                load.go_on(3)
                begun = time.monotonic()
                assert server.stop() == -signal.SIGTERM
                assert time.monotonic() - begun < 10
                server.start()
            load.go_on(3)
            load.check()
            assert not load.refusals
        assert not [line for line in server.log() if line["level"] != "info"]


def test_a_second_server_on_a_folder_is_refused(tmp_path):
    """Also where a cleaner deleted the lock: the first one's answers stay right."""
    folder = tmp_path / "streams"
    with serving(*OPTIONS, "--store", folder) as server, Load(server.port) as load:
        load.go_on(2)
        (folder / ".lock").unlink()
        with pytest.raises(AssertionError, match="is locked by another process"):
            Server("--store", folder).start()
        load.go_on(2)
        load.check()


class Sluggish(Average):
    """One that takes its time."""

    def correct(self, features, probs):
        time.sleep(1)
        return super().correct(features, probs)


def n_inside(server):
    """How many requests the server has accepted and not answered."""
    with urlopen(f"{server.url}/metrics") as metrics:
        said = metrics.read().decode()
    return float(re.findall(r"^lametta_queue_requests (\S+)$", said, re.MULTILINE)[0])


def test_what_takes_its_time_is_answered_to_the_end(tmp_path):
    """Also what has to wait for one of two threads; nothing that comes later is counted."""
    slow = f"slow=python:{__name__}:{Sluggish.__name__}"
    options = ("--corrector", slow, "--store", tmp_path / "streams", "--threads", 2)
    features = probs = np.full((1, 2), 0.5)

    def ask(stream):
        client = Client(server.port)
        try:
            return client.infer(features, probs, stream, model="slow").status
        except (OSError, HTTPException):
            return None
        finally:
            client.close()

    with serving(*options) as server, ThreadPoolExecutor(5) as pool:
        statuses = [pool.submit(ask, f"stream {number}") for number in range(5)]
        while n_inside(server) < 3:
            assert not statuses[-1].done()
            time.sleep(0.01)
        server.stop()
        found = [status.result() for status in statuses]
    assert ask("another") is None
    assert found.count(200) >= 3
    assert len(list((tmp_path / "streams").glob("*.stream"))) == found.count(200)
    assert set(found) <= {200, None}
