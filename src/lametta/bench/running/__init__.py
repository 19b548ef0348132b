"""Runner: missing cells in parallel (joblib, Ray), resumable."""

import json
import os
import platform
import secrets
import shlex
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

import polars as pl
from joblib import Parallel, delayed, parallel_config
from joblib.externals.loky.process_executor import TerminatedWorkerError

import lametta
from lametta._checks import extra, import_optional
from lametta._files import atomic_write, file_lock, write_text
from lametta._progress import bars
from lametta.bench.analysis.results import cell_file, read_cell, read_cells
from lametta.bench.analysis.selection import read_selection, select, write_selection
from lametta.bench.columns import SCHEMA
from lametta.bench.experiment import Cell, canonical
from lametta.bench.experiment.references import check_selected
from lametta.bench.running.card import protocol_card
from lametta.bench.running.cell import measure_peak, run_cell
from lametta.bench.running.inputs import check_inputs
from lametta.bench.running.workspace import Workspace
from lametta.methods import find
from lametta.types import LamettaError

# A node of a cluster may die and take cells with it: they run again, in so many rounds at most.
_ROUNDS = 5

Backend: TypeAlias = Callable[[], AbstractContextManager[type[Exception]]]
"""Opens a context for ``joblib.Parallel``, and gives the error that a dead worker raises."""
_PATIENCE = 15.0  # seconds that a node has to answer


@dataclass(frozen=True)
class Progress:
    """Progress of `run`: the phase, and how many of its cells are done and have failed."""

    phase: str
    done: int
    total: int
    failed: int = 0


OnProgress: TypeAlias = Callable[[Progress], object]
"""Is told how far a run is."""


def run(
    workspace: Workspace,
    *,
    jobs: int = 1,
    ray: str | None = None,
    report: OnProgress = lambda _: None,
    progress: bool = False,
    text: str | None = None,
) -> list[Cell]:
    """Run an experiment to its end: validation, selection, studies.

    Cells that have a file are not run again, so that a killed run goes on where it stopped. A
    second run in the same folder waits for the first, says so, and then finds most of it done.

    Parameters
    ----------
    workspace : Workspace
        The experiment, and where its results go. With ``ray``, all nodes have to see that folder.
    jobs : int
        How many cells run at once on this machine.
    ray : str, optional
        The address of a Ray cluster to run cells on, such as ``"auto"``.
    report : callable
        Called with a `Progress` as cells end.
    progress : bool
        Whether to show bars.
    text : str, optional
        The experiment's file, which the results keep as ``experiment.toml`` for their report.

    Returns
    -------
    list of Cell
        Those that failed; ``failed/<id>.json`` has the traceback of each.

    Examples
    --------
    >>> import tempfile
    >>> from lametta.bench.experiment import load
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "mine.toml").write_text('''
    ...     name = "mine"
    ...     models.net.zoo = "embedded:digits"
    ...     datasets.val = {reader = "embedded:digits_val", part = [0, 8]}
    ...     scenarios.sorted = {dataset = "val", order = "by_class"}
    ...     methods.Source.kind = "source"
    ...     methods.LAME.kind = "lame"
    ...     studies.main = {models = ["net"], scenarios = ["sorted"], seeds = [0]}
    ...     ''')
    ...     experiment = load(Path(folder, "mine.toml"))
    ...     run(Workspace(experiment, Path(folder, "results"), None))
    []
    """
    if progress:
        with bars() as show:

            def report_to_bars(x: Progress) -> None:
                show(x.done, x.total, x.phase)

            return run(workspace, jobs=jobs, ray=ray, report=report_to_bars, text=text)
    # With another id, processes read again what may have changed since the last run.
    workspace = replace(workspace, jobs=jobs, run=secrets.token_hex())
    folder = workspace.folder
    for name in ("cells", "streams", "failed"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    with file_lock(folder / ".lock"):
        if text is not None:
            write_text(folder / "experiment.toml", text)
        _write_json(folder / "run.json", environment(workspace))
        return _run(workspace, local_backend(jobs) if ray is None else ray_backend(ray), report)


def _run(workspace: Workspace, backend: Backend, report: OnProgress) -> list[Cell]:
    experiment, folder = workspace.experiment, workspace.folder
    validation = experiment.validation_cells()
    if missing := _missing(folder, validation):
        # What studies need is looked for too, before hours of validation.
        first = {name: experiment.configurations(name)[0] for name in experiment.methods}
        check_inputs(workspace, [*missing, *experiment.test_cells(first)])
    failed = _phase("validation", workspace, validation, backend, report)
    if failed:
        return failed  # a choice by an incomplete validation would not be fair
    selected = _selected(workspace, validation)
    cells = experiment.test_cells(selected)
    missing = _missing(folder, cells)
    check_inputs(workspace, missing)
    if missing or not (folder / "card.json").exists():
        card = protocol_card(workspace, [*cells, *validation] if cells else validation, selected)
        _write_json(folder / "card.json", card)
    return _phase("test", workspace, cells, backend, report)


def environment(workspace: Workspace) -> dict[str, object]:
    """Where results come from, for those who read them."""
    packages = {}
    for name in ("numpy", "torch", "polars", "scikit-learn", "timm", "transformers"):
        with suppress(PackageNotFoundError):
            packages[name] = version(name)
    return {
        "experiment": workspace.experiment.name,
        "lametta": lametta.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "device": workspace.device,
        "packages": packages,
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _selected(workspace: Workspace, validation: list[Cell]) -> dict[str, dict[str, object]]:
    experiment, file = workspace.experiment, workspace.folder / "selected.toml"
    if validation:
        order = {name: experiment.configs(name) for name in experiment.methods}
        rows, scenarios = read_cells(workspace.folder, validation), experiment.validation.scenarios
        # What another run chose, for studies that this one was not asked for, stays chosen.
        before = read_selection(file) if file.exists() else {}
        others = {name: canonical(params) for name, params in before.items()}
        kept = {name: config for name, config in others.items() if config in order.get(name, ())}
        write_selection(file, kept | select(rows, scenarios, order, source=experiment.source))
    selected = read_selection(file) if file.exists() else {}
    check_selected(experiment, selected)
    return selected


def _phase(
    phase: str, workspace: Workspace, cells: list[Cell], backend: Backend, report: OnProgress
) -> list[Cell]:
    """Run those cells that are missing, and give those that failed."""
    folder, failed = workspace.folder, dict[str, Cell]()
    for cell in cells:
        _failure_file(folder, cell).unlink(missing_ok=True)  # it gets another chance
        _quarantine(cell_file(folder, cell))
    _prepare(workspace, _missing(folder, cells), report)
    for _ in range(_ROUNDS):
        missing = _missing(folder, [cell for cell in cells if cell.id not in failed])
        if not missing:
            break
        tasks = (delayed(_work)(workspace, cell) for cell in missing)
        with _report_progress(phase, folder, cells, report), backend() as lost, suppress(lost):
            failed |= {cell.id: cell for cell, fine in Parallel()(tasks) if not fine}
    else:
        raise LamettaError(
            f"{len(missing)} cells unfinished after {_ROUNDS} rounds: workers keep dying"
        )
    return list(failed.values())


def _quarantine(file: Path) -> None:
    """Make room for the row of a cell whose file cannot be read, so that the cell runs again."""
    try:
        if file.exists():
            read_cell(file)
    except LamettaError:
        aside = file.parents[1] / "damaged"
        aside.mkdir(exist_ok=True)
        file.rename(aside / f"{file.stem}-{secrets.token_hex(4)}")


def _missing(folder: Path, cells: list[Cell]) -> list[Cell]:
    there = _stems(folder / "cells", ".parquet")
    return [cell for cell in cells if cell.id not in there]


def _stems(folder: Path, suffix: str) -> set[str]:
    """The names of files with this suffix, without it; not by paths, which are slow to make."""
    return {name.removesuffix(suffix) for name in os.listdir(folder) if name.endswith(suffix)}


@contextmanager
def _report_progress(
    phase: str, folder: Path, cells: list[Cell], report: OnProgress
) -> Iterator[None]:
    """Report all the while how many cells are on disk."""
    ended = threading.Event()

    def look() -> None:
        failed = len(_stems(folder / "failed", ".json") & {cell.id for cell in cells})
        done = len(cells) - len(_missing(folder, cells))
        report(Progress(phase, done, len(cells), failed))

    def watch() -> None:
        while not ended.wait(0.3):
            look()

    thread = threading.Thread(target=watch, daemon=True)
    look()
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        look()


def _prepare(workspace: Workspace, cells: list[Cell], report: OnProgress) -> None:
    """Run each network once over each data set, however many cells need it."""
    scenarios = workspace.experiment.scenarios
    needs: dict[tuple[str, str, bool], bool] = {}
    for cell in cells:
        network = cell.live or find(cell.kind).needs_network
        for mirrored in {False, cell.consistency and not network}:
            key = (cell.model, scenarios[cell.scenario].dataset, mirrored)
            needs[key] = needs.get(key, False) or network
    for (model, dataset, mirrored), images in needs.items():

        def tell(done: int, total: int, name: str = f"{model} on {dataset}") -> None:
            report(Progress(name, done, total))

        seen = replace(workspace, mirrored=mirrored)
        seen.prepare(model, dataset, images=images, progress=tell)


def _work(workspace: Workspace, cell: Cell) -> tuple[Cell, bool]:
    """Run a cell, write its row or its traceback, and say whether it went well."""
    note = _failure_file(workspace.folder, cell)
    try:
        # Not imported for this alone, which takes longer than to replay many a stream.
        if cell.live or find(cell.kind).needs_network or "torch" in sys.modules:
            import torch

            # Cells run side by side: one thread each is fastest, and rounds alike for any jobs.
            torch.set_num_threads(1)
        row, stream = run_cell(workspace, cell)
        if workspace.device == "cpu":  # where the peak of this process is not that of the cell
            row["peak_memory"] = measure_peak(workspace, cell) if cell.live else None
        manifest = workspace.folder / "streams" / f"{stream.fingerprint}.json"
        if not manifest.exists():
            _write_json(manifest, stream.manifest)
        with atomic_write(cell_file(workspace.folder, cell)) as temporary:
            pl.DataFrame([row], schema=SCHEMA).write_parquet(temporary)
    except Exception:
        _write_json(note, asdict(cell) | {"traceback": traceback.format_exc()})
        return cell, False
    return cell, True


def _failure_file(folder: Path, cell: Cell) -> Path:
    return folder / "failed" / f"{cell.id}.json"


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    write_text(path, json.dumps(content, indent=2) + "\n")


def local_backend(jobs: int) -> Backend:
    """As many processes on this machine as there are jobs; with one job, this process itself."""

    @contextmanager
    def opened() -> Iterator[type[Exception]]:
        with parallel_config(backend="loky" if jobs > 1 else "sequential", n_jobs=jobs):
            yield TerminatedWorkerError

    return opened


def ray_backend(address: str) -> Backend:
    """All processors of a Ray cluster, but for nodes that have died."""
    ray = import_optional("ray", extra("ray"), "--ray")
    joblib_ray = import_optional("ray.util.joblib", extra("ray"), "--ray")

    @contextmanager
    def opened() -> Iterator[type[Exception]]:
        if not ray.is_initialized():
            ray.init(address=address, log_to_driver=False)
        joblib_ray.register_ray()
        options = {"num_cpus": 1}
        with parallel_config(backend="ray", n_jobs=_processors(ray), ray_remote_args=options):
            yield ray.exceptions.RayError

    return opened


def _processors(ray: ModuleType) -> int:
    """Count the processors of nodes that answer: Ray takes a while to notice that one is gone."""
    strategies = import_optional("ray.util.scheduling_strategies", extra("ray"), "--ray")
    on_node = strategies.NodeAffinitySchedulingStrategy
    ping = ray.remote(num_cpus=0, max_retries=0)(lambda: None)
    asked = {
        ping.options(scheduling_strategy=on_node(node["NodeID"], soft=False)).remote(): node
        for node in ray.nodes()
        if node["Alive"]
    }
    answers, _ = ray.wait(list(asked), num_returns=len(asked), timeout=_PATIENCE)
    total = 0
    for answer in answers:
        try:
            ray.get(answer)
        except ray.exceptions.RayError:
            continue
        total += int(asked[answer]["Resources"].get("CPU", 0))
    return max(1, total)
