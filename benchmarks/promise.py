"""What Prudent promises, family by family: gains, the worst stream, calibration.

``python benchmarks/promise.py FOLDER --data ROOT`` runs the *chosen* half, by which constants may
be chosen; ``--half reported`` the other one: other networks, images and corruptions. Banks of the
networks are made in FOLDER once. One core takes some minutes for either.

A stream is one network, one order, one seed. Each is run one by one, in batches of 16 and of 64,
beside the network's own answers. ``--constants`` halves and doubles each constant of Prudent's, on
every tenth stream in batches of 16, and stores the table of docs/safe.md.
``--csv`` keeps a row a run; the table has the mean over streams and batch sizes, and the worst.
"""

import argparse
import csv
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import lametta
from lametta.bench.running.scores import StreamingMetrics
from lametta.correctors.prudent.constants import CONSTANTS, Constants
from lametta.data import Bank, corrupt, load
from lametta.data.dataset import Dataset, arrays
from lametta.stream import (
    Scenario,
    by_class,
    dirichlet,
    effective_classes,
    gradual,
    iid,
    markov,
    recurring,
    zipf,
)

Index = NDArray[np.intp]

TABLES = Path(__file__).parents[1] / "docs" / "tables"

NETWORKS = {
    **{f"lite{i}": f"efficientnet_lite{i}" for i in range(3)},
    **{name: f"embedded:{name}" for name in ("digits", "digits_mixup", "digits_resnet")},
    **{f"resnet{i}": f"torch:lametta.torch.cifar:resnet{i}" for i in (20, 32, 44, 56)},
    "resnet26_gn": "torch:lametta.torch.cifar:resnet26_gn",
}
WEIGHTS = {
    "resnet20": "resnet20-12fca82f.th",
    "resnet32": "resnet32-d509ac18.th",
    "resnet44": "resnet44-014dd654.th",
    "resnet56": "resnet56-4bfd9763.th",
    "resnet26_gn": "resnet26_gn.npz",
}
VIDEOS = {
    "blackswan": 100,
    "bmx-trees": 671,
    "cows": 345,
    "drift-straight": 751,
    "horsejump-high": 339,
    "kite-surf": 978,
    "scooter-black": 670,
}
FAMILIES = {
    "i.i.d., Zipf": "no order",
    "exact repeats": "no order",
    "few classes": "no order",
    "hopeless": "no order",
    "domains": "domains, i.i.d. inside",
    "domains that fade": "domains, i.i.d. inside",
    "domains that come again": "domains, i.i.d. inside",
    "domains after runs": "domains, i.i.d. inside",
    "domains, correlated": "classes",
    "correlated": "classes",
    "correlated, runs of 200": "classes",
    "correlated, below 45 %": "classes",
    "frames shuffled": "video",
    "pans shuffled": "video",
    "videos alone": "video",
    "videos in order": "video",
    "pans in order": "video",
    "videos and photographs": "video",
}


ORDERS = {"sorted": by_class(), "dirichlet": dirichlet(0.1), "markov": markov(0.9)}


@dataclass(frozen=True)
class Half:
    """Networks, images and corruptions (with their severities) of one half."""

    cifar: tuple[str, ...]
    images: Callable[[Path], Dataset]
    cifar_domains: dict[str, int]
    long_runs: tuple[str, ...]
    digits: tuple[str, ...]
    digit_sets: tuple[str, ...]
    lite: tuple[str, ...]
    part: int
    photo_domains: dict[str, int]
    hopeless: dict[str, int]
    video_domains: dict[str, int]
    stored: tuple[str, ...] = ()


def small_images(root: Path) -> Dataset:
    """CIFAR-10's test images as JPEG, 500 of them."""
    data = load("folder:cifar10/test-3000.zip", root)
    return data.take(np.arange(0, len(data), 6))


def other_images(root: Path) -> Dataset:
    """Two hundred lossless test images a class, none among those that are JPEG files."""
    from PIL import Image

    with np.load(root / "cifar10" / "cifar10_test.npz") as file:
        images, labels = file["images"], file["labels"].astype(int)
    known = load("folder:cifar10/test-3000.zip", root)
    small = np.stack([_coarse(np.asarray(known.samples[i])) for i in range(len(known))])
    coarse = np.stack([_coarse(image) for image in images])
    squares = (small**2).sum(axis=1)
    distance = np.array([(squares - 2 * small @ row).min() + row @ row for row in coarse])
    new = np.flatnonzero(distance > np.sort(distance)[len(known) + 500])
    # Class after class, as in the zip file.
    taken = np.concatenate([new[labels[new] == k][-200:] for k in range(10)])
    return arrays([Image.fromarray(images[i]) for i in taken], labels[taken])


def _coarse(image: NDArray[np.uint8]) -> NDArray[np.float64]:
    coarse: NDArray[np.float64] = image.reshape(8, 4, 8, 4, 3).mean(axis=(1, 3)).ravel()
    return coarse


HALVES = {
    "chosen": Half(
        cifar=("resnet20", "resnet56"),
        images=small_images,
        cifar_domains={"gaussian_noise": 2, "motion_blur": 2, "contrast": 3, "pixelate": 2,
                       "snow": 2, "saturate": 4},
        long_runs=(),
        digits=("digits", "digits_mixup"),
        digit_sets=("digits_val", "digits_c_val"),
        lite=("lite0",),
        part=0,
        photo_domains={"gaussian_noise": 3, "motion_blur": 3, "contrast": 3, "pixelate": 3},
        hopeless={"gaussian_noise": 5, "contrast": 5, "zoom_blur": 5},
        video_domains={"gaussian_noise": 3, "motion_blur": 3},
        stored=("cifar10_resnet20_clean", "cifar10_resnet56_gauss3", "tinyimagenet_1010_lite0",
                "imagenet_one_per_class_lite0"),
    ),
    "reported": Half(
        cifar=("resnet32", "resnet44", "resnet26_gn"),
        images=other_images,
        cifar_domains={"shot_noise": 3, "defocus_blur": 4, "fog": 4, "jpeg_compression": 3,
                       "impulse_noise": 2, "frost": 4},
        long_runs=("resnet26_gn",),
        digits=("digits_resnet",),
        digit_sets=("digits_v2", "digits_c_test"),
        lite=("lite1",),
        part=1,
        photo_domains={"shot_noise": 3, "defocus_blur": 3, "fog": 3, "jpeg_compression": 3},
        hopeless={"shot_noise": 5, "impulse_noise": 5, "glass_blur": 5},
        video_domains={"fog": 3, "shot_noise": 3},
    ),
}  # fmt: skip


# Banks


class Banks:
    """Outputs of the networks of a half, made once in a folder."""

    def __init__(self, folder: Path, root: Path, half: str) -> None:
        self.folder, self.root, self.name, self.half = folder, root, half, HALVES[half]
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, network: str, kind: str) -> Any:
        """The bank of a network for "cifar", "digits", "photos", "hopeless", "videos", "pans"."""
        file = self.folder / f"{self.name}-{kind}-{network}.safetensors"
        if not file.exists():
            self._make(network, kind, file)
        return _opened(file)

    def _make(self, network: str, kind: str, file: Path) -> None:
        import torch

        from lametta.data.bank.extraction import extract
        from lametta.torch import Classifier, zoo

        print(f"making {file.name}", file=sys.stderr)
        weights = self.root / "cifar10" / WEIGHTS[network] if network in WEIGHTS else None
        loaded = zoo.load(NETWORKS[network], weights=weights)
        with Classifier(loaded.net) as model, torch.no_grad():
            extract(model, self._data(network, kind), loaded.preprocess, file, workers=0)

    def _data(self, network: str, kind: str) -> Any:
        half = self.half
        if kind == "cifar":
            data = half.images(self.root)
            if network not in half.long_runs and len(data) > 500:
                data = data.take(np.arange(0, len(data), 4))
            return _together([_named(data, "clean"), *_corrupted(data, half.cifar_domains)])
        if kind == "digits":
            clean, corrupted = (load(f"embedded:{name}") for name in half.digit_sets)
            return _together([_named(clean, "clean"), corrupted])
        if kind in ("videos", "pans"):
            data = _pans(self._photos()) if kind == "pans" else self._videos()
            found = [_corrupted(data, {name: level}) for name, level in half.video_domains.items()]
            return _together([data, *(_filmed(data, one) for (one,) in found)])
        data = self._photos()
        if kind == "hopeless":
            return _together(_corrupted(data, half.hopeless))
        return _together([_named(data, "clean"), *_corrupted(data, half.photo_domains)])

    def _photos(self) -> Dataset:
        data = load("folder:imagenette-val500", self.root)
        return data.take(np.arange(self.half.part, len(data), 2))

    def _videos(self) -> Dataset:
        return load("videos:video", self.root, labels=VIDEOS, n_classes=1000)


@cache
def _opened(file: Path) -> Any:
    return Bank.open(file)


def _named(data: Dataset, group: str) -> Dataset:
    return replace(data, groups=np.full(len(data), group))


def _corrupted(data: Dataset, domains: dict[str, int]) -> list[Dataset]:
    return [corrupt(data, [name], severity=level) for name, level in domains.items()]


def _filmed(videos: Any, corrupted: Any) -> Any:
    """Corrupted frames, which are groups by corruption and video."""
    groups = [f"{b}/{a}" for a, b in zip(videos.groups, corrupted.groups, strict=True)]
    return replace(corrupted, groups=np.array(groups))


def _pans(photos: Dataset) -> Dataset:
    """Twelve frames of a camera that moves over each of thirty photographs."""
    frames, labels, groups = [], [], []
    for i in range(0, len(photos), len(photos) // 30):
        image = photos.samples[i].resize((224, 224))
        for t in range(12):
            frames.append(image.crop((4 * t, 2 * t, 4 * t + 176, 2 * t + 176)))
            labels.append(photos.labels[i])
            groups.append(f"pan{i}")
    return replace(photos, samples=frames, labels=np.array(labels), groups=np.array(groups),
                   keys=tuple(f"{g}/{j}" for j, g in enumerate(groups)))  # fmt: skip


def _together(parts: list[Any]) -> Any:
    """Data sets of the same classes, one after the other."""
    samples = [one for part in parts for one in part.samples]
    keys = [f"{i}/{key}" for i, part in enumerate(parts) for key in part.keys]
    labels, groups = (np.concatenate([getattr(p, x) for p in parts]) for x in ("labels", "groups"))
    return replace(parts[0], samples=samples, labels=labels, groups=groups, keys=tuple(keys))


# Streams


@dataclass(frozen=True)
class Run:
    """One stream: rows of a bank, or of two, in parts that begin anew."""

    family: str
    name: str
    features: NDArray[Any]
    probs: NDArray[Any]
    labels: Index
    starts: tuple[int, ...] = (0,)


def runs(banks: Banks, seeds: range) -> Iterator[Run]:
    """All streams of a half."""
    half = banks.half
    for seed in seeds:
        for network in half.cifar:
            long = network in half.long_runs
            yield from image_runs(network, banks.get(network, "cifar"), seed, long)
        for network in half.digits:
            yield from image_runs(network, banks.get(network, "digits"), seed, False)
        for network in half.lite:
            photos = banks.get(network, "photos")
            yield from image_runs(f"{network} photos", photos, seed, False)
            hopeless = banks.get(network, "hopeless")
            name = f"{network} hopeless"
            yield from domain_runs(name, hopeless, seed)
            for group in _groups(hopeless):
                own = np.flatnonzero(hopeless.groups == group)
                yield _run("hopeless", f"{name} {group}", hopeless, _ordered(iid(), own, seed))
            videos = banks.get(network, "videos")
            yield from video_runs(network, "videos", videos, seed)
            yield from video_runs(network, "pans", banks.get(network, "pans"), seed)
            yield joined(network, videos, photos, seed)
        for name in half.stored:
            bank = Bank.open(banks.root / "banks" / f"{name}.npz")
            yield from stored_runs(name, bank, seed)


def stored_runs(name: str, bank: Any, seed: int) -> Iterator[Run]:
    """Streams of a bank in one domain, two hundred samples a class at most."""
    labels = np.asarray(bank.labels).astype(int)
    own = np.concatenate([np.flatnonzero(labels == k)[:200] for k in np.unique(labels)])
    right = float((_probs(bank, own).argmax(axis=1) == labels[own]).mean())
    yield _run("i.i.d., Zipf", f"{name} iid", bank, _ordered(iid(), own, seed))
    if len(own) > len(np.unique(labels)):
        for title, order in ORDERS.items():
            family = "correlated" if right > 0.45 else "correlated, below 45 %"
            if family == "correlated" and title == "sorted":
                family = "correlated, runs of 200"
            yield _run(family, f"{name} {title}", bank, _ordered(order, own, seed, labels))


def image_runs(network: str, bank: Any, seed: int, long: bool) -> Iterator[Run]:
    """Streams of one domain, and of all domains."""
    labels = np.asarray(bank.labels)
    for group in _groups(bank):
        own = np.flatnonzero(bank.groups == group)
        if long:
            own = np.concatenate([own[labels[own] == k][:50] for k in np.unique(labels[own])])
        right = float((_probs(bank, own).argmax(axis=1) == labels[own]).mean())
        free = "hopeless" if right < 0.25 else "i.i.d., Zipf"
        weak = "correlated" if right > 0.45 else "correlated, below 45 %"
        name = f"{network} {group}"
        yield _run(free, f"{name} iid", bank, _ordered(iid(), own, seed))
        kept = own[Scenario(iid(), zipf(), seed=seed)(labels[own]).index]
        yield _run(free, f"{name} zipf", bank, kept)
        for title, order in ORDERS.items():
            yield _run(weak, f"{name} {title}", bank, _ordered(order, own, seed, labels))
        if group in ("clean", *_groups(bank)[1:3]):
            rng = np.random.default_rng(seed)
            shares = np.arange(1, len(own) + 1) ** -1.5
            drawn = rng.choice(rng.permutation(own), len(own), p=shares / shares.sum())
            yield _run("exact repeats", f"{name} repeats", bank, drawn)
            for n in (2, 4):
                kept = own[Scenario(iid(), effective_classes(n), seed=seed)(labels[own]).index]
                yield _run("few classes", f"{name} {n} classes", bank, kept)
        if long:
            whole = _ordered(by_class(), np.flatnonzero(bank.groups == group), seed, labels)
            yield _run("correlated, runs of 200", f"{name} runs of 200", bank, whole)
    yield from domain_runs(network, bank, seed)
    for title, order in ORDERS.items():
        parts = _parts(bank, seed, order, 300)
        yield _run("domains, correlated", f"{network} {title}", bank, np.concatenate(parts))
    sorted_parts, free_parts = (_parts(bank, seed, order, 300) for order in (by_class(), iid()))
    half = len(free_parts) // 2
    index = np.concatenate([*sorted_parts[:half], *free_parts[half:]])
    yield _run("domains after runs", network, bank, index, begin=sum(map(len, sorted_parts[:half])))


def domain_runs(network: str, bank: Any, seed: int) -> Iterator[Run]:
    """One domain after another, i.i.d. inside."""
    groups = np.asarray(bank.groups)
    for size in (50, 150, 300):
        index = np.concatenate(_parts(bank, seed, iid(), size))
        yield _run("domains", f"{network} of {size}", bank, index)
    parts = np.concatenate(_parts(bank, seed, iid(), 300))
    for family, order in (
        ("domains that fade", gradual()), ("domains that come again", recurring(3)),
    ):  # fmt: skip
        index = parts[Scenario(order, seed=seed)(bank.labels[parts], groups[parts]).index]
        yield _run(family, network, bank, index)


def video_runs(network: str, kind: str, bank: Any, seed: int) -> Iterator[Run]:
    """Videos, each corruption a set: alone, in order, shuffled."""
    domains = np.array([g.rpartition("/")[0] for g in bank.groups])
    rng = np.random.default_rng(seed)
    for domain in np.unique(domains):
        own = np.flatnonzero(domains == domain)
        name = f"{network} {kind} {domain or 'clean'}"
        videos = [own[bank.groups[own] == g] for g in rng.permutation(np.unique(bank.groups[own]))]
        starts = tuple(np.cumsum([0, *map(len, videos)])[:-1].tolist())
        index = np.concatenate(videos)
        if kind == "videos":
            yield _run("videos alone", name, bank, index, starts=starts)
        yield _run(f"{kind} in order", name, bank, index)
        shuffled = "frames shuffled" if kind == "videos" else "pans shuffled"
        yield _run(shuffled, name, bank, rng.permutation(index))


def joined(network: str, videos: Any, photos: Any, seed: int) -> Run:
    """Each clean video, and thirty photographs after it."""
    clean = np.flatnonzero(["/" not in g for g in videos.groups])
    rng = np.random.default_rng(seed)
    own = rng.permutation(np.flatnonzero(photos.groups == "clean"))
    rows = []
    for i, g in enumerate(rng.permutation(np.unique(videos.groups[clean]))):
        rows += [(videos, clean[videos.groups[clean] == g]), (photos, own[30 * i : 30 * i + 30])]
    features, probs, labels = (
        np.concatenate(x)
        for x in zip(*((b.features[i], _probs(b, i), b.labels[i]) for b, i in rows), strict=True)
    )
    return Run("videos and photographs", network, features, probs, labels)


def _groups(bank: Any) -> list[str]:
    return list(dict.fromkeys(np.asarray(bank.groups).tolist()))


def _ordered(order: Any, own: Index, seed: int, labels: Any = None) -> Index:
    labels = np.zeros(len(own), int) if labels is None else labels[own]
    found: Index = own[Scenario(order, seed=seed)(labels).index]
    return found


def _parts(bank: Any, seed: int, order: Any, size: int) -> list[Index]:
    """A part of each domain, the domains in random order."""
    rng, labels = np.random.default_rng(seed), np.asarray(bank.labels)
    parts = []
    for group in rng.permutation(_groups(bank)):
        own = rng.permutation(np.flatnonzero(bank.groups == group))[:size]
        parts.append(_ordered(order, own, seed, labels))
    return parts


def _probs(bank: Any, index: Index) -> NDArray[np.float32]:
    logits = np.asarray(bank.logits[index], np.float32)
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    found: NDArray[np.float32] = e / e.sum(axis=1, keepdims=True)
    return found


def _run(
    family: str, name: str, bank: Any, index: Index, starts: tuple[int, ...] = (0,), begin: int = 0
) -> Run:
    """A stream; what comes before ``begin`` is seen and not scored."""
    labels = np.asarray(bank.labels)[index].copy()
    labels[:begin] = -1
    return Run(family, name, np.asarray(bank.features[index], np.float32), _probs(bank, index),
               labels, starts)  # fmt: skip


# Measures


def measured(run: Run, corrector: Any, batch: int) -> dict[str, float]:
    """What a corrector changes on a stream."""
    rows = []
    for start, end in zip(run.starts, (*run.starts[1:], len(run.labels)), strict=True):
        corrector.reset()
        for i in range(start, end, batch):
            part = slice(i, min(i + batch, end))
            rows.append(corrector.correct(run.features[part], run.probs[part]).probs)
    after, before = scores(np.concatenate(rows), run.labels), scores(run.probs, run.labels)
    return {"source": before["accuracy"], **{x: after[x] - before[x] for x in after}}


def scores(probs: NDArray[Any], labels: Index) -> dict[str, float]:
    probs, labels = probs[labels >= 0], labels[labels >= 0]
    metrics = StreamingMetrics(probs.shape[1])
    metrics.update(probs, labels)
    found = metrics.compute()
    return {
        "accuracy": 100 * found["accuracy"],
        "ece": 100 * found["ece"],
        "nll": found["nll"],
        "confidence": float(probs.max(axis=1).mean()),
    }


def study(
    banks: Banks, seeds: range, batches: tuple[int, ...], make: Callable[[], Any]
) -> list[dict[str, Any]]:
    """A row for each stream and batch size."""
    rows = []
    for run in runs(banks, seeds):
        for batch in batches:
            found = measured(run, make(), batch)
            rows.append({"family": run.family, "stream": run.name, "batch": batch, **found})
    return rows


def summary(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Each family: streams, mean and worst gain, what is added to ECE, NLL and confidence."""
    head = "streams,runs,mean,worst,ECE added,ECE at worst,NLL added,surer where not better"
    table = [head.split(",")]
    for family in FAMILIES:
        own = [row for row in rows if row["family"] == family]
        if own:
            gain, ece, nll, sure = (
                np.array([row[x] for row in own]) for x in ("accuracy", "ece", "nll", "confidence")
            )
            surer = sure[gain <= 0].max(initial=0)
            table.append([family, str(len(own)), f"{gain.mean():+.1f}", f"{gain.min():+.1f}",
                          f"{ece.mean():+.1f}", f"{ece.max():+.1f}", f"{nll.mean():+.2f}",
                          f"{surer:+.2f}"])  # fmt: skip
    return table


def vary(banks: Banks) -> list[list[str]]:
    """Gains with each constant halved and doubled, by kind of stream."""
    kinds = list(dict.fromkeys(FAMILIES.values()))
    table = [["constant", *(f"{kind}: {x}" for kind in kinds for x in ("mean", "worst"))]]
    streams = list(runs(banks, range(1)))[::10]

    def add(title: str, constants: Constants) -> None:
        class Varied(lametta.Prudent):
            pass

        Varied.constants = constants
        rows = [(FAMILIES[run.family], measured(run, Varied(), 16)["accuracy"]) for run in streams]
        gains = [[gain for kind, gain in rows if kind == one] for one in kinds]
        cells = [f"{x:+.1f}" for own in gains for x in (np.mean(own), min(own))]
        table.append([title, *cells])
        print(*table[-1], sep="  ", flush=True)

    add("as they are", CONSTANTS)
    for one in fields(Constants):
        value = getattr(CONSTANTS, one.name)
        if isinstance(value, int | float) and not one.name.startswith("track_"):
            for times in (0.5, 2):
                most = 0.95 if 0 < value < 1 < 2 * value else np.inf  # a share stays one
                varied: Any = type(value)(min(value * times, most))
                changed: dict[str, Any] = {one.name: varied}
                add(f"{one.name} = {varied:g}", replace(CONSTANTS, **changed))
    return table


def write(path: Path, rows: list[list[str]]) -> None:
    """Write a table as .csv."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("banks"))
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--quick", action="store_true", help="digits alone, for the tests")
    parser.add_argument("--half", choices=HALVES, default="chosen")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--store", action="store_true", help="the table, in docs/tables")
    parser.add_argument("--constants", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.folder, options.seeds, options.batches = Path(tempfile.mkdtemp()), 1, [64]
    banks = Banks(options.folder, options.data, options.half)
    if options.quick:
        banks.half = replace(banks.half, cifar=(), digits=("digits",), lite=(), stored=())
    if options.constants:
        write(TABLES / "constants.csv", vary(banks))
        return
    begun = time.perf_counter()
    rows = study(banks, range(options.seeds), tuple(options.batches), lametta.Prudent)
    table = summary(rows)
    for line in table:
        print(f"{line[0]:<26}" + "".join(f"{cell:>12}" for cell in line[1:]))
    print(f"{len(rows)} runs, {time.perf_counter() - begun:.0f} s", file=sys.stderr)
    if options.csv:
        write(options.csv, [list(rows[0]), *([*row.values()] for row in rows)])
    if options.store:
        write(TABLES / f"promise_{options.half}.csv", table)


if __name__ == "__main__":
    main()
