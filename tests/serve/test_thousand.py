"""A thousand streams through one server, and a hundred in other ways, each as it is alone."""

import re
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import local
from urllib.request import urlopen

import numpy as np
import pytest

from lametta import Prudent
from tests.conftest import make_batch
from tests.serve.client import Client
from tests.serve.redis_server import RedisServer
from tests.serve.server import serving

N_REQUESTS, N_CONNECTIONS = 2, 6
D, K = 24, 5


def requests_of(stream):
    """One sample and then a batch: features and probabilities, of a dtype for each stream."""
    dtype = ("float16", "float32", "float64")[stream % 3]
    parts = (np.split(array.astype(dtype), [1]) for array in make_batch(4, K, D, seed=stream))
    return list(zip(*parts, strict=True))


@pytest.fixture(scope="module")
def stream():
    """Of a number: name, requests, and the answers that the stream gives alone."""

    @cache
    def get(number):
        own, requests = Prudent(), requests_of(number)
        name = number + 1 if number % 2 else f"stream {number}"
        return name, requests, [own.correct(*request).probs for request in requests]

    return get


@pytest.fixture
def store(request, tmp_path):
    if request.param == "folder":
        yield tmp_path / "streams"
    else:
        with RedisServer(tmp_path) as server:
            yield server.url


@pytest.mark.slow(8)
@pytest.mark.parametrize(
    ("store", "threads", "n_streams"),
    [("folder", 1, 100), ("folder", 8, 1000), ("redis", 8, 100)],
    indirect=["store"],
)
def test_a_thousand_streams_are_as_alone(stream, store, threads, n_streams):
    """In rounds of one request a stream, in any order, over any of the connections.

    There is not room for all of them in memory.
    """
    rng, mine, opened = np.random.default_rng(threads), local(), []

    def ask(job):
        number, turn = job
        name, requests, _ = stream(number)
        if not hasattr(mine, "client"):
            mine.client = Client(server.port)
            opened.append(mine.client)
        reply = mine.client.infer(*requests[turn], name)
        assert reply.status == 200, reply
        return reply.probs

    options = ("--store", store, "--threads", threads, "--memory", f"{n_streams // 100}M")
    with serving(*options) as server, ThreadPoolExecutor(N_CONNECTIONS) as pool:
        for turn in range(N_REQUESTS):
            jobs = [(number, turn) for number in rng.permutation(n_streams).tolist()]
            for (number, _), probs in zip(jobs, pool.map(ask, jobs), strict=True):
                name, _, answers = stream(number)
                np.testing.assert_array_equal(probs, answers[turn], strict=True, err_msg=str(name))
        for client in opened:
            client.close()
        with urlopen(f"{server.url}/metrics") as metrics:
            said = metrics.read().decode()
    (evictions,) = re.findall(r"^lametta_stream_evictions_total (\S+)$", said, re.MULTILINE)
    assert float(evictions) > n_streams
