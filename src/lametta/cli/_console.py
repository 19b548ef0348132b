"""Where the command prints, and how it ends on bad input."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

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


def require_bench() -> None:
    """Raise unless what the benchmark needs is installed."""
    packages = ("polars", "pydantic", "joblib", "matplotlib", "jinja2", "torch")
    if missing := [name for name in packages if not find_spec(name)]:
        raise LamettaError(
            f"this needs {', '.join(missing)}, which pip install 'lametta[bench]' brings"
        )
