"""Two replicas on a Ray cluster that share a Redis: all in one test, since Ray is slow to start."""

import asyncio
import json
import os
import secrets
import signal
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from urllib.request import urlopen

import httpx2
import numpy as np
import pytest
from typer.testing import CliRunner

from lametta import LAME, Prudent, Streams
from lametta.cli import app
from lametta.serve.config import CorrectorSpec, ServerConfig
from lametta.serve.middleware import ServerLimits
from tests.conftest import make_batch
from tests.processes import Program
from tests.serve.load import MODELS, Load
from tests.serve.redis_server import RedisServer, free_port
from tests.serve.server import Server

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not here")
D, K = 8, 5
OPTIONS = [word for model in MODELS for word in ("--corrector", model)]
OPTIONS += ["--deadline", 30, "--patience", 5]
LOST = (408, 500)  # what Ray says of a request whose replica died
PATIENCE = 300  # seconds for whatever has to come, on a machine that does much else


def _wait(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.2)


def _replicas(cluster):
    """The processes of replicas that descend from the cluster's."""
    parents, found = {}, []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            _, _, fields = (process / "stat").read_text().rpartition(")")
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended
        parents[int(process.name)] = int(fields.split()[1])
        if command.startswith(b"ray::ServeReplica:lametta"):
            found.append(int(process.name))
    return {pid for pid in found if cluster in _ancestors(pid, parents)}


def _ancestors(pid, parents):
    while pid in parents:
        pid = parents[pid]
        yield pid


def _check_dataset(folder):
    """What the cluster made of a dataset is what `Streams` makes of it here."""
    errors = json.loads((folder / "errors.json").read_text())
    assert errors["lazy"] == "False"  # nothing was read before the result was asked for
    assert errors["schema"].startswith("True features must be a column of the dataset, ")
    assert errors["task"].startswith("True ")
    assert "label must be another in every row" in errors["task"]
    rows, corrected = np.load(folder / "rows.npz"), np.load(folder / "corrected.npz")
    for name, corrector, size in ("prudent", Prudent(), 1), ("lame", LAME(), 16):
        got = {key.partition("/")[2]: corrected[key] for key in corrected if key.startswith(name)}
        assert len(got["probs"]) == len(rows["time"])
        streams = Streams(corrector)
        for camera in np.unique(rows["camera"]):
            mine = np.flatnonzero(rows["camera"] == camera)
            mine = mine[np.argsort(rows["time"][mine])]
            there = got["camera"] == camera
            np.testing.assert_array_equal(got["time"][there], rows["time"][mine])
            for start in range(0, len(mine), size):
                part = mine[start : start + size]
                source = rows["probs"][part]
                probs = streams.correct(rows["features"][part], source, str(camera)).probs
                cut = slice(start, start + size)
                if name == "prudent":  # the other's softmax of logits is another computation
                    np.testing.assert_array_equal(got["probs"][there][cut], probs)
                np.testing.assert_allclose(got["probs"][there][cut], probs, rtol=1e-4)
                np.testing.assert_array_equal(got["label"][there][cut], probs.argmax(1))
                np.testing.assert_array_equal(got["source_label"][there][cut], source.argmax(1))


def _make_rows(folder, n=200):
    features, probs = (x.astype("float32") for x in make_batch(n, K, D))
    rng = np.random.default_rng(0)
    camera, time, label = rng.integers(4, size=n).astype(str), rng.permutation(n), np.zeros(n, int)
    rows = {"camera": camera, "time": time, "label": label}
    np.savez(folder / "rows.npz", features=features, probs=probs, logits=np.log(probs), **rows)


@pytest.mark.slow(90)  # before all others, since it waits most
def test_two_replicas(tmp_path, subtests, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "token")  # or Ray keeps one in the home folder
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    for check in "READY", "HEALTH":  # a proxy may take long on a machine that does much else
        monkeypatch.setenv(f"RAY_SERVE_PROXY_{check}_CHECK_TIMEOUT_S", "60")
    _make_rows(tmp_path)
    script = Path(__file__).with_name("ray_cluster.py")
    with RedisServer(tmp_path) as redis, Program(script, tmp_path) as cluster:
        try:
            _wait(lambda: (tmp_path / "address").exists() or not cluster.is_alive())
            assert cluster.is_alive(), cluster.wait().stderr
            address = (tmp_path / "address").read_text()
            options = ("--ray", address, "--replicas", 2, "--store", redis.url)
            server = Server(*options, *OPTIONS, "--port", free_port())
            server.start()
            try:
                with subtests.test("a thousand streams are as alone"):
                    with Load(server.port, threads=5, streams=200, broken=LOST) as load:
                        for _ in range(2):
                            load.go_on(1)
                        load.check()
                    assert (load.n_broken, load.refusals) == (0, [])
                    seen = {_served(server.url) for _ in range(40)}
                    assert min(seen) > 200  # both took part
                    assert max(seen) < sum(load.counts()[::2]) - 200
                with subtests.test("what cannot be served is said"):
                    wrong = (
                        Server(*options, "--port", free_port()),
                        "--ray must be .*Ray Serve does not run yet",
                    )
                    dead = Server("--ray", f"127.0.0.1:{free_port()}", *options[2:], "--port", 1)
                    for other, reason in wrong, (dead, "no Ray cluster at .*refused"):
                        with pytest.raises(AssertionError, match=reason):
                            other.start()
                with subtests.test("kills under load lose and mix nothing"):
                    _kill_under_load(server, redis, cluster.pid)
            finally:
                assert server.stop() == 0
            with subtests.test("nothing is left on the cluster"):
                _wait(lambda: not _replicas(cluster.pid))
            with subtests.test("a dataset"):
                if not (find_spec("pandas") and find_spec("pyarrow")):
                    pytest.skip("Ray Data needs pandas and pyarrow")
                _wait(lambda: (tmp_path / "errors.json").exists() or not cluster.is_alive())
                _check_dataset(tmp_path)
        finally:
            cluster.terminate()
            cluster.wait()


def _served(url):
    """How many requests to a model the replica that answers has had."""
    with urlopen(f"{url}/metrics") as reply:
        lines = reply.read().decode().splitlines()
    counts = [line for line in lines if line.startswith("lametta_requests_total{")]
    return sum(float(line.split()[-1]) for line in counts if 'model="prudent"' in line)


def _kill_under_load(server, redis, cluster):
    first, second = sorted(_replicas(cluster))
    with Load(server.port, broken=LOST, name="kills") as load:
        load.go_on()
        os.kill(first, signal.SIGKILL)
        load.go_on()
        assert not load.refusals
        redis.kill()
        load.be_refused()
        redis.start()
        load.go_on()
        load.pause = 0.2  # to leave the processor to Ray, which takes seconds
        _wait(lambda: len(_replicas(cluster)) == 2)
        load.pause = 0.0
        load.go_on()
        os.kill(second, signal.SIGKILL)
        load.go_on()
        load.check()
    for reply, _ in load.refusals:
        assert (reply.status, reply.retry_after) == (503, "1")
    assert not _replicas(cluster) & {first, second}


def test_a_request_that_ray_cancels_keeps_its_place_until_it_is_done(monkeypatch):
    """Its client went away; what is computed for nobody still takes a thread and memory."""
    begun, go_on = threading.Event(), threading.Event()

    def answer(*_):
        begun.set()
        go_on.wait(10)
        return b"{}", None

    monkeypatch.setattr("lametta.serve.protocol.Codec.respond", answer)
    config = ServerConfig(
        {"average": CorrectorSpec("average", {})}, "memory", threads=1, limits=ServerLimits(queue=1)
    )
    transport = httpx2.ASGITransport(config.app())

    async def ask():
        async with httpx2.AsyncClient(transport=transport, base_url="http://server") as client:
            return (await client.post("/v2/models/average/infer", content=b"{}")).status_code

    async def three():
        first = asyncio.create_task(ask())
        await asyncio.to_thread(begun.wait, 60)
        first.cancel()
        await asyncio.sleep(0)
        second = await ask()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await first
        return second, await ask()

    assert asyncio.run(three()) == (429, 200)


@pytest.mark.parametrize("store", ["memory", "folder", "unix://socket"])
def test_replicas_need_a_store_that_all_of_them_share(store):
    assert (
        f"--store must be one that all replicas share, redis://HOST:PORT/DB, got '{store}'"
    ) in _fails("--ray", "auto", "--store", store)


def test_a_cluster_has_no_free_port():
    options = ("--ray", "auto", "--store", "redis://127.0.0.1:1")
    assert "--port must be an integer >= 1, got 0" in _fails(*options, "--port", "0")


def _fails(*options):
    done = CliRunner().invoke(app, ["serve", *options])
    assert done.exit_code == 2
    return done.stderr
