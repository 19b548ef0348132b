"""Where the time of a call goes on the CPU, for `NOTES.md`: ``python benchmarks/parts.py``."""

import time
from collections import Counter
from typing import Any

import numpy as np

import lametta
from lame import BANK, bank_batch, batch
from lametta._solvers import host

CALLS = 200


def timed(spent: Counter[str], counts: Counter[str], owner: Any, name: str) -> None:
    """Have a function add up its time."""
    function = getattr(owner, name)

    def call(*args: Any, **options: Any) -> Any:
        start = time.perf_counter()
        result = function(*args, **options)
        spent[name] += time.perf_counter() - start  # type: ignore[assignment]
        counts[name] += 1
        return result

    setattr(owner, name, call)


def rate(call: Any, work: float) -> float:
    times = []
    for _ in range(100):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return work / float(np.median(times)) / 1e9


def main() -> None:
    x = np.random.default_rng(0).standard_normal((64, 1280), dtype=np.float32)
    out = np.empty_like(x)
    print(f"matrix products of 64 rows: {rate(lambda: x @ x.T, 2 * 64 * x.size):.0f} GFLOP/s; "
          f"exponentials: {rate(lambda: np.exp(x, out=out), x.size):.1f} billion/s")  # fmt: skip
    spent: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for owner, name in (
        *((host, "_products"), (host, "checked_probs"), (host, "nearest_by_products")),
        *((host, "iterate"), (host.Tail, "refresh"), (host._ActiveSet, "update")),
    ):
        timed(spent, counts, owner, name)
    for n in (64, 256):
        features, probs = bank_batch(n) if BANK.exists() else batch(n, d=1280)
        lametta.lame(features, probs)
        spent.clear()
        counts.clear()
        start = time.perf_counter()
        for _ in range(CALLS):
            lametta.lame(features, probs)
        whole = time.perf_counter() - start
        print(f"N = {n}: {1e6 * whole / CALLS:.0f} us a call, of which")
        for name, seconds in spent.most_common():
            print(f"  {name:<20}{1e6 * seconds / CALLS:>6.0f} us, {counts[name] / CALLS:.0f} times")


if __name__ == "__main__":
    main()
