"""Camera traps made of a network's outputs: which way of correcting them is right most often.

``python benchmarks/camera_traps.py FOLDER ...`` reads banks as ``tracks.py`` does, and makes files
of results of each: twelve locations with three classes each and fifteen visits of one to seven
images, the best five classes with three digits. In one visit of seven there are two or three
animals, and in half of these one is of another species. A detection is the less often a good crop,
the less sure it is; in one of ten, "blank" is the first class; one image of three has detections of
nothing, below 0.15 as MegaDetector lists them. Numbers are percents of animals, means of three
files; after the slash, of those in visits of two species.

Where megadetector-utils is installed, its smoothing is a line, too, first of images and then of
sequences: as it is by default, and so that the most frequent class of a sequence overwrites others.
``--csv docs/tables/camera_traps.csv`` stores the table; ``--quick`` is for the tests.
"""

import argparse
import contextlib
import copy
import io
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import store
from lametta.integrations.megadetector import correct, sequences
from tracks import Samples, banks

Document = dict[str, Any]
Truth = dict[tuple[int, int], tuple[str, bool]]  # the category, and whether two species are there
TITLES = {
    "cifar10_resnet20_clean": "RN-20, CIFAR-10",
    "cifar10_resnet56_gauss3": "RN-56, noise",
    "imagenette_val500_lite0": "EN-Lite0, Imagenette",
    "tinyimagenet_1010_lite0": "EN-Lite0, Tiny-ImageNet",
}
EVERY: dict[str, Any] = {"confidence": 0, "ignore": ()}
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "**track, by animal**": ("track", {}),
    "track, by animal, all detections and classes": ("track", EVERY),
    "track, by sequence": ("track", {"by": "sequence"}),
    "sum of scores, by animal": ("average", {}),
    "sum of scores, by sequence": ("average", {"by": "sequence"}),
    "product, by animal": ("product", {}),
    "majority, by animal": ("majority", {}),
    "LAME, by animal": ("lame", {}),
    "prudent, by location": ("prudent", {"by": "location"}),
    "track, by location: many animals": ("track", {"by": "location"}),
}


def results(samples: Samples, n_locations: int, seed: int) -> tuple[Document, Truth]:
    """A file of results, and the categories that are right."""
    rng = np.random.default_rng(seed)
    images, truth = list[dict[str, Any]](), Truth()
    classes, n_classes = np.unique(samples.labels), samples.probs.shape[1]
    for location in range(n_locations):
        own, time = rng.choice(classes, min(3, len(classes)), replace=False), datetime(2024, 5, 1)
        shares = rng.dirichlet(np.ones(len(own)))
        for _ in range(15):
            time += timedelta(seconds=float(rng.uniform(120, 9000)))
            label = rng.choice(own, p=shares)
            labels = [label] * (rng.integers(2, 4) if rng.random() < 1 / 7 else 1)
            if len(labels) > 1 and rng.random() < 0.5:
                labels[-1] = rng.choice(own[own != labels[0]])
            boxes = [rng.uniform(0, 0.7, 2) for _ in labels]
            for _ in range(rng.integers(1, 8)):
                time += timedelta(seconds=2)
                detections = []
                for k, label in enumerate(labels):
                    boxes[k] = np.clip(boxes[k] + rng.normal(0, 0.05, 2), 0, 0.75)
                    if rng.random() < 0.1:  # out of sight
                        continue
                    conf = max(rng.beta(6, 1.5), 0.15)
                    good = rng.random() > (1 - conf) / 2
                    rows = samples.probs[samples.labels == label] if good else samples.probs
                    blank = 0.6 if rng.random() < 0.1 else 0.0
                    detections.append(detection(rng, rows, boxes[k], conf, blank))
                    place = len(images), len(detections) - 1
                    truth[place] = str(label), len({*labels}) > 1
                for _ in range(rng.integers(1, 4) if rng.random() < 1 / 3 else 0):
                    box, conf = rng.uniform(0, 0.75, 2), rng.uniform(0.005, 0.14)
                    detections.append(detection(rng, samples.probs, box, conf))
                file = f"{location}/{len(images)}.jpg"
                images.append({"file": file, "datetime": str(time), "detections": detections})
    names = {str(k): f"class {k}" for k in range(n_classes)} | {str(n_classes): "blank"}
    return {
        "info": {"format_version": "1.6"},
        "detection_categories": {"1": "animal"},
        "classification_categories": names,
        "images": images,
    }, truth


def detection(rng: Any, rows: Any, corner: Any, conf: float, blank: float = 0) -> dict[str, Any]:
    """One whose crop is one of these rows."""
    row = np.append(rows[rng.integers(len(rows))] * (1 - blank), blank)
    best = np.argsort(-row)[:5]
    listed = [[str(k), round(float(row[k]), 3)] for k in best]
    box = [round(float(x), 4) for x in (*corner, 0.25, 0.25)]
    return {"category": "1", "conf": round(conf, 3), "bbox": box, "classifications": listed}


def smoothed(document: Document, strong: bool) -> Document:
    """What megadetector-utils makes of a file."""
    tools: Any = import_module("megadetector.postprocessing.classification_postprocessing")
    options = tools.ClassificationSmoothingOptions()
    if strong:
        options.min_detections_to_overwrite_secondary = 2
        options.max_detections_nondominant_class = 1000
    images = document["images"]
    visits = [
        {"file_name": images[i]["file"], "seq_id": str(visit)}
        for visit, members in enumerate(sequences(dict(enumerate(images)), "sequence", 60))
        for i in members
    ]
    quiet = io.StringIO()
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        by_image = tools.smooth_classification_results_image_level(
            copy.deepcopy(document), options=options
        )
        found = tools.smooth_classification_results_sequence_level(
            by_image, visits, options=options
        )
    return dict(found)


def corrected(document: Document, method: str, options: dict[str, Any]) -> Document:
    return correct(document, method, **options).document


def ways() -> Iterator[tuple[str, Callable[[Document], Document]]]:
    yield "source", lambda document: document
    for name, (method, options) in WAYS.items():
        yield name, partial(corrected, method=method, options=options)
    if find_spec("megadetector"):
        yield "megadetector-utils", partial(smoothed, strong=False)
        yield "megadetector-utils, overwriting", partial(smoothed, strong=True)


def score(document: Document, truth: Truth) -> tuple[float, float]:
    """Percent of all animals, and of those in visits of two species, that are right."""
    hits = [
        (document["images"][i]["detections"][j]["classifications"][0][0] == right, mixed)
        for (i, j), (right, mixed) in truth.items()
    ]
    return tuple(  # type: ignore[return-value]
        100 * float(np.mean([hit for hit, mixed in hits if mixed or not only]))
        for only in (False, True)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    parser.add_argument("--quick", action="store_true")
    store.add_option(parser)
    options = parser.parse_args()
    made = {
        TITLES.get(name, name): [
            results(samples, 6 if options.quick else 12, seed) for seed in range(3)
        ]
        for name, samples in banks(options.folders, options.quick)
        if np.bincount(samples.labels).max() > 1 and samples.videos is None
    }
    print(f"| | {' | '.join(made)} |")
    print("|---|" + "---:|" * len(made))
    rows = []
    for way, apply in ways():
        cells = []
        for files in made.values():
            scores = [score(apply(document), truth) for document, truth in files]
            every, mixed = np.mean(scores, axis=0)
            cells.append(f"{every:.1f} / {mixed:.1f}")
        print(f"| {way} | {' | '.join(cells)} |")
        rows.append({"": way.strip("*"), **dict(zip(made, cells, strict=True))})
    store.write(options.csv, rows)


if __name__ == "__main__":
    main()
