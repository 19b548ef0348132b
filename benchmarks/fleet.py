"""What one replica carries, and what it costs that replicas come and go: for docs/cluster.md.

    python benchmarks/fleet.py [--streams 2000] [--seconds 6] [--csv docs/tables/fleet.csv]

One frame has 1000 classes and 1280 features, in float32; the corrector is `prudent`. Client,
servers and Redis share the machine, so that requests a second are a lower bound: the processor's
time of the server says what a core of its own carries. Redis writes each commit to the disk before
it answers (``appendfsync always``), the folder is synced every second.
"""

import argparse
import http.client
import json
import os
import socket
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import which

import numpy as np
import redis

import store
from serve import BINARY, cpu_of, frames, memory_of, path_of, process

BATCH = 64  # cameras in one request
TITLES = "", "figure", "unit"
_LEAST = 20 * BATCH  # streams, so that enough of them move
URL = path_of("prudent")


def body_of(first: int, count: int, t: int) -> tuple[bytes, dict[str, str]]:
    """A request with the next frame of so many cameras."""
    features, probs = frames_once()
    rows = (np.arange(count) * 4 + t) % len(features)
    ids = np.arange(first + 1, first + count + 1, dtype=np.int64)
    inputs, tail = [], []
    for name, array in (("features", features[rows]), ("probs", probs[rows]), ("sequence_id", ids)):
        tail.append(array.tobytes())
        kind = "INT64" if array.dtype == np.int64 else "FP32"
        size = {"binary_data_size": len(tail[-1])}
        shape = list(array.shape)
        inputs.append({"name": name, "shape": shape, "datatype": kind, "parameters": size})
    outputs = [{"name": name} for name in ("label", "status")]
    head = json.dumps({"inputs": inputs, "outputs": outputs}).encode()
    return head + b"".join(tail), {BINARY: str(len(head))}


_FRAMES: list[tuple[np.ndarray, np.ndarray]] = []


def frames_once() -> tuple[np.ndarray, np.ndarray]:
    if not _FRAMES:
        _FRAMES.append(frames())
    return _FRAMES[0]


class Client:
    """A connection that asks, and checks each answer."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(self, first: int, count: int, t: int) -> float:
        """Seconds that a request of so many cameras took."""
        body, headers = body_of(first, count, t)
        begun = time.perf_counter()
        self.connection.request("POST", URL, body, headers)
        answer = self.connection.getresponse()
        said = answer.read()
        seconds = time.perf_counter() - begun
        assert answer.status == 200, said
        outputs = {one["name"]: one["data"] for one in json.loads(said)["outputs"]}
        assert outputs["status"] == count * [200], outputs["status"]
        return seconds


def carry(
    ports: Sequence[int], pids: Sequence[int], count: int, cameras: int, seconds: float
) -> tuple[float, float, float]:
    """Frames a second, milliseconds of the servers' processors a frame, and the p50 of a request.

    Each replica has a client of its own, which asks for ``count`` of its cameras at a time.
    """
    times: list[float] = []
    before = sum(map(cpu_of, pids))
    share = cameras // len(ports)

    def drive(number: int) -> None:
        client, t, end = Client(ports[number]), 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            first = number * share + t * count % (share - share % count)
            times.append(client.ask(first, count, t))
            t += 1

    threads = [threading.Thread(target=drive, args=(i,)) for i in range(len(ports))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    n = count * len(times)
    used = 1000 * (sum(map(cpu_of, pids)) - before) / n
    return n / seconds, used, 1000 * statistics.median(times)


def begin(port: int, count: int, start: int = 0) -> list[float]:
    """Send a frame to each of some streams, one stream a request; their seconds."""
    client = Client(port)
    return [client.ask(i, 1, 0) for i in range(start, start + count)]


def sizes_in(folder: str) -> list[int]:
    files = [file for file in Path(folder).iterdir() if file.suffix == ".stream"]
    return sorted((file.stat().st_size for file in files), reverse=True)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def redis_server() -> Iterator[tuple[str, redis.Redis]]:
    program = which("redis-server")
    assert program, "apt-get install redis-server"
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        options = f"--port {port} --bind 127.0.0.1 --save --appendonly yes --appendfsync always"
        command = [program, *options.replace("--save", "--save ''").split(), "--dir", folder]
        command = [word.replace("''", "") for word in command]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            client = redis.Redis(port=port)
            for _ in range(200):
                with suppress(redis.ConnectionError):
                    client.ping()
                    break
                time.sleep(0.05)
            yield f"redis://127.0.0.1:{port}/0", client
        finally:
            server.terminate()
            server.wait()


def serve(store_url: str, port: int = 0, memory: str = "8G") -> tuple[str, ...]:
    place = ("--port", str(port), "--store", store_url)
    return ("-m", "lametta", "serve", *place, "--memory", memory, "--log-level", "info")


def one_replica(options: argparse.Namespace) -> Iterator[tuple[str, float, str]]:
    """Memory, disk and speed with a folder; recovery after kill -9."""
    n = options.streams
    with tempfile.TemporaryDirectory() as folder:
        with process(*serve(folder)) as (port, pid):
            fresh = memory_of(pid)
            begin(port, n)
            yield "memory of a stream that is held ready", 1024 * (memory_of(pid) - fresh) / n, "kB"
            yield "disk of a stream after its first frame", sum(sizes_in(folder)) / n / 1e3, "kB"
            for count, name in ((1, "1 camera"), (BATCH, f"{BATCH} cameras")):
                rate, used, p50 = carry([port], [pid], count, BATCH, options.seconds)
                yield f"frames/s, requests of {name}", rate, "1/s"
                yield f"server's processor a frame, requests of {name}", used, "ms"
                yield f"p50 of a request of {name}", p50, "ms"
            yield (
                "disk of a stream in the long run",
                sum(sizes_in(folder)[:BATCH]) / BATCH / 1e3,
                "kB",
            )
            warm = statistics.median(begin(port, BATCH))
            os.kill(pid, 9)
        begun = time.perf_counter()
        with process(*serve(folder)) as (port, _):
            started = time.perf_counter() - begun
            client = Client(port)
            client.ask(n - 1, 1, 0)
            yield (
                f"kill -9 to the first answer, {n} streams in the folder",
                (time.perf_counter() - begun),
                "s",
            )
            cold = [client.ask(i, 1, 1) for i in range(BATCH)]  # which have run for long
        yield "of which the start of the process", started, "s"
        yield "p50 of a frame, stream held ready", 1000 * warm, "ms"
        yield "p50 of a stream's first frame after the kill", 1000 * statistics.median(cold), "ms"


def two_replicas(options: argparse.Namespace) -> Iterator[tuple[str, float, str]]:
    """Redis between them: bytes a frame, and what it costs that streams move."""
    n = options.streams // 4
    with redis_server() as (url, client), process(*serve(url)) as (a, a_pid):
        begin(a, n)
        sent = _received(client)
        rate, used, _ = carry([a], [a_pid], BATCH, BATCH, options.seconds)
        frames_sent = rate * options.seconds
        yield "frames/s, one replica, Redis, requests of 64 cameras", rate, "1/s"
        yield "server's processor a frame, Redis", used, "ms"
        yield "bytes a frame to Redis", (_received(client) - sent) / frames_sent / 1e3, "kB"
        kept = [client.memory_usage(key) or 0 for key in client.scan_iter("*:stream:*")]
        kept = sorted(kept, reverse=True)[:BATCH]
        yield "memory of Redis for a stream in the long run", sum(kept) / BATCH / 1e3, "kB"
        at_home = begin(a, BATCH)  # which have run for long
        with process(*serve(url)) as (b, b_pid):
            moved = begin(b, BATCH)  # they come to the new replica
            settled = begin(b, BATCH)
            before = _processor(client)
            both, used, _ = carry([a, b], [a_pid, b_pid], BATCH, 2 * BATCH, options.seconds)
            in_redis = 1000 * (_processor(client) - before) / (both * options.seconds)
            os.kill(b_pid, 9)
        back = begin(a, BATCH, BATCH)  # its streams return, to a replica with old copies
        yield "p50 of a frame where the stream was, Redis", 1000 * statistics.median(at_home), "ms"
        yield (
            "p50 of a stream's first frame at a new replica",
            1000 * statistics.median(moved),
            "ms",
        )
        yield (
            f"slowest of {BATCH} such frames",
            1000 * max(moved),
            "ms",
        )
        yield "p50 of its next frame there", 1000 * statistics.median(settled), "ms"
        yield (
            "p50 of its first frame after that replica was killed",
            1000 * statistics.median(back),
            "ms",
        )
        yield "frames/s, two replicas, Redis, requests of 64 cameras", both, "1/s"
        yield "servers' processors a frame, two replicas, Redis", used, "ms"
        yield "processor of Redis a frame", in_redis, "ms"


def _received(client: redis.Redis) -> int:
    return int(client.info("stats")["total_net_input_bytes"])


def _processor(client: redis.Redis) -> float:
    found = client.info("cpu")
    return float(found["used_cpu_sys"]) + float(found["used_cpu_user"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=6.0, help="for each rate")
    store.add_option(parser)
    parser.add_argument("--quick", action="store_true", help="to see that it runs")
    options = parser.parse_args()
    if options.quick:
        options.streams, options.seconds = _LEAST, 0.5
    if options.streams < _LEAST:
        parser.error(f"--streams must be at least {_LEAST}, got {options.streams}")
    rows = []
    for part in (one_replica, two_replicas):
        for name, figure, unit in part(options):
            print(f"{name:62s} {figure:10.3g} {unit}", flush=True)
            rows.append(dict(zip(TITLES, (name, f"{float(f'{figure:.3g}'):g}", unit), strict=True)))
    store.write(options.csv, rows)


if __name__ == "__main__":
    main()
