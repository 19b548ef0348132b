"""``lametta list``: what each registry has, by name."""

import importlib.util
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import typer
from rich.table import Column
from rich.text import Text

from lametta import methods
from lametta.affinity import AFFINITIES
from lametta.cli._console import (
    Json,
    data_folder,
    out,
    print_json,
    print_line,
    require_bench,
    show_table,
    user_errors,
)
from lametta.networks import NETWORKS
from lametta.registry import FactoryRegistry, Parameter, Registry, summary_of
from lametta.types import LamettaError

if TYPE_CHECKING:
    from lametta.data.catalog import Availability

Kind = StrEnum(
    "Kind", "methods affinities poolings models datasets scenarios figures layers arrays schema"
)
_Cell: TypeAlias = str | Text


class _Listing(NamedTuple):
    """What is shown of a kind: a table, whose column "" says which part of it, and a line."""

    columns: tuple[str, ...]
    rows: list[tuple[_Cell, ...]]
    note: str = ""

    def show(self) -> None:
        """Print it, without columns that are empty."""
        shown = [i for i in range(len(self.columns)) if any(row[i] for row in self.rows)]
        columns = [Column(self.columns[i], overflow="fold") for i in shown]
        show_table(*columns, rows=([row[i] for i in shown] for row in self.rows))
        if self.note:
            print_line(self.note)

    def entries(self) -> list[dict[str, str]]:
        """It for a script."""
        names = [name.replace(" ", "_") or "part" for name in self.columns]
        return [
            {name: str(cell) for name, cell in zip(names, row, strict=True) if str(cell)}
            for row in self.rows
        ]


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
    as_json: Json = False,
) -> None:
    """Show what there is, by name: methods, models, data sets, scenarios, figures and more.

    Data sets are shown with what each needs on disk, and whether it was found below ROOT. To count
    looks at every file, which takes minutes for a million of them. The schema, for editors and
    other programs, is the JSON Schema of an experiment's file.

    Example: lametta list datasets --data /data --count
    """
    with user_errors():
        root = data_folder(data)
        for option, given in (("--data", data is not None), ("--count", count)):
            if given and kind not in (None, Kind.datasets):
                raise LamettaError(f"{option} is of use with datasets alone, got it with {kind}")
        listings = _LISTINGS | {Kind.datasets: lambda: _datasets(root, count)}
        if kind is Kind.schema:
            require_bench()
            from lametta.bench.experiment import json_schema

            print_json(json_schema())
        elif kind is None:
            _list_all({one: listing() for one, listing in listings.items()}, as_json)
        else:
            found = listings[kind]()
            found.show()
            if as_json:
                print_json(found.entries())


def _list_all(every: dict[Kind, _Listing], as_json: bool) -> None:
    for one in (one for one in Kind if one in every):
        out.print(f"[bold underline]{one}[/]")
        every[one].show()
        out.print()
    if as_json:
        print_json({one.value: listing.entries() for one, listing in every.items()})


def _registered(*registries: tuple[str, Registry[Any]], note: str = "") -> _Listing:
    """Names with what they are and, where they make something, what that may be given."""
    rows = [
        tuple(cell.replace("`", "") for cell in (part, *row))
        for part, registry in registries
        for row in _rows(registry)
    ]
    return _Listing(("", "name", "traits", "what it is", "options"), [*rows], note)


def _rows(registry: Registry[Any]) -> Iterator[tuple[str, str, str, str]]:
    for name in registry.names():
        try:
            found = methods.find(name) if registry is methods.METHODS else registry.find(name)
            traits = _traits(found) if isinstance(found, methods.Method) else ""
        except LamettaError as error:  # PyTorch is not installed, or a plug-in is broken
            yield name, "", str(error), ""
            continue
        known = dict[str, Parameter]()
        if isinstance(found, methods.Method):
            known = found.parameters()
        elif isinstance(registry, FactoryRegistry):
            known = registry.options(name)
        options = ", ".join(parameter.text for parameter in known.values())
        yield name, traits, summary_of(found), options


def _traits(method: methods.Method) -> str:
    """What a method is, what it needs, and its passes, in one cell: a console is narrow."""
    has = {
        "network": method.needs_network,
        "state": method.stateful,
        "ordered": method.ordered,
        "looks ahead": not method.causal,
    }
    said = [", ".join(trait for trait, there in has.items() if there)]
    said += [f"needs {', '.join(method.needs)}"] * bool(method.needs)
    said += [f"passes {method.passes_text}"] * bool(method.passes_text)
    if answers := method.answers():
        said.append(f"answers {answers} its update")
    return "; ".join(part for part in said if part)


def _methods() -> _Listing:
    note = f"+ puts correctors on top: tent+lame; {_OWN} is a method of your own"
    return _registered(("", methods.METHODS), note=note)


def _figures() -> _Listing:
    from lametta.bench.views import VIEWS

    return _registered(("", VIEWS))


def _layers() -> _Listing:
    try:
        from lametta.torch.select import LAYERS
    except LamettaError as error:  # PyTorch is not installed
        return _Listing((), [], str(error))
    return _registered(("", LAYERS))


def _datasets(root: Path | None, count: bool) -> _Listing:
    from lametta.data import catalog

    if count and not root:
        raise LamettaError("--count needs a data root, got neither --data nor LAMETTA_DATA")
    there = {row.name: row for row in catalog.locate(root)} if root else {}
    rows: list[tuple[_Cell, ...]] = []
    for name, (line, needs) in catalog.datasets().items():
        state, notes = _state(there.get(name), needs, root if count else None)
        rows.append((name, state, Text("\n").join([Text(line), *notes])))
    looked = f"looked below {root}" if root else "no data root to look below"
    note = f"{looked} (--data or LAMETTA_DATA); {_OWN} is a data set of your own"
    return _Listing(("name", "there", "what it is and needs on disk"), rows, note)


def _state(row: "Availability | None", needs: str, root: Path | None) -> tuple[Text, list[Text]]:
    """Whether a data set is there, what it needs on disk, and what there is to say of it."""
    notes = [Text(needs, "dim")] if needs else []
    if row is None:
        return Text("" if needs else "always"), notes
    return Text("yes", "green") if row.found else Text("no", "red"), notes + _noted(row, root)


def _noted(row: "Availability", root: Path | None) -> list[Text]:
    """What is wrong with a data set on disk, or how large it is, where a root to read is given."""
    from lametta.data import catalog

    if not row.found:  # perhaps it is there, but not all of it
        return [Text(row.why, "red")] if row.where.exists() else []
    if root is None:
        return []
    try:
        data = catalog.load(row.name, root)
    except LamettaError as error:
        return [Text(str(error), "red")]
    if differs := catalog.count_mismatch(row.name, data):
        return [Text(differs, "yellow")]
    size = f"{len(data):,} samples of {len(data.classes):,} classes, as published"
    return [Text(size, "green")]


def _scenarios() -> _Listing:
    from lametta.stream.order import ORDERS
    from lametta.stream.prior import PRIORS

    note = (
        "a scenario is an order, a prior, a batch size, a seed, a limit of samples, "
        "and whether batches end with their group (split_groups)"
    )
    return _registered(("order", ORDERS), ("prior", PRIORS), note=note)


def _arrays() -> _Listing:
    modules = {"NumPy": "numpy", "PyTorch": "torch", "JAX": "jax", "CuPy": "cupy"}
    rows = [
        (name, "installed" if importlib.util.find_spec(module) else "not installed")
        for name, module in modules.items()
    ]
    return _Listing(("name", "what it is"), [*rows])


_OWN = "python:package.module:Name"
_LISTINGS: dict[Kind, Callable[[], _Listing]] = {
    Kind.methods: _methods,
    Kind.affinities: lambda: _registered(("", AFFINITIES)),
    Kind.poolings: lambda: _Listing(
        ("name", "what it is"), [("mean, sum, max", "How ClassMap pools classes onto fewer.")]
    ),
    Kind.models: lambda: _registered(("", NETWORKS)),
    Kind.scenarios: _scenarios,
    Kind.figures: _figures,
    Kind.layers: _layers,
    Kind.arrays: _arrays,
}
