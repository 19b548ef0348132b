"""Draw what was tried for Prudent, gain against worst stream: ``python benchmarks/frontier.py``.

``results/frontier.csv`` has mean gains over the streams of domains and of classes of
``promise.py``'s chosen half (CIFAR-10 and digits, one seed, batches of 16), and the worst of them.
Each row changed one thing of the version at hand when it was tried.
"""

import csv
import sys
from pathlib import Path

from matplotlib.figure import Figure

STORED = Path(__file__).parent / "results" / "frontier.csv"


def main(output: str) -> None:
    with STORED.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots()
    for i, row in enumerate(rows, 1):
        x, y = max(float(row["worst"]), -6), float(row["mean"])
        axes.scatter(x, y, color="C3" if row["variant"] == "final" else "C0")
        axes.annotate(str(i), (x, y), textcoords="offset points", xytext=(4, 4 - 9 * (i % 2)))
    lines = [f"{i}  {row['variant']} ({row['worst']})" for i, row in enumerate(rows, 1)]
    axes.text(1.02, 1, "\n".join(lines), transform=axes.transAxes, va="top", fontsize=8)
    axes.set(xlabel="worst stream, points (-6 and below at the edge)", ylabel="mean gain, points")
    figure.savefig(output)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "frontier.png")
