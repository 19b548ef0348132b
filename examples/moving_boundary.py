"""The paper's Figure 2: entropy minimization on one class pushes the decision boundary away.

A small network separates two classes in the plane. Its inputs shift a little, and batches of the
first class alone arrive. TENT makes their predictions confident by moving the boundary into the
other class, whose samples it then misses. LAME leaves the network as it is.

The paper draws a linear classifier of classes that a sinusoid separates; its code was not released.
"""

import argparse
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

import lametta
from lametta.torch import Classifier, tent

CENTERS = torch.tensor([[-1.0, 0.0], [1.0, 0.0]])
SHIFT = torch.tensor([0.5, 0.0])
BATCH_SIZE, BATCHES = 32, 24


def sample(label: int, n: int) -> torch.Tensor:
    return CENTERS[label] + 0.6 * torch.randn(n, 2)


def train() -> nn.Sequential:
    net = nn.Sequential()
    net.hidden, net.norm = nn.Linear(2, 32), nn.LayerNorm(32)
    net.relu, net.fc = nn.ReLU(), nn.Linear(32, 2)
    x, y = torch.cat([sample(0, 500), sample(1, 500)]), torch.arange(2).repeat_interleave(500)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(100):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        torch.autograd.backward(loss)
        optimizer.step()
    return net.eval()


def draw_boundary(axes: Any, net: nn.Module, points: tuple[torch.Tensor, ...], title: str) -> None:
    grid = torch.linspace(-3, 3.5, 160)
    plane = torch.cartesian_prod(grid, grid)
    with torch.no_grad():
        first = net(plane).softmax(1)[:, 0].reshape(160, 160).T
        hits = [(net(x).argmax(1) == label).float().mean() for label, x in enumerate(points)]
    axes.contourf(grid, grid, first, levels=20, cmap="RdBu", vmin=0, vmax=1, alpha=0.6)
    axes.contour(grid, grid, first, levels=[0.5], colors="black")
    for x, color, marker in zip(points, ("#08306b", "#7f0000"), ("o", "^"), strict=True):
        axes.scatter(*x[:60].T, s=8, color=color, marker=marker)
    correct = " and ".join(f"{100 * hit:.0f}" for hit in hits)
    axes.set(title=title, xlabel=f"right in each class: {correct} %")
    axes.set(xticks=[], yticks=[], aspect="equal")


def accuracy(adapter: lametta.Adapter, batches: list[tuple[torch.Tensor, int]]) -> Any:
    """Share of right predictions in each batch, in percent."""
    return np.array(
        [100 * float((adapter.step(x).probs.argmax(1) == y).float().mean()) for x, y in batches]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lr", type=float, default=0.1, help="TENT's learning rate")
    parser.add_argument("-o", "--output", type=Path, default=Path("moving_boundary.png"))
    options = parser.parse_args()
    torch.manual_seed(0)
    net = train()
    points = tuple(sample(label, 500) + SHIFT for label in (0, 1))
    order = [0] * (BATCHES // 2) + [1] * (BATCHES // 2)
    batches = [(sample(label, BATCH_SIZE) + SHIFT, label) for label in order]
    model = Classifier(net)
    adapter = tent(model, lr=options.lr)

    figure, axes = plt.subplots(1, 4, figsize=(14, 3.8), layout="constrained")
    draw_boundary(axes[0], net, points, "source")
    curves = {
        "source": accuracy(lametta.Source(model), batches),
        "LAME": accuracy(lametta.Corrected(model, lametta.LAME()), batches),
    }
    first, rest = batches[: BATCHES // 2], batches[BATCHES // 2 :]
    early = accuracy(adapter, first[:4])
    draw_boundary(axes[1], net, points, "TENT, 4 batches of class one")
    early = np.concatenate([early, accuracy(adapter, first[4:])])
    draw_boundary(axes[2], net, points, f"TENT, {len(first)} batches of class one")
    curves["TENT"] = np.concatenate([early, accuracy(adapter, rest)])
    for (name, curve), color in zip(curves.items(), ("0.5", "C2", "C3"), strict=True):
        axes[3].plot(np.arange(1, BATCHES + 1), curve, color=color, label=name)
    axes[3].axvline(len(first) + 0.5, color="black", linewidth=0.8, linestyle=":")
    axes[3].set(title="class one, then class two", xlabel="batch", ylabel="accuracy (%)")
    axes[3].set(ylim=(-3, 103))
    axes[3].legend()
    figure.savefig(options.output)

    print(f"{'':<10}{'class one':>11}{'class two':>11}   (accuracy in percent)")
    for name, curve in curves.items():
        print(f"{name:<10}{curve[: len(first)].mean():>11.1f}{curve[len(first) :].mean():>11.1f}")
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
