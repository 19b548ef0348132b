"""Train the network of `lametta.data.readers.digits` and write its weights into the package.

Seeded and on one thread, so that a machine gives the same weights each time; it takes seconds. With
``--check`` nothing is written: the new network has to be as accurate as the stored one, to a point.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from torch import nn

from lametta.data.readers.digit_shifts import warp
from lametta.data.readers.digits import make_digits, part
from lametta.torch.digits import DigitsNet, digits_net
from lametta.types import Array

WEIGHTS = Path(__file__).parents[1] / "src/lametta/torch/assets/digits_cnn.safetensors"
EPOCHS = 40
BATCH_SIZE = 60
LEARNING_RATE = 3e-3
TOLERANCE = 0.01


def jitter(image: Array, rng: np.random.Generator) -> Array:
    """Turn, scale and move a digit a little: less than the videos do."""
    return warp(
        image,
        angle=rng.normal(scale=0.15),
        scale=np.exp(rng.normal(scale=0.08)),
        shift=rng.normal(scale=0.5, size=2),
    )


def train() -> nn.Module:
    """Train from a fixed seed."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    rng = np.random.default_rng(0)
    digits = part("train")
    labels = torch.tensor([digit.label for digit in digits])
    net = DigitsNet()
    optimizer = torch.optim.AdamW(net.parameters())
    steps = EPOCHS * len(digits) // BATCH_SIZE
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
    for _ in range(EPOCHS):
        images = np.stack([jitter(digit.image, rng) for digit in digits])[:, None]
        for index in torch.randperm(len(digits)).chunk(len(digits) // BATCH_SIZE):
            logits = net(torch.tensor(images[index], dtype=torch.float32))
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(logits, labels[index])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    return net.eval()


def accuracy(net: nn.Module, name: str) -> float:
    """The share of a data set that the network gets right."""
    data = make_digits(name)
    with torch.no_grad():
        predicted = net(torch.from_numpy(data.samples)).argmax(dim=1).numpy()
    return float((predicted == data.labels).mean())


def main() -> None:
    """Train, then write or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the stored weights")
    check = parser.parse_args().check
    net = train()
    if not check:
        WEIGHTS.write_bytes(save(net.state_dict()))
    for name in ("digits_val", "digits_v2"):
        new, stored = accuracy(net, name), accuracy(digits_net(), name)
        sys.stdout.write(f"{name}: {new:.3f}, stored {stored:.3f}\n")
        if abs(new - stored) > TOLERANCE:
            sys.exit(f"{name}: the new network and the stored one differ by more than {TOLERANCE}")


if __name__ == "__main__":
    main()
