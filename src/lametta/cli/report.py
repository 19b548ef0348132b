"""``lametta report`` and ``lametta compare``: what results say, and whether two say the same."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from lametta.cli._console import err, out, require_bench, user_errors

if TYPE_CHECKING:
    import polars as pl

    from lametta.bench.tables import Entry
    from lametta.bench.tables import Table as Numbers

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
        from lametta.bench.report import make_report, write
        from lametta.bench.results import read_results
        from lametta.bench.tables import accuracies

        found = read_results(results)
        shown = make_report(found, paper=paper)
        page = write(shown, results / "report" if output is None else output)
        table = accuracies(found.headline_rows, found.source)
    _show(table)
    out.print(shown.message, highlight=False)
    if found.failures:
        err.print(f"[bold red]lametta:[/] {len(found.failures)} cells failed; the page says why")
    out.print(f"wrote {page}", highlight=False, soft_wrap=True)
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
        from lametta.bench.report import compare as compare_cells
        from lametta.bench.results import read_cells

        found = compare_cells(read_cells(first), read_cells(second), tolerance)
    _show(found.table())
    counts = f"{len(found.cells)} cells in both, {len(found.different)} differ"
    alone = f"; only in A: {found.only_a}, only in B: {found.only_b}"
    out.print(counts + alone, highlight=False)
    _name_streams(found.other_streams)
    raise typer.Exit(0 if found.equal else 1)


def _name_streams(streams: "pl.DataFrame") -> None:
    for scenario, seed, batch_size, *prints in streams.head(_N_NAMED).iter_rows():
        line = f"other stream: {scenario}, seed {seed}, batches of {batch_size}: "
        out.print(escape(line + " and ".join(prints)), highlight=False, soft_wrap=True)
    if (more := len(streams) - _N_NAMED) > 0:
        out.print(f"and {more} other streams more", highlight=False)


def _show(table: "Numbers") -> None:
    out.print(table.title, style="italic", highlight=False)
    shown = Table(box=None, header_style="bold", pad_edge=False)
    for name, right in zip(table.header, table.numeric, strict=True):
        first = not shown.columns
        shown.add_column(escape(name), justify="right" if right else "left", no_wrap=first)
    for row in table.rows:
        shown.add_row(*map(_colored, row))
    out.print(shown)


def _colored(entry: "Entry") -> str:
    text = escape(entry.text).replace("± ", "±")  # which stays together on a narrow terminal
    text = f"[bold]{text}[/]" if entry.best else text
    if entry.gain is None or round(entry.gain, 1) == 0:
        return text
    return f"[{'green' if entry.gain > 0 else 'red'}]{text}[/]"
