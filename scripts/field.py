"""Store the tables of docs/field.md, from results of scripts/field.toml.

python scripts/field.py results/field; python scripts/tables.py
"""

import csv
import sys
from pathlib import Path

import polars as pl

from lametta.bench import read_cells
from lametta.bench.analysis import risk

STORED = Path(__file__).parents[1] / "docs" / "tables"
OUTPUTS = {
    "continual": "Continual",
    "mixed": "Mixed",
    "correlated": "Correlated",
    "ptta": "PTTA",
    "unitta": "UniTTA, both stay",
}
METHODS = [  # in the order of the tables
    *("Source", "LAME", "LAME (rbf)", "Prudent", "NEO", "T3A", "Prior correction", "Smoothing"),
    *("AlphaBN", "TENT", "ETA"),
]
SHORT = {"short_continual": "Continual", "short_correlated": "Correlated"}


def main(folder: str) -> None:
    """Gains of all methods by scenario, of the outputs' studies and of the short ones, if run."""
    rows = read_cells(Path(folder))
    for name, scenarios in (("outputs", OUTPUTS), ("networks", SHORT)):
        chosen = rows.filter(pl.col("scenario").is_in([*scenarios]))
        for model in chosen["model"].unique(maintain_order=True):
            store(f"field_{name}_{model}", gained(chosen.filter(model=model), scenarios))


def gained(rows: pl.DataFrame, scenarios: dict[str, str]) -> list[list[str]]:
    """The table of one network: points over the source, and of the source its errors."""
    one = risk(rows, by=("method", "scenario"))
    table = [["method", *scenarios.values(), "mean", "worst stream", "tail accuracy"]]
    found = {row["method"]: row for row in risk(rows, by=("method",)).iter_rows(named=True)}
    for method, row in ((method, found[method]) for method in METHODS if method in found):
        gains = dict(one.filter(method=method).select("scenario", "gain").iter_rows())
        tail = f"{100 * row['tail_accuracy']:.1f}"
        if method == "Source":
            right = rows.filter(method=method).group_by("scenario").agg(pl.col("accuracy").mean())
            errors = {scenario: 100 * (1 - x) for scenario, x in right.iter_rows()}
            shown = [f"{errors[name]:.1f}" for name in scenarios]
            mean = f"{sum(errors.values()) / len(errors):.1f}"
            table.append([f"{method}, errors", *shown, mean, "", tail])
        else:
            shown = [signed(gains[name]) for name in scenarios]
            table.append([method, *shown, signed(row["gain"]), signed(row["worst_gain"]), tail])
    return table


def signed(share: float) -> str:
    """A difference in points, 0 without a minus."""
    return f"{round(100 * share, 1) + 0:+.1f}"


def store(name: str, rows: list[list[str]]) -> None:
    """Write a table, its titles first, and print it."""
    with (STORED / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    print(f"\n{name}", *(" | ".join(row) for row in rows), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1])
