"""``lametta report`` and ``lametta compare``: what results say, and whether two say the same."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lametta.cli._console import (
    option_names,
    print_error,
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
        Path, typer.Argument(metavar="RESULTS", help="The folder that lametta run wrote.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Where to; RESULTS/report if not given."
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
) -> None:
    """Turn results into a page, figures and tables.

    Writes report.html, one file with everything in it, to be opened in any browser; each figure as
    SVG, PDF and its numbers as CSV under figures/; each table as Markdown, LaTeX and CSV under
    tables/. Results need not be complete: the page says what was not run.

    Exits with 0 if the report was written, with 1 if it was and some cells of the run had failed,
    and with 2 if RESULTS cannot be read.

    Example: lametta report results/demo
    """
    with user_errors():
        require_bench()
        from lametta.bench.analysis.results import read_results
        from lametta.bench.report import make_report
        from lametta.bench.report.page import write
        from lametta.bench.tables.accuracy import accuracies

        with option_names(results="RESULTS", frame="RESULTS", path="a file in RESULTS"):
            found = read_results(results)
            folder = output_folder(output, results / "report")
            shown = make_report(found, paper=paper)
            table = accuracies(found.headline_rows, found.source)
        page = write(shown, folder)
    show_entries(table)
    print_line(shown.message)
    if found.failures:
        print_error(f"{len(found.failures)} cells failed; the page says why")
    print_line(f"wrote {page}")
    raise typer.Exit(1 if found.failures else 0)


def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="A folder that lametta run wrote.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another one.")],
    tolerance: Annotated[
        float, typer.Option(help="Accuracies, from 0 to 1, that differ by no more are equal.")
    ] = 1e-6,
) -> None:
    """Compare two folders of results, cell by cell.

    Cells that agree in method, configuration, model, scenario, seed and batch size are compared;
    those that only one folder has are counted. For each method and scenario the largest difference
    B - A is shown, in points, and streams that were not the same are named.

    Exits with 0 if all cells in both are equal, with 1 if an accuracy or a stream differs, and with
    2 if a folder cannot be read or the two have no cell in common.

    Example: lametta compare results/monday results/tuesday --tolerance 0.001
    """
    with user_errors():
        require_bench()
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
    raise typer.Exit(0 if found.equal else 1)


def output_folder(given: Path | None, default: Path) -> Path:
    """Make the folder that -o names, or the one that is taken without it."""
    folder = default if given is None else given
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
