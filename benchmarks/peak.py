"""The memory that one call takes, printed in MiB; of Linux alone.

``python benchmarks/peak.py lametta numpy 64 1280 1000`` is what `lame.py` starts, since only a
fresh process has no memory to use again.
"""

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import lametta
from literal import literal_numpy, literal_torch
from sensible import sensible_numpy, sensible_torch


def ours(features: Any, probs: Any) -> Any:
    return lametta.lame(features, probs).probs


VERSIONS: dict[str, dict[str, Callable[..., Any]]] = {
    "literal": {"torch": literal_torch, "numpy": literal_numpy},
    "sensible": {"torch": sensible_torch, "numpy": sensible_numpy},
    "lametta": {"torch": ours, "numpy": ours},
}


def batch(library: str, n: int, d: int, n_classes: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((n, d), dtype=np.float32)
    probs = rng.random((n, n_classes), dtype=np.float32)
    probs /= probs.sum(axis=1, keepdims=True)
    convert = importlib.import_module(library).asarray
    return convert(features), convert(probs)


def resident_peak() -> float:
    (line,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(line) / 1024


def main(version: str, library: str, *sizes: str) -> None:
    call = VERSIONS[version][library]
    call(*batch(library, 8, 8, 10))  # whatever the library loads at its first call
    n, d, n_classes = map(int, sizes)
    features, probs = batch(library, n, d, n_classes)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = resident_peak()
    call(features, probs)
    print(max(resident_peak() - before, 0.1))


if __name__ == "__main__":
    main(*sys.argv[1:])
