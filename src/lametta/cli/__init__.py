"""The ``lametta`` command: one module for each subcommand."""

from typing import Annotated

import typer

import lametta
from lametta.cli.correct import correct
from lametta.cli.list import list_
from lametta.cli.map import map_

app = typer.Typer(
    help="Correct a frozen classifier's predictions at test time.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lametta {lametta.__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


app.command()(correct)
app.command("list")(list_)
app.command("map")(map_)
