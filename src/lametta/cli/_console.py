"""Where the command prints, and how it ends on bad input."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.markup import escape

from lametta.types import LamettaError

out = Console()
err = Console(stderr=True)


@contextmanager
def user_errors() -> Iterator[None]:
    """Print what is wrong with the input in one line and exit with 2."""
    try:
        yield
    except (LamettaError, OSError) as error:
        err.print(f"[bold red]lametta:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        raise typer.Exit(2) from None
