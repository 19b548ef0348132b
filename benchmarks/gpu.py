"""LAME on a GPU, against a literal version of the released computation on the same GPU.

Times are medians by CUDA events. Ours are replayed from a CUDA graph, as in a server: a call from
Python takes longer on the host (``host`` below) than on the device, which hides behind a network.
``python benchmarks/lame.py --device cuda`` runs this.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

import lametta
from literal import literal_torch


def batch(*shape: int, d: int = 2048, n_classes: int = 1000) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    features = torch.randn(*shape, d, device="cuda")
    return features, torch.softmax(2 * torch.randn(*shape, n_classes, device="cuda"), dim=-1)


def by_events(call: Callable[[], Any], calls: int = 50) -> float:
    """Median milliseconds on the device."""
    times = []
    for _ in range(calls + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return float(statistics.median(times[3:]))


def graphed(call: Callable[[], Any]) -> Callable[[], Any]:
    """The call as a CUDA graph."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def on_host(call: Callable[[], Any], calls: int = 50) -> float:
    """Milliseconds that the host is busy with a call, the device left to itself."""
    call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    seconds = time.perf_counter() - start
    torch.cuda.synchronize()
    return 1e3 * seconds / calls


def peak(call: Callable[[], Any]) -> float:
    """MiB that a call needs beside its input."""
    call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def compare(cases: dict[str, tuple[Any, Any]]) -> list[dict[str, Any]]:
    titles = ("literal", "lametta", "times", "host", "literal", "lametta", "less")
    print(f"{'':<17}" + "".join(f"{title:>12}" for title in titles) + "   updates, off float64")
    rows = []
    for name, (x, q) in cases.items():
        slow, fast = partial(literal_torch, x, q), partial(lametta.lame, x, q)
        result, core = fast(), lametta.lame(x.cpu().double(), q.cpu().double())
        row: dict[str, Any] = {
            "case": name,
            "literal_ms": by_events(slow, 10),
            "lametta_ms": by_events(graphed(fast)),
            "host_ms": on_host(fast),
            "literal_mib": peak(slow),
            "lametta_mib": peak(fast),
            "updates": int(result.n_iter),
            "difference": float((result.probs.cpu() - core.probs).abs().max()),
            "same": bool((result.probs.cpu().argmax(1) == core.probs.argmax(1)).all()),
        }
        rows.append(row)
        times, less = (row[f"literal_{unit}"] / row[f"lametta_{unit}"] for unit in ("ms", "mib"))
        print(
            f"{name:<17}{row['literal_ms']:>9.2f} ms{row['lametta_ms']:>9.3f} ms{times:>12.0f}"
            f"{row['host_ms']:>9.2f} ms{row['literal_mib']:>8.0f} MiB{row['lametta_mib']:>8.1f} MiB"
            f"{less:>12.0f}   {row['updates']}, {row['difference']:.0e}"
            f"{'' if row['same'] else '  PREDICTIONS DIFFER'}",
            flush=True,
        )
    return rows


def many_streams(streams: int = 256, n: int = 64) -> dict[str, Any]:
    x, q = batch(streams, n)
    ms = by_events(graphed(partial(lametta.lame, x, q)), 20)
    print(f"{streams} streams of {n}, K = 1000: {ms:.2f} ms, "
          f"{streams * n / ms / 1e3:.1f} million samples a second", flush=True)  # fmt: skip
    return {"case": f"{streams} streams of {n}", "lametta_ms": ms}


def whole_set(n: int = 50_000) -> dict[str, Any]:
    x, q = batch(n)
    lametta.lame(x[:5000], q[:5000])
    torch.cuda.synchronize()
    start = time.perf_counter()
    result = lametta.lame(x, q)
    updates = int(result.n_iter)
    seconds = time.perf_counter() - start
    print(
        f"one graph of {n} samples, K = 1000, d = 2048: {seconds:.2f} s, {updates} updates",
        flush=True,
    )
    return {"case": f"{n} samples", "lametta_ms": 1e3 * seconds}


def share_of_a_step() -> dict[str, Any]:
    """LAME beside the forward pass of ResNet-50 in bfloat16, both on the device's clock."""
    from lametta.torch import Classifier
    from lametta.torch.resnet import ResNet

    net = ResNet(50).eval().cuda().bfloat16()
    x = torch.randn(64, 3, 224, 224, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad(), Classifier(net) as model:
        output = model(x)
        probs = output.logits.softmax(1)
        forward = by_events(lambda: net(x), 20)
        own = by_events(graphed(lambda: lametta.lame(output.features, probs)))
    print(f"ResNet-50 in bfloat16, batch 64: forward {forward:.2f} ms, LAME {own:.3f} ms, "
          f"{own / (forward + own):.2%} of the step", flush=True)  # fmt: skip
    return {"case": "share of a step", "forward_ms": forward, "lametta_ms": own}


def growth() -> list[dict[str, Any]]:
    """How the cost grows with each size, the others as in the smallest case."""
    base = {"N": 64, "K": 1000, "d": 2048, "k": 5, "B": 1}
    sizes = {
        "N": (16, 64, 256, 1024, 4096),
        "K": (10, 100, 1000, 10_000),
        "d": (128, 512, 2048, 8192),
        "k": (1, 2, 5, 10, 20),
        "B": (1, 4, 16, 64, 256),
    }
    rows = []
    for name, values in sizes.items():
        for value in values:
            at = base | {name: value}
            x, q = batch(at["B"], at["N"], d=at["d"], n_classes=at["K"])
            options: dict[str, Any] = {"affinity": lametta.knn(at["k"]), "tol": 0, "max_iter": 15}
            call = graphed(partial(lametta.lame, x, q, **options))
            rows.append({"varied": name, "value": value, "lametta_ms": by_events(call, 20)})
    return rows


def real(bank: Any, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    order = np.random.default_rng(0).permutation(len(bank["labels"]))[:n]
    features, logits = (
        torch.tensor(bank[name][order]).cuda().float() for name in ("features", "logits")
    )
    return features, logits.softmax(1)


def main(bank: Any = None) -> dict[str, Any]:
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    cases = {f"random, N = {n}": batch(n) for n in (64, 256, 1024)}
    if bank is not None:
        cases |= {f"real, N = {n}": real(bank, n) for n in (64, 256)}
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "against_literal": compare(cases),
    }
    found["others"] = [many_streams(), whole_set(), share_of_a_step()]
    found["growth"] = growth()
    for row in found["growth"]:
        print(f"  {row['varied']} = {row['value']}: {row['lametta_ms']:.3f} ms (15 updates)")
    return found
