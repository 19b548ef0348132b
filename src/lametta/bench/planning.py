"""Dry run: cells, missing inputs, counted passes, one timed probe."""

import importlib.util
import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from lametta import methods, networks
from lametta._checks import extra, import_optional
from lametta._files import PathLike
from lametta.bench.columns import SCHEMA
from lametta.bench.experiment import Cell, Experiment, canonical
from lametta.bench.experiment.schema import DatasetSpec, ModelSpec
from lametta.bench.running.cell import passes_of
from lametta.bench.running.workspace import IMAGE_CACHE, as_specified, pixels_of
from lametta.data import catalog
from lametta.data.dataset import Dataset
from lametta.registry import import_object, is_third_party
from lametta.types import LamettaError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from lametta.preprocess import Preprocess

EXTRACTION = "banks of outputs"
"""Stands in the place of a method: each network runs once over each data set."""

_FAMILIES = ("embedded", "folder", "videos")  # readers of our own that take a path, or need none
_THIRD_PARTY = "its code is not run before the experiment is"
_COUNTED = 8  # images of the batch whose passes are counted
_ROUNDS = 4  # of a probe: the first warms up, the fastest of the others counts
_FEW, _ENOUGH = 2, 0.2  # a CPU is timed on a few images, or on what it does in so many seconds
_DECODED = 6  # images that are decoded to see how long that takes
_NUMBER = 4  # bytes


class Count(NamedTuple):
    """How many cells a method has in a phase: the validation, or a study by its name."""

    phase: str
    method: str
    cells: int


class Requirement(NamedTuple):
    """A data set, weights or a package: its name, whether it is there, and where, or why not.

    ``found`` is None where only third-party code could tell.
    """

    kind: str
    name: str
    found: bool | None
    where: str


class Speed(NamedTuple):
    """The speed of a network, and the sizes of its inputs and outputs."""

    forward: float  # seconds an image, of a forward pass
    backward: float  # seconds an image, of an update without its two forward passes
    outputs: int  # features and logits, which a bank keeps
    preprocess: "Preprocess | None"  # None where samples are the input
    pixels: int  # of an image that it sees


class Passes(NamedTuple):
    """Images that go forward and backward for a method, or through a network and how fast."""

    name: str
    forward: int
    backward: int
    speed: Speed | None = None

    @property
    def hours(self) -> float | None:
        """What all images take, one cell at a time; None if the speed is not known."""
        if self.speed is None:
            return None
        seconds = self.forward * self.speed.forward + self.backward * self.speed.backward
        return seconds / 3600


@dataclass(frozen=True)
class Estimate:
    """Cost of an experiment: images through networks, disk space, hours.

    Attributes
    ----------
    methods, networks : tuple of Passes
        By method, and the same by network; a cell of several studies counts once.
    banks, images : int
        Bytes of stored outputs, and of decoded images that are kept.
    over_budget : int
        Bytes of decoded images beyond the cache: they are decoded again for each cell.
    decoding : float
        Hours of one core that decodes images.
    uncounted : tuple of str
        What is not in these numbers, and why.
    """

    methods: tuple[Passes, ...]
    networks: tuple[Passes, ...]
    banks: int
    images: int
    over_budget: int
    decoding: float
    uncounted: tuple[str, ...]

    def hours(self, device: str, jobs: int = 1) -> float:
        """Hours for decoding and for the networks that were timed, with so many jobs on a machine.

        On a CPU, jobs divide both. A GPU serves all jobs, and all cores decode for it.

        Examples
        --------
        >>> Estimate((), (), 0, 0, 0, decoding=6.0, uncounted=()).hours("cpu", 2)
        3.0
        """
        cores = os.cpu_count() or 1
        networks = sum(network.hours or 0 for network in self.networks)
        if device == "cpu":
            return (networks + self.decoding) / min(jobs, cores)
        return max(networks, self.decoding / cores)


@dataclass(frozen=True)
class Plan:
    """Plan of an experiment, as `dry_run` gives it.

    Attributes
    ----------
    counts : tuple of Count
        Cells by phase and method. A cell of several studies counts in each.
    requirements : tuple of Requirement
        Data sets, files of weights and packages.
    n_cells : int
        All cells, each once.
    cost : Estimate
        Images through networks, disk space, hours.
    """

    counts: tuple[Count, ...]
    requirements: tuple[Requirement, ...]
    n_cells: int
    cost: Estimate

    @property
    def missing(self) -> tuple[Requirement, ...]:
        """What is required and not there."""
        return tuple(required for required in self.requirements if required.found is False)


def dry_run(
    experiment: Experiment,
    root: PathLike | None = None,
    *,
    device: str | None = None,
    image_cache: float = IMAGE_CACHE,
) -> Plan:
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
    >>> plan = dry_run(load(bundled("paper")).only("runtime"), "/no/data")
    >>> plan.counts[2], plan.cost.methods[3]
    (Count(phase='validation', method='TENT', cells=1944),
    Passes(name='TENT', forward=148322400, backward=74161200, speed=None))
    >>> plan.missing[0].where
    "no such data folder: '/no/data'"
    """
    phases = _phases(experiment)
    cells = list(dict.fromkeys(cell for phase in phases.values() for cell in phase))
    counts = (
        Count(phase, method, n)
        for phase, its_cells in phases.items()
        for method, n in Counter(cell.method for cell in its_cells).items()
    )
    data: dict[str, Dataset] = {}
    requirements = tuple(_requirements(experiment, cells, root, data))

    def speed(model: str, batch_size: int) -> Speed:
        if device is None:
            raise LamettaError("it was not timed")
        used = (
            experiment.scenarios[cell.scenario].dataset for cell in cells if cell.model == model
        )
        return probe(experiment.models[model], device, batch_size, data.get(next(used)))

    cost = estimate(experiment, cells, data, speed, image_cache)
    return Plan(tuple(counts), requirements, len(cells), cost)


def _phases(experiment: Experiment) -> dict[str, list[Cell]]:
    # Which configuration will be chosen does not change how many cells there are.
    first = {method: experiment.configurations(method)[0] for method in experiment.methods}
    studies = {study: experiment.study_cells(study, first) for study in experiment.studies}
    return {"validation": experiment.validation_cells()} | studies


def _requirements(
    experiment: Experiment, cells: list[Cell], root: PathLike | None, data: dict[str, Dataset]
) -> Iterator[Requirement]:
    """Data sets, weights and packages; data sets that are found are put into ``data``."""
    given = root or os.environ.get("LAMETTA_DATA")
    folder = Path(given or "$LAMETTA_DATA")
    places = {found.name: str(found.where) for found in catalog.locate(folder)}
    scenarios = (experiment.scenarios[cell.scenario] for cell in cells)
    used = {scenario.dataset: experiment.datasets[scenario.dataset] for scenario in scenarios}
    for name, dataset in used.items():
        yield _read(name, dataset, folder if given else None, places, data)
    models = {cell.model: experiment.models[cell.model] for cell in cells}
    for name, model in models.items():
        yield from _weights(name, model, folder)
    yield from _packages(models.values(), used.values())


def _read(
    name: str,
    spec: DatasetSpec,
    root: Path | None,
    places: Mapping[str, str],
    data: dict[str, Dataset],
) -> Requirement:
    """List a data set as the experiment would, and look at a few of its samples."""
    family, _, path = spec.reader.partition(":")
    if spec.reader not in places and family not in _FAMILIES:
        return Requirement("data set", name, None, _THIRD_PARTY)
    try:
        found = catalog.load(spec.reader, root, **spec.options)
        dataset = as_specified(name, spec, found)
        for i in (0, len(dataset) // 2, len(dataset) - 1):
            dataset.samples[i]
    except (LamettaError, OSError) as error:
        return Requirement("data set", name, False, str(error))
    data[name] = dataset
    place = "in the package" if family == "embedded" else str((root or Path()) / path)
    difference = catalog.count_mismatch(spec.reader, found)
    where = places.get(spec.reader, place) + (f": {difference}" if difference else "")
    return Requirement("data set", name, True, where)


def _weights(name: str, spec: ModelSpec, root: Path) -> Iterator[Requirement]:
    """Look for a file of weights, and check that they fit the network."""
    if spec.weights is None:
        return
    network, file = networks.find(spec.zoo), root / spec.weights
    found: bool | None = file.is_file()
    where = str(file)
    lacking = network.package and importlib.util.find_spec(network.module) is None
    if found and (_is_third_party(spec) or lacking):
        found, where = None, f"{file}, which is not read before the experiment runs"
    elif found:
        try:
            import_object(network.loader, "loader")(spec.zoo, file, **network.options)
        except LamettaError as error:
            found, where = False, str(error)
    yield Requirement("weights", name, found, where)


def _packages(
    models: Iterable[ModelSpec], datasets: Iterable[DatasetSpec]
) -> Iterator[Requirement]:
    datasets = list(datasets)
    wanted = {"torch": ("torch", "torch")}  # modules, their wheels, and what pip installs
    if any(spec.corruptions for spec in datasets):
        wanted["imagecorruptions"] = ("imagecorruptions-imaug", extra("corruptions"))
    if any(spec.reader.startswith("embedded:") for spec in datasets):
        wanted["sklearn"] = ("scikit-learn", "scikit-learn")
    for network in (networks.find(spec.zoo) for spec in models):
        if network.package:
            wanted[network.module] = (network.module, network.install)
    for module, (wheel, install) in sorted(wanted.items()):
        found = importlib.util.find_spec(module) is not None
        where = "installed" if found else f"pip install {install}"
        yield Requirement("package", wheel, found, where)


def estimate(
    experiment: Experiment,
    cells: Iterable[Cell],
    data: Mapping[str, Dataset],
    probe: Callable[[str, int], Speed],
    image_cache: float,
) -> Estimate:
    """Estimate the cost of cells by passes that are counted, and speeds that are measured.

    Parameters
    ----------
    experiment : Experiment
        What they belong to.
    cells : iterable of Cell
        Each once.
    data : mapping of str to Dataset
        The data sets that were found. Others count with their published size, if it is known.
    probe : callable
        Gives the speed of a network, by its name and the batch size, or raises a `LamettaError`.
    image_cache : float
        Gigabytes of decoded images that are kept.
    """
    cells = list(cells)
    used = dict.fromkeys(experiment.scenarios[cell.scenario].dataset for cell in cells)
    sizes = {name: _size(experiment.datasets[name], data.get(name)) for name in used}
    uncounted = [
        f"{name}: how many samples it has is not known before it is read"
        for name, n in sizes.items()
        if n is None
    ]
    work = _work(experiment, cells, sizes, uncounted)
    speeds: dict[str, Speed] = {}
    for model, batch_size in _commonest(work):
        try:
            speeds[model] = probe(model, batch_size)
        except LamettaError as error:
            uncounted.append(f"{model}: {error}")
    # Each network runs once over each data set, for the banks; ``shown`` is what runs besides.
    banks = work.group_by("model", "dataset", maintain_order=True).agg(
        pl.col("dataset")
        .replace_strict(sizes, return_dtype=SCHEMA["n"])
        .first()
        .fill_null(0)
        .alias("forward"),
        pl.col("n").filter(pl.col("forward") > 0).sum().alias("shown"),
        method=pl.lit(EXTRACTION).first(),
    )
    through = pl.concat([banks, work.drop_nulls("forward")], how="diagonal")
    by_method = dict(_sums(through, "method"))
    kept, over_budget, decoded = _images(banks, speeds, image_cache)
    return Estimate(
        tuple(
            Passes(name, *by_method[name])
            for name in (EXTRACTION, *experiment.methods)
            if name in by_method
        ),
        tuple(Passes(name, *n, speeds.get(name)) for name, n in _sums(through, "model")),
        sum(
            n * speeds[model].outputs * _NUMBER
            for model, n in banks.select("model", "forward").iter_rows()
            if model in speeds
        ),
        kept,
        over_budget,
        sum(n * _decode(data[name]) for name, n in decoded.items() if name in data) / 3600,
        tuple(uncounted),
    )


def _size(spec: DatasetSpec, data: Dataset | None) -> int | None:
    """How many samples a data set has, as found or, if it was not, as published."""
    if data is not None:
        return len(data)
    n = catalog.published(spec.reader)
    if n is None:
        return None
    severities = spec.options.get("severities")
    n *= len(severities) if isinstance(severities, list) else 1
    if spec.part is not None:
        n = len(range(spec.part[0], n, spec.part[1]))
    return min(n, spec.most or n) * len(spec.corruptions or "1")


def _work(
    experiment: Experiment,
    cells: Iterable[Cell],
    sizes: Mapping[str, int | None],
    uncounted: list[str],
) -> pl.DataFrame:
    """One row a cell: its images ``n``, and those forward and backward; null if not counted."""
    passes, rows = dict[tuple[str, str], tuple[float, float] | None](), []
    for cell in cells:
        scenario = experiment.scenarios[cell.scenario]
        n = sizes[scenario.dataset] or 0
        n = min(n, scenario.limit or n)
        key = cell.kind, cell.config  # which many cells have in common
        if key not in passes:
            try:
                passes[key] = count_passes(*key)
            except LamettaError as error:
                passes[key] = None
                uncounted += {f"{cell.method}: {error}"}.difference(uncounted)
        each = passes[key]
        if each == (0, 0) and cell.live:
            each = 1, 0
        through = [None, None] if each is None else [round(n * times) for times in each]
        rows.append([cell.method, cell.model, scenario.dataset, cell.batch_size, n, *through])
    known = {name: SCHEMA[name] for name in ("method", "model", "dataset", "batch_size", "n")}
    return pl.DataFrame(
        rows, known | {"forward": SCHEMA["n"], "backward": SCHEMA["n"]}, orient="row"
    )


def count_passes(kind: str, config: str) -> tuple[float, float]:
    """How often an image goes forward and backward, counted in a step on a small network.

    Parameters
    ----------
    kind, config : str
        The method, and its parameters as JSON.

    Raises
    ------
    LamettaError
        With the reason, where they cannot be counted: no third-party code is run.

    Examples
    --------
    >>> count_passes("lame", "{}"), count_passes("tent+lame", '{"steps": 2}')
    ((0.0, 0.0), (3.0, 2.0))
    """
    if not methods.is_builtin(kind) or any(map(is_third_party, json.loads(config).values())):
        raise LamettaError(_THIRD_PARTY)
    method = methods.find(kind)
    if not method.needs_network:
        return 0.0, 0.0
    import torch

    from lametta.torch import Classifier
    from lametta.torch.digits import digits_net

    with Classifier(digits_net()) as network:
        adapter = method.build(network, json.loads(config))
        counted = passes_of(adapter.step(torch.rand(_COUNTED, 1, 8, 8)).info)
        adapter.reset()
    return counted["forward_samples"] / _COUNTED, counted["backward_samples"] / _COUNTED


def _commonest(work: pl.DataFrame) -> Iterator[tuple[str, int]]:
    """The batch size that most images of each network come in."""
    sizes = work.group_by("model", "batch_size", maintain_order=True).agg(pl.col("n").sum())
    commonest = pl.col("batch_size").get(pl.col("n").arg_max())
    return sizes.group_by("model", maintain_order=True).agg(commonest).iter_rows()


def _sums(through: pl.DataFrame, by: str) -> Iterator[tuple[str, tuple[int, int]]]:
    sums = through.group_by(by, maintain_order=True).agg(pl.col("forward", "backward").sum())
    for name, forward, backward in sums.iter_rows():
        yield name, (forward, backward)


def _images(
    banks: pl.DataFrame, speeds: Mapping[str, Speed], image_cache: float
) -> tuple[int, int, Counter[str]]:
    """Bytes of decoded images in the cache, bytes beyond it, and how many images are decoded."""
    kept, beyond, decoded = dict[str, int](), dict[str, int](), Counter[str]()
    for model, dataset, n, shown in banks.select("model", "dataset", "forward", "shown").rows():
        if model not in speeds or (preprocess := speeds[model].preprocess) is None:
            continue
        decoded[dataset] += n
        if not shown:
            continue
        key = canonical([pixels_of(preprocess), dataset])
        size = 3 * n * speeds[model].pixels
        if key not in kept | beyond:
            fits = sum(kept.values()) + 2 * size <= 1e9 * image_cache
            (kept if fits else beyond)[key] = size
            decoded[dataset] += n if fits else 0
        if key in beyond:
            decoded[dataset] += shown
    return sum(kept.values()), sum(beyond.values()), decoded


def _decode(data: Dataset) -> float:
    """Seconds to decode an image, the mean over a few."""
    chosen = np.linspace(0, len(data) - 1, _DECODED).astype(int)
    data.samples[int(chosen[0])]  # the first loads what decodes them
    start = time.perf_counter()
    for i in chosen:
        data.samples[int(i)]
    return (time.perf_counter() - start) / len(chosen)


def probe(spec: ModelSpec, device: str, batch_size: int, data: Dataset | None = None) -> Speed:
    """Time a network, forward and in a step of TENT, on images of its size.

    Its weights are random, since time does not depend on them. No code of unknown packages is
    imported, and nothing is downloaded.

    Parameters
    ----------
    spec : ModelSpec
        The network.
    device : str
        Where it runs.
    batch_size : int
        The images that it is timed on; on a CPU fewer will do.
    data : Dataset, optional
        What it runs on, which gives the size of its inputs where the network does not.

    Raises
    ------
    LamettaError
        With the reason, where it cannot be timed.

    Examples
    --------
    >>> probe(ModelSpec(zoo="torch:someone.nets:large"), "cpu", 64)
    Traceback (most recent call last):
    lametta.types.LamettaError: its code is not run before the experiment is
    """
    import torch

    from lametta.torch import TENT, Classifier

    net, preprocess = _build(spec)
    x = _inputs(preprocess, batch_size, data).to(device)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as a cell runs
    try:
        with Classifier(net.to(device).eval()) as network:
            if device == "cpu":  # on which many images take as long each as a few
                each = _fastest(lambda: network(x[:_FEW]), device) / _FEW
                x = x[: max(_FEW, int(_ENOUGH / each))]
            output = network(x)
            forward = _fastest(lambda: network(x), device)
            try:
                step = _fastest(partial(TENT(network).step, x), device)
            except LamettaError:  # nothing in it adapts
                step = 2 * forward
    finally:
        torch.set_num_threads(threads)
    return Speed(
        forward / len(x),
        max(0.0, step - 2 * forward) / len(x),
        output.features.shape[1] + output.logits.shape[1],
        preprocess,
        math.prod(x.shape[2:]),
    )


def _is_third_party(spec: ModelSpec) -> bool:
    """Whether building a network runs code of packages that lametta does not know."""
    if spec.zoo.startswith("torch:"):
        return not spec.zoo.startswith("torch:lametta.")
    return not networks.NETWORKS.is_builtin(spec.zoo)


def _build(spec: ModelSpec) -> "tuple[nn.Module, Preprocess | None]":
    from lametta.preprocess import Preprocess

    network = networks.find(spec.zoo)
    family, _, name = spec.zoo.partition(":")
    if _is_third_party(spec):
        raise LamettaError(_THIRD_PARTY)
    if family == "hf":
        raise LamettaError("its files are not asked for before the experiment runs")
    if network.package == "timm":  # with random weights, since its own may have to be downloaded
        timm = import_optional("timm", network.install, "it")
        net = timm.create_model(network.options.get("model", name))
        options = network.options.get("preprocess")
        if options is None:
            raise LamettaError("the size of its images is known once it is loaded")
        return net, Preprocess(**options)
    made: tuple[nn.Module, Preprocess | None] = import_object(network.loader, "loader")(
        spec.zoo, None, **network.options
    )
    return made


def _inputs(preprocess: "Preprocess | None", n: int, data: Dataset | None) -> "torch.Tensor":
    import torch

    if preprocess is not None and preprocess.crop_size is not None:
        return torch.rand(n, 3, *preprocess.crop_size)
    if preprocess is not None and isinstance(preprocess.resize, tuple):
        return torch.rand(n, 3, *preprocess.resize)
    if data is None:
        raise LamettaError("the size of its images is that of data which are missing")
    x = data.samples[0]
    one = torch.from_numpy(np.asarray(x)) if preprocess is None else preprocess(x)
    return one.expand(n, *one.shape).clone()


def _fastest(work: Callable[[], object], device: str) -> float:
    import torch

    seconds = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        work()
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])
