"""One graph over a whole data set on the CPU: neighbors, updates, memory, and what faiss misses.

``python benchmarks/many.py`` takes some minutes; ``--quick`` is for the tests.
"""

import argparse
import importlib.util
import resource
import time
from typing import Any

import numpy as np
import torch

import lametta
from lametta._host import solve
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


def recall(exact: Any, found: Any) -> float:
    hits = (exact[:, :, None] == found[:, None, :]).any(axis=2)
    return float(hits.mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    sizes, d, n_classes = [12_500, 25_000, 50_000], 512, 1000
    if options.quick:
        sizes, d, n_classes = [500], 16, 20
    methods = ["exact"] + ["faiss"] * (importlib.util.find_spec("faiss") is not None)
    print(f"K = {n_classes}, d = {d}, k = 5")
    titles = {"N": 8, "neighbors": 12, "method": 10, "recall": 9, "updates": 12, "in all": 10}
    print("".join(f"{title:>{width}}" for title, width in titles.items()) + f"{'memory':>12}")
    for n in sizes:
        x, q = samples(n, d, n_classes)
        exact = None
        for method in methods:
            affinity = knn(5, method=method)
            start = time.perf_counter()
            index = affinity.neighbors(x).index.numpy()
            found = time.perf_counter() - start
            exact = index if exact is None else exact
            start = time.perf_counter()
            updates = solve(q.numpy(), Neighbors(index), 100, 1e-5).n_iter
            solved = time.perf_counter() - start
            start = time.perf_counter()
            lametta.lame(x, q, affinity=affinity)
            whole = time.perf_counter() - start
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            print(
                f"{n:>8}{found:>10.1f} s{method:>10}{recall(exact, index):>9.3f}"
                f"{solved:>10.1f} s{whole:>8.1f} s{peak:>8.2f} GiB   {updates} updates",
                flush=True,
            )


if __name__ == "__main__":
    main()
