"""``lametta list``: what there is."""

import importlib.util
import os
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

import lametta
from lametta.cli._console import out, user_errors
from lametta.types import LamettaError


class Kind(StrEnum):
    """What can be listed."""

    methods = "methods"
    affinities = "affinities"
    poolings = "poolings"
    models = "models"
    datasets = "datasets"
    scenarios = "scenarios"
    arrays = "arrays"


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
) -> None:
    """Show what there is: methods, affinities, poolings, models, data sets, scenarios, arrays.

    Data sets are shown with what each needs on disk, and whether it was found below ROOT.

    Example: lametta list datasets --data /data
    """
    with user_errors():
        if data is not None and kind not in (None, Kind.datasets):
            raise LamettaError(f"--data is of use with datasets alone, got it with {kind}")
        for wanted in Kind if kind is None else (kind,):
            if kind is None:
                out.print(f"[bold underline]{wanted}[/]")
            _TABLES[wanted](data)
            if kind is None:
                out.print()


def _table(*columns: str) -> Table:
    return Table(*columns, box=None, header_style="bold", pad_edge=False)


def _show(names: dict[str, str]) -> None:
    table = _table("name", "what it is")
    for name, line in names.items():
        table.add_row(escape(name), escape(line.replace("`", "")))
    out.print(table)


def _summary(thing: object) -> str:
    return (thing.__doc__ or "").splitlines()[0]


def _methods(_: Path | None) -> None:
    names = {name: _summary(getattr(lametta, name)) for name in ("Source", "LAME")}
    if importlib.util.find_spec("torch"):
        from lametta import torch

        for name in ("tent", "shot_im", "pseudo_label", "adabn"):
            names[name] = _summary(getattr(torch, name)).partition(": ")[2]
    _show(names)


def _affinities(_: Path | None) -> None:
    _show({name: _summary(getattr(lametta, name)) for name in ("knn", "rbf", "linear")})


def _poolings(_: Path | None) -> None:
    _show({"mean, sum, max": "How ClassMap pools classes onto fewer."})


def _models(_: Path | None) -> None:
    if not importlib.util.find_spec("torch"):
        out.print("models need PyTorch: pip install 'lametta[torch]'", markup=False)
        return
    from lametta.torch import zoo

    _show(zoo.names())


def _datasets(data: Path | None) -> None:
    from lametta.data import catalog

    root = os.environ.get("LAMETTA_DATA") if data is None else data
    there = {row.name: row for row in catalog.look(root)} if root else {}
    table = _table("name", "there")
    table.add_column("what it is and needs on disk", overflow="fold")
    for name, (line, needs) in catalog.datasets().items():
        row = there.get(name)
        state = "" if row is None else "[green]yes[/]" if row.found else "[red]no[/]"
        needed = f"\n[dim]{escape(needs)}[/]" if needs else ""
        table.add_row(escape(name), state if needs else "always", escape(line) + needed)
    out.print(table)
    looked = f"looked below {root}" if root else "no data root to look below"
    out.print(f"{looked} (--data or LAMETTA_DATA)", markup=False, highlight=False, soft_wrap=True)


def _scenarios(_: Path | None) -> None:
    from lametta import stream

    table = _table("", "name", "what it is", "options")
    for part, names in (("order", stream.orders()), ("prior", stream.priors())):
        for name, line in names.items():
            options = ", ".join(stream.options(name))
            table.add_row(part, name, escape(line.replace("`", "")), escape(options))
    out.print(table)
    out.print("a scenario is an order, a prior, a batch size, a seed and a limit of samples")


def _arrays(_: Path | None) -> None:
    modules = {"NumPy": "numpy", "PyTorch": "torch", "JAX": "jax", "CuPy": "cupy"}
    _show(
        {
            name: "installed" if importlib.util.find_spec(module) else "not installed"
            for name, module in modules.items()
        }
    )


_TABLES: dict[Kind, Callable[[Path | None], None]] = {
    Kind.methods: _methods,
    Kind.affinities: _affinities,
    Kind.poolings: _poolings,
    Kind.models: _models,
    Kind.datasets: _datasets,
    Kind.scenarios: _scenarios,
    Kind.arrays: _arrays,
}
