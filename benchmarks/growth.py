"""Draw how the cost of LAME grows with each size, from what ``lame.py --device cuda --json`` wrote.

``python benchmarks/growth.py benchmarks/results/h200.json -o docs/growth.svg``
"""

import argparse
import json
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

NAMES = {
    "N": "samples N",
    "K": "classes K",
    "d": "features d",
    "k": "neighbors k",
    "B": "streams B",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("growth.svg"))
    options = parser.parse_args()
    found = json.loads(options.results.read_text())
    mpl.rcParams["svg.hashsalt"] = "lametta"  # the same file each time
    figure = Figure(figsize=(11, 2.6), layout="constrained")
    for axes, (name, label) in zip(
        figure.subplots(1, len(NAMES), sharey=True), NAMES.items(), strict=True
    ):
        rows = [row for row in found["growth"] if row["varied"] == name]
        axes.loglog([row["value"] for row in rows], [row["lametta_ms"] for row in rows], "o-")
        axes.set(xlabel=label)
        axes.grid(alpha=0.3)
        if name == "N":
            axes.set(ylabel="15 updates (ms)")
    figure.suptitle(f"{found['device']}; others as in N = 64, K = 1000, d = 2048, k = 5, B = 1")
    figure.savefig(
        options.output, metadata={"Date": None} if options.output.suffix == ".svg" else None
    )
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
