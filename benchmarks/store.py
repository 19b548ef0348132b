"""Tables of figures as CSV files: what ``--csv`` of the benchmarks writes, for docs/tables."""

import argparse
import csv
from collections.abc import Mapping, Sequence
from pathlib import Path


def add_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--csv", type=Path, help="where to store the table, for docs/tables")


def write(path: Path | None, rows: Sequence[Mapping[str, str]]) -> None:
    """Write rows with the same titles, where a path is given."""
    if path is not None:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
