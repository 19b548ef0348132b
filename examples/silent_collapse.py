"""The paper's Figure 1: entropy minimization can fail without a sign of it.

A ResNet-20 meets CIFAR-10 one class after the other. TENT drives the entropy of its predictions
down at any learning rate, which looks like success; the accuracy tells another story. LAME, on the
same stream, gains. Needs ``cifar10/resnet20-12fca82f.th`` and ``cifar10/test-3000.zip`` (images in
class folders) under the data root: ``--data`` or the environment variable LAMETTA_DATA.
"""

import argparse
import csv
import io
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from PIL import Image
from torch import nn

import lametta
from lametta.torch import Classifier, tent, zoo

BATCH_SIZE = 16
RATES = (0.001, 0.01, 0.1)


def load_network(path: Path) -> nn.Module:
    return zoo.load("torch:lametta.torch.cifar:resnet20", weights=path).net


def load_stream(path: Path, per_class: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and labels, class after class."""
    with zipfile.ZipFile(path) as archive:
        files = sorted(name for name in archive.namelist() if name.endswith(".jpg"))
        folders = sorted({name.split("/")[-2] for name in files})
        chosen, labels = [], []
        for label, folder in enumerate(folders):
            members = [name for name in files if name.split("/")[-2] == folder][:per_class]
            chosen += members
            labels += [label] * len(members)
        pixels = [np.asarray(Image.open(io.BytesIO(archive.read(name)))) for name in chosen]
    x = torch.tensor(np.stack(pixels)).permute(0, 3, 1, 2) / 255
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return (x - mean[:, None, None]) / std[:, None, None], torch.tensor(labels)


def run(adapter: lametta.Adapter, x: torch.Tensor, labels: torch.Tensor) -> tuple[Any, Any]:
    """Entropy of each batch, and accuracy over the stream so far, in percent."""
    entropy, hits = [], []
    for start in range(0, len(x), BATCH_SIZE):
        prediction = adapter.step(x[start : start + BATCH_SIZE])
        entropy.append(float(prediction.info["entropy"]))
        hits.extend(prediction.probs.argmax(1) == labels[start : start + BATCH_SIZE])
    online = 100 * np.cumsum(hits) / np.arange(1, len(hits) + 1)
    return np.array(entropy), online[BATCH_SIZE - 1 :: BATCH_SIZE]


def draw(curves: dict[str, tuple[Any, Any]], path: Path) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for (name, (entropy, accuracy)), color in zip(
        curves.items(), ("0.5", "C0", "C1", "C3", "C2"), strict=True
    ):
        smooth = np.convolve(entropy, np.ones(9) / 9, mode="valid")
        axes[0].plot(np.arange(4, 4 + len(smooth)), smooth, color=color)
        axes[1].plot(accuracy, color=color, label=name)
    axes[0].set(xlabel="batch", ylabel="entropy (nats, mean of 9 batches)", ylim=(0, None))
    axes[1].set(xlabel="batch", ylabel="accuracy so far (%)", ylim=(0, 100))
    figure.legend(*axes[1].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("LAMETTA_DATA"))
    parser.add_argument("--per-class", type=int, default=300, help="images of each class")
    parser.add_argument("-o", "--output", type=Path, default=Path("silent_collapse.png"))
    parser.add_argument("--csv", type=Path, help="where to write the figures")
    options = parser.parse_args()
    files = [Path(options.data or "") / "cifar10" / name
             for name in ("resnet20-12fca82f.th", "test-3000.zip")]  # fmt: skip
    if missing := [str(file) for file in files if not file.is_file()]:
        sys.exit(f"not found: {', '.join(missing)}; give the data root by --data or LAMETTA_DATA")
    torch.set_num_threads(1)  # another order of sums, and a collapse ends elsewhere
    model = Classifier(load_network(files[0]))
    x, labels = load_stream(files[1], options.per_class)
    curves = {"the network alone": run(lametta.Source(model), x, labels)}
    for rate in RATES:
        adapter = tent(model, lr=rate, bn_momentum=0.0)
        curves[f"TENT, learning rate {rate}"] = run(adapter, x, labels)
        adapter.reset()
    curves["LAME"] = run(lametta.Corrected(model, lametta.LAME()), x, labels)
    rows = [(n, f"{e.mean():.3f}", f"{right[-1]:.1f}") for n, (e, right) in curves.items()]
    for row in (titles := ("", "mean entropy", "accuracy"), *rows):
        print("{:<26}{:>14}{:>10}".format(*row))
    if options.csv:
        with options.csv.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([titles, *rows])
    draw(curves, options.output)
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
