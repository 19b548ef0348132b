"""LAME against a literal version of the computation that the paper's authors released.

The literal version makes the full tensor of differences [N, N, d], and tests the energy after every
update. Both run side by side in one process, on PyTorch (CPU) and on NumPy, and must predict the
same classes. ``make bench`` runs this; ``--device cuda`` measures on a GPU instead; ``--quick`` is
for the tests.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import lametta
from literal import literal_torch

ROOT = Path(__file__).parents[1]
SHARED = Path(os.environ.get("LAMETTA_SHARED", ROOT.parent / "shared"))
BANK = SHARED / "data" / "banks" / "imagenette_val500_lite0.npz"


def literal_numpy(features: Any, probs: Any, k: int = 5, max_iter: int = 100) -> Any:
    def softmax(x: Any) -> Any:
        e = np.exp(x - x.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    unary = -np.log(probs + np.float32(1e-10))
    x = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    distance = np.linalg.norm(x[:, None] - x[None], axis=-1)
    neighbors = np.argsort(distance, axis=1)[:, 1 : k + 1]
    w = np.zeros((len(x), len(x)), x.dtype)
    np.put_along_axis(w, neighbors, 1, axis=1)
    z, old = softmax(-unary), float("inf")
    for n in range(max_iter):
        pairwise = 1.0 * (w @ z)
        z = softmax(-unary + pairwise)
        terms = unary * z - 1.0 * pairwise * z + z * np.log(np.maximum(z, 1e-20))
        energy = float(terms.sum())
        if n > 1 and abs(energy - old) <= 1e-8 * abs(old):
            break
        old = energy
    return z


LITERAL: dict[str, Callable[[Any, Any], Any]] = {"torch": literal_torch, "numpy": literal_numpy}
CONVERT: dict[str, Callable[[Any], Any]] = {"torch": torch.from_numpy, "numpy": np.asarray}


def ours(features: Any, probs: Any) -> Any:
    return lametta.lame(features, probs).probs


def softmax(logits: Any) -> Any:
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def random_batch(n: int, d: int, n_classes: int = 1000) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((n, d), dtype=np.float32)
    return features, softmax(rng.standard_normal((n, n_classes), dtype=np.float32))


def bank_batch(n: int) -> tuple[Any, Any]:
    with np.load(BANK) as bank:
        order = np.random.default_rng(0).permutation(len(bank["labels"]))[:n]
        features, logits = (bank[name][order].astype(np.float32) for name in ("features", "logits"))
    return features, softmax(logits)


def timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def side_by_side(slow: Callable[[], Any], fast: Callable[[], Any], seconds: float) -> Any:
    """Median seconds of both, in turns: five calls of the fast one for each of the slow one.

    A call before each turn is not counted: threads that slept while the other ran wake up in it.
    """
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 3:
        slow()
        times[0].append(timed(slow))
        fast()
        times[1].extend(timed(fast) for _ in range(5))
    return tuple(map(statistics.median, times))


def speed(seconds: float) -> None:
    cases = {"random, N = 64, d = 2048": random_batch(64, 2048)}
    if BANK.exists():
        cases = {f"{BANK.stem}, N = {n}": bank_batch(n) for n in (64, 256)} | cases
    else:
        print(f"(no {BANK.name} in {SHARED}: set LAMETTA_SHARED for the rows of a real network)")
    print(f"{'K = 1000, float32, k = 5':<38}{'':<8}{'literal':>10}{'lametta':>10}  times faster")
    for name, arrays in cases.items():
        for library, convert in CONVERT.items():
            batch = tuple(map(convert, arrays))
            literal = partial(LITERAL[library], *batch)
            slow, fast = side_by_side(literal, partial(ours, *batch), seconds)
            same = bool((literal().argmax(1) == ours(*batch).argmax(1)).all())
            times = f"{1e3 * slow:>7.2f} ms{1e3 * fast:>7.2f} ms{slow / fast:>14.1f}"
            print(f"{name:<38}{library:<8}{times}{'' if same else '  PREDICTIONS DIFFER'}")


def memory(sizes: dict[int, int]) -> None:
    title = "peak memory, K = 1000, d = 1280"
    print(f"\n{title:<38}{'':<8}{'literal':>11}{'lametta':>11}  times less")
    for n, with_literal in sizes.items():
        for library in CONVERT:
            fast = peak("lametta", library, n)
            slow = peak("literal", library, n) if with_literal else None
            shown = ("-", "") if slow is None else (f"{slow:.0f} MiB", f"{slow / fast:.0f}")
            print(f"{f'N = {n}':<38}{library:<8}{shown[0]:>11}{fast:>7.0f} MiB{shown[1]:>12}")


def peak(version: str, library: str, n: int) -> float:
    """MiB that one call adds to a fresh process."""
    command = [sys.executable, __file__, "--peak", version, library, str(n)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def print_peak(version: str, library: str, n: int) -> None:
    small, large = random_batch(8, 8, 10), random_batch(n, 1280)
    call = ours if version == "lametta" else LITERAL[library]
    call(*map(CONVERT[library], small))  # whatever the library loads at its first call
    features, probs = map(CONVERT[library], large)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = resident_peak()
    call(features, probs)
    print(max(resident_peak() - before, 0.1))


def resident_peak() -> float:
    """MiB of physical memory that this process has held at most; of Linux alone."""
    (line,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(line) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a second instead of a minute")
    parser.add_argument(
        "--peak", nargs=3, metavar=("VERSION", "LIBRARY", "N"), help=argparse.SUPPRESS
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path, help="where to write the figures of a GPU")
    options = parser.parse_args()
    if options.device == "cuda":
        import gpu

        found = gpu.main(np.load(BANK) if BANK.exists() else None)
        if options.json:
            options.json.write_text(json.dumps(found, indent=2) + "\n")
        return
    if options.peak:
        version, library, n = options.peak
        print_peak(version, library, int(n))
        return
    speed(0.05 if options.quick else 4.0)
    memory({64: True} if options.quick else {1024: True, 4096: False})


if __name__ == "__main__":
    main()
