"""``lametta run`` and ``lametta demo``: experiments, from a file to a report."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Column
from rich.text import Text

from lametta._checks import check_choice
from lametta._files import check_regular_file
from lametta.cli._console import (
    Compiled,
    Json,
    Precision,
    check_device,
    computed,
    data_folder,
    find_device,
    option_names,
    print_error,
    print_json,
    print_line,
    progress_bar,
    require_bench,
    resumable,
    show_table,
    user_errors,
)
from lametta.cli.report import output_folder, report
from lametta.types import LamettaError

if TYPE_CHECKING:  # loaded when used: the extra that brings what they need is not everyone's
    from lametta.bench.experiment import Experiment
    from lametta.bench.planning import Estimate, Passes, Plan
    from lametta.bench.running import OnProgress, Progress
    from lametta.bench.running.workspace import Workspace

Jobs = Annotated[int, typer.Option(min=1, help="How many cells run at once.")]
Results = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="RESULTS", help="Where results go; results/NAME by default."
    ),
]


def run(
    experiment: Annotated[
        str,
        typer.Argument(
            metavar="EXPERIMENT", help="A TOML file, or the name of one that comes with lametta."
        ),
    ],
    output: Results = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="ROOT", help="The data root; LAMETTA_DATA if not given."),
    ] = None,
    study: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Only this study and the validation of its methods; may be given several times.",
        ),
    ] = None,
    jobs: Jobs = 1,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Run on a Ray cluster, such as auto or 10.0.0.1:6379; all of its nodes have to "
            "see RESULTS and ROOT.",
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(help="Where networks run: cpu, cuda, ...; auto takes a GPU if there is one."),
    ] = "cpu",
    precision: Precision = None,
    compiled: Compiled = False,
    image_cache: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="GB",
            help="Decoded images to keep in RESULTS, shared by networks that see the same pixels; "
            "what goes beyond is decoded for each cell. 0 keeps none.",
        ),
    ] = 100,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Show the cells, what they cost on DEVICE and what is missing, and stop.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Run an experiment: validation, selection, studies.

    Whatever stops it, the same command goes on where it stopped: each cell (a method with its
    parameters on a stream) is a file, whole or not there. A second run in the same folder waits for
    the first. An experiment is a program: it may name code, which then runs.

    A dry run lists data sets and reads weights, but imports nothing that the file names; it times
    each network on a few batches, with the images a second that all cells take then.

    Exit status: 0 if all went well, 1 if cells failed or a dry run finds something missing, 2 if
    the input is wrong, 130 if it was interrupted.

    Example: lametta run experiments/cifar10.toml --data /data --jobs 2
    """
    with user_errors():
        require_bench()
        from lametta.bench.experiment import load
        from lametta.bench.running.workspace import Workspace

        path, given = _path(experiment), computed(precision, compiled)
        check_choice("--precision", precision or "float32", ("float32", "bf16"))
        with option_names(path="EXPERIMENT", **{option: f"--{option}" for option in given}):
            loaded = load(path, check="ours" if dry_run else "all", given=given)
        if study:
            with option_names(study="--study"):
                loaded = loaded.only(*study)
        root, device = data_folder(data), find_device(device)
        check_device(device)
        if dry_run:
            _show_plan(loaded, root, device, jobs, image_cache, as_json=as_json)
            return
        folder = output_folder(output, Path("results", loaded.name))
        workspace = Workspace(loaded, folder, root, device, image_cache=image_cache)
        failed = _run(workspace, _with(given, path), jobs, ray)
    if as_json:
        print_json({"results": folder, "device": device, "failed": failed})
    if failed:
        raise typer.Exit(1)
    print_line(f"now: lametta report {workspace.folder}")


def demo(
    full: Annotated[
        bool, typer.Option("--full", help="The whole grid of the paper: some ten minutes.")
    ] = False,
    output: Results = None,
    jobs: Jobs = 2,
) -> None:
    """Run the paper's protocol in miniature, on data that comes with lametta, and report on it.

    Example: lametta demo
    """
    with user_errors():
        require_bench()
        from lametta.bench.experiment import bundled, load
        from lametta.bench.running.workspace import Workspace

        path = bundled("demo_full" if full else "demo")
        loaded = load(path)
        workspace = Workspace(loaded, output_folder(output, Path("results", loaded.name)))
        text = path.read_text(encoding="utf-8")
        if _run(workspace, text, jobs, None):
            raise typer.Exit(1)
    report(workspace.folder)


def _path(experiment: str) -> Path:
    """The experiment's file: what looks like a path is one, and files go before names."""
    from lametta.bench.experiment import bundled

    path = Path(experiment)
    if path.is_file() or path.suffix == ".toml" or path.name != experiment:
        if path.exists():
            check_regular_file("EXPERIMENT", path)
        return path
    try:
        return bundled(experiment)
    except LamettaError as error:
        message = str(error).removeprefix("name must be")
        raise LamettaError(f"EXPERIMENT must be a TOML file, or{message}") from None


def _with(given: Mapping[str, object], file: Path) -> str:
    """The experiment's file with these keys in front, as the results keep it."""
    from lametta.bench.experiment.errors import to_toml

    keys = "".join(f"{key} = {to_toml(value)}\n" for key, value in given.items())
    return keys + file.read_text(encoding="utf-8")


def _run(workspace: "Workspace", text: str, jobs: int, ray: str | None) -> int:
    """Run an experiment, say if cells failed, and give how many did."""
    from lametta.bench.running import run as run_experiment

    chosen = "RESULTS/selected.toml"
    goes_on = resumable("interrupted: the same command goes on from here")
    with goes_on, option_names(path=chosen, selected=chosen), _progress() as show:
        failed = run_experiment(workspace, jobs=jobs, ray=ray, report=show, text=text)
    if failed:
        where = workspace.folder / "failed"
        print_error(f"{len(failed)} cells failed; {where} has their tracebacks")
    return len(failed)


@contextmanager
def _progress() -> Iterator["OnProgress"]:
    with progress_bar(transient=False) as progress:
        tasks = {}

        def show(state: "Progress") -> None:
            if state.phase not in tasks:
                tasks[state.phase] = progress.add_task(escape(state.phase), total=None)
            failed = f" ([red]{state.failed} failed[/])" if state.failed else ""
            progress.update(
                tasks[state.phase],
                completed=state.done,
                total=state.total,
                description=escape(state.phase) + failed,
            )

        yield show


def _show_plan(
    experiment: "Experiment",
    data: Path | None,
    device: str,
    jobs: int,
    image_cache: float,
    *,
    as_json: bool,
) -> None:
    from lametta.bench.planning import dry_run

    plan = dry_run(experiment, data, device=device, image_cache=image_cache)
    if as_json:
        print_json(_as_json(plan, device, jobs))
    counts = ((phase, method, f"{cells:,}") for phase, method, cells in plan.counts)
    show_table("phase", "method", Column("cells", justify="right"), rows=counts)
    print_line(f"{plan.n_cells} cells, each counted once\n")
    _show_cost(plan.cost, device, jobs)
    signs = {True: Text("yes", "green"), False: Text("no", "red"), None: Text("?", "yellow")}
    needs = ((kind, name, signs[found], where) for kind, name, found, where in plan.requirements)
    show_table("needs", "name", "there", Column("where", overflow="fold"), rows=needs)
    if plan.missing:
        print_line(f"{len(plan.missing)} missing")
        raise typer.Exit(1)


def _as_json(plan: "Plan", device: str, jobs: int) -> dict[str, object]:
    cost, gb = plan.cost, 1e9
    return {
        "cells": plan.n_cells,
        "counts": [count._asdict() for count in plan.counts],
        "needs": [required._asdict() for required in plan.requirements],
        "missing": len(plan.missing),
        "device": device,
        "hours": cost.hours(device, jobs),
        "banks_gb": cost.banks / gb,
        "images_gb": cost.images / gb,
        "not_counted": list(cost.uncounted),
    }


def _show_cost(cost: "Estimate", device: str, jobs: int) -> None:
    passes = ((x.name, f"{x.forward:,}", f"{x.backward:,}") for x in cost.methods)
    show_table("through networks", *_numbers("images forward", "backward"), rows=passes)
    print_line("")
    columns = _numbers("images forward", "backward", "ms forward", "ms backward", "time")
    show_table("network", *columns, rows=map(_row, cost.networks))
    print_line(
        f"\nabout {duration(cost.hours(device, jobs))} on {device} with --jobs {jobs}: networks, "
        f"and {duration(cost.decoding)} of one core that decodes images"
    )
    banks, kept, beyond = (f"{n / 1e9:.3g} GB" for n in (cost.banks, cost.images, cost.over_budget))
    print_line(
        f"on the disk: banks {banks}, decoded images {kept}; "
        f"another {beyond} would be decoded for each cell"
    )
    for line in cost.uncounted:
        print_line(f"not counted: {line}")
    print_line("")


def _numbers(*names: str) -> list[Column]:
    return [Column(name, justify="right") for name in names]


def _row(network: "Passes") -> Iterator[str]:
    yield from (network.name, f"{network.forward:,}", f"{network.backward:,}")
    if (speed := network.speed) is None or (hours := network.hours) is None:
        yield from "???"
    else:
        yield from (f"{1e3 * speed.forward:.3g}", f"{1e3 * speed.backward:.3g}", duration(hours))


def duration(hours: float) -> str:
    """A time as people say it.

    Examples
    --------
    >>> [duration(hours) for hours in (0.0001, 0.01, 0.0269, 1.25, 7.04, 79)]
    ['a second', '36 seconds', '2 minutes', '75 minutes', '7 hours', '3 days']
    """
    for unit, size, least in (("day", 24, 48), ("hour", 1, 1.5), ("minute", 1 / 60, 1.5 / 60)):
        if hours >= least:
            return f"{hours / size:.0f} {unit}s"
    seconds = round(3600 * hours)
    return "a second" if seconds <= 1 else f"{seconds} seconds"
