"""What ``lametta run`` adds to a cell: TENT on a ResNet-50 against a plain loop.

Both go over the same 1000 decoded images in batches of 64, in turns in one process. The plain loop
has the images in memory and does nothing but TENT's computation; the cells go through `run`, which
reads the images from its file, counts, and writes a row each. ``python benchmarks/cells.py --device
cuda``; ``--quick`` is for the tests.
"""

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from lametta.bench import Workspace, load, run
from lametta.preprocess import Preprocess
from lametta.torch.resnet import ResNet
from networks import PlainTent

EXPERIMENT = """
name = "cells"

[models.net]
zoo = "torch:cells:{network}"
weights = "net.pth"

[datasets.photos]
reader = "folder:photos"
options = {{ classes = "index", n_classes = 1000 }}

[scenarios.iid]
dataset = "photos"

[methods.TENT]
kind = "tent"

[methods.Source]
kind = "source"

[studies.main]
models = ["net"]
scenarios = ["iid"]
methods = {methods}
seeds = {seeds}
batch_sizes = [64]
"""


def resnet50() -> tuple[nn.Module, Preprocess]:
    return ResNet(50), Preprocess()


def resnet18() -> tuple[nn.Module, Preprocess]:
    return ResNet(18), Preprocess()


def photos(folder: Path, n: int) -> None:
    rng = np.random.default_rng(0)
    for i in range(n):
        path = folder / str(i % 10) / f"{i:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = rng.integers(256, size=(28, 28, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((256, 256), Image.Resampling.BICUBIC).save(path)


def plain_cell(net: nn.Module, pixels: torch.Tensor, prepare: Preprocess, device: str) -> float:
    adapt = PlainTent(net)
    start = time.perf_counter()
    for i in range(0, len(pixels), 64):
        x = pixels[i : i + 64]
        adapt(prepare.standardize(x.to(device))).cpu()
    return time.perf_counter() - start


def cells(folder: Path, network: str, seeds: range, device: str) -> float:
    """Seconds that TENT's cells of these seeds take, once those of the source are there."""
    file = folder / "experiment.toml"
    for methods in (["Source"], ["Source", "TENT"]):
        text = EXPERIMENT.format(network=network, seeds=list(seeds), methods=methods)
        file.write_text(text)
        start = time.perf_counter()
        if failed := run(Workspace(load(file), folder / "results", folder, device)):
            raise SystemExit(f"{len(failed)} cells failed")
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes")
    options = parser.parse_args()
    network, n, rounds, more = ("resnet18", 8, 1, 4) if options.quick else ("resnet50", 1000, 5, 16)
    some = more // 4
    torch.manual_seed(0)
    net, prepare = globals()[network]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        photos(folder / "photos", n)
        torch.save(net.state_dict(), folder / "net.pth")
        images = sorted((folder / "photos").glob("*/*"))
        pixels = torch.stack([torch.tensor(prepare.pixels(Image.open(i))) for i in images])
        run_cells = partial(cells, folder, network, device=options.device)
        run_cells(seeds=range(1))  # decodes, and warms up
        plain, few, many = [], [], []
        for i in range(1, rounds * (some + more) + 1, some + more):
            copy = globals()[network]()[0].eval().to(options.device)
            copy.load_state_dict(net.state_dict())
            plain.append([plain_cell(copy, pixels, prepare, options.device) for _ in range(4)])
            few.append(run_cells(seeds=range(i, i + some)))
            many.append(run_cells(seeds=range(i + some, i + some + more)))
    # What a run does once is in both times and cancels out. Each round is compared with itself,
    # since the machine's speed changes between rounds.
    loops, each = np.median(plain, axis=1), np.subtract(many, few) / (more - some)
    loop, cell, once = np.median(loops), np.median(each), np.median(few - some * each)
    print(f"TENT on {network}, {n} images, {options.device}, seconds: a plain loop {loop:.3f},")
    added = 100 * (each / loops - 1)
    print(f"a cell {cell:.3f} ({np.median(added):+.1f} %, rounds from {added.min():+.1f} to")
    print(f"{added.max():+.1f} %); once a run {once:.2f}")


if __name__ == "__main__":
    main()
