"""Which class a track has, frame by frame: `Track`, the smoother's, against the usual rules.

``python benchmarks/tracks.py FOLDER ...`` reads banks: .npz files with features, logits and labels,
or what ``lametta extract`` wrote. A bank of the seven videos gives tracks of neighboring frames; of
any other, photographs of one class are put together to tracks. Tracks are whole (videos alone),
short (3 to 5 frames) or long (20 to 50), also with a wrong beginning: a first frame, or a first
fifth of the photographs, that the network gets wrong. A label counts for the frame it is given at,
and is made from that frame and those before. ``--confidence`` gives the rules no more than a class
and its confidence, as a detector does. ``--crop VIDEOS`` only writes crops of a folder of videos to
FOLDER, which wander and breathe as boxes of a tracker do. ``--json`` keeps the rows, ``--csv`` the
means of banks whose names are the same up to the last ``_``, as docs/integrations/trackers.md has
them; ``--quick`` is for the tests.

``--sure ROOT`` asks how sure answers are instead: accuracy, calibration error (ECE) and negative
log-likelihood (NLL) of `Track`, of `LAME` in batches and of `Windowed` on the seven videos under
ROOT/video, clean and corrupted, by EfficientNet-Lite0, whose banks are made in FOLDER once. It
prints and stores the table of docs/video.md.

``--taxa`` asks at what level of WordNet answers are 80 % sure, in banks of ImageNet's classes: the
share of frames whose answer is a class, how often these are right, and all answers, classes or
not. ``--lost`` cuts long tracks after every eighth frame, as a tracker does that loses objects.
``--switch`` counts how often a track's class changes with the rule of `ClassSmoother(switch=...)`.
All three print and store tables of docs/integrations/trackers.md.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import promise
import store
from lametta import LAME, Windowed
from lametta._arrays import from_top_k, softmax
from lametta.affinity import scenes
from lametta.correctors import Average, Majority, Memory, Product, Track
from lametta.data.bank.bank import read_arrays
from lametta.data.classes.imagenet import IMAGENET
from lametta.data.classes.wordnet import wordnet_taxonomy
from lametta.integrations.supervision import next_class
from lametta.taxonomy import Taxonomy
from lametta.types import Corrector

VIDEOS = promise.VIDEOS  # and their classes in ImageNet
LENGTHS = {"short": (3, 5), "long": (20, 50)}
RULES: dict[str, Corrector | None] = {
    "source": None,
    "first": None,
    "majority": Majority(),
    "average": Average(),
    "product": Product(),
    "memory": Memory("track"),
    "track": Track(),
}
SWITCH = (1.0, 1.5, 2.0)  # how many times as probable as a track's class another must be
USUAL = ("first", "majority", "average")  # what people do now
# The constant of `scenes` was chosen on the first, with the clean videos; `Track`'s on all of them.
CORRUPTIONS = {
    "chosen": {"gaussian_noise": 3, "motion_blur": 3, "fog": 3},
    "others": {"shot_noise": 3, "defocus_blur": 3},
}
ON_VIDEO: dict[str, tuple[Corrector, int]] = {  # and the size of batches
    "LAME": (LAME(), 64),
    "LAME, scenes": (LAME(scenes()), 64),
    "Windowed": (Windowed(), 16),
    "Windowed, scenes": (Windowed(LAME(scenes())), 16),
    "Track": (Track(), 16),
}


@dataclass
class Samples:
    """What a network said of images: features [N, d], probs [N, K], classes and videos [N]."""

    features: Any
    probs: Any
    labels: Any
    videos: Any = None

    @property
    def right(self) -> Any:
        return self.probs.argmax(axis=1) == self.labels


def banks(folders: list[Path], quick: bool) -> Iterator[tuple[str, Samples]]:
    if quick:
        rng = np.random.default_rng(0)
        labels = np.repeat(np.arange(8), 30)
        logits = 1.5 * np.eye(8)[labels] + rng.normal(size=(240, 8))
        yield "made up", Samples(logits, softmax(np, logits), labels)
    for path in sorted(path for folder in folders for path in folder.glob("*.*")):
        if path.suffix not in (".npz", ".safetensors"):
            continue
        arrays, header, _ = read_arrays(path, "FOLDER")
        probs = softmax(np, np.asarray(arrays["logits"]).astype(np.float32))
        features, labels = np.asarray(arrays["features"]).astype(np.float32), arrays["labels"]
        names, videos = header.get("classes") or (), None
        if names and set(names) <= VIDEOS.keys():
            videos = np.asarray(arrays["groups"])
            labels = np.array([VIDEOS[str(video)] for video in videos])
        elif names and len(names) < probs.shape[1]:  # some of ImageNet's, by synset
            labels = np.array([IMAGENET.index(names[label]) for label in labels])
        yield path.stem, Samples(features, probs, np.asarray(labels).astype(int), videos)


def tracks(samples: Samples, n: int) -> Iterator[tuple[str, list[Any]]]:
    """Kinds of tracks, each a list of positions."""
    make = _photographs if samples.videos is None else _clips
    if samples.videos is not None:
        yield "whole", [np.flatnonzero(samples.videos == name) for name in VIDEOS]
    for kind, (least, most) in LENGTHS.items():
        for title, wrong in ((kind, False), (f"{kind}, wrong beginning", True)):
            found = list(make(samples, least, most, n if kind == "short" else n // 2, wrong))
            if len(found) >= 20:
                yield title, found


def _photographs(samples: Samples, least: int, most: int, n: int, wrong: bool) -> Iterator[Any]:
    """Images of one class; with a wrong beginning, those that the network gets wrong come first."""
    rng, right = np.random.default_rng(1), samples.right
    members = {
        label: np.flatnonzero(samples.labels == label) for label in np.unique(samples.labels)
    }
    enough = [own for own in members.values() if len(own) >= least]
    for _ in range(n if enough else 0):
        own = enough[rng.integers(len(enough))]
        length = min(int(rng.integers(least, most + 1)), len(own))
        first = rng.permutation(own[~right[own]])[: max(1, length // 5)] if wrong else own[:0]
        if wrong and (len(first) < max(1, length // 5) or not right[own].any()):
            continue
        rest = np.setdiff1d(own, first)
        yield np.concatenate([first, rng.permutation(rest)[: length - len(first)]])


def _clips(samples: Samples, least: int, most: int, n: int, wrong: bool) -> Iterator[Any]:
    """Frames of a video that follow each other; with a wrong beginning, some other is right."""
    rng, right = np.random.default_rng(2), samples.right
    for name in VIDEOS:
        own = np.flatnonzero(samples.videos == name)
        for _ in range(n // len(VIDEOS)):
            length = min(int(rng.integers(least, most + 1)), len(own) - 1)
            clips = [own[start : start + length] for start in range(len(own) - length + 1)]
            if wrong:
                clips = [clip for clip in clips if not right[clip[0]] and right[clip].any()]
            if clips:
                yield clips[rng.integers(len(clips))]


def score(samples: Samples, found: list[Any], rule: str, confidence: bool) -> tuple[float, float]:
    """The accuracy of all frames' labels, and of each track's last, in percent."""
    hits, last, corrector = [], [], RULES[rule]
    for own in found:
        probs = samples.probs[own]
        if confidence:
            tops = zip(probs.argmax(axis=1), probs.max(axis=1), strict=True)
            probs = np.array([from_top_k(probs.shape[1], [k], [float(share)]) for k, share in tops])
        if corrector is not None:
            corrector.reset()
            probs = corrector.correct(samples.features[own], probs).probs
        named = probs.argmax(axis=1)
        named = np.full_like(named, named[0]) if rule == "first" else named
        hits.append(named == samples.labels[own])
        last.append(hits[-1][-1])
    return 100 * float(np.concatenate(hits).mean()), 100 * float(np.mean(last))


def crop(videos: Path, target: Path) -> None:
    """Squares of about 0.7 of the shorter side, whose place and size change from frame to frame."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for name in VIDEOS:
        (target / name).mkdir(parents=True, exist_ok=True)
        x, y, share = 0.0, 0.0, 0.7
        for path in sorted((videos / name).glob("*.jpg")):
            image = Image.open(path).convert("RGB")
            width, height = image.size
            x, y = (0.8 * shift + 0.06 * float(rng.normal()) for shift in (x, y))
            share = min(max(0.14 + 0.8 * share + 0.06 * float(rng.normal()), 0.45), 1)
            side = share * min(image.size)
            left = min(max(width * (0.5 + x) - side / 2, 0), width - side)
            top = min(max(height * (0.5 + y) - side / 2, 0), height - side)
            box = tuple(int(edge) for edge in (left, top, left + side, top + side))
            image.crop(box).save(target / name / path.name, quality=92)  # type: ignore[arg-type]


def sure(folder: Path, root: Path) -> Iterator[dict[str, str]]:
    """A line an order and method: means over corruptions, and the worst that it adds to the ECE."""
    found: dict[str, list[promise.Run]] = {}
    for half, corruptions in CORRUPTIONS.items():
        banks = promise.Banks(folder, root, "chosen")
        banks.name, banks.half = half, replace(banks.half, video_domains=corruptions)
        bank = banks.get("lite0", "videos")
        found[half] = list(promise.video_runs("lite0", "videos", bank, 0))
    for order in ("videos alone", "videos in order", "frames shuffled"):
        for title, (corrector, size) in {"source": (None, 0), **ON_VIDEO}.items():
            if title != "Track" or order == "videos alone":  # of one object
                cells: dict[str, str] = {}
                for half, own in found.items():
                    clean = half == "chosen"  # the clean videos are in both
                    runs = [
                        x for x in own if x.family == order and (clean or "clean" not in x.name)
                    ]
                    cells |= _how_sure(half, runs, corrector, size)
                yield {"": order, "method": title, **cells}


def _how_sure(
    half: str, runs: list[promise.Run], corrector: Corrector | None, size: int
) -> dict[str, str]:
    rows = []
    for run in runs:
        before = promise.scores(run.probs, run.labels)
        change = promise.measured(run, corrector, size) if corrector else dict.fromkeys(before, 0.0)
        rows.append([before[x] + change[x] for x in ("accuracy", "ece", "nll")] + [change["ece"]])
    accuracy, ece, nll, _ = np.mean(rows, axis=0)
    worst = "" if corrector is None else f"{max(row[-1] for row in rows):+.1f}"
    cells = {
        "accuracy": f"{accuracy:.1f}",
        "ECE": f"{ece:.1f}",
        "at worst": worst,
        "NLL": f"{nll:.2f}",
    }
    return {title if half == "chosen" else f"{title}, others": x for title, x in cells.items()}


def taxa(folders: list[Path], n: int) -> Iterator[dict[str, str]]:
    """A line a bank, a kind of tracks and a rule: shares of frames in percent."""
    taxonomy = wordnet_taxonomy()
    for bank, samples in banks(folders, quick=False):
        if samples.probs.shape[1] != len(taxonomy):
            continue
        usual = (pair for pair in tracks(samples, n) if "wrong" not in pair[0])
        for kind, found in usual:
            for rule in ("source", "average", "track"):
                shares = _levels(taxonomy, samples, found, RULES[rule])
                data = bank.rpartition("_")[0].replace("_", " ")
                yield {"": data, "tracks": kind, "rule": rule, **shares}


def _levels(
    taxonomy: Taxonomy, samples: Samples, found: list[Any], corrector: Corrector | None
) -> dict[str, str]:
    rows = []
    for own in found:
        probs = samples.probs[own]
        if corrector is not None:
            corrector.reset()
            probs = corrector.correct(samples.features[own], probs).probs
        rows += [
            (
                top == label,
                taxon.level + 1 == len(taxonomy.paths[top]),
                taxonomy.holds(taxon, label),
                taxon.level,
            )
            for taxon, top, label in zip(
                taxonomy.answer(probs), probs.argmax(axis=1), samples.labels[own], strict=True
            )
        ]
    right, is_class, holds, level = np.array(rows).T
    return {
        "right, forced": f"{100 * right.mean():.1f}",
        "a class": f"{100 * is_class.mean():.1f}",
        "right of these": f"{100 * holds[is_class == 1].mean():.1f}",
        "right at its level": f"{100 * holds.mean():.1f}",
        "mean level": f"{level.mean():.1f}",
    }


def lost(folders: list[Path], n: int) -> Iterator[dict[str, str]]:
    """A line a bank: long tracks whose ids are lost, and either begun anew or gone on with."""
    for bank, samples in banks(folders, quick=False):
        found = dict(tracks(samples, n)).get("long", [])
        pieces = [piece for own in found for piece in np.split(own, range(8, len(own), 8))]
        if pieces:
            cells = {"source": score(samples, pieces, "source", confidence=False)[0]}
            cells["begun anew"] = score(samples, pieces, "track", confidence=False)[0]
            cells["gone on with"] = score(samples, found, "track", confidence=False)[0]
            data = bank.rpartition("_")[0].replace("_", " ")
            yield {"": data, **{name: f"{value:.1f}" for name, value in cells.items()}}


def switches(folders: list[Path], n: int, quick: bool) -> Iterator[dict[str, str]]:
    """A line a kind of tracks and of banks: accuracy, and in brackets changes of class a track."""
    groups: dict[tuple[str, str], list[dict[str, tuple[float, float]]]] = {}
    for bank, samples in banks(folders, quick):
        for kind, found in tracks(samples, n):
            rows = {"source": _switching(samples, found, "source", 1.0)}
            rows |= {f"switch={x:g}": _switching(samples, found, "track", x) for x in SWITCH}
            groups.setdefault((bank.rpartition("_")[0].replace("_", " "), kind), []).append(rows)
    for (data, kind), networks in groups.items():
        cells = {}
        for rule in networks[0]:
            right, changes = np.mean([one[rule] for one in networks], axis=0)
            cells[rule] = f"{right:.1f} ({changes:.2f})"
        yield {"": data, "tracks": kind, **cells}


def _switching(samples: Samples, found: list[Any], rule: str, switch: float) -> tuple[float, float]:
    """The accuracy of all frames' classes in percent, and the changes of class a track."""
    hits, changes, corrector = [], [], RULES[rule]
    for own in found:
        probs, classes = samples.probs[own], list[int]()
        if corrector is not None:
            corrector.reset()
            probs = corrector.correct(samples.features[own], probs).probs
        for row in probs:
            classes.append(next_class(row, classes[-1] if classes else None, switch))
        hits.append(classes == samples.labels[own])
        changes.append(np.count_nonzero(np.diff(classes)))
    return 100 * float(np.concatenate(hits).mean()), float(np.mean(changes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    parser.add_argument("--tracks", type=int, default=210, help="short ones of a kind")
    parser.add_argument("--confidence", action="store_true")
    parser.add_argument("--crop", type=Path, metavar="VIDEOS")
    parser.add_argument("--taxa", action="store_true")
    parser.add_argument("--lost", action="store_true")
    parser.add_argument("--switch", action="store_true")
    parser.add_argument("--sure", type=Path, metavar="ROOT")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true")
    store.add_option(parser)
    options = parser.parse_args()
    if options.crop:
        crop(options.crop, options.folders[0])
        return
    if options.sure or options.taxa or options.lost or options.switch:
        if options.sure:
            made = sure(options.folders[0], options.sure)
        elif options.switch:
            made = switches(options.folders, options.tracks, options.quick)
        else:
            made = (taxa if options.taxa else lost)(options.folders, options.tracks)
        lines = list(made)
        for line in [dict.fromkeys(lines[0], ""), *lines]:
            print("| " + " | ".join(line.values()) + " |")
        store.write(options.csv, lines)
        return
    rows: list[dict[str, Any]] = []
    for bank, samples in banks(options.folders, options.quick):
        for kind, found in tracks(samples, 42 if options.quick else options.tracks):
            scores = {rule: score(samples, found, rule, options.confidence) for rule in RULES}
            rows.append({"bank": bank, "kind": kind, "tracks": len(found), "scores": scores})
    print_table(rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    store.write(options.csv, list(means(rows)))


def means(rows: list[dict[str, Any]]) -> Iterator[dict[str, str]]:
    """A line a kind of tracks and of banks, the mean over networks."""
    groups: dict[tuple[str, str], list[dict[str, list[float]]]] = {}
    for row in rows:
        data = row["bank"].rpartition("_")[0].replace("_", " ")
        groups.setdefault((data, row["kind"]), []).append(row["scores"])
    for (data, kind), scores in groups.items():
        frames = {rule: float(np.mean([s[rule][0] for s in scores])) for rule in RULES}
        lead = frames["track"] - max(frames[rule] for rule in USUAL)
        del frames["memory"]
        cells = {rule: f"{value:.1f}" for rule, value in frames.items()}
        yield {"": data, "tracks": kind, **cells, "ahead": f"{lead:+.1f}"}


def print_table(rows: list[dict[str, Any]]) -> None:
    """A line a bank and kind; minus signs mark those where a usual rule beats `Track`."""
    print(f"| bank | tracks | {' | '.join(RULES)} | over the best usual rule |")
    print("|---|---|" + "---:|" * (len(RULES) + 1))
    kinds: dict[str, list[dict[str, float]]] = {}
    for row in rows:
        frames = {rule: row["scores"][rule][0] for rule in RULES}
        print_line(row["bank"], f"{row['kind']} ({row['tracks']})", frames)
        kinds.setdefault(row["kind"], []).append(frames)
    for kind, lines in kinds.items():
        means = {rule: float(np.mean([line[rule] for line in lines])) for rule in RULES}
        print_line(f"**mean of {len(lines)}**", kind, means)
    ahead = [row["scores"]["track"][0] >= max(row["scores"][x][0] for x in USUAL) for row in rows]
    last = {rule: float(np.mean([row["scores"][rule][1] for row in rows])) for rule in RULES}
    print_line("**mean of all**", "the last frame alone", last)
    print(f"\ntrack is not behind the best usual rule in {sum(ahead)} of {len(rows)} lines")


def print_line(bank: str, kind: str, scores: dict[str, float]) -> None:
    lead = scores["track"] - max(scores[rule] for rule in USUAL)
    cells = " | ".join(f"{value:.1f}" for value in scores.values())
    print(f"| {bank} | {kind} | {cells} | {lead:+.1f} |")


if __name__ == "__main__":
    main()
