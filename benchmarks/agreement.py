"""What `lame` leaves out on the CPU must not show: it and the plain iteration on real networks.

``python benchmarks/agreement.py`` takes batches of 32 to 1000 samples, shuffled and by class, from
all banks of features below LAMETTA_SHARED, with 1 to 15 neighbors, and iterates in float64.
Runs that the limit of updates cut short are listed apart: there the paths may differ.
"""

from itertools import product
from typing import Any

import numpy as np

import lametta
from lame import SHARED
from literal import softmax

TOL, MAX_ITER = 1e-5, 100


def plain(features: Any, probs: Any, k: int) -> tuple[Any, bool]:
    """The equation, until an update moves nothing by more than TOL."""
    w = lametta.knn(k)(features).astype(float)
    q = z = probs.astype(float)
    moved = np.inf
    for _ in range(MAX_ITER):
        old, z = z, q * np.exp(w @ z)
        z /= z.sum(axis=1, keepdims=True)
        moved = np.abs(z - old).max()
        if moved <= TOL:
            break
    return z, bool(moved <= TOL)


def main() -> None:
    print(f"{'bank':<32}{'batches':>8}{'at rest':>9}{'worst':>9}{'flips':>7}{'cut short':>11}")
    for path in sorted((SHARED / "data" / "banks").glob("*.npz")):
        with np.load(path) as bank:
            features, logits, labels = (bank[key] for key in ("features", "logits", "labels"))
        batches, worst, flips, cut = 0, list[float](), 0, [0.0]
        shuffled = np.random.default_rng(2).permutation(len(labels))
        by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
        for order, n, k in product(
            (shuffled, by_class), (32, 64, 100, 256, 500, 1000), (1, 3, 5, 9, 15)
        ):
            for start in range(0, min(len(order) - n + 1, 2 * n), n):
                rows = order[start : start + n]
                x, q = features[rows].astype(np.float32), softmax(logits[rows].astype(np.float32))
                ours = lametta.lame(x, q, affinity=lametta.knn(k), tol=TOL, max_iter=MAX_ITER).probs
                z, at_rest = plain(x, q, k)
                batches += 1
                (worst if at_rest else cut).append(float(np.abs(ours - z).max()))
                if at_rest:
                    flips += int((ours.argmax(1) != z.argmax(1)).sum())
        print(f"{path.stem:<32}{batches:>8}{len(worst):>9}{max(worst):>9.1e}{flips:>7}"
              f"{max(cut):>11.1e}")  # fmt: skip


if __name__ == "__main__":
    main()
