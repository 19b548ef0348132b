"""Camera traps made of a network's outputs: which way of correcting them is right most often.

``python benchmarks/camera_traps.py FOLDER ...`` reads banks as ``tracks.py`` does, and makes a file
of results of each: twelve locations with three classes each and fifteen visits of one to seven
images, the best five classes with three digits. ``--quick`` is for the tests.
"""

import argparse
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

import lametta
from lametta.correctors import Average, Majority, Track
from lametta.integrations.megadetector import correct
from lametta.types import Corrector
from tracks import Samples, banks

WAYS: dict[str, tuple[Corrector | None, dict[str, Any]]] = {
    "source": (None, {}),
    "track, by sequence, twice": (Track(), {}),
    "track, by sequence, once": (Track(), {"passes": 1}),
    "average, by sequence, twice": (Average(), {}),
    "majority, by sequence, twice": (Majority(), {}),
    "prudent, by location": (lametta.Prudent(), {"by": "location"}),
    "prudent, by location, twice": (lametta.Prudent(), {"by": "location", "passes": 2}),
    "LAME, by sequence": (lametta.LAME(), {}),
    "track, by location, twice": (Track(), {"by": "location", "passes": 2}),
}


def results(samples: Samples, n_locations: int) -> tuple[dict[str, Any], list[str]]:
    """A file of results, and the categories that are right."""
    rng = np.random.default_rng(0)
    images, truth = list[dict[str, Any]](), list[str]()
    classes = np.unique(samples.labels)
    for location in range(n_locations):
        own, time = rng.choice(classes, min(3, len(classes)), replace=False), datetime(2024, 5, 1)
        shares = rng.dirichlet(np.ones(len(own)))
        for _ in range(15):
            label = rng.choice(own, p=shares)
            time += timedelta(seconds=float(rng.uniform(120, 9000)))
            for _ in range(rng.integers(1, 8)):
                time += timedelta(seconds=2)
                row = samples.probs[rng.choice(np.flatnonzero(samples.labels == label))]
                best = np.argsort(-row)[:5]
                listed = [[str(k), round(float(row[k]), 3)] for k in best]
                images.append(
                    {
                        "file": f"{location}/{len(images)}.jpg",
                        "datetime": str(time),
                        "detections": [{"category": "1", "classifications": listed}],
                    }
                )
                truth.append(str(label))
    names = {str(k): str(k) for k in range(samples.probs.shape[1])}
    return {"classification_categories": names, "images": images}, truth


def score(document: dict[str, Any], truth: list[str]) -> float:
    best = [one["detections"][0]["classifications"][0][0] for one in document["images"]]
    return 100 * float(np.mean([a == b for a, b in zip(best, truth, strict=True)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    made = {
        name: results(samples, 2 if options.quick else 12)
        for name, samples in banks(options.folders, options.quick)
        if np.bincount(samples.labels).max() > 1 and samples.videos is None
    }
    print(f"| | {' | '.join(made)} |")
    print("|---|" + "---:|" * len(made))
    for way, (corrector, choice) in WAYS.items():
        cells = []
        for document, truth in made.values():
            if corrector is not None:
                document = correct(document, corrector, **choice).document
            cells.append(f"{score(document, truth):.1f}")
        print(f"| {way} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
