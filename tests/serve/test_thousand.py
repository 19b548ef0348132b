"""A thousand streams through one server, each as it is alone."""

import re
from concurrent.futures import ThreadPoolExecutor
from threading import local
from urllib.request import urlopen

import numpy as np
import pytest

from lametta import Prudent
from tests.conftest import make_batch
from tests.serve.client import Client
from tests.serve.server import serving

N_STREAMS, N_REQUESTS, N_CONNECTIONS = 1000, 2, 6
D, K = 24, 5


def requests_of(stream):
    """One sample and then a batch: features and probabilities, of a dtype for each stream."""
    dtype = ("float16", "float32", "float64")[stream % 3]
    parts = (np.split(array.astype(dtype), [1]) for array in make_batch(4, K, D, seed=stream))
    return list(zip(*parts, strict=True))


@pytest.fixture(scope="module")
def streams():
    """Requests and the answers that each stream gives alone."""
    made = {}
    for number in range(N_STREAMS):
        own, requests = Prudent(), requests_of(number)
        name = number + 1 if number % 2 else f"stream {number}"
        made[name] = requests, [own.correct(*request).probs for request in requests]
    return made


@pytest.fixture
def store(request, tmp_path):
    if request.param == "redis":
        return request.getfixturevalue("redis_server").url
    return tmp_path / "streams"


@pytest.mark.slow(10)
@pytest.mark.parametrize(
    ("store", "threads"), [("folder", 1), ("folder", 8), ("redis", 8)], indirect=["store"]
)
def test_a_thousand_streams_are_as_alone(streams, store, threads):
    """In rounds of one request a stream, in any order, over any of the connections.

    There is room for a few hundred of them in memory.
    """
    rng, names, mine, opened = np.random.default_rng(threads), list(streams), local(), []

    def ask(job):
        name, turn = job
        if not hasattr(mine, "client"):
            mine.client = Client(server.port)
            opened.append(mine.client)
        reply = mine.client.infer(*streams[name][0][turn], name)
        assert reply.status == 200, reply
        return reply.probs

    options = ("--store", store, "--threads", threads, "--memory", "10M")
    with serving(*options) as server, ThreadPoolExecutor(N_CONNECTIONS) as pool:
        for turn in range(N_REQUESTS):
            order = rng.permutation(N_STREAMS)
            jobs = [(names[i], turn) for i in order]
            for (name, _), probs in zip(jobs, pool.map(ask, jobs), strict=True):
                expected = streams[name][1][turn]
                np.testing.assert_array_equal(probs, expected, strict=True, err_msg=str(name))
        for client in opened:
            client.close()
        with urlopen(f"{server.url}/metrics") as metrics:
            said = metrics.read().decode()
    (evictions,) = re.findall(r"^lametta_stream_evictions_total (\S+)$", said, re.MULTILINE)
    assert float(evictions) > N_STREAMS
