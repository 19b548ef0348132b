"""LAME against two plain versions of the same computation, ``literal.py`` and ``sensible.py``.

The literal one is what the paper's authors released: it makes the full tensor of differences
[N, N, d], and tests the energy after every update. The sensible one is a dozen lines with a Gram
matrix. All run in turns in one process. ``make bench`` runs this on the CPU, with PyTorch and with
NumPy; ``--device cuda`` runs the same on a GPU. ``--csv`` makes the table alone and keeps it, for
docs/speed.md; ``--json`` keeps all other figures, ``--figure`` draws how the cost grows;
``--quick`` is for the tests.
"""

import argparse
import json
import math
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import growth
import lametta
import store
from devices import Cpu, Gpu
from literal import softmax
from peak import VERSIONS

ROOT = Path(__file__).parents[1]
SHARED = Path(os.environ.get("LAMETTA_SHARED", ROOT.parent / "shared"))
BANK = SHARED / "data" / "banks" / "imagenette_val500_lite0.npz"
MOST_MEMORY = 12 * 2**30  # of the literal version; bytes

Device = Cpu | Gpu


def batch(*shape: int, d: int, n_classes: int = 1000) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((*shape, d), dtype=np.float32)
    logits = 2 * rng.standard_normal((np.prod(shape), n_classes), dtype=np.float32)
    return features, softmax(logits).reshape(*shape, n_classes)


def bank_batch(n: int) -> tuple[Any, Any]:
    with np.load(BANK) as bank:
        order = np.random.default_rng(0).permutation(len(bank["labels"]))[:n]
        features, logits = (bank[name][order].astype(np.float32) for name in ("features", "logits"))
    return features, softmax(logits)


def cases(device: Device, sizes: list[int]) -> dict[str, tuple[Any, Any]]:
    found = {f"random, N = {n}": batch(n, d=device.features) for n in sizes}
    if not BANK.exists():
        print(f"(no {BANK.name} in {SHARED}: set LAMETTA_SHARED for the rows of a real network)")
        return found
    return found | {f"real, N = {n}": bank_batch(n) for n in sizes if n <= 256}


def compare(
    device: Device, cases: dict[str, tuple[Any, Any]], *, quick: bool
) -> list[dict[str, str]]:
    """A row for each case and library, as in docs/speed.md; with ``quick`` the first is weighed."""
    rows: list[dict[str, str]] = []
    for case, (features, probs) in cases.items():
        core = lametta.lame(features.astype(float), probs.astype(float)).probs
        for library in device.libraries:
            x, q = map(device.convert[library], (features, probs))
            copies = {"torch": 1, "numpy": 2}[library]  # of the differences
            too_large = 4 * copies * features.size * len(features) > MOST_MEMORY
            versions = [name for name in VERSIONS if not (name == "literal" and too_large)]
            times = device.side_by_side({v: partial(VERSIONS[v][library], x, q) for v in versions})
            weighed = (
                versions if not (quick and rows) else []
            )  # in new processes, which load PyTorch
            memory = {v: device.peak(v, library, x, q) for v in weighed}
            result = lametta.lame(x, q)
            found = np.asarray(result.probs.cpu() if library == "torch" else result.probs)
            rows.append(
                {
                    "": case,
                    "library": {"torch": "PyTorch", "numpy": "NumPy"}[library],
                    **{v: _shown(times, v, "ms", 1e3) for v in VERSIONS},
                    "times literal": _ratio(times, "literal"),
                    "times sensible": _ratio(times, "sensible"),
                    **{f"{v}, memory": _shown(memory, v, "MiB") for v in VERSIONS},
                    "updates": str(int(result.n_iter)),
                }
            )
            if isinstance(device, Gpu):
                busy = device.on_host(partial(VERSIONS["lametta"][library], x, q))
                rows[-1]["on the host"] = f"{1e3 * busy:.2f} ms"
            if len(rows) == 1:
                print("".join(f"{name:>18}" for name in rows[0]))
            off = np.abs(found - core).max()
            same = (found.argmax(1) == core.argmax(1)).all()
            print(
                "".join(f"{cell:>18}" for cell in rows[-1].values()),
                f"  off float64 by {off:.0e}" + ("" if same else "  PREDICTIONS DIFFER"),
                flush=True,
            )
    return rows


def _shown(found: dict[str, float], version: str, unit: str, scale: float = 1) -> str:
    """A figure with three digits, or nothing where it was not measured."""
    if version not in found:
        return ""
    value = scale * found[version]
    return f"{value:.{max(0, 2 - max(0, math.floor(math.log10(value))))}f} {unit}"


def _ratio(times: dict[str, float], version: str) -> str:
    """How many times faster ours is."""
    return f"{times[version] / times['lametta']:.1f}" if version in times else ""


def many_streams(device: Device, streams: int) -> dict[str, Any]:
    x, q = map(device.convert["torch"], batch(streams, 64, d=device.features))
    seconds = device.seconds(partial(lametta.lame_streams, x, q))
    rate = streams * 64 / seconds
    print(f"{streams} streams of 64 samples: {1e3 * seconds:.2f} ms, {rate:,.0f} samples a second")
    return {"case": f"{streams} streams of 64", "lametta_ms": 1e3 * seconds}


def whole_set(device: Device, n: int, *, quick: bool) -> dict[str, Any]:
    x, q = map(device.convert["torch"], batch(n, d=device.many_features))
    warm = n if isinstance(device, Gpu) else 5000  # the first call of a size compiles for it
    lametta.lame(x[:warm], q[:warm])
    seconds = device.once(partial(lametta.lame, x, q))
    found = {"case": f"{n} samples", "lametta_ms": 1e3 * seconds}
    print(f"one graph of {n} samples, d = {x.shape[1]}: {seconds:.2f} s", end="")
    if not quick:
        found["lametta_mib"] = device.peak("lametta", "torch", x, q)
        print(f", {found['lametta_mib']:.0f} MiB", end="")
    print()
    return found


def share_of_a_step(device: Device) -> dict[str, Any]:
    """LAME beside the forward pass of ResNet-50, each by itself."""
    from lametta.torch import Classifier
    from lametta.torch.resnet import ResNet

    x = device.convert["torch"](np.zeros((64, 3, 224, 224), np.float32)).to(device.dtype)
    net = ResNet(50).eval().to(x)
    with torch.no_grad(), Classifier(net) as model:
        output = model(torch.randn_like(x))
        probs = output.logits.softmax(1)
        forward = device.seconds(lambda: net(x))
        own = device.seconds(lambda: lametta.lame(output.features, probs))
    print(f"ResNet-50 in {device.dtype}, batch 64: forward {1e3 * forward:.2f} ms, "
          f"LAME {1e3 * own:.3f} ms, {own / (forward + own):.2%} of the step")  # fmt: skip
    return {"case": "share of a step", "forward_ms": 1e3 * forward, "lametta_ms": 1e3 * own}


def growing(device: Device, sizes: dict[str, tuple[int, ...]]) -> list[dict[str, Any]]:
    """How the cost grows with each size, the others as in `growth.BASE`."""
    rows: list[dict[str, Any]] = []
    for name, values in sizes.items():
        for value in values:
            at = growth.BASE | {name: value}
            shape = (at["N"],) if at["B"] == 1 else (at["B"], at["N"])
            x, q = map(device.convert["torch"], batch(*shape, d=at["d"], n_classes=at["K"]))
            correct = lametta.lame if at["B"] == 1 else lametta.lame_streams
            call = partial(correct, x, q, affinity=lametta.knn(at["k"]))
            rows.append({"varied": name, "value": value, "lametta_ms": 1e3 * device.seconds(call)})
        told = (f"{row['value']}: {row['lametta_ms']:.3f}" for row in rows[-len(values) :])
        print(f"ms at {name} = " + ", ".join(told), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 256, 1024], help="N")
    parser.add_argument("--csv", type=Path, help="make the table alone, and write it there")
    parser.add_argument("--json", type=Path, help="where to write all other figures")
    parser.add_argument("--figure", type=Path, help="where to draw how the cost grows")
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes")
    options = parser.parse_args()
    device = Gpu() if options.device == "cuda" else Cpu(0.01 if options.quick else 2.0)
    print(f"{device.name}, torch {torch.__version__}; K = 1000, k = 5, float32, "
          f"random features d = {device.features}")  # fmt: skip
    quick = options.quick
    table = compare(device, cases(device, [64] if quick else options.sizes), quick=quick)
    if options.csv:
        store.write(options.csv, table)
        return
    others = [
        many_streams(device, 4 if quick else 256),
        whole_set(device, 500 if quick else 50_000, quick=quick),
    ]
    if not quick:
        others.append(share_of_a_step(device))
    sizes = {name: values[:2] for name, values in growth.SIZES.items()}
    grown = growing(device, sizes if quick else growth.SIZES)
    found = {
        "device": device.name,
        "torch": torch.__version__,
        "others": others,
        "growth": grown,
    }
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    if options.figure:
        growth.draw([found], options.figure)


if __name__ == "__main__":
    main()
