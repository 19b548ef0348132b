"""``lametta report`` and ``lametta compare``: what results say, and whether two say the same."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from lametta.cli._console import (
    Json,
    option_names,
    print_error,
    print_json,
    print_line,
    require_bench,
    show_entries,
    user_errors,
)
from lametta.types import LamettaError

if TYPE_CHECKING:
    import polars as pl


_N_NAMED = 5  # streams that differ; the others are counted


def report(
    results: Annotated[
        Path,
        typer.Argument(
            metavar="RESULTS",
            help="The folder that lametta run wrote, or a file with what /status.json of a server "
            "in shadow mode gave.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Where to; RESULTS/report, or beside a status the folder report, if not given.",
        ),
    ] = None,
    paper: Annotated[
        bool | None,
        typer.Option(
            "--paper/--no-paper",
            help="Show the paper's numbers beside ours; by default, if the experiment is called "
            '"paper".',
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Turn results into a page, figures and tables.

    Writes report.html, one file with everything in it, to be opened in any browser; each figure as
    SVG, PDF and its numbers as CSV under figures/; each table as Markdown, LaTeX and CSV under
    tables/; all rows as one Parquet file, with a data card, under data/. Results need not be
    complete: the page says what was not run.

    Exits with 0 if the report was written, with 1 if it was and some cells of the run had failed,
    and with 2 if RESULTS cannot be read.

    For a server that runs with --shadow, curl -o status.json http://127.0.0.1:8000/status.json
    writes the file to report on: how often and where corrections would have differed, by stream
    and by class, as shadow.html and tables.

    Example: lametta report results/demo
    """
    if results.suffix == ".json":
        _report_shadow(results, output, as_json=as_json)
        return
    with user_errors():
        require_bench()
        from lametta.bench.analysis.results import read_results
        from lametta.bench.report import handout, make_report
        from lametta.bench.report.page import write
        from lametta.bench.tables.accuracy import accuracies

        with option_names(results="RESULTS", frame="RESULTS", path="a file in RESULTS"):
            found = read_results(results)
            folder = output_folder(output, results / "report")
            shown = make_report(found, paper=paper)
            table = accuracies(found.headline_rows, found.source)
        page = write(shown, folder)
        handout.write({results.resolve().name: found}, folder / "data")
    show_entries(table)
    print_line(shown.message)
    if found.failures:
        print_error(f"{len(found.failures)} cells failed; the page says why")
    print_line(f"wrote {page}")
    if as_json:
        print_json({"page": page, "failed": len(found.failures), "accuracies": table.entries()})
    raise typer.Exit(1 if found.failures else 0)


def _report_shadow(status: Path, output: Path | None, *, as_json: bool) -> None:
    with user_errors():
        require_bench()
        from lametta.bench.report import shadow

        found = shadow.tables(shadow.read_status(status))
        page = shadow.write(found, output_folder(output, status.parent / "report"))
    for table in found[:3]:
        show_entries(table)
    print_line(f"wrote {page}")
    if as_json:
        print_json({"page": page} | {table.name: table.entries() for table in found})


def compare(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="RESULTS", help="Folders that lametta run wrote: two at least."),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Where a leaderboard goes; of more than two folders, leaderboard if not given.",
            show_default=False,
        ),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(help="Accuracies, from 0 to 1, that differ by no more are equal.")
    ] = 1e-6,
    as_json: Json = False,
) -> None:
    """Compare two folders of results cell by cell, or join several into a leaderboard.

    With -o, or more than two folders, results of several people become one page, leaderboard.html:
    methods on the same streams, to be sorted by gain, worst stream, tail, cost or scenario, with
    the protocol card of each cell. What cannot be compared is left out and named: cells whose
    stream has another fingerprint, whose network has other weights, or whose source is right more
    or less often. All rows go to results.parquet beside it, with a data card, README.md.

    Otherwise two folders, A and B, are compared: their cells that agree in method, configuration,
    model, scenario, seed and batch size; those that only one folder has are counted. For each
    method and scenario the largest difference B - A is shown, in points, and streams that were not
    the same are named.

    Exits with 0 if all cells in both are equal, or none is left out of the leaderboard; with 1 if
    an accuracy or a stream differs, or cells are left out; and with 2 if a folder cannot be read or
    there is nothing in common.

    Example: lametta compare results/monday results/tuesday --tolerance 0.001
    """
    if output is not None or len(folders) > 2:
        _leaderboard(folders, output, as_json=as_json)
    with user_errors():
        require_bench()
        if len(folders) < 2:
            raise LamettaError(f"RESULTS must be two folders at least, got {len(folders)}")
        first, second = folders
        from lametta.bench.analysis.results import read_cells
        from lametta.bench.report.comparison import compare as compare_cells

        with option_names(results="A"):
            a = read_cells(first)
        with option_names(results="B"):
            b = read_cells(second)
        with option_names(a="A", b="B", tolerance="--tolerance"):
            found = compare_cells(a, b, tolerance)
    show_entries(found.table())
    counts = f"{len(found.cells)} cells in both, {len(found.different)} differ"
    alone = f"; only in A: {found.only_a}, only in B: {found.only_b}"
    print_line(counts + alone)
    _name_streams(found.other_streams)
    if as_json:
        print_json(
            {
                "equal": found.equal,
                "cells": len(found.cells),
                "different": found.different.to_dicts(),
                "other_streams": found.other_streams.to_dicts(),
                "only_a": found.only_a,
                "only_b": found.only_b,
            }
        )
    raise typer.Exit(0 if found.equal else 1)


def _leaderboard(folders: Sequence[Path], output: Path | None, *, as_json: bool) -> NoReturn:
    with user_errors():
        require_bench()
        from lametta.bench.analysis.results import read_results
        from lametta.bench.report import handout, leaderboard

        with option_names(results="RESULTS"):
            results = {name: read_results(folder) for name, folder in _named(folders).items()}
            board = leaderboard.join(results)
        folder = output_folder(output, Path("leaderboard"))
        data = handout.write(results, folder)
        page = leaderboard.write(board, folder)
    show_entries(board.table())
    for row in board.left_out.head(_N_NAMED).iter_rows(named=True):
        where = f"{row['scenario']}, seed {row['seed']}, batches of {row['batch_size']}"
        what = f"{row['method']} by {row['by']} on {row['model']}, {where}"
        print_line(f"left out: {what}: {row['why']}")
    if (more := len(board.left_out) - _N_NAMED) > 0:
        print_line(f"and {more} cells more")
    print_line(f"wrote {page}, {data}")
    if as_json:
        left_out = board.left_out.to_dicts()
        print_json({"page": page, "methods": board.table().entries(), "left_out": left_out})
    raise typer.Exit(1 if len(board.left_out) else 0)


def _named(folders: Sequence[Path]) -> dict[str, Path]:
    """The folders by as much of the end of their paths as tells them apart."""
    paths = [folder.resolve() for folder in folders]
    if len(set(paths)) < len(paths):
        raise LamettaError("RESULTS must be different folders, got one twice")
    n = 1
    while len({path.parts[-n:] for path in paths}) < len(paths):
        n += 1
    return {"/".join(path.parts[-n:]): given for path, given in zip(paths, folders, strict=True)}


def output_folder(given: Path | None, default: Path) -> Path:
    """Make the folder that -o names, or the one that is taken without it."""
    folder = default if given is None else given
    if folder.suffix == ".html" and not folder.is_dir():
        raise LamettaError(f"--output must be a folder, in which the page goes, got {folder}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LamettaError(f"could not make the folder {folder}: {error.strerror}") from None
    return folder


def _name_streams(streams: "pl.DataFrame") -> None:
    for scenario, seed, batch_size, *prints in streams.head(_N_NAMED).iter_rows():
        where = f"{scenario}, seed {seed}, batches of {batch_size}"
        print_line(f"other stream: {where}: {' and '.join(prints)}")
    if (more := len(streams) - _N_NAMED) > 0:
        print_line(f"and {more} other streams more")
