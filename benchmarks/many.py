"""One graph over a whole data set on the CPU: neighbors, updates, memory, and what faiss misses.

``python benchmarks/many.py`` takes some minutes; ``--quick`` is for the tests. A million samples:
``--sizes 1000000 --features 32 --classes 10 --methods faiss``.
"""

import argparse
import importlib.util
import resource
import time
from typing import Any

import numpy as np
import torch

import lametta
from lametta._solvers.host import iterate
from lametta._solvers.memory import Memory
from lametta.affinity import Neighbors, knn


def samples(n: int, d: int, n_classes: int) -> tuple[Any, Any]:
    """Overlapping classes, of which the network finds most."""
    rng = np.random.default_rng(0)
    labels = rng.integers(n_classes, size=n)
    centers = rng.standard_normal((n_classes, d), dtype=np.float32)
    features = centers[labels] + 2 * rng.standard_normal((n, d), dtype=np.float32)
    probs = rng.standard_normal((n, n_classes), dtype=np.float32)
    probs[np.arange(n), labels] += 4
    np.exp(probs, out=probs)
    probs /= probs.sum(axis=1, keepdims=True)
    return torch.from_numpy(features), torch.from_numpy(probs)


def recall(x: torch.Tensor, found: torch.Tensor, rows: int = 200) -> float:
    """Share of the true neighbors, of some samples, that were found."""
    unit = torch.nn.functional.normalize(x)
    some = torch.linspace(0, len(x) - 1, min(rows, len(x))).long()
    closeness = unit[some] @ unit.T
    closeness[torch.arange(len(some)), some] = -torch.inf
    exact = closeness.topk(found.shape[1]).indices
    return float((exact[:, :, None] == found[some][:, None, :]).any(2).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--sizes", type=int, nargs="+", default=[12_500, 25_000, 50_000])
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--classes", type=int, default=1000)
    has_faiss = importlib.util.find_spec("faiss") is not None
    parser.add_argument("--methods", nargs="+", default=["exact"] + ["faiss"] * has_faiss)
    options = parser.parse_args()
    sizes, d, n_classes = options.sizes, options.features, options.classes
    if options.quick:
        sizes, d, n_classes = [500], 16, 20
    print(f"K = {n_classes}, d = {d}, k = 5")
    titles = {"N": 8, "neighbors": 12, "method": 10, "recall": 9, "updates": 12, "in all": 10}
    print("".join(f"{title:>{width}}" for title, width in titles.items()) + f"{'memory':>12}")
    for n in sizes:
        x, q = samples(n, d, n_classes)
        for method in options.methods:
            affinity = knn(5, method=method)
            start = time.perf_counter()
            index = affinity.neighbors(x).index
            found = time.perf_counter() - start
            start = time.perf_counter()
            updates = iterate(q.numpy(), Neighbors(index.numpy()), 100, 1e-5, Memory()).n_iter
            solved = time.perf_counter() - start
            start = time.perf_counter()
            lametta.lame(x, q, affinity=affinity)
            whole = time.perf_counter() - start
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            print(
                f"{n:>8}{found:>10.1f} s{method:>10}{recall(x, index):>9.3f}"
                f"{solved:>10.1f} s{whole:>8.1f} s{peak:>8.2f} GiB   {updates} updates",
                flush=True,
            )


if __name__ == "__main__":
    main()
