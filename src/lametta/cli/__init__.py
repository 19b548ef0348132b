"""The ``lametta`` command: one module for each subcommand."""

from collections.abc import Callable
from typing import Annotated

import typer

import lametta
from lametta.cli.correct import correct
from lametta.cli.extract import extract
from lametta.cli.list import list_
from lametta.cli.map import map_
from lametta.cli.report import compare, report
from lametta.cli.run import demo, run

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


_COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo,
    "run": run,
    "report": report,
    "compare": compare,
    "correct": correct,
    "extract": extract,
    "map": map_,
    "list": list_,
}
for _name, _command in _COMMANDS.items():
    app.command(_name)(_command)
