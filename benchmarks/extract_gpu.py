"""What `extract.py` does on a GPU: images a second of decoding, of the network, and of both."""

import importlib.util
import itertools
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from torch import nn

from lametta import Model, networks
from lametta.data.bank import extract
from lametta.data.dataset import Dataset
from lametta.data.loader import load_batches
from lametta.data.readers.folders import image_folder
from lametta.preprocess import Preprocess
from lametta.torch import Classifier
from lametta.torch.resnet import ResNet
from networks import NETWORKS

BATCH = 64
READERS = max(1, (os.cpu_count() or 1) - 1)  # one core launches kernels and writes rows


def draw(path: Path, shortest: int, longest: int, seed: int) -> None:
    """Write a JPEG file of smooth noise, as hard to decode as a photograph of its size."""
    rng = np.random.default_rng(seed)
    width, height = rng.integers(shortest, longest, size=2, endpoint=True)
    coarse = rng.integers(256, size=(height // 8, width // 8, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((int(width), int(height)), Image.Resampling.BICUBIC)
    image.save(path, quality=90)


class Watch:
    """The rate of something that tells how many of n it has done, once it runs.

    Until a tenth is done, processes start and the first batches are read, which takes the same
    time however many images there are.
    """

    def __init__(self, n: int) -> None:
        self.n, self.times = n, list[tuple[int, float]]()

    def __call__(self, done: int, _: int = 0) -> None:
        self.times.append((done, time.perf_counter()))

    @property
    def rate(self) -> float:
        some, start = next(at for at in self.times if at[0] >= self.n / 10)
        done, end = self.times[-1]
        return (done - some) / (end - start)


def drawn(folder: Path, n: int, sizes: tuple[int, int]) -> Dataset:
    """JPEG files with sides of that many pixels at the least and at the most."""
    photos = folder / f"{sizes[0]} to {sizes[1]}"
    (photos / "a").mkdir(parents=True)
    paths = [photos / "a" / f"{i:06}.jpg" for i in range(n)]
    with ProcessPoolExecutor() as pool:
        list(pool.map(draw, paths, *([size] * n for size in sizes), range(n), chunksize=64))
    return image_folder(photos)


def decode_rate(data: Dataset, prepare: Preprocess) -> float:
    """Images a second that processes decode when nothing else runs."""
    watch, done = Watch(len(data)), 0
    index = [range(i, min(i + BATCH, len(data))) for i in range(0, len(data), BATCH)]
    for batch in load_batches(data, index, prepare.pixels, workers=READERS):
        done += len(batch)
        watch(done)
    return watch.rate


def forward_rate(model: Model, size: tuple[int, int], device: str) -> float:
    """Images a second of a network on a batch that stays on the GPU."""
    x, batches = torch.randn(BATCH, 3, *size, device=device), 100

    for i in range(10 + batches):
        if i == 10:  # what came before warms up
            torch.cuda.synchronize()
            start = time.perf_counter()
        model(x)
    torch.cuda.synchronize()
    return batches * BATCH / (time.perf_counter() - start)


def on_gpu(
    name: str, net: nn.Module, prepare: Preprocess, data: Dataset, decode: float, device: str
) -> dict[str, str]:
    """Images a second of the plain forward pass and of extraction, against those decoded."""
    replays, replay = itertools.count(), torch.cuda.CUDAGraph.replay

    def counted(graph: torch.cuda.CUDAGraph) -> None:
        next(replays)
        replay(graph)

    with (
        Classifier(net.eval().to(device)) as model,
        torch.no_grad(),
        tempfile.TemporaryDirectory() as folder,
    ):
        plain = forward_rate(model, prepare.crop_size or (0, 0), device)
        path, watch = Path(folder, "bank.safetensors"), Watch(len(data))
        with patch.object(torch.cuda.CUDAGraph, "replay", counted):
            start = time.perf_counter()
            extract(
                model,
                data,
                prepare,
                path,
                batch_size=BATCH,
                workers=READERS,
                device=device,
                progress=watch,
            )
            whole = time.perf_counter() - start
    waits = max(0.0, 1 - watch.rate / plain)  # the share of time that the plain pass would not need
    print(
        f"{name:<17}{data.name:>12}{decode:>9.0f}{plain:>9.0f}{watch.rate:>9.0f}"
        f"{100 * watch.rate / min(decode, plain):>14.0f} %{100 * waits:>12.0f} %"
        f"{len(data) / whole:>9.0f}{100 * next(replays) * BATCH / len(data):>9.0f} %",
        flush=True,
    )
    return {
        "network": name,
        "side in pixels": data.name,
        "decoding alone": f"{decode:.0f}",
        "plain forward pass": f"{plain:.0f}",
        "extraction": f"{watch.rate:.0f}",
        "of the smaller": f"{100 * watch.rate / min(decode, plain):.0f} %",
        "in all": f"{len(data) / whole:.0f}",
    }


def main(device: str, n: int) -> list[dict[str, str]]:
    print(f"{n} JPEG files, {os.cpu_count()} cores, images a second")
    print(
        f"{'network':<17}{'pixels':>12}{'decode':>9}{'forward':>9}{'extract':>9}"
        f"{'of the smaller':>16}{'GPU waits':>14}{'in all':>9}{'replayed':>11}"
    )
    usual = Preprocess()
    with tempfile.TemporaryDirectory() as folder:
        large, small = (drawn(Path(folder), n, sizes) for sizes in ((300, 640), (160, 256)))
        os.sync()  # or the disk would be busy with the files while rows are written
        decode = decode_rate(large, usual)
        rows = [on_gpu("ResNet-50", ResNet(50), usual, large, decode, device)]
        if importlib.util.find_spec("timm") is not None:
            wide = Preprocess(**networks.find("paper:efficientnet_b4").options["preprocess"])
            decode = decode_rate(large, wide)
            net = NETWORKS["EfficientNet-B4"][0]()
            rows.append(on_gpu("EfficientNet-B4", net, wide, large, decode, device))
        decode = decode_rate(small, usual)
        for layers in (50, 101):
            name = f"ResNet-{layers}"
            rows.append(on_gpu(name, ResNet(layers), usual, small, decode, device))
    return rows
