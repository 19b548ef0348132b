"""What correctors with memory cost, one by one and in batches, against `lame`.

One core, K = 1000, d = 1280, the same samples for all, in turns in one process. One by one, against
`lame` on the window of the last 64; the mean is over samples once the window is full, and answers
are compared with `lame` with a tolerance of 1e-9. Then in batches of 64, against `LAME`. A call's
time is the processor's, the shortest of ``--passes`` over the stream: other programs only ever add
to it.
``python benchmarks/streams.py``; ``--json`` keeps the rows, ``--quick`` is for the tests.
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
from lametta.types import Corrector, Stateful

SHARED = Path(os.environ.get("LAMETTA_SHARED", Path(__file__).parents[2] / "shared"))
BANKS = {"Imagenette": "imagenette_val500_lite0", "Tiny-ImageNet": "tinyimagenet_1010_lite0"}
WINDOW = 64
CORRECTORS: dict[str, Stateful] = {
    "Windowed LAME": lametta.Windowed(size=WINDOW),
    "average": Average(),
    "Memory": lametta.Memory(),
    "Prudent": lametta.Prudent(),
}
BATCHWISE: dict[str, Corrector] = {
    "LAME": lametta.LAME(),
    "Memory": lametta.Memory(),
    "Prudent": lametta.Prudent(),
}

Samples = tuple[Any, Any]  # features [N, d], probs [N, K]


def softmax(logits: Any) -> Any:
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def cases(n: int, banks: dict[str, str]) -> dict[str, Samples]:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((n, 1280), dtype=np.float32)
    found = {"random": (features, softmax(2 * rng.standard_normal((n, 1000), dtype=np.float32)))}
    for title, name in banks.items():
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
                begun = time.thread_time()
                found = call(*batch)
                spent = time.thread_time() - begun
                shortest[name][end - 1] = min(shortest[name][end - 1], spent)
                answers[name].append(found.probs[-1])
    return {
        name: (1e3 * float(times[WINDOW:].mean()), np.array(answers[name]))
        for name, times in shortest.items()
    }


def measure_batches(samples: Samples, passes: int) -> dict[str, float]:
    """Milliseconds a batch of each corrector; the first batch, before there is a past, left out."""
    features, probs = samples
    starts = range(0, len(probs) - WINDOW + 1, WINDOW)
    shortest = {name: np.full(len(starts), np.inf) for name in BATCHWISE}
    for _ in range(passes):
        for name, corrector in BATCHWISE.items():
            corrector.reset()
            for place, start in enumerate(starts):
                batch = features[start : start + WINDOW], probs[start : start + WINDOW]
                begun = time.thread_time()
                corrector.correct(*batch)
                spent = time.thread_time() - begun
                shortest[name][place] = min(shortest[name][place], spent)
    return {
        name: 1e3 * float(times[min(1, len(times) - 1) :].mean())
        for name, times in shortest.items()
    }


def print_states() -> None:
    for name, corrector in CORRECTORS.items():
        corrector.reset()
        corrector.correct(np.ones((1, 1280), np.float32), np.full((1, 1000), 1e-3, np.float32))
        arrays = corrector.state_dict().values()
        print(f"state of {name}: {sum(array.nbytes for array in arrays) / 1e3:.0f} kB")


def exact(samples: Samples, every: int) -> tuple[Any, Any]:
    """The samples that are compared, and `lame` on their windows with a tolerance of 1e-9."""
    features, probs = (array.astype(float) for array in samples)
    ends = np.arange(every, len(probs) + 1, every)
    windows = [slice(max(0, end - WINDOW), end) for end in ends]
    rows = [lametta.lame(features[w], probs[w], tol=1e-9, max_iter=5000).probs[-1] for w in windows]
    return ends - 1, np.array(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=320)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    n, passes = (WINDOW + 6, 1) if options.quick else (options.samples, options.passes)
    banks = dict([*BANKS.items()][: 1 if options.quick else None])
    rows = []
    print(f"{'':<26}{'':<16}{'ms a call':>12}{'of lame':>10}{'off lame':>12}")
    for case, samples in cases(n, banks).items():
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
        batches = measure_batches(samples, passes)
        for name, spent in batches.items():
            ratio = spent / batches["LAME"]
            print(f"{case:<26}{name + ', 64':<16}{spent:>12.3f}{ratio:>10.2f}")
            rows.append({"case": case, "corrector": name, "batch": 64, "ms": spent, "ratio": ratio})
    print_states()
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
