"""One graph over a whole data set: neighbors, updates, memory, and what faiss misses.

``python benchmarks/many.py`` takes some minutes; ``--quick`` is for the tests. A million samples on
two CPU cores: ``--sizes 1000000 --features 32 --classes 10 --methods faiss``, with ``--noise`` for
how far classes overlap (``inf``: features without any structure). On a GPU: ``--device cuda --sizes
300000 1000000``. ``--csv`` stores the table of docs/speed.md.
"""

import argparse
import importlib.util
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import lametta
import store
from lametta._solvers.host import Buffers, iterate
from lametta.affinity import Neighbors, knn


def samples(n: int, d: int, n_classes: int, noise: float) -> tuple[Any, Any]:
    """Classes that overlap by this noise, of which the network finds most."""
    rng = np.random.default_rng(0)
    labels = rng.integers(n_classes, size=n)
    centers = rng.standard_normal((n_classes, d), dtype=np.float32)
    features = rng.standard_normal((n, d), dtype=np.float32)
    if noise < np.inf:
        features = centers[labels] + np.float32(noise) * features
    probs = rng.standard_normal((n, n_classes), dtype=np.float32)
    probs[np.arange(n), labels] += 4
    np.exp(probs, out=probs)
    probs /= probs.sum(axis=1, keepdims=True)
    return torch.from_numpy(features), torch.from_numpy(probs)


def recall(x: torch.Tensor, found: torch.Tensor, rows: int = 200) -> float:
    """Share of the true neighbors, of some samples, that were found."""
    unit = torch.nn.functional.normalize(x)
    some = torch.linspace(0, len(x) - 1, min(rows, len(x)), device=x.device).long()
    similarity = unit[some] @ unit.T
    similarity[torch.arange(len(some)), some] = -torch.inf
    exact = similarity.topk(found.shape[1]).indices
    return float((exact[:, :, None] == found[some][:, None, :]).any(2).float().mean())


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    """How long a call takes, and what it gives."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


def on_cpu(n: int, d: int, n_classes: int, noise: float, method: str) -> dict[str, str]:
    x, q = samples(n, d, n_classes, noise)
    affinity = knn(5, method=method)
    before = time.process_time()
    found, index = seconds(lambda: affinity.neighbors(x).index)
    busy = time.process_time() - before
    w = Neighbors(index.numpy())
    solved, solution = seconds(lambda: iterate(q.numpy(), w, 100, 1e-5, Buffers()))
    whole, _ = seconds(lambda: lametta.lame(x, q, affinity=affinity))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    told = f"{solution.n_iter} updates, neighbors {busy:.0f} s of the processor"
    print(f"{n:>8}{found:>10.1f} s{method:>10}{recall(x, index):>9.3f}{solved:>10.1f} s"
          f"{whole:>8.1f} s{peak:>8.2f} GiB   {told}", flush=True)  # fmt: skip
    return {
        "N": grouped(n),
        "neighbors": f"{found:.1f} s",
        "updates": f"{solved:.1f} s",
        "in all": f"{whole:.1f} s",
        "memory of the process": f"{peak:.1f} GiB",
    }


def on_gpu(n: int, d: int, n_classes: int, noise: float, method: str) -> dict[str, str]:
    from lametta._solvers import launch

    x, q = (array.cuda() for array in samples(n, d, n_classes, noise))
    lametta.lame(x, q)  # compiles
    found, index = seconds(lambda: launch.neighbors(x[None], 5, None)[0].long())
    share = recall(x, index)
    torch.cuda.reset_peak_memory_stats()
    whole, result = seconds(lambda: lametta.lame(x, q))
    peak = torch.cuda.max_memory_allocated() / 2**30
    told = f"{int(result.n_iter)} updates, memory of the device"
    print(f"{n:>8}{found:>10.2f} s{method:>10}{share:>9.3f}{whole - found:>10.2f} s"
          f"{whole:>8.2f} s{peak:>8.2f} GiB   {told}", flush=True)  # fmt: skip
    return {
        "N": grouped(n),
        "neighbors": f"{found:.2f} s",
        "in all": f"{whole:.2f} s",
        "memory, inputs included": f"{peak:.2f} GiB",
    }


def grouped(n: int) -> str:
    return f"{n:,}".replace(",", " ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--sizes", type=int, nargs="+", default=[12_500, 25_000, 50_000])
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--noise", type=float, default=2.0)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--methods", nargs="+", help="exact, faiss")
    store.add_option(parser)
    options = parser.parse_args()
    sizes, d, n_classes = options.sizes, options.features, options.classes
    if options.quick:
        sizes, d, n_classes = [500], 16, 20
    has_faiss = importlib.util.find_spec("faiss") is not None and options.device == "cpu"
    print(f"K = {n_classes}, d = {d}, k = 5, noise = {options.noise:g}")
    titles = {"N": 8, "neighbors": 12, "method": 10, "recall": 9, "updates": 12, "in all": 10}
    print("".join(f"{title:>{width}}" for title, width in titles.items()) + f"{'memory':>12}")
    measure = on_cpu if options.device == "cpu" else on_gpu
    methods = options.methods or ["exact"] + ["faiss"] * has_faiss
    rows = [measure(n, d, n_classes, options.noise, m) for n in sizes for m in methods]
    store.write(options.csv, rows)


if __name__ == "__main__":
    main()
