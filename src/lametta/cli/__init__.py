"""The ``lametta`` command: one module for each subcommand."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

import lametta
from lametta.cli import camera_traps, correct, export, extract, report, run, serve, trial
from lametta.cli import list as list_
from lametta.cli import map as map_
from lametta.cli._console import loudness

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


_HELP = "Say more, with tracebacks; or errors alone. Also behind a command."


@app.callback()
def _main(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    verbose: Annotated[bool | None, typer.Option("--verbose/--quiet", help=_HELP)] = None,
) -> None:
    context.with_resource(loudness(verbose))


def _flowing(command: Callable[..., None]) -> str:
    """A docstring whose paragraphs are single lines: the terminal breaks them, not the source."""
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _with_loudness(command: Callable[..., None]) -> Callable[..., None]:
    """The command with ``--verbose`` and ``--quiet``; with ``--json`` it prints nothing else."""

    @wraps(command)
    def run(*, verbose: bool | None, **options: Any) -> None:
        with loudness(verbose, muted=bool(options.get("as_json"))):
            command(**options)

    kind = Annotated[bool | None, typer.Option("--verbose/--quiet", hidden=True)]
    given = inspect.signature(command, eval_str=True)
    option = inspect.Parameter("verbose", inspect.Parameter.KEYWORD_ONLY, default=None)
    parameters = [*given.parameters.values(), option.replace(annotation=kind)]
    run.__signature__ = given.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {**command.__annotations__, "verbose": kind}
    return run


for _command in (
    *(trial.try_, run.demo, run.run, report.report, report.compare, correct.correct),
    *(
        camera_traps.camera_traps,
        extract.extract,
        map_.map_,
        list_.list_,
        export.export,
    ),
):
    app.command(_command.__name__.rstrip("_").replace("_", "-"), help=_flowing(_command))(
        _with_loudness(_command)
    )
app.command("serve", help=_flowing(serve.serve))(serve.serve)  # which has a --log-level
