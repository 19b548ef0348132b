"""False alarms of the server, on streams by which no limit was chosen.

``python benchmarks/alarms.py FOLDER --data ROOT`` watches correctors on streams of three seeds, one
after another as the server would, in batches of 16: digits under eight corruptions, stored outputs
of CIFAR-10 and ImageNet networks, and videos, clean and corrupted, in each order that promise.py
has. An alarm is *right* where the corrector's answers are less often right than the network's own,
over the 128 samples before it begins and those after it until it ends, and *false* where they are
not. Banks are made in FOLDER once.
"""

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

import store
from lametta import LAME, Prudent, Windowed
from lametta.correctors import Memory
from lametta.data import Bank
from lametta.serve.monitoring.alarms import Alarms
from lametta.types import Corrector
from promise import Banks, Run, image_runs, stored_runs, video_runs

SIZE, BEFORE = 16, 128
CORRECTORS: dict[str, Corrector] = {
    "prudent": Prudent(),
    "memory": Memory("camera"),
    "lame": LAME(),
    "windowed": Windowed(),
}
VIDEO_DOMAINS = {"gaussian_noise": 3, "motion_blur": 3, "fog": 3}
KINDS = {  # of promise.py's families
    "i.i.d., Zipf": "i.i.d., Zipf",
    "exact repeats": "repeats, few classes",
    "few classes": "repeats, few classes",
    "correlated": "correlated",
    "correlated, runs of 200": "correlated",
    "correlated, below 45 %": "correlated, network below 45 %",
    "hopeless": "hopeless",
    "domains, correlated": "domains",
    "frames shuffled": "video",
    "videos alone": "video",
    "videos in order": "video",
    "pans shuffled": "video",
    "pans in order": "video",
}


def streams(banks: Banks, seeds: int) -> Iterator[Run]:
    for seed in range(1, seeds + 1):  # the limits were chosen on seed 0
        for network in banks.half.digits[:1]:
            yield from image_runs(network, banks.get(network, "digits"), seed, False)
        yield from video_runs("lite0", "videos", banks.get("lite0", "videos"), seed)
        for name in banks.half.stored:
            yield from stored_runs(name, Bank.open(banks.root / "banks" / f"{name}.npz"), seed)


def alarms_of(run: Run, corrector: Corrector) -> Iterator[tuple[str, float]]:
    """Each alarm, and what the corrector gains meanwhile, in points."""
    for start, end in zip(run.starts, (*run.starts[1:], len(run.labels)), strict=True):
        corrector.reset()
        alarms, rows = Alarms(), []
        on: dict[tuple[str, float], list[int]] = {}
        for i in range(start, end, SIZE):
            x, q = run.features[i : min(i + SIZE, end)], run.probs[i : min(i + SIZE, end)]
            found = corrector.correct(x, q)
            rows.append(found.probs)
            evidence = float(found.info.get("evidence", 0))
            alarms.observe(float(i), "stream", x, q, found.probs, None, evidence)
            for alarm in alarms.current(float(i)):
                on.setdefault((alarm.name, alarm.since), [i, i])[1] = i + SIZE
        right = np.concatenate(rows).argmax(axis=1) == run.labels[start:end]
        gain = right.astype(float) - (run.probs[start:end].argmax(axis=1) == run.labels[start:end])
        for (name, _), (first, last) in on.items():
            yield name, 100 * float(gain[max(first - BEFORE - start, 0) : last - start].mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--seeds", type=int, default=3)
    store.add_option(parser)
    options = parser.parse_args()
    banks = Banks(options.folder, options.data, "chosen")
    banks.name, banks.half = "alarms", replace(banks.half, video_domains=VIDEO_DOMAINS)
    counts: Counter[tuple[str, str, str]] = Counter()
    for run in streams(banks, options.seeds):
        kind = KINDS.get(run.family, "domains")
        for title, corrector in CORRECTORS.items():
            counts[title, kind, "streams"] += len(run.starts)
            for name, gain in alarms_of(run, corrector):
                counts[title, kind, "right" if gain < 0 else "false"] += 1
                print(
                    f"{title}: {name} on {run.name}, {run.family}: {gain:+.1f} points", flush=True
                )
    lines = []
    for kind in dict.fromkeys(KINDS.values()):
        if not counts["prudent", kind, "streams"]:
            continue
        cells = {"": kind, "streams": str(counts["prudent", kind, "streams"])}
        for title in CORRECTORS:
            right, false = counts[title, kind, "right"], counts[title, kind, "false"]
            cells |= {f"{title}, right": str(right), f"{title}, false": str(false)}
        lines.append(cells)
        print(" | ".join(cells.values()))
    store.write(options.csv, lines)


if __name__ == "__main__":
    main()
