"""Train the networks of `lametta.torch.digits` and write their weights into the package.

Seeded and on one thread, so that a machine gives the same weights each time; it takes a minute.
With ``--check`` nothing is written: each new network has to be as accurate as the stored one, to a
point.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from torch import nn
from torch.nn import functional

from lametta.data.readers.digits import make_digits, part, warp
from lametta.torch.digits import NETS, digits_net
from lametta.types import Array

ASSETS = Path(__file__).parents[1] / "src/lametta/torch/assets"
EPOCHS = 40
BATCH_SIZE = 60
LEARNING_RATE = 3e-3
MIXUP = 0.4
TOLERANCE = 0.01


def jitter(image: Array, rng: np.random.Generator) -> Array:
    """Turn, scale and move a digit a little: less than the videos do."""
    return warp(
        image,
        angle=rng.normal(scale=0.15),
        scale=np.exp(rng.normal(scale=0.08)),
        shift=rng.normal(scale=0.5, size=2),
    )


def train(name: str) -> nn.Module:
    """Train from a fixed seed."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    rng = np.random.default_rng(0)
    digits = part("train")
    labels = functional.one_hot(torch.tensor([digit.label for digit in digits])).float()
    _, make = NETS[name]
    net = make()
    optimizer = torch.optim.AdamW(net.parameters())
    steps = EPOCHS * len(digits) // BATCH_SIZE
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
    for _ in range(EPOCHS):
        images = torch.tensor(
            np.stack([jitter(digit.image, rng) for digit in digits])[:, None], dtype=torch.float32
        )
        for index in torch.randperm(len(digits)).chunk(len(digits) // BATCH_SIZE):
            x, y = images[index], labels[index]
            if name == "digits_mixup":
                share, partners = rng.beta(MIXUP, MIXUP), torch.randperm(len(index))
                x, y = (torch.lerp(a[partners], a, share) for a in (x, y))
            optimizer.zero_grad()
            loss = functional.cross_entropy(net(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    return net.eval()


def accuracy(net: nn.Module, data: str) -> float:
    """The share of a data set that the network gets right."""
    digits = make_digits(data)
    with torch.no_grad():
        predicted = net(torch.from_numpy(digits.samples)).argmax(dim=1).numpy()
    return float((predicted == digits.labels).mean())


def main() -> None:
    """Train, then write or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the stored weights")
    check = parser.parse_args().check
    for name, (stem, _) in NETS.items():
        net = train(name)
        if not check:
            (ASSETS / f"{stem}.safetensors").write_bytes(save(net.state_dict()))
        stored = digits_net(name)
        for data in ("digits_val", "digits_v2"):
            right = {"new": accuracy(net, data), "stored": accuracy(stored, data)}
            said = ", ".join(f"{key} {value:.3f}" for key, value in right.items())
            sys.stdout.write(f"{name} on {data}: {said}\n")
            if abs(right["new"] - right["stored"]) > TOLERANCE:
                sys.exit(f"{name} on {data}: they differ by more than {TOLERANCE}")


if __name__ == "__main__":
    main()
