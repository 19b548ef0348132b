"""Console output, progress, user errors, and options that several commands share."""

import json
import logging
import os
import tomllib
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table
from rich.text import Text

from lametta import methods
from lametta._checks import extra, raise_as
from lametta._files import check_regular_file, plain_error
from lametta.classmap import ClassMap
from lametta.types import LamettaError

if TYPE_CHECKING:
    from lametta.bench import tables

_SECONDS = 10.0  # between lines of progress

Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Precision: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="TYPE",
        help="float32, or bf16: passes under autocast to bfloat16.",
        show_default="float32",
    ),
]
Compiled: TypeAlias = Annotated[
    bool, typer.Option("--compile", help="Compile networks at their first pass.")
]
Features: TypeAlias = Annotated[
    str | None, typer.Option(help="The model's tensor of features, if it is not found.")
]
Logits: TypeAlias = Annotated[
    str | None, typer.Option(help="The model's tensor of logits, if it is not found.")
]

Settings: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="An option of the method; may be given repeatedly."
    ),
]
MapFile: TypeAlias = Annotated[
    Path | None,
    typer.Option("--map", metavar="MAP", help="A class map of lametta map to pool by."),
]

out = Console()
err = Console(stderr=True)


@contextmanager
def loudness(verbose: bool | None, *, muted: bool = False) -> Iterator[None]:
    """Print as ``--verbose`` (True), ``--quiet`` (False) or neither (None) says.

    Muted, nothing goes to the standard output but what `print_json` prints there.
    """
    logger, handler = logging.getLogger("lametta"), logging.StreamHandler()
    before = logger.level, out.quiet, err.quiet
    if verbose is not None:
        out.quiet = err.quiet = not verbose
    out.quiet = out.quiet or muted
    if verbose:
        logger.setLevel(logging.DEBUG)
        logger.addHandler(handler)
    try:
        yield
    finally:
        level, out.quiet, err.quiet = before
        logger.setLevel(level)
        logger.removeHandler(handler)


def print_json(found: Mapping[str, Any] | Sequence[Any]) -> None:
    """Print what a command found, for scripts."""
    typer.echo(json.dumps(found, indent=2, default=str))


def print_line(line: str, console: Console = out) -> None:
    """Print a line as it is, whatever brackets it holds and however long it is."""
    console.print(Text(line), soft_wrap=True)


def print_error(message: str) -> None:
    """Print on the error stream what is wrong, however quiet the others are."""
    Console(stderr=True).print(
        Text.assemble(("lametta:", "bold red"), " ", message), soft_wrap=True
    )


def show_table(*columns: Column | str, rows: Iterable[Iterable[str | Text]]) -> None:
    """Print a table; without columns it has no header. Styled cells are `rich.text.Text`."""
    table = Table(
        *columns, box=None, header_style="bold", pad_edge=False, show_header=bool(columns)
    )
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    out.print(table)


def show_entries(table: "tables.Table", *, notes: bool = False) -> None:
    """Print a table of the benchmark, with gains in green and losses in red, perhaps with notes."""
    out.print(Text(table.title, "italic"))
    columns = (
        Column(escape(name), justify="right" if right else "left")
        for name, right in zip(table.header, table.numeric, strict=True)
    )
    first, *others = columns
    first.no_wrap = True
    show_table(
        first, *others, rows=([_colored(entry, notes) for entry in row] for row in table.rows)
    )
    if table.footnote:
        out.print(Text(table.footnote, "dim"))


def _colored(entry: "tables.Entry", notes: bool) -> Text:
    text = Text(entry.text.replace("± ", "±"))  # which stays together on a narrow terminal
    if entry.best:
        text.stylize("bold")
    if entry.gain is not None and round(entry.gain, 1) != 0:
        text.stylize("green" if entry.gain > 0 else "red")
    if notes and entry.note:
        text.append(f" ({entry.note})", "dim")
    return text


def progress_bar(*, transient: bool = True) -> Progress:
    """A bar with description, count and time left, on the error stream: ``with`` starts it.

    Where the error stream is no terminal, but a file say, it prints a line now and then.
    """
    if err.quiet:
        return Progress(disable=True)
    if not err.is_terminal:
        return _Lines(brief=transient)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=err,
        transient=transient,
    )


class _Lines(Progress):
    """Progress for a file or a pipe: a line every ten seconds, and one at the end of a task.

    With ``brief``, a task that printed nothing before ends silently.
    """

    def __init__(self, *, brief: bool) -> None:
        super().__init__(disable=True)  # no bars
        self._brief = brief
        self._told: dict[TaskID, float] = {}
        self._since = self.get_time()

    def update(self, task_id: TaskID, **options: Any) -> None:
        super().update(task_id, **options)
        self._tell(task_id)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        self._tell(task_id)

    def _tell(self, task_id: TaskID) -> None:
        task = next(task for task in self.tasks if task.id == task_id)
        done = task.total is not None and task.completed >= task.total
        ends = done and task_id in self._told if self._brief else done
        if not ends and self.get_time() - self._since < _SECONDS:
            return
        count = f"{task.completed:g}" + ("" if task.total is None else f"/{task.total:g}")
        if self._told.get(task_id) != task.completed:
            print_line(f"{Text.from_markup(task.description, emoji=False)} {count}", err)
        self._since, self._told[task_id] = self.get_time(), task.completed


@contextmanager
def user_errors() -> Iterator[None]:
    """Print what is wrong with the input in one line and exit with 2."""
    try:
        yield
    except (LamettaError, OSError) as error:
        if logging.getLogger("lametta").isEnabledFor(logging.DEBUG):  # as --verbose has it
            traceback.print_exc()
        print_error(plain_error(error) if isinstance(error, OSError) else str(error))
        raise typer.Exit(2) from None


@contextmanager
def option_names(**options: str) -> Iterator[None]:
    """Name arguments in errors as the options that the user typed: ``path="--map"``."""
    try:
        yield
    except LamettaError as error:
        argument, space, rest = str(error).partition(" ")
        raise type(error)(options.get(argument, argument) + space + rest) from None


@contextmanager
def resumable(line: str) -> Iterator[None]:
    """Say after Ctrl-C that nothing is lost, and exit with 130."""
    try:
        yield
    except KeyboardInterrupt:
        print_line(line, err)
        raise typer.Exit(130) from None


def load_map(path: Path | None) -> ClassMap | None:
    """The class map that ``--map`` names, if it was given."""
    if path is None:
        return None
    check_regular_file("--map", path)
    return ClassMap.load(path)


def require(name: str, *packages: str) -> None:
    """Raise unless these packages are installed, which one of lametta's extras brings."""
    if missing := [package for package in packages if not find_spec(package)]:
        raise LamettaError(f"this needs {', '.join(missing)}: pip install {extra(name)}")


def parse_settings(settings: Sequence[str], option: str) -> dict[str, object]:
    """The values of ``name=value``, as TOML has them; what TOML cannot read is text."""
    params: dict[str, object] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not name or not equals:
            raise LamettaError(f"{option} must be NAME=VALUE, got {setting!r}")
        try:
            (params[name.strip()],) = tomllib.loads(f"value = {text}").values()
        except ValueError:  # no TOML, or more than one value
            params[name.strip()] = text
        except RecursionError:
            raise LamettaError(f"{option} {name.strip()} must not be nested so deeply") from None
    return params


def find_method(
    name: str, params: Mapping[str, object], shortcuts: Collection[str] = ()
) -> methods.Method:
    """The output-only method of ``--method``, which has to take these options of ``--set``.

    Those among the shortcuts were typed as options of their own.
    """
    found = methods.find(name, "--method")
    for param, message in found.param_errors(params):
        option = f"--{param.replace('_', '-')}" if param in shortcuts else f"--set {param}"
        raise LamettaError(f"{option} {message}" if param else message)
    with option_names(method="--method"):
        found.correctors(params)  # or say that the method needs more than outputs
    return found


def data_folder(data: Path | None) -> Path | None:
    """The data root that was given, which has to be there, or else that of LAMETTA_DATA, if any."""
    if data is None:
        return Path(root) if (root := os.environ.get("LAMETTA_DATA")) else None
    if not data.exists():
        raise LamettaError(f"no such folder: {str(data)!r}")
    if not data.is_dir():
        raise LamettaError(f"--data must be a folder, got {data}, which is a file")
    return data


def find_device(device: str) -> str:
    """The device that ``--device auto`` stands for: a GPU if there is one; another as it is."""
    if device != "auto":
        return device
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def computed(precision: str | None, compiled: bool) -> dict[str, object]:
    """What ``--precision`` and ``--compile`` ask for, where they were given."""
    options: dict[str, object] = {} if precision is None else {"precision": precision}
    return options | ({"compile": True} if compiled else {})


def check_beside(option: str, given: object, needed: str, there: object) -> None:
    """Raise if an option is given without the one that it belongs to."""
    if given is not None and there is None:
        raise LamettaError(f"{option} must come with {needed}, got {given!r} without it")


def check_device(device: str) -> None:
    """Raise unless PyTorch can compute there."""
    import torch

    with raise_as("--device must be one that works", device):
        torch.zeros(1, device=device).cpu()


def require_bench() -> None:
    """Raise unless what the benchmark needs is installed."""
    require("bench", "polars", "pydantic", "joblib", "matplotlib", "jinja2", "scipy", "torch")
