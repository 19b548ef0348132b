"""How well ``lametta try`` estimates gains without labels, and what its advice gains.

``python benchmarks/try.py FOLDER --data ROOT --fit`` fits the coefficients of
`lametta.bench.trial.gains` on streams of the *chosen* half of `promise.py`. Without ``--fit``
these are judged on the *reported* half (other networks, images and corruptions), two networks of
which saw no choice, on the stored banks as they are and, if FOLDER has
``videos-lite0.safetensors``, on the seven videos. ``lametta extract --model efficientnet_lite0
--data ROOT/video`` makes that file.

The first table says for each part how often the 90 % interval held the true gain, how often a sign
was wrong where the gain is beyond 3 points, how often the advice came within 2 points of the best
method that was run, and what it lost at worst; the second has the advice for each stored bank.
``--labels`` draws samples of the same streams as ``lametta try --label`` does, and says how often
the interval that their labels measure held the gain, and how wide it is beside that of as many
samples of the whole stream. ``--store`` keeps the tables in docs/tables.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import promise
from lametta.bench.trial import Outputs, Run, Trial
from lametta.bench.trial.gains import CLUES, NORMAL, PANEL, clues, estimate, panel
from lametta.bench.trial.labels import draw
from lametta.bench.trial.runs import candidates, run_one
from lametta.data import Bank, load
from lametta.data.bank import extract
from lametta.torch import Classifier, zoo

MOST = 1200  # samples of a stream
METHODS = (*PANEL, "majority", "average", "label_shift", "neo")
HELD = "streams,runs,held,beyond 3 points,wrong sign,advice within 2 points,worst advice"
ADVICE = "stream,advised,gains,best,gains at best"
LABELS = "streams,labels,intervals,held,held of the advised,their width,of a plain draw"
OTHERS = ["cifar:resnet44", "cifar:resnet26_gn"]  # on which nothing was fitted, and no rule tried
DRAWS = 20  # of each stream
EVERY = 3  # of the many streams of images one in so many


@dataclass(frozen=True)
class Stream:
    """Outputs with labels, whose they are, and what is tried on them."""

    network: str
    name: str
    outputs: Outputs
    methods: tuple[str, ...] | None = METHODS


def streams(folder: Path, root: Path, half: str, networks: list[str]) -> Iterator[Stream]:
    """Streams of the banks of a half that are there, or can be made in a minute."""
    banks = promise.Banks(folder, root, half)
    for network in networks:
        kind, _, name = network.partition(":")
        bank = banks.get(name, kind)
        title = f"{name} {kind}" if kind in ("photos", "hopeless") else name
        found = list(promise.image_runs(title, bank, 0, False))[::EVERY]
        for run in found:
            if (run.labels >= 0).all():
                rows = slice(0, MOST)
                outputs = Outputs(run.features[rows], run.probs[rows], run.labels[rows])
                yield Stream(name if kind != "photos" else f"{name} photos", run.name, outputs)


def stored(folder: Path, root: Path) -> Iterator[Stream]:
    """The stored banks as they are, and the seven videos, apart and in one stream."""
    for file in sorted((root / "banks").glob("*.npz")):
        yield Stream(file.stem, file.stem, Outputs.of(Bank.open(file)))
    videos = folder / "videos-lite0.safetensors"
    if videos.exists():
        outputs = Outputs.of(Bank.open(videos))
        labels = np.array([promise.VIDEOS[str(g)] for g in np.asarray(outputs.groups)])
        apart = replace(outputs, labels=labels, prototypes=None)
        yield Stream("lite0 videos", "seven videos, each a group", apart)
        yield Stream("lite0 videos", "seven videos, one stream", replace(apart, groups=None))


def videos(folder: Path, root: Path) -> Iterator[Stream]:
    """Streams of many groups: the seven videos, and 112 of digits by each embedded network."""
    yield from (one for one in stored(folder, root) if one.outputs.groups is not None)
    data = load("embedded:digits_vid")
    for network in promise.HALVES["chosen"].digits + promise.HALVES["reported"].digits:
        file = folder / f"vid-{network}.safetensors"
        loaded = zoo.load(f"embedded:{network}")
        with Classifier(loaded.net) as model, torch.no_grad():
            bank = extract(model, data, loaded.preprocess, file, workers=0)
        yield Stream(network, f"112 videos, {network}", Outputs.of(bank))


def as_objects(folder: Path, root: Path) -> Iterator[Stream]:
    """The same, told that each group is one object."""
    for one in videos(folder, root):
        yield replace(one, outputs=replace(one.outputs, single=True))


def judged_groups(trial: Trial) -> Iterator[tuple[bool, bool, bool]]:
    """Of each group of each run that changes some of it, what `judged` says of a run."""
    outputs = trial.outputs
    labels, seen = np.asarray(outputs.labels), trial.look
    for run in trial.runs:
        for rows in outputs.streams:
            if (run.after[rows] == outputs.before[rows]).all():
                continue
            one = estimate(outputs, run, trial.runs, seen.kinship, rows, seen.copies or 0.0)
            right, was = (x[rows] == labels[rows] for x in (run.after, outputs.before))
            gain = float(right.mean() - was.mean())
            sure = one.verdict != "cannot tell"
            held = one.low - 1e-9 <= gain <= one.high + 1e-9
            yield held, abs(gain) > 0.03, sure and one.gain * gain < 0


def tried(stream: Stream) -> Trial:
    """The trial of a stream, without a limit of time."""
    found, left = candidates(stream.outputs, stream.methods)
    runs = (run_one(stream.outputs, one, np.inf) for one in found)
    return Trial(stream.outputs, tuple(run for run in runs if run), left, len(stream.outputs))


def changes(trial: Trial) -> Iterator[tuple[Run, float, float]]:
    """Runs that change anything worth naming: the share of changes, and the gain."""
    for run in trial.runs:
        share = float(np.mean(run.after != trial.outputs.before))
        gain = trial.gain(run)
        if share > 0.003 and gain is not None:
            yield run, share, gain


def fit(found: list[tuple[str, NDArray[Any], float, float]]) -> None:
    """Print coefficients, and the half width by networks that are left out in turn."""
    names = np.array([name for name, *_ in found])
    x, r, share = (np.array([row[i] for row in found]) for i in (1, 2, 3))
    weights = np.minimum(5 * share, 1) + 0.1
    errors = np.zeros(len(r))
    for name in np.unique(names):
        out = names == name
        center = np.clip(x[out] @ _solved(x[~out], r[~out], weights[~out]), -1, 1)
        errors[out] = abs(r[out] - center)
        print(f"{name:<30}{out.sum():>6}{np.quantile(errors[out], 0.9):>8.2f}")
    for clue, value in zip(CLUES, _solved(x, r, weights), strict=True):
        print(f"{clue:<26}{value:+.3f}")
    print(f"half width {np.quantile(errors, 0.9):.3f}, over {len(r)} runs")


def _solved(x: NDArray[Any], r: NDArray[Any], weights: NDArray[Any]) -> NDArray[Any]:
    """Ridge regression of r, whose strength is a percent of the number of rows."""
    scale = x.std(axis=0)
    scale[0] = 1
    z = x / scale
    penalty = 0.003 * len(z) * np.eye(z.shape[1])
    penalty[0, 0] = 0
    solved: NDArray[Any] = np.linalg.solve((z.T * weights) @ z + penalty, (z.T * weights) @ r)
    found: NDArray[Any] = solved / scale
    return found


def judged(stream: Stream, trial: Trial) -> tuple[list[tuple[bool, bool, bool]], list[str]]:
    """Of each run whether the interval held, mattered and had the wrong sign; the advice's row."""
    rows = []
    for run, _, gain in changes(trial):
        one = trial.estimates[run.candidate.title]
        sure = one.verdict != "cannot tell"
        rows.append((one.low - 1e-9 <= gain <= one.high + 1e-9, abs(gain) > 0.03,
                     sure and one.gain * gain < 0))  # fmt: skip
    gains = {run.candidate.title: trial.gain(run) or 0.0 for run in trial.runs}
    best = max(gains, key=lambda title: gains[title])
    advised = gains.get(trial.advice.title, 0.0)
    top = max(gains[best], 0.0)
    row = [stream.name, trial.advice.title or "nothing", f"{100 * advised:+.1f}",
           best if gains[best] > 0 else "nothing", f"{100 * top:+.1f}"]  # fmt: skip
    return rows, row


def measured(trial: Trial, n: int, seeds: int) -> Iterator[tuple[bool, bool, float, float]]:
    """Of each run and draw: held, advised, the half width, and that of a plain draw."""
    outputs, labels = trial.outputs, np.asarray(trial.outputs.labels)
    known = dict(enumerate(labels.tolist()))
    taken = trial.advice.title
    for seed in range(seeds):
        drawn = draw(outputs, trial.runs, trial.guesses, taken, n, seed).labeled(known)
        found = trial.measured(drawn).estimates
        for run, _, gain in changes(trial):
            one, title = found[run.candidate.title], run.candidate.title
            held = one.low - 1e-9 <= gain <= one.high + 1e-9
            outcome = 1.0 * (run.after == labels) - (outputs.before == labels)
            plain = NORMAL * outcome.std() * np.sqrt(max(1 / n - 1 / len(labels), 0))
            yield held, title == taken, (one.high - one.low) / 2, float(plain)


def label_rows(parts: Mapping[str, Iterable[Stream]]) -> Iterator[list[str]]:
    """The table of draws: of each part and number of labels, by `measured`."""
    for part, found in parts.items():
        trials = [tried(stream) for stream in found]
        for n in (20, 50, 100):
            told = [one for trial in trials for one in measured(trial, n, DRAWS)]
            own = [one for one in told if one[1]] or told  # where nothing is advised
            yield [part, f"{n}", f"{len(told)}", f"{100 * np.mean([x[0] for x in told]):.0f} %",
                   f"{100 * np.mean([x[0] for x in own]):.0f} %",
                   *(f"± {100 * np.mean([x[i] for x in own]):.1f}" for i in (2, 3))]  # fmt: skip


def summary(told: list[tuple[bool, bool, bool]], advised: list[list[str]]) -> list[str]:
    """A part's row of the first table, after its name."""
    wrong = [one for _, large, one in told if large]
    gains = np.array([[float(row[2]), float(row[4])] for row in advised])
    near = int((gains[:, 1] - gains[:, 0] <= 2).sum())
    return [f"{len(told)}", f"{100 * np.mean([one for one, *_ in told]):.0f} %", f"{len(wrong)}",
            f"{sum(wrong)}", f"{near} of {len(gains)}", f"{gains[:, 0].min():+.1f}"]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("banks"))
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--store", action="store_true", help="the tables, in docs/tables")
    parser.add_argument("--labels", action="store_true", help="what a few labels measure")
    parser.add_argument("--quick", action="store_true", help="digits alone, for the tests")
    options = parser.parse_args()
    if options.quick:
        options.folder = Path(tempfile.mkdtemp())
    begun = time.perf_counter()
    chosen = [
        "digits:digits",
        "digits:digits_mixup",
        "cifar:resnet20",
        "cifar:resnet56",
        "photos:lite0",
    ]
    reported = ["digits:digits_resnet", "cifar:resnet32"]
    if options.fit:
        rows = []
        for stream in streams(options.folder, options.data, "chosen", chosen):
            trial = tried(stream)
            every = np.arange(len(stream.outputs))
            others = panel(trial.runs)
            for run, share, gain in changes(trial):
                seen = clues(stream.outputs, run, others, every)
                rows.append((stream.network, seen, gain / share, share))
            print(stream.name, len(rows), file=sys.stderr)
        fit(rows)
        print(f"{time.perf_counter() - begun:.0f} s", file=sys.stderr)
        return
    some = reported[:1] if options.quick else reported
    parts: dict[str, Iterable[Stream]] = {}
    parts["reported half"] = streams(options.folder, options.data, "reported", some)
    if not options.quick:
        more = streams(options.folder, options.data, "reported", OTHERS)
        parts["two more networks"] = more
        parts["videos, each group"] = videos(options.folder, options.data)
        parts["the same, one object each"] = as_objects(options.folder, options.data)
        parts["stored banks, videos"] = stored(options.folder, options.data)
    if options.labels:
        kept = ("reported half", "stored banks, videos")
        parts = {part: found for part, found in parts.items() if part in kept}
        if options.quick:
            parts = {part: list(found)[:1] for part, found in parts.items()}
        table = [LABELS.split(","), *label_rows(parts)]
        for line in table:
            print("".join(f"{cell:<22}" for cell in line))
        if options.store:
            promise.write(promise.TABLES / "try_labels.csv", table)
        return
    held = [HELD.split(",")]
    advised: list[list[str]] = []
    for part, found in parts.items():
        advised = []
        told: list[tuple[bool, bool, bool]] = []
        for stream in list(found)[: 1 if options.quick else None]:
            trial = tried(stream)
            rows_, row = judged(stream, trial)
            told += judged_groups(trial) if "each" in part else rows_
            advised.append(row)
            print(*row, sep="  ", flush=True)
        held.append([part, *summary(told, advised)])
    for line in held:
        print("".join(f"{cell:<22}" for cell in line))
    if options.store:
        promise.write(promise.TABLES / "try_held.csv", held)
        promise.write(promise.TABLES / "try_advice.csv", [ADVICE.split(","), *advised])
    print(f"{time.perf_counter() - begun:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
