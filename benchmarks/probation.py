"""What `lametta.torch.Probation` leaves of each method's harm and gain, on CIFAR-10.

``python benchmarks/probation.py --data FOLDER --csv ROWS.csv`` runs a ResNet-32 on images and
corruptions on which nothing was chosen: streams of 300 in batches of 16, i.i.d., by class and
Dirichlet, and four domains one after another; each method alone and on probation, in the field's
form (statistics of the batch, answers from the first pass). FOLDER is that of ``hybrid.py``.
``--methods`` names some of them. Rows that the file has are not run again; ``--table`` shows it.
"""

import argparse
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

from hybrid import WEIGHTS, Bench, Images, Run, read, runs, write
from lametta.torch import ETA, ROID, SAR, TENT, AdaBN, DeYO, NetworkMethod, Probation

METHODS: dict[str, Callable[..., NetworkMethod]] = {
    "TENT": lambda model: TENT(model, lr=1e-3, bn_momentum=0, predict_first=True),
    "TENT, rate 0.1": lambda model: TENT(model, lr=0.1, bn_momentum=0, predict_first=True),
    "SAR": lambda model: SAR(model, lr=1e-3, layers="norms"),
    "ETA": lambda model: ETA(model, lr=1e-3),
    "DeYO": lambda model: DeYO(model, lr=1e-3, layers="norms"),
    "ROID": lambda model: ROID(model, lr=1e-3),
    "AdaBN": lambda model: AdaBN(model, momentum=0.2),
}
CONDITIONS = ("clean", "shot_noise", "impulse_noise", "motion_blur", "pixelate", "domains")


def chosen(images: Images, seed: int) -> Iterator[Run]:
    """The streams: by class and i.i.d. of all conditions, Dirichlet of two of them."""
    for run in runs(images, "reported", seed, one_class=False):
        dirichlet = run.order == "Dirichlet" and run.condition in ("shot_noise", "motion_blur")
        arranged = run.order in ("i.i.d.", "by class") or dirichlet
        if run.batch == 16 and run.condition in CONDITIONS and arranged:
            yield run


def follow(method: NetworkMethod | Probation, x: torch.Tensor, labels: torch.Tensor) -> list[float]:
    """Accuracy in percent, forward and backward passes a sample."""
    right = forwards = backwards = 0.0
    for part, y in zip(torch.split(x, 16), torch.split(labels, 16), strict=True):
        prediction = method.step(part)
        right += float((prediction.probs.argmax(1) == y).sum())
        forwards += float(prediction.info["forward_samples"])
        backwards += float(prediction.info["backward_samples"])
    method.reset()
    return [100 * right / len(x), forwards / len(x), backwards / len(x)]


def table(rows: list[dict[str, str]]) -> None:
    """Print gains over the frozen source, alone and on probation."""
    print(
        "| method | streams | alone: mean / worst | on probation: mean / worst | below -0.5 "
        "| gain kept | passes alone | on probation |\n|---|---:|---|---|---:|---:|---|---|"
    )
    for name in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == name]
        source = np.array([float(row["source"]) for row in own])
        alone, guarded = (
            np.array([float(r[k]) for r in own]) - source for k in ("alone", "guarded")
        )
        gains = alone > 0
        kept = f"{100 * guarded[gains].sum() / alone[gains].sum():.0f} %" if gains.any() else ""
        passes = []
        for key in ("alone", "guarded"):
            found = [fmean(float(row[f"{key}_{way}"]) for row in own) for way in ("f", "b")]
            passes.append("{:.2f} + {:.2f}".format(*found))
        print(
            f"| {name} | {len(own)} | {alone.mean():+.1f} / {alone.min():+.1f} "
            f"| {guarded.mean():+.1f} / {guarded.min():+.1f} | {(guarded < -0.5).sum()} "
            f"| {kept} | {passes[0]} | {passes[1]} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder with CIFAR-10")
    parser.add_argument("--network", choices=list(WEIGHTS), default="resnet32")
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--csv", type=Path, required=True, help="where rows are kept")
    parser.add_argument("--table", action="store_true", help="show the table, run nothing")
    given = parser.parse_args()
    stored = read(given.csv)
    if not given.table:
        torch.set_num_threads(1)
        images = Images(given.data, "reported")
        name = f"torch:lametta.torch.cifar:{given.network}"
        bench = Bench(name, given.data / WEIGHTS[given.network], images, given.device)
        known = {(row["method"], row["condition"], row["order"], row["seed"]) for row in stored}
        for title in given.methods:
            for run in chosen(images, given.seed):
                if (title, run.condition, run.order, str(given.seed)) in known:
                    continue
                x = bench.inputs(run)
                labels = torch.as_tensor(images.labels[run.index], device=x.device)
                with torch.no_grad():
                    answers = torch.cat([bench.net(part).argmax(1) for part in torch.split(x, 50)])
                row = {"method": title, "condition": run.condition, "order": run.order}
                row |= {"seed": str(given.seed)}
                row["source"] = f"{100 * float((answers == labels).double().mean()):.4f}"
                method = METHODS[title](bench.model)
                for key, one in (("alone", method), ("guarded", Probation(method))):
                    right, forwards, backwards = follow(one, x, labels)
                    row |= {key: f"{right:.4f}", f"{key}_f": f"{forwards:.4f}"}
                    row[f"{key}_b"] = f"{backwards:.4f}"
                stored.append(row)
                write(given.csv, stored)
    table(stored)


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main()
