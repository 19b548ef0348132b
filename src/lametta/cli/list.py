"""``lametta list``: what each registry has, by name."""

import importlib.util
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column
from rich.text import Text

from lametta import methods
from lametta.affinity import AFFINITIES
from lametta.cli._console import data_folder, out, print_line, show_table, user_errors
from lametta.networks import NETWORKS
from lametta.registry import FactoryRegistry, Parameter, Registry, summary_of
from lametta.types import LamettaError

if TYPE_CHECKING:
    from lametta.data.catalog import Availability

Kind = StrEnum(
    "Kind", "methods affinities poolings models datasets scenarios figures layers arrays"
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
    """Show what there is, by name: methods, models, data sets, scenarios, figures and more.

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


def _show(*registries: tuple[str, Registry[Any]]) -> None:
    """Print names with what they are and, where they make something, what that may be given."""
    rows = [(part, *row) for part, registry in registries for row in _rows(registry)]
    columns = ("", "name", "traits", "what it is", "options")
    shown = [i for i in range(len(columns)) if any(row[i] for row in rows)]
    cut = ([row[i].replace("`", "") for i in shown] for row in rows)
    show_table(*(columns[i] for i in shown), rows=cut)


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


def _methods() -> None:
    _show(("", methods.METHODS))
    print_line(f"+ puts correctors on top: tent+lame; {_OWN} is a method of your own")


def _figures() -> None:
    from lametta.bench.views import VIEWS

    _show(("", VIEWS))


def _layers() -> None:
    try:
        from lametta.torch.select import LAYERS
    except LamettaError as error:  # PyTorch is not installed
        print_line(str(error))
        return
    _show(("", LAYERS))


def _datasets(root: Path | None, count: bool) -> None:
    from lametta.data import catalog

    if count and not root:
        raise LamettaError("--count needs a data root, got neither --data nor LAMETTA_DATA")
    there = {row.name: row for row in catalog.locate(root)} if root else {}
    rows = []
    for name, (line, needs) in catalog.datasets().items():
        state, notes = _state(there.get(name), needs, root if count else None)
        rows.append((name, state, Text("\n").join([Text(line), *notes])))
    show_table("name", "there", Column("what it is and needs on disk", overflow="fold"), rows=rows)
    looked = f"looked below {root}" if root else "no data root to look below"
    print_line(f"{looked} (--data or LAMETTA_DATA); {_OWN} is a data set of your own")


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


def _scenarios() -> None:
    from lametta.stream.order import ORDERS
    from lametta.stream.prior import PRIORS

    _show(("order", ORDERS), ("prior", PRIORS))
    print_line(
        "a scenario is an order, a prior, a batch size, a seed, a limit of samples, "
        "and whether batches end with their group (split_groups)"
    )


def _arrays() -> None:
    modules = {"NumPy": "numpy", "PyTorch": "torch", "JAX": "jax", "CuPy": "cupy"}
    rows = [
        (name, "installed" if importlib.util.find_spec(module) else "not installed")
        for name, module in modules.items()
    ]
    show_table("name", "what it is", rows=rows)


_OWN = "python:package.module:Name"
_POOLINGS = [("mean, sum, max", "How ClassMap pools classes onto fewer.")]
_TABLES: dict[Kind, Callable[[], None]] = {
    Kind.methods: _methods,
    Kind.affinities: lambda: _show(("", AFFINITIES)),
    Kind.poolings: lambda: show_table("name", "what it is", rows=_POOLINGS),
    Kind.models: lambda: _show(("", NETWORKS)),
    Kind.scenarios: _scenarios,
    Kind.figures: _figures,
    Kind.layers: _layers,
    Kind.arrays: _arrays,
}
