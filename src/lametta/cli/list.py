"""``lametta list``: what there is."""

import importlib.util
import inspect
import os
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column
from rich.text import Text

from lametta import methods, networks
from lametta._signatures import parameters_of
from lametta.affinity import AFFINITIES
from lametta.cli._console import data_folder, out, say, show_table, user_errors
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
        if data is not None:
            data_folder(data)
            if kind not in (None, Kind.datasets):
                raise LamettaError(f"--data is of use with datasets alone, got it with {kind}")
        for wanted in Kind if kind is None else (kind,):
            if kind is None:
                out.print(f"[bold underline]{wanted}[/]")
            _TABLES[wanted](data)
            if kind is None:
                out.print()


def _show(names: Mapping[str, str]) -> None:
    show_table("name", "what it is", rows=((name, _plain(line)) for name, line in names.items()))


def _plain(line: str) -> str:
    return line.replace("`", "")


def _methods(_: Path | None) -> None:
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
        )
        options = ", ".join(parameter.text for parameter in method.parameters().values())
        rows.append((name, ", ".join(traits), _plain(method.line), _plain(options)))
    show_table("name", "needs or keeps", "what it is", "options", rows=rows)
    say("+ puts correctors on top: tent+lame; python:package.module:Name is a method of your own")


def _affinities(_: Path | None) -> None:
    rows = []
    for name, make in AFFINITIES.items():
        line = (inspect.getdoc(make) or "").partition("\n")[0]
        options = ", ".join(parameter.text for parameter in parameters_of(make).values())
        rows.append((name, _plain(line), options))
    show_table("name", "what it is", "options", rows=rows)


def _poolings(_: Path | None) -> None:
    _show({"mean, sum, max": "How ClassMap pools classes onto fewer."})


def _models(_: Path | None) -> None:
    _show({name: network.line for name, network in networks.NETWORKS.items()})


def _datasets(data: Path | None) -> None:
    from lametta.data import catalog

    root = os.environ.get("LAMETTA_DATA") if data is None else data
    there = {row.name: row.found for row in catalog.look(root)} if root else {}
    states = {None: Text(""), True: Text("yes", "green"), False: Text("no", "red")}
    rows = [
        (
            name,
            states[there.get(name)] if needs else "always",
            Text.assemble(line, *([("\n" + needs, "dim")] if needs else [])),
        )
        for name, (line, needs) in catalog.datasets().items()
    ]
    show_table("name", "there", Column("what it is and needs on disk", overflow="fold"), rows=rows)
    looked = f"looked below {root}" if root else "no data root to look below"
    say(f"{looked} (--data or LAMETTA_DATA)")


def _scenarios(_: Path | None) -> None:
    from lametta import stream

    rows = [
        (part, name, _plain(line), ", ".join(stream.options(name)))
        for part, names in (("order", stream.orders()), ("prior", stream.priors()))
        for name, line in names.items()
    ]
    show_table("", "name", "what it is", "options", rows=rows)
    say(
        "a scenario is an order, a prior, a batch size, a seed, a limit of samples, "
        "and whether batches end with their group (split_groups)"
    )


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
