"""The ``lametta`` command: one module for each subcommand."""

import inspect
from collections.abc import Callable
from typing import Annotated

import typer

import lametta
from lametta.cli import camera_traps, correct, export, extract, report, run, serve, trial
from lametta.cli import list as list_
from lametta.cli import map as map_

app = typer.Typer(
    help="Correct a frozen classifier's predictions at test time.",
    no_args_is_help=True,
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


def _flowing(command: Callable[..., None]) -> str:
    """A docstring whose paragraphs are single lines: the terminal breaks them, not the source."""
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


for _command in (
    *(trial.try_, run.demo, run.run, report.report, report.compare, correct.correct),
    *(
        camera_traps.camera_traps,
        extract.extract,
        map_.map_,
        list_.list_,
        export.export,
        serve.serve,
    ),
):
    app.command(_command.__name__.rstrip("_").replace("_", "-"), help=_flowing(_command))(_command)
