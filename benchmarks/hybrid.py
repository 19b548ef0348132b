"""What ``half_bn`` and ``prudent_bn`` gain and lose, stream by stream, on CIFAR-10.

``python benchmarks/hybrid.py --data FOLDER --csv ROWS.csv`` runs a ResNet-20 on its development
streams: 30 images a class, clean and with CIFAR-10-C's corruptions at severity 5, in five orders,
in batches of 1, 4, 16 and 64, and four domains of 80 images one after another. FOLDER has
``cifar10_test.npz`` (``images``, ``labels``) and the weights. ``--half reported`` takes other
images and corruptions, ``--network`` another network, ``--weights`` its file; ``--fixed`` adds
AdaBN with Prudent on top, by momenta of .05, .2 and 1, of which the table takes the best of each
stream, as only labels can. ``--one-class`` runs streams of a single class instead.

``--cost`` times a step in each state beside the plain pass, also where four streams share a batch,
measures what is remembered of a stream, and stores nothing; ``--device cuda`` does so on a GPU.

Rows that a file has are not run again, so that a run goes on where it was; ``--table`` shows what
it has. One core takes about 20 minutes for a network without ``--fixed``.
"""

import argparse
import csv
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lametta import Corrected, Prudent
from lametta.data.cifar_c import corrupt_pixels
from lametta.stream import Scenario, by_class, dirichlet, iid, markov, zipf
from lametta.torch import AdaBN, Classifier, HalfBN, zoo

Index = NDArray[np.intp]
WEIGHTS = {
    "resnet20": "resnet20-12fca82f.th",
    "resnet32": "resnet32-d509ac18.th",
    "resnet44": "resnet44-014dd654.th",
    "resnet56": "resnet56-4bfd9763.th",
    "resnet26_gn": "resnet26_gn.npz",
}
CONDITIONS = {
    "chosen": ("clean", "gaussian_noise", "contrast", "fog", "jpeg_compression"),
    "reported": (
        *("clean", "shot_noise", "impulse_noise", "motion_blur"),
        *("pixelate", "elastic_transform", "snow", "brightness"),
    ),
}
DOMAINS = {
    "chosen": ("clean", "gaussian_noise", "contrast", "fog"),
    "reported": ("shot_noise", "brightness", "motion_blur", "impulse_noise"),
}
ORDERS: dict[str, tuple[Any, Any]] = {
    "i.i.d.": (iid(), "as_is"),
    "by class": (by_class(), "as_is"),
    "Markov": (markov(0.9), "as_is"),
    "Dirichlet": (dirichlet(0.1), "as_is"),
    "Zipf": (iid(), zipf()),
}
BATCHES = (64, 16, 4, 1)
MOMENTA = (0.05, 0.2, 1.0)
SEVERITY, A_CLASS, A_DOMAIN = 5, 30, 8
STREAMS = 4  # among which ``--cost`` divides a batch
METHODS = ("source", "prudent", "half_bn", "prudent_bn")


@dataclass(frozen=True)
class Run:
    """A stream: positions in the set of images, each with its condition."""

    condition: str
    order: str
    batch: int
    index: Index
    conditions: list[str]


class Images:
    """Test images of one half, corrupted when they are first asked for."""

    def __init__(self, data: Path, half: str) -> None:
        with np.load(data / "cifar10_test.npz") as file:
            names = file.files
            self.pixels, labels = (np.asarray(file[name]) for name in names[:2])
        self.labels = labels.astype(np.int64).ravel()
        # The first hundred of each class are for development, the second hundred for the report.
        first = 0 if half == "chosen" else 100
        members = [np.flatnonzero(self.labels == k)[first : first + 100] for k in range(10)]
        self.hundred = np.stack(members)  # [K, 100]

    @cache  # noqa: B019 - as long as the program
    def image(self, position: int, condition: str) -> NDArray[np.uint8]:
        plain: NDArray[np.uint8] = self.pixels[position]
        if condition == "clean":
            return plain
        corrupted: NDArray[np.uint8] = corrupt_pixels(plain, condition, SEVERITY, int(position))
        return corrupted


def runs(images: Images, half: str, seed: int, one_class: bool) -> Iterator[Run]:
    """All streams of a half."""
    if one_class:
        for condition in CONDITIONS[half]:
            for k, members in enumerate(images.hundred):
                yield Run(condition, f"class {k}", 16, members, [condition] * 100)
        return
    few = np.sort(images.hundred[:, :A_CLASS].ravel())
    many = np.sort(images.hundred.ravel())
    for batch in BATCHES:
        for condition in CONDITIONS[half]:
            for order, (arranged, prior) in ORDERS.items():
                pool = many if order == "Zipf" else few
                scenario = Scenario(arranged, prior, seed=seed, limit=len(few))
                index = pool[scenario(images.labels[pool]).index]
                yield Run(condition, order, batch, index, [condition] * len(index))
        for order in ("i.i.d.", "by class"):
            index, conditions = domains(images, half, order, seed)
            yield Run("domains", order, batch, index, conditions)


def domains(images: Images, half: str, order: str, seed: int) -> tuple[Index, list[str]]:
    """Four domains of other images each, one after another."""
    parts, conditions = [], []
    for i, condition in enumerate(DOMAINS[half]):
        pool = np.sort(images.hundred[:, i * A_DOMAIN : (i + 1) * A_DOMAIN].ravel())
        scenario = Scenario(ORDERS[order][0], seed=seed + i)
        parts.append(pool[scenario(images.labels[pool]).index])
        conditions += [condition] * len(pool)
    return np.concatenate(parts), conditions


class Bench:
    """A network, and what it makes of streams."""

    def __init__(self, name: str, weights: Path, images: Images, device: str = "cpu") -> None:
        loaded = zoo.load(name, weights=weights, device=device)
        self.device = torch.device(device)
        self.net, self.preprocess, self.images = loaded.net, loaded.preprocess, images
        self.model = Classifier(loaded.net, preprocess=loaded.preprocess)
        assert loaded.preprocess is not None
        mean, std = loaded.preprocess.mean, loaded.preprocess.std
        self.mean, self.std = (torch.tensor(x)[:, None, None] for x in (mean, std))

    def inputs(self, run: Run) -> torch.Tensor:
        pixels = [
            self.images.image(int(i), c) for i, c in zip(run.index, run.conditions, strict=True)
        ]
        x = torch.as_tensor(np.stack(pixels)).permute(0, 3, 1, 2) / 255
        return ((x - self.mean) / self.std).to(self.device)

    def accuracies(self, run: Run, fixed: bool) -> dict[str, float]:
        """Accuracy of each method in percent, forward passes a sample, changes of domain."""
        x = self.inputs(run)
        labels = torch.as_tensor(self.images.labels[run.index], device=x.device)
        method = HalfBN(self.model)
        found, info = self.follow(Corrected(method, Prudent()), x, labels, run.batch)
        row = {"half_bn": found[0], "prudent_bn": found[1]}
        method.reset()
        found, _ = self.follow(Corrected(self.model, Prudent()), x, labels, run.batch)
        row |= {"source": found[0], "prudent": found[1]} | info
        shifted = run.condition not in (
            "clean",
            "jpeg_compression",
            "brightness",
            "snow",
            "domains",
        )
        if fixed and shifted and run.batch > 1 and run.order in ("i.i.d.", "by class"):
            for momentum in MOMENTA:
                other = AdaBN(self.model, momentum=momentum)
                found, _ = self.follow(Corrected(other, Prudent()), x, labels, run.batch)
                row[f"adabn {momentum}"] = found[1]
                other.reset()
        return row

    def follow(
        self, adapter: Corrected, x: torch.Tensor, labels: torch.Tensor, batch: int
    ) -> tuple[tuple[float, float], dict[str, float]]:
        """Accuracy before and after the corrector, and what the method said of itself."""
        before = after = passes = opened = 0.0
        changes = t = 0.0
        for x_part, y in zip(torch.split(x, batch), torch.split(labels, batch), strict=True):
            prediction = adapter.step(x_part)
            assert prediction.source is not None
            before += float((prediction.source.argmax(1) == y).sum())
            after += float((prediction.probs.argmax(1) == y).sum())
            info = prediction.info
            passes += float(info.get("base_forward_samples", len(y)))
            opened += len(y) * (info.get("base_state", 0) == 1)
            changes, t = info.get("base_domain_changes", 0), info.get("base_t", 0.0)
        n = len(labels)
        told = {"passes": passes / n, "open": opened / n, "changes": changes, "t": t}
        return (100 * before / n, 100 * after / n), told


def seconds(call: Callable[[], Any], device: torch.device) -> float:
    """How long a call takes; on a CPU of the process alone, since others may be busy there."""
    if device.type == "cpu":
        start = time.process_time()
        call()
        return time.process_time() - start
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def cost(bench: Bench, images: Images, batch: int, rounds: int = 60) -> None:
    """Print how long a step takes in each state, in plain passes of the same batch, and memory."""
    positions = images.hundred[:, : -(-batch // 10)].ravel()[:batch]
    for state, condition in (("closed", "clean"), ("open", "contrast")):
        run = Run(condition, "", batch, positions, [condition] * batch)
        x, method = bench.inputs(run), HalfBN(bench.model)
        times: dict[str, list[float]] = {"plain": [], "step": []}
        for _ in range(4):
            info = method.step(x).info
        for _ in range(rounds):
            times["plain"].append(seconds(partial(bench.model, x), bench.device))
            times["step"].append(seconds(partial(method.step, x), bench.device))
        info, held = method.step(x).info, sum(a.nbytes for a in method.state_dict().values())
        method.reset()
        ids = [i % STREAMS for i in range(batch)]
        apart = []
        for i in range(rounds + 20):
            taken = seconds(partial(method.step, x, stream=ids), bench.device)
            apart += [taken] if i >= 20 else []  # opened by then
        others = method.step(x, stream=ids).info["state"]
        method.reset()
        # Four steps take turns while it is open, of which one is the source's, too.
        plain = np.median(times["plain"])
        steps = np.array(times["step"][: rounds // 4 * 4]).reshape(-1, 4).mean(1)
        print(
            f"{state} ({info['state']:g}), batches of {batch}: {np.median(steps) / plain:.2f} "
            f"of {1e3 * plain:.2f} ms; {held / 1e6:.2f} MB; {STREAMS} streams in a batch "
            f"({others:g}) {np.mean(apart) / plain:.2f}"
        )


def table(rows: list[dict[str, str]]) -> None:
    """Print gains over the better of source and source with Prudent, by kinds of streams."""

    def number(row: dict[str, str], name: str) -> float:
        return float(row[name])

    def line(title: str, chosen: list[dict[str, str]]) -> None:
        if not chosen:
            return
        better = [max(number(r, "source"), number(r, "prudent")) for r in chosen]
        found = [number(r, "prudent_bn") for r in chosen]
        gains = np.array(found) - better
        beside = np.array(found) - [number(r, "prudent") for r in chosen]
        raw = np.array([number(r, "half_bn") - number(r, "source") for r in chosen])
        passes = np.mean([number(r, "passes") for r in chosen])
        print(
            f"| {title} | {len(chosen)} | {np.mean(better):.1f} -> {np.mean(found):.1f} "
            f"| {gains.mean():+.1f} | {gains.min():+.1f} | {beside.min():+.1f} "
            f"| {raw.mean():+.1f} / {raw.min():+.1f} | {passes:.2f} |"
        )

    print(
        "| streams | n | better of both -> with it | mean | worst | worst against prudent "
        "| half_bn alone: mean / worst | passes |\n|---|---:|---|---:|---:|---:|---|---:|"
    )
    line("all", rows)
    line("domains", [r for r in rows if r["condition"] == "domains"])
    for name in dict.fromkeys(r["condition"] for r in rows):
        line(name, [r for r in rows if r["condition"] == name])
    for name in dict.fromkeys(r["order"] for r in rows):
        line(name, [r for r in rows if r["order"] == name and r["condition"] != "domains"])
    for batch in dict.fromkeys(r["batch"] for r in rows):
        line(f"batches of {batch}", [r for r in rows if r["batch"] == batch])
    shares, ours = [], []
    for row in rows:
        momenta = [float(row[name]) for name in row if name.startswith("adabn") and row[name]]
        if momenta and max(momenta) - float(row["source"]) >= 10:
            shares.append(max(momenta) - float(row["source"]))
            ours.append(float(row["prudent_bn"]) - float(row["source"]))
    if shares:
        part = 100 * np.mean(ours) / np.mean(shares)
        print(f"\nof the best fixed momentum's gain on {len(shares)} streams: {part:.0f} %")
    for row in rows:
        lost = float(row["prudent_bn"]) - max(float(row["source"]), float(row["prudent"]))
        if lost < -0.5:
            print(f"below -0.5: {row['condition']}, {row['order']}, {row['batch']}: {lost:+.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder with CIFAR-10")
    parser.add_argument("--network", default="resnet20", help="a ResNet, or torch:module:function")
    parser.add_argument("--weights", type=Path, help="its file, for a network of your own")
    parser.add_argument("--half", choices=list(CONDITIONS), default="chosen")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batches", type=int, nargs="*", default=BATCHES)
    parser.add_argument("--fixed", action="store_true", help="fixed momenta beside it")
    parser.add_argument("--one-class", action="store_true", help="streams of one class")
    parser.add_argument("--cost", action="store_true", help="time steps, store nothing")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--csv", type=Path, help="where rows are kept")
    parser.add_argument("--table", action="store_true", help="show the table, run nothing")
    given = parser.parse_args()
    if given.csv is None and not given.cost:
        parser.error("--csv says where rows are kept")
    stored = [] if given.csv is None else read(given.csv)
    if not given.table:
        torch.set_num_threads(1)
        name = (
            given.network if ":" in given.network else f"torch:lametta.torch.cifar:{given.network}"
        )
        weights = given.weights or given.data / WEIGHTS[given.network]
        images = Images(given.data, given.half)
        bench = Bench(name, weights, images, given.device)
        if given.cost:
            for batch in given.batches:
                cost(bench, images, batch)
            return
        known = {
            tuple(row[key] for key in ("network", "half", "condition", "order", "batch", "seed"))
            for row in stored
        }
        for run in runs(images, given.half, given.seed, given.one_class):
            key = (
                given.network,
                given.half,
                run.condition,
                run.order,
                str(run.batch),
                str(given.seed),
            )
            if key in known or run.batch not in given.batches:
                continue
            found = {
                name: f"{value:.4f}" for name, value in bench.accuracies(run, given.fixed).items()
            }
            names = ("network", "half", "condition", "order", "batch", "seed")
            stored.append(dict(zip(names, key, strict=True)) | found)
            write(given.csv, stored)
    table([row for row in stored if row["order"].startswith("class") == given.one_class])


def read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write(path: Path, rows: list[dict[str, str]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, restval="")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main()
