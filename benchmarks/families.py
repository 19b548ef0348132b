"""Train a network of another family than the ResNets on CIFAR-10, for hybrid.py.

``python benchmarks/families.py mobilenet --data FOLDER --weights FILE --device cuda`` trains on the
50,000 images of ``FOLDER/data_batch_1.bin`` to ``data_batch_5.bin``, of the published binary
version, in some minutes on a GPU; ``--images 10000 --epochs 8`` takes some on one core of a CPU.
Weights are not in the repository. ``hybrid.py --network torch:families:mobilenet --weights FILE``
takes them.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from lametta.preprocess import Preprocess

WIDTHS = (24, 48, 96, 128)  # of the VGG's four stages
BLOCKS = ((16, 24, 1), (24, 48, 2), (48, 48, 1), (48, 96, 2), (96, 96, 1), (96, 128, 2))
BATCH_SIZE = 64
LEARNING_RATE = 4e-3


def vgg() -> tuple[nn.Module, Preprocess]:
    """Eight convolutions in four stages, each with a batch normalization; 0.5 million weights."""
    layers: list[nn.Module] = []
    inputs = 3
    for i, width in enumerate(WIDTHS):
        layers += [nn.MaxPool2d(2)] if i else []
        layers += [*_conv(inputs, width), *_conv(width, width)]
        inputs = width
    return _with_head(layers, inputs)


def mobilenet() -> tuple[nn.Module, Preprocess]:
    """Six depthwise separable convolutions after an ordinary one: 13 batch normalizations."""
    layers = _conv(3, 16)
    for inputs, outputs, stride in BLOCKS:
        layers += [*_conv(inputs, inputs, stride, groups=inputs), *_conv(inputs, outputs, kernel=1)]
    return _with_head(layers, BLOCKS[-1][1])


def _conv(
    inputs: int, outputs: int, stride: int = 1, *, kernel: int = 3, groups: int = 1
) -> list[nn.Module]:
    conv = nn.Conv2d(
        inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False
    )
    return [conv, nn.BatchNorm2d(outputs), nn.ReLU()]


def _with_head(layers: list[nn.Module], width: int) -> tuple[nn.Module, Preprocess]:
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))
    return net, Preprocess(resize=None, crop=None)


def read(folder: Path, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The first training images [N, 3, 32, 32] in bytes, and their labels."""
    files = [folder / f"data_batch_{i}.bin" for i in range(1, 6)]
    rows = np.concatenate([np.fromfile(file, np.uint8).reshape(-1, 3073) for file in files])[:most]
    images = torch.from_numpy(rows[:, 1:].reshape(-1, 3, 32, 32).copy())
    return images, torch.from_numpy(rows[:, 0].astype(np.int64))


def train(
    net: nn.Module, prepare: Preprocess, images: torch.Tensor, labels: torch.Tensor, epochs: int
) -> None:
    """Train by flips and shifts, from what is drawn after the seed."""
    device = next(net.parameters()).device
    mean, std = (torch.tensor(x, device=device)[:, None, None] for x in (prepare.mean, prepare.std))
    optimizer = torch.optim.AdamW(net.parameters(), weight_decay=0.02)
    steps = epochs * (len(images) // BATCH_SIZE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
    for epoch in range(epochs):
        right, order = 0, torch.randperm(len(images))
        for step in range(steps // epochs):
            index = order[step * BATCH_SIZE : (step + 1) * BATCH_SIZE]
            x = functional.pad(images[index], (4, 4, 4, 4))
            down, left, flip = (int(torch.randint(n, ())) for n in (9, 9, 2))
            x = x[:, :, down : down + 32, left : left + 32].flip([3] if flip else [])
            logits = net((x.to(device) / 255 - mean) / std)
            y = labels[index].to(device)
            loss = functional.cross_entropy(logits, y)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            right += int((logits.argmax(1) == y).sum())
        share = right / (steps // epochs * BATCH_SIZE)
        print(f"epoch {epoch + 1}: {100 * share:.1f} % in training")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("network", choices=("vgg", "mobilenet"))
    parser.add_argument("--data", type=Path, required=True, help="the folder of the binary version")
    parser.add_argument("--weights", type=Path, required=True, help="the file to write")
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    torch.manual_seed(0)
    net, prepare = {"vgg": vgg, "mobilenet": mobilenet}[given.network]()
    images, labels = read(given.data, given.images)
    train(net.to(given.device).train(), prepare, images, labels, given.epochs)
    torch.save(net.eval().cpu().state_dict(), given.weights)


if __name__ == "__main__":
    main()
