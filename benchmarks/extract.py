"""Extraction against its parts, and reading a bank against reading a file.

Decoding runs in worker processes ahead of the network, so that extraction should take about as long
as the larger of the two. All three run in turns in one process, and the best time of each counts.
``--device cuda`` extracts from JPEG files of mixed sizes with networks on a GPU instead, where a
process a core decodes, and compares with decoding alone and with the plain forward pass on a batch
that stays there. Rates are those once a tenth is done; *in all* is the start and the end as well.
``--csv`` stores the table of the GPU, for docs/speed.md; ``--quick`` is for the tests.
"""

import argparse
import os
import re
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

import extract_gpu
import store
from lametta import LamettaError, Model
from lametta.data.bank import Bank, extract
from lametta.data.bank.safetensors import write_blocks
from lametta.data.dataset import Dataset
from lametta.data.loader import load_batches
from lametta.data.readers.folders import image_folder
from lametta.preprocess import Preprocess
from lametta.torch import Classifier, zoo
from lametta.torch.resnet import ResNet

ROOT = Path(__file__).parents[1]
SHARED = Path(os.environ.get("LAMETTA_SHARED", ROOT.parent / "shared"))
BATCH = 64


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def photos(folder: Path, n: int) -> Dataset:
    """Real images where there are any, or as many JPEG files of smooth noise."""
    real = SHARED / "data" / "imagenette-val500"
    if real.exists():
        data = image_folder(real)
        return data.take(np.arange(len(data))[:: max(1, len(data) // n)][:n])
    print(f"(no {real.name} in {SHARED}: images are made up)")
    rng = np.random.default_rng(0)
    for i in range(n):
        path = folder / f"class{i % 2}" / f"{i}.jpg"
        path.parent.mkdir(exist_ok=True)
        coarse = rng.integers(256, size=(28, 28, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((224, 224), Image.Resampling.BICUBIC).save(path, quality=90)
    return image_folder(folder)


def large() -> tuple[str, nn.Module, Preprocess | None]:
    try:
        loaded = zoo.load("efficientnet_lite0")
    except LamettaError:
        return "ResNet-18", ResNet(18).eval(), Preprocess()
    return "EfficientNet-Lite0", loaded.net, loaded.preprocess


def small() -> tuple[str, nn.Module, Preprocess | None]:
    net = nn.Sequential()
    net.body = nn.Sequential(nn.AvgPool2d(28), nn.Flatten())
    net.fc = nn.Linear(192, 10)
    return "a linear layer", net.eval(), Preprocess()


def parts(
    data: Dataset, model: Model, prepare: Preprocess | None, workers: int, rounds: int
) -> list[float]:
    """Seconds of decoding alone, the network alone, and extraction."""
    index = [range(i, min(i + BATCH, len(data))) for i in range(0, len(data), BATCH)]

    def decode() -> list[torch.Tensor]:
        return [batch.x for batch in load_batches(data, index, prepare, workers=workers)]

    inputs = [x.clone() for x in decode()]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "bank.safetensors")
        calls: list[Callable[[], object]] = [
            decode,
            lambda: [model(x) for x in inputs],
            lambda: extract(
                model, data, prepare, path, batch_size=BATCH, workers=workers, restart=True
            ),
        ]
        calls[1]()
        times = [[timed(call) for call in calls] for _ in range(rounds)]
    return [min(column) for column in zip(*times, strict=True)]


def extraction(n: int, rounds: int) -> None:
    cores = os.cpu_count() or 1
    print(f"{n} images, {cores} cores, seconds")
    print(f"{'network':<20}{'workers':>8}{'decode':>10}{'network':>10}{'both':>10}  to the larger")
    with tempfile.TemporaryDirectory() as folder:
        data = photos(Path(folder), n)
        for (name, net, prepare), workers in ((large(), 1), (small(), cores)):
            with Classifier(net) as model:
                decode, forward, both = parts(data, model, prepare, workers, rounds)
            ratio = both / max(decode, forward)
            print(
                f"{name:<20}{workers:>8}{decode:>10.2f}{forward:>10.2f}{both:>10.2f}{ratio:>15.2f}"
            )


def write_bank(path: Path, n: int) -> None:
    rng = np.random.default_rng(0)
    block = {
        "features": rng.standard_normal((1024, 1280), dtype=np.float32),
        "logits": rng.standard_normal((1024, 1000), dtype=np.float32),
    }
    write_blocks(path, {name: [x] * (n // 1024) for name, x in block.items()}, {})


def read_plainly(path: Path) -> None:
    buffer = bytearray(2**20)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def read_bank(path: Path) -> None:
    bank = Bank.open(path)
    for start in range(0, len(bank), BATCH):
        bank(np.arange(start, min(start + BATCH, len(bank))))


def reading(n: int) -> None:
    with tempfile.TemporaryDirectory(dir=".") as folder:  # /tmp may be memory
        path = Path(folder, "bank.safetensors")
        write_bank(path, n)
        mib = path.stat().st_size / 2**20
        print(f"\na bank of {mib:.0f} MiB, MiB a second")
        print(f"{'':<20}{'from disk':>12}{'from cache':>12}{'memory at most':>18}")
        for name, read in (("plain file", read_plainly), ("bank in batches", read_bank)):
            read(path)
            forget(path)
            cold = mib / timed(partial(read, path))
            Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
            before = resident_peak()
            warm = mib / timed(partial(read, path))
            grown = resident_peak() - before
            print(f"{name:<20}{cold:>12.0f}{warm:>12.0f}{grown:>14.1f} MiB")


def forget(path: Path) -> None:
    """Drop what the system keeps of a file in memory."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def resident_peak() -> float:
    """MiB of physical memory that this process has held at most; of Linux alone."""
    (line,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(line) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda for a GPU")
    parser.add_argument("--images", type=int, default=20_000, help="how many JPEG files on a GPU")
    store.add_option(parser)
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.device != "cpu":
        store.write(options.csv, extract_gpu.main(options.device, options.images))
        return
    if options.csv is not None:
        parser.error("--csv is for --device cuda")
    extraction(n=4 if options.quick else 320, rounds=1 if options.quick else 5)
    reading(n=2048 if options.quick else 131072)


if __name__ == "__main__":
    main()
