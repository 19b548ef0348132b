"""LAME against a literal version of the computation that the paper's authors released.

The literal version makes the full tensor of differences [N, N, d], and tests the energy after every
update. Both run side by side in one process and must predict the same classes. ``make bench`` runs
this on the CPU, with PyTorch and with NumPy; ``--device cuda`` runs the same on a GPU. The table is
printed, ``--json`` keeps it, ``--figure`` draws how the cost grows; ``--quick`` is for the tests.
"""

import argparse
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import growth
import lametta
from devices import Cpu, Gpu
from literal import softmax
from peak import ours

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


def cases(device: Device, sizes: tuple[int, ...]) -> dict[str, tuple[Any, Any]]:
    found = {f"random, N = {n}": batch(n, d=device.features) for n in sizes}
    if not BANK.exists():
        print(f"(no {BANK.name} in {SHARED}: set LAMETTA_SHARED for the rows of a real network)")
        return found
    return found | {f"real, N = {n}": bank_batch(n) for n in sizes if n <= 256}


def compare(
    device: Device, cases: dict[str, tuple[Any, Any]], *, quick: bool
) -> list[dict[str, Any]]:
    """A row for each case and library; with ``quick`` memory is measured for the second alone."""
    titles = ("literal", "lametta", "times faster", "on the host", "literal", "lametta")
    print(
        f"{'':<25}" + "".join(f"{t:>13}" for t in titles) + "   times less   updates, off float64"
    )
    rows: list[dict[str, Any]] = []
    for case, (features, probs) in cases.items():
        core = lametta.lame(features.astype(float), probs.astype(float)).probs
        for library, convert in device.convert.items():
            x, q = convert(features), convert(probs)
            row: dict[str, Any] = {"case": case, "library": library}
            fast, slow = partial(ours, x, q), partial(device.literal[library], x, q)
            weighs = not quick or len(rows) == 1  # in new processes, most of which load PyTorch
            copies = {"torch": 1, "numpy": 2}[library]  # of the differences
            if 4 * copies * features.size * len(features) <= MOST_MEMORY:
                times = device.side_by_side(slow, fast)
                row |= {"literal_ms": 1e3 * times[0], "lametta_ms": 1e3 * times[1]}
                if weighs:
                    row["literal_mib"] = device.peak("literal", library, x, q)
            else:
                row["lametta_ms"] = 1e3 * device.seconds(fast)
            if weighs:
                row["lametta_mib"] = device.peak("lametta", library, x, q)
            if isinstance(device, Gpu):
                row["host_ms"] = 1e3 * device.on_host(fast)
            result = lametta.lame(x, q)
            found = np.asarray(result.probs.cpu() if library == "torch" else result.probs)
            row["updates"] = int(result.n_iter)
            row["difference"] = float(np.abs(found - core).max())
            row["same"] = bool((found.argmax(1) == core.argmax(1)).all())
            rows.append(row)
            print(as_line(row), flush=True)
    return rows


def as_line(row: dict[str, Any]) -> str:
    def cell(key: str, unit: str, digits: int) -> str:
        return f"{row[key]:.{digits}f} {unit}" if key in row else "-"

    times, less = (
        f"{row[f'literal_{unit}'] / row[f'lametta_{unit}']:.{digits}f}"
        if f"literal_{unit}" in row
        else "-"
        for unit, digits in (("ms", 1), ("mib", 0))
    )
    cells = (
        *(cell("literal_ms", "ms", 2), cell("lametta_ms", "ms", 3), times),
        *(cell("host_ms", "ms", 2), cell("literal_mib", "MiB", 0), cell("lametta_mib", "MiB", 1)),
    )
    return (
        f"{row['case']:<18}{row['library']:<7}" + "".join(f"{text:>13}" for text in cells)
        + f"{less:>13}   {row['updates']}, {row['difference']:.0e}"
        + ("" if row["same"] else "  PREDICTIONS DIFFER")
    )  # fmt: skip


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
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--figure", type=Path, help="where to draw how the cost grows")
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes")
    options = parser.parse_args()
    device = Gpu() if options.device == "cuda" else Cpu(0.01 if options.quick else 4.0)
    print(f"{device.name}, torch {torch.__version__}; K = 1000, k = 5, float32, "
          f"random features d = {device.features}")  # fmt: skip
    quick = options.quick
    table = compare(device, cases(device, (64,) if quick else (64, 256, 1024)), quick=quick)
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
        "against_literal": table,
        "others": others,
        "growth": grown,
    }
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    if options.figure:
        growth.draw([found], options.figure)


if __name__ == "__main__":
    main()
