"""``lametta list``: methods, affinities, models, data sets and scenarios, by name."""

import importlib.util
import inspect
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column
from rich.text import Text

from lametta import methods, networks
from lametta.affinity import AFFINITIES
from lametta.cli._console import data_folder, out, print_line, show_table, user_errors
from lametta.registry import parameters_of
from lametta.types import LamettaError

Kind = StrEnum(
    "Kind", ["methods", "affinities", "poolings", "models", "datasets", "scenarios", "arrays"]
)


def list_(
    kind: Annotated[
        Kind | None, typer.Argument(case_sensitive=False, help="What to list; all if not given.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="ROOT", help="Where data sets lie; LAMETTA_DATA if not given.", show_default=""
        ),
    ] = None,
    count: Annotated[
        bool,
        typer.Option(
            "--count", help="Read the data sets that were found, and compare with published counts."
        ),
    ] = False,
) -> None:
    """Show what there is: methods, affinities, poolings, models, data sets, scenarios, arrays.

    Data sets are shown with what each needs on disk, and whether it was found below ROOT. To count
    looks at every file, which takes minutes for a million of them.

    Example: lametta list datasets --data /data --count
    """
    with user_errors():
        root = data_folder(data)
        for option, given in (("--data", data is not None), ("--count", count)):
            if given and kind not in (None, Kind.datasets):
                raise LamettaError(f"{option} is of use with datasets alone, got it with {kind}")
        tables = _TABLES | {Kind.datasets: lambda: _datasets(root, count)}
        if kind is not None:
            tables[kind]()
            return
        for every in Kind:
            out.print(f"[bold underline]{every}[/]")
            tables[every]()
            out.print()


def _show(names: Mapping[str, str]) -> None:
    show_table("name", "what it is", rows=((name, _plain(line)) for name, line in names.items()))


def _plain(line: str) -> str:
    return line.replace("`", "")


def _methods() -> None:
    rows = []
    for name in methods.names():
        try:
            method = methods.find(name)
        except LamettaError as error:  # PyTorch is not installed, or a plug-in is broken
            rows.append((name, "", str(error), ""))
            continue
        traits = (
            *(["network"] if method.needs_network else []),
            *(["state"] if method.stateful else []),
            *(["ordered"] if method.ordered else []),
            *([] if method.causal else ["looks ahead"]),
        )
        options = ", ".join(parameter.text for parameter in method.parameters().values())
        rows.append((name, ", ".join(traits), _plain(method.summary), _plain(options)))
    show_table("name", "traits", "what it is", "options", rows=rows)
    print_line(
        "+ puts correctors on top: tent+lame; python:package.module:Name is a method of your own"
    )


def _affinities() -> None:
    rows = []
    for name, make in AFFINITIES.items():
        line = (inspect.getdoc(make) or "").partition("\n")[0]
        options = ", ".join(parameter.text for parameter in parameters_of(make).values())
        rows.append((name, _plain(line), options))
    show_table("name", "what it is", "options", rows=rows)


def _datasets(root: Path | None, count: bool) -> None:
    from lametta.data import catalog

    if count and not root:
        raise LamettaError("--count needs a data root, got neither --data nor LAMETTA_DATA")
    there = {row.name: row for row in catalog.locate(root)} if root else {}
    rows = []
    for name, (line, needs) in catalog.datasets().items():
        row, state = there.get(name), Text("" if needs else "always")
        notes = [(needs, "dim")] if needs else []
        if row is not None:
            state = Text("yes", "green") if row.found else Text("no", "red")
            if not row.found and row.where.exists():  # it is there, but not all of it
                notes.append((row.why, "red"))
            elif row.found and count and root:
                notes.append(_counted(name, root))
        rows.append((name, state, Text("\n").join([Text(line), *(Text(*note) for note in notes)])))
    show_table("name", "there", Column("what it is and needs on disk", overflow="fold"), rows=rows)
    looked = f"looked below {root}" if root else "no data root to look below"
    print_line(f"{looked} (--data or LAMETTA_DATA)")


def _counted(name: str, root: Path) -> tuple[str, str]:
    """Read a data set; give a note on its size, and the style of the note."""
    from lametta.data import catalog

    try:
        data = catalog.load(name, root)
    except LamettaError as error:
        return str(error), "red"
    if differs := catalog.count_mismatch(name, data):
        return differs, "yellow"
    return f"{len(data):,} samples of {len(data.classes):,} classes, as published", "green"


def _scenarios() -> None:
    from lametta import stream

    rows = [
        (part, name, _plain(line), ", ".join(stream.options(name)))
        for part, names in (("order", stream.orders()), ("prior", stream.priors()))
        for name, line in names.items()
    ]
    show_table("", "name", "what it is", "options", rows=rows)
    print_line(
        "a scenario is an order, a prior, a batch size, a seed, a limit of samples, "
        "and whether batches end with their group (split_groups)"
    )


def _arrays() -> None:
    modules = {"NumPy": "numpy", "PyTorch": "torch", "JAX": "jax", "CuPy": "cupy"}
    _show(
        {
            name: "installed" if importlib.util.find_spec(module) else "not installed"
            for name, module in modules.items()
        }
    )


_TABLES: dict[Kind, Callable[[], None]] = {
    Kind.methods: _methods,
    Kind.affinities: _affinities,
    Kind.poolings: lambda: _show({"mean, sum, max": "How ClassMap pools classes onto fewer."}),
    Kind.models: lambda: _show(networks.names()),
    Kind.scenarios: _scenarios,
    Kind.arrays: _arrays,
}
