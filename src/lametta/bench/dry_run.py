"""What an experiment would run, and what of it is on disk."""

import importlib.util
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from lametta import networks
from lametta._files import PathLike
from lametta.bench.experiment import Cell, Experiment
from lametta.data import catalog


class Count(NamedTuple):
    """How many cells a method has in a phase: the validation, or a study by its name."""

    phase: str
    method: str
    cells: int


class Need(NamedTuple):
    """What has to be there: its kind, its name, whether it is there, and where it is or goes."""

    kind: str
    name: str
    found: bool
    where: str


@dataclass(frozen=True)
class DryRun:
    """What `dry_run` gives.

    Attributes
    ----------
    counts : tuple of Count
        Cells by phase and method. A cell of several studies counts in each.
    needs : tuple of Need
        Data sets, files of weights and packages.
    n_cells : int
        All cells, each once.

    Examples
    --------
    >>> DryRun((), (Need("weights", "net", False, "weights/net.pth"),), 0).missing[0].name
    'net'
    """

    counts: tuple[Count, ...]
    needs: tuple[Need, ...]
    n_cells: int

    @property
    def missing(self) -> tuple[Need, ...]:
        """What is needed and not there."""
        return tuple(need for need in self.needs if not need.found)


def dry_run(experiment: Experiment, root: PathLike | None = None) -> DryRun:
    """Say what an experiment would run and what that needs, and neither run nor read anything.

    Parameters
    ----------
    experiment : Experiment
        What to look at.
    root : path, optional
        The data root; ``LAMETTA_DATA`` by default. Without both, all that is not embedded is
        missing.

    Examples
    --------
    >>> from lametta.bench.experiment import bundled, load
    >>> plan = dry_run(load(bundled("paper")), "/no/data")
    >>> plan.counts[2], plan.missing[0].where
    (Count(phase='validation', method='TENT', cells=1944), '/no/data/ilsvrc12/val')
    """
    # Which configuration will be chosen does not change how many cells there are.
    first = {method: experiment.configurations(method)[0] for method in experiment.methods}
    phases = {"validation": experiment.validation_cells()}
    phases |= {study: experiment.study_cells(study, first) for study in experiment.studies}
    cells = list(dict.fromkeys(cell for phase in phases.values() for cell in phase))
    counts = (
        Count(phase, method, n)
        for phase, its_cells in phases.items()
        for method, n in Counter(cell.method for cell in its_cells).items()
    )
    folder = Path(root or os.environ.get("LAMETTA_DATA") or "$LAMETTA_DATA")
    return DryRun(tuple(counts), tuple(_needs(experiment, cells, folder)), len(cells))


def _needs(experiment: Experiment, cells: Iterable[Cell], root: Path) -> Iterator[Need]:
    models = dict.fromkeys(cell.model for cell in cells)
    scenarios = dict.fromkeys(cell.scenario for cell in cells)
    datasets = dict.fromkeys(experiment.scenarios[name].dataset for name in scenarios)
    named = {found.name: found for found in catalog.look(root)}
    for name in datasets:
        reader = experiment.datasets[name].reader
        family, _, path = reader.partition(":")
        if reader in named:
            yield Need("data set", name, named[reader].found, str(named[reader].where))
        elif family == "embedded":
            yield Need("data set", name, True, "in the package")
        elif family == "python" or not path:  # nothing of theirs is imported to ask
            yield Need("data set", name, True, "as its reader finds it")
        else:
            yield _file("data set", name, root / path)
    for name in models:
        if (weights := experiment.models[name].weights) is not None:
            yield _file("weights", name, root / weights)
    yield from _packages(experiment, models, datasets)


def _file(kind: str, name: str, path: Path) -> Need:
    return Need(kind, name, path.exists(), str(path))


def _packages(
    experiment: Experiment, models: Iterable[str], datasets: Iterable[str]
) -> Iterator[Need]:
    specs = [experiment.datasets[dataset] for dataset in datasets]
    wanted = {"torch": "torch"}  # modules, and what pip calls their wheels
    if any(spec.corruptions for spec in specs):
        wanted["imagecorruptions"] = "imagecorruptions-imaug"
    if any(spec.reader.startswith("embedded:") for spec in specs):
        wanted["sklearn"] = "scikit-learn"
    for model in models:
        if wheels := networks.find(experiment.models[model].zoo).package:
            wanted[wheels.split()[0]] = wheels
    for module, wheels in sorted(wanted.items()):
        found = importlib.util.find_spec(module) is not None
        where = "installed" if found else f"pip install {wheels}"
        yield Need("package", wheels.split()[0], found, where)
