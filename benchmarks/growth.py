"""Draw how the cost of LAME grows with each size, from what ``lame.py --json`` wrote.

``python benchmarks/growth.py benchmarks/results/*.json -o docs/growth.svg``
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

BASE = {"N": 64, "K": 1000, "d": 2048, "k": 5, "B": 1}
SIZES = {
    "N": (16, 64, 256, 1024, 4096),
    "K": (10, 100, 1000, 10_000),
    "d": (128, 512, 2048, 8192),
    "k": (1, 2, 5, 10, 20),
    "B": (1, 4, 16, 64, 256),
}
NAMES = {
    "N": "samples N",
    "K": "classes K",
    "d": "features d",
    "k": "neighbors k",
    "B": "streams B",
}


def draw(runs: list[dict[str, Any]], path: Path) -> None:
    mpl.rcParams["svg.hashsalt"] = "lametta"  # the same file each time
    figure = Figure(figsize=(11, 3), layout="constrained")
    panels = figure.subplots(1, len(NAMES), sharey=True)
    for axes, (name, label) in zip(panels, NAMES.items(), strict=True):
        for run in runs:
            rows = [row for row in run["growth"] if row["varied"] == name]
            values, times = ([row[key] for row in rows] for key in ("value", "lametta_ms"))
            axes.loglog(values, times, "o-", markersize=4, label=run["device"])
        axes.set(xlabel=label)
        axes.grid(alpha=0.3)
    panels[0].set(ylabel="a batch (ms)")
    panels[0].legend()
    others = ", ".join(f"{name} = {value}" for name, value in BASE.items())
    figure.suptitle(f"Cost of LAME on random batches; what is not varied is {others}", fontsize=11)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    print(f"wrote {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("-o", "--output", type=Path, default=Path("growth.svg"))
    options = parser.parse_args()
    draw([json.loads(path.read_text()) for path in options.results], options.output)


if __name__ == "__main__":
    main()
