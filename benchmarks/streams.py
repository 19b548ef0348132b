"""What correctors with memory cost a sample, one by one, against `lame` on the whole window.

One core, K = 1000, d = 1280, windows of 64, the same samples for all, in turns in one process. A
sample's time is the shortest of ``--passes`` over the stream, since other programs only ever add to
it; the table has the mean over samples once the window is full, and how far answers are from `lame`
with a tolerance of 1e-9. ``python benchmarks/streams.py``; ``--json`` keeps the rows, ``--quick``
is for the tests.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# One thread, before anything loads BLAS.
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import numpy as np

import lametta
from lametta.correctors import Average
from lametta.types import Corrector

SHARED = Path(os.environ.get("LAMETTA_SHARED", Path(__file__).parents[2] / "shared"))
BANKS = {"Imagenette": "imagenette_val500_lite0", "Tiny-ImageNet": "tinyimagenet_1010_lite0"}
WINDOW = 64
CORRECTORS: dict[str, Corrector] = {
    "Windowed LAME": lametta.Windowed(size=WINDOW),
    "average": Average(),
}

Samples = tuple[Any, Any]  # features [N, d], probs [N, K]


def softmax(logits: Any) -> Any:
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def cases(n: int) -> dict[str, Samples]:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((n, 1280), dtype=np.float32)
    found = {"random": (features, softmax(2 * rng.standard_normal((n, 1000), dtype=np.float32)))}
    for title, name in BANKS.items():
        path = SHARED / "data" / "banks" / f"{name}.npz"
        if not path.exists():
            print(f"(no {path.name} in {SHARED}: set LAMETTA_SHARED for the rows of a network)")
            continue
        with np.load(path) as bank:
            features, logits, labels = (bank[key] for key in ("features", "logits", "labels"))
        shuffled = np.random.default_rng(0).permutation(len(labels))
        by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
        for order, places in ("shuffled", shuffled[:n]), ("by class", by_class[:n]):
            rows = features[places].astype(np.float32), softmax(logits[places].astype(np.float32))
            found[f"{title}, {order}"] = rows
    return found


def measure(samples: Samples, passes: int) -> dict[str, tuple[float, Any]]:
    """Milliseconds a sample of each corrector, and its answers; `lame` on the window among them."""
    features, probs = samples
    n = len(probs)
    shortest = {name: np.full(n, np.inf) for name in ("lame", *CORRECTORS)}
    answers: dict[str, list[Any]] = {}
    for _ in range(passes):
        answers = {name: [] for name in shortest}
        for corrector in CORRECTORS.values():
            corrector.reset()
        for end in range(1, n + 1):
            start = max(0, end - WINDOW)
            calls: dict[str, tuple[Callable[..., Any], slice]] = {
                "lame": (lametta.lame, slice(start, end)),
                **{name: (one.correct, slice(end - 1, end)) for name, one in CORRECTORS.items()},
            }
            for name, (call, rows) in calls.items():
                batch = features[rows], probs[rows]
                begun = time.perf_counter()
                found = call(*batch)
                spent = time.perf_counter() - begun
                shortest[name][end - 1] = min(shortest[name][end - 1], spent)
                answers[name].append(found.probs[-1])
    return {
        name: (1e3 * float(times[WINDOW:].mean()), np.array(answers[name]))
        for name, times in shortest.items()
    }


def exact(samples: Samples, every: int) -> tuple[Any, Any]:
    """Which samples were looked at, and `lame` on their windows with hardly any tolerance."""
    features, probs = (array.astype(float) for array in samples)
    ends = np.arange(every, len(probs) + 1, every)
    windows = [slice(max(0, end - WINDOW), end) for end in ends]
    rows = [lametta.lame(features[w], probs[w], tol=1e-9, max_iter=5000).probs[-1] for w in windows]
    return ends - 1, np.array(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=250)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    n, passes = (WINDOW + 6, 1) if options.quick else (options.samples, options.passes)
    rows = []
    print(f"{'':<26}{'':<16}{'ms a sample':>12}{'of lame':>10}{'off lame':>12}")
    for case, samples in cases(n).items():
        measured = measure(samples, passes)
        places, best = exact(samples, 7)
        for name, (spent, answers) in measured.items():
            row = {
                "case": case,
                "corrector": name,
                "ms": spent,
                "ratio": spent / measured["lame"][0],
            }
            if "lame" in name.lower():
                row["off"] = float(np.abs(answers[places] - best).max())
            off = f"{row['off']:>12.1e}" if "off" in row else ""
            print(f"{case:<26}{name:<16}{spent:>12.3f}{row['ratio']:>10.2f}{off}")
            rows.append(row)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
