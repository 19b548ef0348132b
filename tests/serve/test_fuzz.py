"""What strangers send: never a 500, never a hang, never more memory than the limit."""

import json
import random
import socket
import struct
import threading
import time
from pathlib import Path

import httpx2
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from starlette.testclient import TestClient

from lametta.serve.config import CorrectorSpec, ServerConfig
from lametta.serve.middleware import ServerLimits
from lametta.serve.protocol import RequestLimits
from tests.serve.server import serving

PATH = "/v2/models/prudent/infer"
HEAD = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\n".encode()
BINARY = "Inference-Header-Content-Length"


@pytest.fixture
def api(request):
    import schemathesis  # here, since each process that collects tests would take seconds for it

    request.node._nodeid = request.node.nodeid  # schemathesis asks for what pytest 9.2 has no more
    served = {"prudent": CorrectorSpec("prudent", {}), "lame": CorrectorSpec("lame", {})}
    app = ServerConfig(served, limits=ServerLimits(request=RequestLimits(2**16, 64, 256))).app()
    # Not `from_asgi`, which leaves a thread behind that waits for the application.
    schema = schemathesis.openapi.from_dict(TestClient(app).get("/openapi.json").json())
    schema.app = app
    return schema


@pytest.mark.slow(5)
def test_the_schema(request):
    import schemathesis

    @schemathesis.pytest.from_fixture("api").parametrize()
    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    def ask(case):
        case.path_parameters = {
            name: {"model": "prudent", "version": "1"}.get(name, value)
            if random.random() < 0.8
            else value
            for name, value in (case.path_parameters or {}).items()
        }
        answer = case.call_and_validate(
            excluded_checks=[
                schemathesis.checks.CHECKS.get_one("positive_data_acceptance"),
            ]
        )
        assert answer.status_code < 500

    ask(request=request)


def _good(stream=1, n=2, d=4, k=3, dtype="<f4"):
    rng = np.random.default_rng(0)
    probs = rng.random((n, k))
    arrays = {"features": rng.normal(size=(n, d)), "probs": probs / probs.sum(1, keepdims=True)}
    inputs, tail = [], b""
    for name, array in arrays.items():
        raw = array.astype(dtype).tobytes()
        about = {"shape": list(array.shape), "datatype": f"FP{8 * np.dtype(dtype).itemsize}"}
        inputs.append({"name": name, **about, "parameters": {"binary_data_size": len(raw)}})
        tail += raw
    return {"inputs": inputs, "parameters": {"sequence_id": stream}}, tail


def _send(client, header, tail, length=None):
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    headers = {BINARY: str(len(head) if length is None else length)}
    return client.post(PATH, content=head + tail, headers=headers)


@pytest.fixture(scope="module")
def server():
    with serving("--max-body", "1M", "--patience", "1", "--queue", "8", "--threads", "2") as server:
        yield server


def _client(server):
    """A client that loads no certificates, which would take it longer than its requests."""
    return httpx2.Client(base_url=server.url, timeout=60, verify=False)


@pytest.fixture
def client(server):
    with _client(server) as client:
        yield client


def _lies(rng):
    """Bodies that are wrong in one way or several."""
    header, tail = _good()
    tensors = header["inputs"]
    values = (0, -1, 1, 2**31, 2**63, 2**64, 10**30, 1.5, True, None, "2", [], {}, [[2]])
    for _ in range(rng.randint(1, 2)):
        tensor = rng.choice(tensors)
        match rng.randrange(8):
            case 0:
                tensor["shape"] = rng.choice([[2**40, 2**40], [2], [], [0, 4], [2, 4, 1], values])
            case 1:
                tensor["shape"][rng.randrange(len(tensor["shape"]) or 1) :] = [rng.choice(values)]
            case 2:
                tensor["parameters"]["binary_data_size"] = rng.choice(values)
            case 3:
                tensor["datatype"] = rng.choice(["FP16", "FP64", "INT8", "BYTES", "BF16", 3, None])
            case 4:
                tail = tail[: rng.randrange(len(tail) + 1)]
            case 5:
                tail += bytes(rng.randrange(1, 100))
            case 6:
                at = 4 * rng.randrange(max(len(tail) // 4, 1))
                odd = rng.choice([float("nan"), float("inf"), -1.0, 1e38])
                tail = tail[:at] + struct.pack("<f", odd) + tail[at + 4 :]
            case 7:
                header[rng.choice(["id", "outputs", "parameters", "inputs"])] = rng.choice(values)
                tensors = [{"shape": [1], "parameters": {}}]
    return header, tail


@pytest.mark.slow
def test_bodies_that_lie(client, server):
    rng = random.Random(0)
    before = _memory(server.pid)
    for _ in range(600):
        answer = _send(client, *_lies(rng))
        assert answer.status_code in (200, 400), answer.text
        if answer.status_code == 400:
            assert list(answer.json()) == ["error"]
            assert len(answer.content) < 1000
    assert _memory(server.pid) - before < 2**26
    assert _send(client, *_good(stream=2)).status_code == 200


def test_lengths_that_lie(client):
    header, tail = _good()
    head = json.dumps(header).encode()
    for length in (0, 1, len(head) - 1, len(head) + 1, 10**9, "x", "-1", "9" * 30, "1.5"):
        answer = _send(client, head, tail, length)
        assert answer.status_code == 400, answer.text


@pytest.mark.slow
def test_every_cut_of_a_body(client):
    header, tail = _good(n=1, d=2, k=2)
    whole = json.dumps(header).encode() + tail
    n = len(whole) - len(tail)
    for end in range(0, len(whole), 3):
        answer = client.post(PATH, content=whole[:end], headers={BINARY: str(min(n, end))})
        assert answer.status_code == 400
    noise = random.Random(1)
    for _ in range(100):
        answer = client.post(PATH, content=noise.randbytes(noise.randrange(300)))
        assert answer.status_code == 400


@pytest.mark.slow
def test_memory_stays_within_the_limit(server):
    """Many of the largest bodies at once, of JSON that becomes much larger as Python's objects."""
    before, peak, end = _memory(server.pid), [0], threading.Event()

    def watch():
        while not end.wait(0.005):
            peak[0] = max(peak[0], _memory(server.pid))

    numbers = ",".join(["1.5"] * 240_000)
    shape = {"name": "features", "shape": [60, 4000], "datatype": "FP64"}
    body = json.dumps({"inputs": [shape | {"data": [0]}]}).replace("[0]", f"[{numbers}]").encode()
    assert len(body) < 2**20
    statuses = []

    def ask():
        with _client(server) as client:
            for _ in range(3):
                statuses.append(client.post(PATH, content=body).status_code)

    watcher = threading.Thread(target=watch)
    watcher.start()
    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    end.set()
    watcher.join()
    assert set(statuses) <= {400, 408, 429}
    assert 400 in statuses
    # 8 requests of 1 MiB at a time, one of them being read: 45 times its length at most
    assert peak[0] - before < (8 + 45 + 10) * 2**20


def _connect(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


def _is_closed_within(connection, seconds):
    connection.settimeout(seconds)
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"POST /v2",
        HEAD,
        HEAD + b"Content-Length: 9\r\n\r\n{",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n",
        b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\nGET /v2",
    ],
    ids=["nothing", "method", "head", "body", "chunk", "second"],
)
def test_clients_that_stop_are_hung_up_on(server, client, start):
    """While they wait, others are answered."""
    with _connect(server) as connection:
        connection.sendall(start)
        assert client.get("/v2").status_code == 200
        assert _is_closed_within(connection, 15)


@pytest.mark.slow
def test_many_slow_clients_do_not_keep_others_out(server, client):
    head = HEAD + b"Content-Length: 9\r\n\r\n{"
    slow = [_connect(server) for _ in range(8)]  # the whole queue
    try:
        for connection in slow:
            connection.sendall(head)
        time.sleep(0.2)
        busy = _send(client, *_good(stream=3))
        assert busy.status_code == 429
        assert client.get("/v2/health/live").status_code == 200
        time.sleep(1.5)
        assert _send(client, *_good(stream=3)).status_code == 200
    finally:
        for connection in slow:
            connection.close()


def test_clients_that_go_away(server, client):
    header, tail = _good(stream=4)
    head = json.dumps(header).encode()
    for _ in range(50):
        with _connect(server) as connection:
            lines = f"{BINARY}: {len(head)}\r\nContent-Length: {len(head + tail)}\r\n"
            start = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode()
            connection.sendall(start + head + tail)
    end = time.monotonic() + 20
    while client.get("/status.json").json()["gauges"]["queue"]:  # theirs are done, for nobody
        assert time.monotonic() < end
        time.sleep(0.01)
    assert _send(client, *_good(stream=5)).status_code == 200


def _memory(pid):
    """Bytes that a process holds."""
    return 4096 * int(Path(f"/proc/{pid}/statm").read_text().split()[1])
