"""What the server costs: JSON and binary, against an echo of the same framework in the same run.

    python benchmarks/serve.py [--seconds 12] [--connections 1 4] [--store memory|redis://...]
        [--durable always never]

One frame a request, 1000 classes and 1280 features, 100 cameras in turns, all on loopback. The echo
server is Starlette and uvicorn with the same options, and gives back as many bytes as the
corrector's answer has. A second kind of echo corrects the frame first: the extra time is the
corrector's own between requests, when other work has used the processor's caches. In a loop by
itself the corrector is faster, which is shown too. Rounds alternate between servers, so that a
noisy machine hits all alike. With --durable, more servers on folders of their own are measured
beside the first, which syncs every second: what it costs to sync before each answer, or never. At
the end, 10,000 streams are begun and left. ``--csv`` stores the table of docs/serving.md.
"""

import argparse
import http.client
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from threadpoolctl import threadpool_limits

import store
from lametta import Prudent
from lametta.serve.middleware import ServerLimits
from lametta.serve.protocol import encode
from lametta.serve.server import bounded_protocol

D, K, N_STREAMS, N_FRAMES = 1280, 1000, 100, 64
BINARY = "Inference-Header-Content-Length"
TITLES = "", "connections", "requests/s", "p50", "p99", "server's processor"
SHOWN = {
    "echo binary": "echo, binary",
    "echo, corrected": "echo that corrects, binary",
    "binary": "`prudent`, binary",
    "JSON": "`prudent`, JSON",
    "binary, never": "`prudent`, binary, `--durable never`",
    "binary, always": "`prudent`, binary, `--durable always`",
}  # of the page's table


def frames() -> tuple[np.ndarray, np.ndarray]:
    """A made-up camera: some classes, one after the other."""
    rng = np.random.default_rng(0)
    centers, labels = rng.normal(size=(K, D)), np.repeat(rng.integers(K, size=8), N_FRAMES // 8)
    features = centers[labels] + rng.normal(size=(N_FRAMES, D))
    logits = features @ centers.T / D * 8 + rng.normal(size=(N_FRAMES, K))
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return features.astype(np.float32), probs.astype(np.float32)


def request(
    features: np.ndarray, probs: np.ndarray, stream: int, binary: bool
) -> tuple[bytes, dict[str, str]]:
    inputs, tail = [], []
    for name, array in (("features", features), ("probs", probs)):
        entry: dict[str, Any] = {"name": name, "shape": list(array.shape), "datatype": "FP32"}
        if binary:
            tail.append(array.tobytes())
            entry["parameters"] = {"binary_data_size": len(tail[-1])}
        else:
            entry["data"] = array.ravel().tolist()
        inputs.append(entry)
    parameters = {"sequence_id": stream, "binary_data_output": binary}
    head = json.dumps({"inputs": inputs, "parameters": parameters}).encode()
    return head + b"".join(tail), {BINARY: str(len(head))} if binary else {}


@contextmanager
def process(*command: str) -> Iterator[tuple[int, int]]:
    """A server in a process of its own: its port and its id."""
    server = subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        port = None
        for line in server.stderr:
            if '"listening"' in line:
                port = json.loads(line)["port"]
                break
        assert port is not None, "the server did not start"
        threading.Thread(target=server.stderr.read, daemon=True).start()
        yield port, server.pid
    finally:
        server.terminate()
        server.wait()


def load(port: int, path: str, binary: bool, connections: int, seconds: float) -> list[float]:
    """The times of all requests that so many connections could send one after another."""
    features, probs = frames()
    times: list[float] = []
    ready = threading.Barrier(connections)

    def client(number: int) -> None:
        bodies = [
            request(features[i : i + 1], probs[i : i + 1], number * 1000 + stream + 1, binary)
            for i in range(0, N_FRAMES, 4)
            for stream in range(N_STREAMS // connections)
        ]
        connection = http.client.HTTPConnection("127.0.0.1", port)
        ready.wait()
        i, end = 0, time.perf_counter() + seconds
        while (begun := time.perf_counter()) < end:
            body, headers = bodies[i % len(bodies)]
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, answer.status
            times.append(time.perf_counter() - begun)
            i += 1
        connection.close()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times


def cpu_of(pid: int) -> float:
    """Processor seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_of(pid: int) -> float:
    """MiB that a process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def corrector_alone() -> float:
    """Milliseconds of a frame for the corrector alone."""
    features, probs = frames()
    cameras = [Prudent() for _ in range(N_STREAMS)]
    times = []
    for i in range(0, N_FRAMES, 4):
        for corrector in cameras:
            begun = time.perf_counter()
            corrector.correct(features[i : i + 1], probs[i : i + 1])
            times.append(time.perf_counter() - begun)
    return 1000 * statistics.median(times)


def echo() -> None:
    """Serve answers of the same size from the same framework; correct only if asked to."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    _, probs = frames()
    outputs = {"probs": probs[:1], "label": np.array([1]), "source_label": np.array([1])}
    replies = {
        binary: encode("echo", "1", "", outputs, None, binary, {})[0] for binary in (True, False)
    }

    cameras: defaultdict[int, Prudent] = defaultdict(Prudent)

    async def infer(request: Request) -> Response:
        body = await request.body()
        if request.path_params["model"] == "corrector":
            length = int(request.headers[BINARY])
            camera = orjson.loads(body[:length])["parameters"]["sequence_id"]
            values = np.frombuffer(body[length:], np.float32)
            cameras[camera].correct(values[None, :D], values[None, D:])
        return Response(replies[BINARY in request.headers])

    app = Starlette(routes=[Route("/v2/models/{model}/infer", infer, methods=["POST"])])
    http = bounded_protocol(ServerLimits())
    config = uvicorn.Config(app, port=0, http=http, log_config=None, access_log=False, ws="none")
    threadpool_limits(1, "blas")
    server = uvicorn.Server(config)
    original = server.startup

    async def startup(sockets: object = None) -> None:
        await original()
        port = server.servers[0].sockets[0].getsockname()[1]
        print(json.dumps({"message": "listening", "port": port}), file=sys.stderr, flush=True)

    server.startup = startup  # type: ignore[method-assign]
    server.run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=12.0, help="for each kind of request")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--store", default="folder")
    parser.add_argument("--durable", nargs="*", default=[], help="modes to compare interval with")
    parser.add_argument("--memory", type=int, default=256, help="MiB of states held ready")
    parser.add_argument("--idle-streams", type=int, default=10_000)
    parser.add_argument("--threads", help="as of `lametta serve`")
    store.add_option(parser)
    parser.add_argument("--echo", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.echo:
        echo()
        return
    path = path_of("prudent")
    with tempfile.TemporaryDirectory() as folder:
        states = folder if options.store == "folder" else options.store
        bound = ["--memory", f"{options.memory}M"]
        bound += ["--threads", options.threads] if options.threads else []
        serve = ("-m", "lametta", "serve", "--port", "0", "--store", states, *bound)
        with (
            process(*serve) as (port, pid),
            process(__file__, "--echo") as (echo_port, echo_pid),
            ExitStack() as servers,
        ):
            others = {}
            for mode in options.durable:
                own = servers.enter_context(tempfile.TemporaryDirectory())
                command = ("-m", "lametta", "serve", "--port", "0", "--store", own, *bound)
                others[mode] = servers.enter_context(process(*command, "--durable", mode))
            fresh = memory_of(pid)
            print(f"store {options.store}")
            rows = []
            for connections in options.connections:
                for one, _ in ((port, pid), *others.values()):
                    load(one, path, True, connections, 1.0)  # streams begin
                rows += measure(options, connections, (port, pid), (echo_port, echo_pid), others)
            store.write(options.csv, rows)
            before = memory_of(pid)
            begin_streams(port, path, options.idle_streams)
            print(
                f"memory of the server: {fresh:.0f} MiB when fresh, {before:.0f} with the cameras, "
                f"{memory_of(pid):.0f} after {options.idle_streams} more streams; "
                f"{options.memory} MiB are for their states"
            )


def measure(
    options: argparse.Namespace,
    connections: int,
    server: tuple[int, int],
    other: tuple[int, int],
    durable: dict[str, tuple[int, int]],
) -> list[dict[str, str]]:
    """Measure and print; the lines of the page's table."""
    kinds = {
        "echo binary": (other, "echo", True),
        "echo JSON": (other, "echo", False),
        "echo, corrected": (other, "corrector", True),
        "binary": (server, "prudent", True),
        "JSON": (server, "prudent", False),
    } | {f"binary, {mode}": (one, "prudent", True) for mode, one in durable.items()}
    times: dict[str, list[list[float]]] = {kind: [] for kind in kinds}
    used: dict[str, list[float]] = {kind: [] for kind in kinds}
    alone, seconds = [], options.seconds / options.rounds
    for _ in range(options.rounds):
        alone.append(corrector_alone())
        for kind, ((port, pid), model, binary) in kinds.items():
            before = cpu_of(pid)
            times[kind].append(load(port, path_of(model), binary, connections, seconds))
            used[kind].append(1000 * (cpu_of(pid) - before) / len(times[kind][-1]))
    print(
        f"{connections} connections       requests/s    p50 ms    p99 ms   server CPU ms a request"
    )
    rows = []
    for kind in kinds:
        p50, p99 = 1000 * np.percentile(np.concatenate(times[kind]), (50, 99))
        rate = statistics.median(map(len, times[kind])) / seconds
        cpu = statistics.median(used[kind])
        print(f"  {kind:15s} {rate:12.0f} {p50:9.2f} {p99:9.2f} {cpu:14.2f}")
        if kind in SHOWN:
            figures = f"{connections}", f"{rate:.0f}", f"{p50:.2f}", f"{p99:.2f}", f"{cpu:.2f}"
            rows.append(dict(zip(TITLES, (SHOWN[kind], *figures), strict=True)))
    # A round is compared with itself: the machine may be slower in the next one.
    p50s = {k: np.array([1000 * statistics.median(part) for part in times[k]]) for k in kinds}
    cpus = {k: np.array(used[k]) for k in kinds}
    between = [x["echo, corrected"] - x["echo binary"] for x in (p50s, cpus)]
    for where, own in (("between requests", between), ("in a loop", 2 * [np.array(alone)])):
        clock, cpu = (np.median(part) for part in own)
        print(f"  corrector's own time {where}: {clock:.2f} ms by p50, {cpu:.2f} by processor")
        for kind, echo in (("binary", "echo binary"), ("JSON", "echo JSON")):
            ratios = [(x[kind] - mine) / x[echo] for x, mine in zip((p50s, cpus), own, strict=True)]
            low, middle, high = np.percentile(ratios[0], (25, 50, 75))
            print(
                f"    {kind} less that, over the echo: {middle:.2f} by p50 (half of the rounds "
                f"{low:.2f} to {high:.2f}), {np.median(ratios[1]):.2f} by the server's processor"
            )
    for kind in ("binary", *(f"binary, {mode}" for mode in durable)):
        ratio = np.median(p50s[kind] / p50s["echo, corrected"])
        print(f"  {kind}: {ratio:.2f} times the echo that corrects, by p50")
    return rows


def path_of(model: str) -> str:
    return f"/v2/models/{model}/infer"


def begin_streams(port: int, path: str, count: int) -> None:
    features, probs = frames()
    connection = http.client.HTTPConnection("127.0.0.1", port)
    for i in range(count):
        body, headers = request(features[:1], probs[:1], 10**6 + i, True)
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, answer.status
    connection.close()


if __name__ == "__main__":
    main()
