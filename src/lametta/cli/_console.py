"""How the commands print, show progress, and end on bad input."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from lametta.types import LamettaError

out = Console()
err = Console(stderr=True)


def say(line: str, console: Console = out) -> None:
    """Print a line as it is, whatever brackets it holds and however long it is."""
    console.print(Text(line), soft_wrap=True)


def complain(message: str) -> None:
    """Say on the error stream what is wrong."""
    err.print(Text.assemble(("lametta:", "bold red"), " ", message), soft_wrap=True)


def show_table(*columns: Column | str, rows: Iterable[Iterable[str | Text]]) -> None:
    """Print a table; without columns it has no header. A style takes a `rich.text.Text`."""
    table = Table(
        *columns, box=None, header_style="bold", pad_edge=False, show_header=bool(columns)
    )
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    out.print(table)


def progress_bar(*, transient: bool = True) -> Progress:
    """A bar with description, count and time left, on the error stream: ``with`` starts it."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=err,
        transient=transient,
    )


@contextmanager
def user_errors() -> Iterator[None]:
    """Print what is wrong with the input in one line and exit with 2."""
    try:
        yield
    except (LamettaError, OSError) as error:
        complain(str(error))
        raise typer.Exit(2) from None


def require(extra: str, *packages: str) -> None:
    """Raise unless these packages are installed, which one of lametta's extras brings."""
    if missing := [name for name in packages if not find_spec(name)]:
        raise LamettaError(
            f"this needs {', '.join(missing)}, which pip install 'lametta[{extra}]' brings"
        )


def require_bench() -> None:
    """Raise unless what the benchmark needs is installed."""
    require("bench", "polars", "pydantic", "joblib", "matplotlib", "jinja2", "torch")
