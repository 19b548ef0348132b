"""Who pulls on a sample: `lametta.knn` in its three directions, on real networks' outputs.

``python benchmarks/directions.py`` prints the table of docs/affinities.md: accuracy in percent, the
mean over ``--seeds`` streams and their range, in batches of 64, class after class or shuffled. By
class, a seed draws the order of classes too. The banks of features are those below LAMETTA_SHARED.
``--csv docs/tables/directions.csv`` stores the table, and ``--quick`` is for the tests.
"""

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import lametta
import store
from lametta.stream import Scenario

SHARED = Path(os.environ.get("LAMETTA_SHARED", Path(__file__).parents[2] / "shared"))
BANKS = {
    "EfficientNet-Lite0, Imagenette": "imagenette_val500_lite0",
    "ResNet-20, CIFAR-10": "cifar10_resnet20_clean",
    "ResNet-56, CIFAR-10 with noise": "cifar10_resnet56_gauss3",
}
DIRECTIONS = ("own", "reverse", "both")
ORDERS = {"by_class": "by class", "iid": "i.i.d."}
K, BATCH_SIZE = 5, 64


def path_of(title: str) -> Path:
    return SHARED / "data" / "banks" / f"{BANKS[title]}.npz"


def softmax(logits: Any) -> Any:
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def accuracy(features: Any, probs: Any, labels: Any, batches: Any, direction: str) -> float:
    """Of LAME with neighbors of this direction, in percent."""
    affinity = lametta.knn(K, direction=direction)
    hits = 0
    for rows in batches:
        corrected = lametta.lame(features[rows], probs[rows], affinity=affinity).probs
        hits += int((corrected.argmax(axis=1) == labels[rows]).sum())
    return 100 * hits / len(batches.index)


def table(banks: Iterable[str], seeds: int) -> Iterator[list[str]]:
    """The rows of the table, the titles of its columns first."""
    yield [f"k = {K}, batches of {BATCH_SIZE}", "stream", "source", *DIRECTIONS]
    for title in banks:
        with np.load(path_of(title)) as bank:
            features, logits, labels = (bank[key] for key in ("features", "logits", "labels"))
        features, probs = features.astype(np.float32), softmax(logits.astype(np.float32))
        source = 100 * np.mean(probs.argmax(axis=1) == labels)
        for order, words in ORDERS.items():
            scenarios = [Scenario(order, batch_size=BATCH_SIZE, seed=seed) for seed in range(seeds)]
            streams = [scenario(labels) for scenario in scenarios]
            cells = []
            for direction in DIRECTIONS:
                found = [accuracy(features, probs, labels, s, direction) for s in streams]
                cells.append(f"{np.mean(found):.1f} ({min(found):.1f} to {max(found):.1f})")
            yield [title, words, f"{source:.1f}", *cells]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="streams of each order")
    parser.add_argument("--quick", action="store_true", help="the smallest bank, for the tests")
    store.add_option(parser)
    options = parser.parse_args()
    banks = list(BANKS)[:1] if options.quick else list(BANKS)
    for path in map(path_of, banks):
        if not path.exists():
            sys.exit(f"no such file: {str(path)!r}; set LAMETTA_SHARED to where the banks are")
    rows = list[list[str]]()
    for row in table(banks, options.seeds):
        print(f"| {' | '.join(row)} |", flush=True)
        if not rows:
            print("|---|---|---:|---:|---:|---:|")
        rows.append(row)
    titles, *lines = rows
    store.write(options.csv, [dict(zip(titles, line, strict=True)) for line in lines])


if __name__ == "__main__":
    main()
