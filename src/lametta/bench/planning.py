"""Dry run: cells, missing inputs, counted passes, one timed probe."""

import itertools
import json
import math
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lametta import methods, networks
from lametta._checks import import_optional
from lametta._files import PathLike
from lametta.bench.experiment import Cell, Experiment, canonical
from lametta.bench.experiment.schema import DatasetSpec, ModelSpec, UnknownSpec, source_data
from lametta.bench.running.cell import passes_of
from lametta.bench.running.inputs import THIRD_PARTY, Requirement, find_inputs, runs_third_party
from lametta.bench.running.workspace import IMAGE_CACHE, pixels_of
from lametta.data import catalog
from lametta.data.dataset import Dataset
from lametta.data.loader import NEEDS_ARRAYS
from lametta.registry import import_object, is_third_party
from lametta.types import LamettaError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from lametta.preprocess import Preprocess

EXTRACTION = "banks of outputs"
"""Stands in the place of a method: each network runs once over each data set."""

_COUNTED = 8  # images of the batch whose passes are counted
_ROUNDS = 4  # of a probe: the first warms up, the fastest of the others counts
_FEW, _ENOUGH = 2, 0.2  # a CPU is timed on a few images, or on what it does in so many seconds
_DECODED = 6  # images that are decoded to see how long that takes


class Count(NamedTuple):
    """Number of cells of a method in a phase: the validation, or a study by its name."""

    phase: str
    method: str
    cells: int


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
        return (self.forward * self.speed.forward + self.backward * self.speed.backward) / 3600


@dataclass(frozen=True)
class Estimate:
    """Cost of an experiment: images through networks, disk space, hours."""

    methods: tuple[Passes, ...]  # a cell of several studies counts once
    networks: tuple[Passes, ...]  # the same, by network
    banks: int  # bytes of stored outputs
    images: int  # bytes of decoded images that are kept
    over_budget: int  # bytes of decoded images beyond the cache, decoded again for each cell
    decoding: float  # hours of one core that decodes images
    uncounted: tuple[str, ...]  # what is not in these numbers, and why

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
    """Plan of an experiment, as `dry_run` gives it."""

    counts: tuple[Count, ...]  # a cell of several studies counts in each
    requirements: tuple[Requirement, ...]
    n_cells: int  # all cells, each once
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
    # Which configuration will be chosen does not change how many cells there are.
    first = {method: experiment.configurations(method)[0] for method in experiment.methods}
    phases = {"validation": experiment.validation_cells()}
    phases |= {study: experiment.study_cells(study, first) for study in experiment.studies}
    counts = (
        Count(phase, method, n)
        for phase, cells in phases.items()
        for method, n in Counter(cell.method for cell in cells).items()
    )
    cells = list(dict.fromkeys(itertools.chain(*phases.values())))
    requirements, data = find_inputs(experiment, cells, root)

    def speed(model: str, batch_size: int) -> Speed:
        if device is None:
            raise LamettaError("it was not timed")
        used = next(cell.scenario for cell in cells if cell.model == model)
        shown = data.get(experiment.scenarios[used].dataset)
        return probe(experiment.models[model], device, batch_size, shown)

    cost = estimate(experiment, cells, data, speed, image_cache)
    return Plan(tuple(counts), requirements, len(cells), cost)


def estimate(
    experiment: Experiment,
    cells: Iterable[Cell],
    data: Mapping[str, Dataset],
    probe: Callable[[str, int], Speed],
    image_cache: float,
) -> Estimate:
    """Estimate the cost of cells by passes that are counted, and speeds that are measured.

    Data sets that were not found count with their published size, if it is known. ``probe`` gives
    the speed of a network, by its name and the batch size, or raises a `LamettaError`.
    """
    uncounted = _Uncounted()
    cells = list(cells)
    sizes = _sizes(experiment, cells, data, uncounted)
    work = _count_images(experiment, cells, sizes, uncounted)
    speeds = _speeds(work.batches, probe, uncounted)
    number = np.dtype("float32").itemsize
    banks = (sizes[name] * speeds[x].outputs * number for x, name in work.live if x in speeds)
    kept, over_budget, decoded = _decoded_images(work.live, sizes, speeds, image_cache)
    return Estimate(
        tuple(work.methods[x] for x in (EXTRACTION, *experiment.methods) if x in work.methods),
        tuple(work.networks[x]._replace(speed=speeds.get(x)) for x in work.batches),
        sum(banks),
        kept,
        over_budget,
        sum(n * _decoding(data[name]) for name, n in decoded.items() if name in data) / 3600,
        tuple(uncounted),
    )


class _Uncounted(dict[str, None]):
    """What could not be counted and why, each line once: a set that keeps its order."""

    @contextmanager
    def noting(self, name: str) -> Iterator[None]:
        """Go on after an error, and note it."""
        try:
            yield
        except LamettaError as error:
            self[f"{name}: {error}"] = None


def _sizes(
    experiment: Experiment,
    cells: Iterable[Cell],
    data: Mapping[str, Dataset],
    uncounted: _Uncounted,
) -> dict[str, int]:
    """How many samples each data set has; 0 where that is not known."""
    sizes = dict.fromkeys((experiment.scenarios[cell.scenario].dataset for cell in cells), 0)
    for name in sizes:
        with uncounted.noting(name):
            sizes[name] = _size(experiment.datasets[name], data.get(name))
    return sizes


def _speeds(
    batches: Mapping[str, Counter[int]],
    probe: Callable[[str, int], Speed],
    uncounted: _Uncounted,
) -> dict[str, Speed]:
    """The speed of each network that can be timed, in batches of the size that is commonest."""
    speeds = dict[str, Speed]()
    for model, counts in batches.items():
        with uncounted.noting(model):
            speeds[model] = probe(model, counts.most_common(1)[0][0])
    return speeds


class _Work(NamedTuple):
    """Images through networks, in all cells and for the banks."""

    methods: dict[str, Passes]
    networks: dict[str, Passes]
    batches: dict[str, Counter[int]]  # images of each network, by the size of their batch
    live: Counter[tuple[str, str]]  # by network and data set, those that do not come from a bank


def _count_images(
    experiment: Experiment,
    cells: Iterable[Cell],
    sizes: Mapping[str, int],
    uncounted: _Uncounted,
) -> _Work:
    work = _Work({}, {}, defaultdict(Counter), Counter())
    for cell in cells:
        scenario = experiment.scenarios[cell.scenario]
        n = min(sizes[scenario.dataset], scenario.limit or sizes[scenario.dataset])
        forward = backward = 0
        with uncounted.noting(cell.method):
            forward, backward = _passes(cell, n)
            _add(work.methods, cell.method, forward, backward)
        _add(work.networks, cell.model, forward, backward)
        work.batches[cell.model][cell.batch_size] += n
        work.live[cell.model, scenario.dataset] += n if forward else 0
    for model, name in work.live:  # each network runs once over each data set
        _add(work.methods, EXTRACTION, sizes[name])
        _add(work.networks, model, sizes[name])
    return work


def _passes(cell: Cell, n: int) -> tuple[int, int]:
    """How many images go forward and backward in a cell of n samples."""
    forward, backward = count_passes(cell.kind, cell.config)
    runs = 1 + cell.consistency
    return round(n * max(forward, cell.live) * runs), round(n * backward * runs)


def _add(sums: dict[str, Passes], name: str, forward: int, backward: int = 0) -> None:
    before = sums.get(name, Passes(name, 0, 0))
    sums[name] = Passes(name, before.forward + forward, before.backward + backward)


def _size(spec: DatasetSpec, data: Dataset | None) -> int:
    """How many samples a data set has, as found or, if it was not, as published."""
    if data is not None:
        return len(data)
    severities = spec.options.get("severities")
    n = _part_size(spec, len(severities) if isinstance(severities, list) else 1)
    n += 0 if spec.unknown is None else _part_size(spec.unknown)
    levels = len(spec.severity) if isinstance(spec.severity, tuple) else 1
    return n * levels * len(spec.corruptions or "1")


def _part_size(spec: UnknownSpec, times: int = 1) -> int:
    """How many a table asks for of the samples that were published, so many times."""
    published = catalog.published(spec.reader)
    if published is None:
        raise LamettaError("how many samples it has is not known before it is read")
    n = times * published
    if spec.part is not None:
        n = len(range(spec.part[0], n, spec.part[1]))
    return min(n, spec.most or n)


@cache
def count_passes(kind: str, config: str) -> tuple[float, float]:
    """How often an image goes forward and backward, counted in a step on a small network.

    The parameters of the method are given as JSON. It is an error where these are not counted,
    since no third-party code is run.

    Examples
    --------
    >>> count_passes("lame", "{}"), count_passes("tent+lame", '{"steps": 2}')
    ((0.0, 0.0), (3.0, 2.0))
    """
    if not methods.is_builtin(kind) or any(map(is_third_party, json.loads(config).values())):
        raise LamettaError(THIRD_PARTY)
    method = methods.find(kind)
    if not method.needs_network:
        return 0.0, 0.0
    from lametta.torch import Classifier, Preprocess

    net, x = _small_network()
    params = json.loads(config)
    params |= {option: [x] for option in source_data(params)}  # gone through once: not counted
    with Classifier(deepcopy(net), preprocess=Preprocess()) as network:
        adapter = method.build(network, params)
        counted = passes_of(adapter.step(x).info)
        adapter.reset()
    return counted["forward_samples"] / _COUNTED, counted["backward_samples"] / _COUNTED


@cache
def _small_network() -> "tuple[nn.Module, torch.Tensor]":
    """A network to count on, and a batch for it: the same ones in every dry run.

    Some methods choose what they learn from, so that counts depend on both.
    """
    import torch

    from lametta.torch.digits import digits_net

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        color = torch.nn.Conv2d(3, 1, 1)  # augmentations are of images in color
        return torch.nn.Sequential(color, digits_net()).eval(), torch.rand(_COUNTED, 3, 8, 8)


def _decoded_images(
    live: Mapping[tuple[str, str], int],
    sizes: Mapping[str, int],
    speeds: Mapping[str, Speed],
    image_cache: float,
) -> tuple[int, int, Counter[str]]:
    """Bytes of decoded images in the cache, bytes beyond it, and how many images are decoded."""
    kept, beyond, decoded = dict[str, int](), dict[str, int](), Counter[str]()
    for (model, dataset), shown in live.items():
        if model not in speeds or (preprocess := speeds[model].preprocess) is None:
            continue
        n = sizes[dataset]
        decoded[dataset] += n  # for the bank
        if not shown:
            continue
        key = canonical([pixels_of(preprocess), dataset])
        size = 3 * n * speeds[model].pixels
        if key not in kept | beyond:
            fits = sum(kept.values()) + 2 * size <= 1e9 * image_cache  # twice while written
            (kept if fits else beyond)[key] = size
            decoded[dataset] += n if fits else 0
        if key in beyond:
            decoded[dataset] += shown
    return sum(kept.values()), sum(beyond.values()), decoded


def _decoding(data: Dataset) -> float:
    """Seconds to decode an image, the mean over a few."""
    chosen = np.linspace(0, len(data) - 1, _DECODED).astype(int).tolist()
    return _fastest(lambda: [data.samples[i] for i in chosen], "cpu") / len(chosen)


def probe(spec: ModelSpec, device: str, batch_size: int, data: Dataset | None = None) -> Speed:
    """Time a network, forward and in a step of TENT, on images of its size.

    Its weights are random, since time does not depend on them. No code of unknown packages is
    imported, and nothing is downloaded: where that would be needed, it is an error.

    Examples
    --------
    >>> probe(ModelSpec(zoo="torch:someone.nets:large"), "cpu", 64)
    Traceback (most recent call last):
    lametta.types.LamettaError: its code is not run before the experiment is
    """
    import torch

    from lametta.torch import TENT, Classifier, zoo

    net, preprocess = _build(spec)
    zoo.set_computed(net, precision=spec.precision, compile=spec.compile)
    if data is not None:
        image = data.samples[0]
    elif preprocess is not None:
        image = import_optional("PIL.Image", "pillow", "preprocess").new("RGB", (500, 375))
    else:
        raise LamettaError("the size of its images is that of data which are missing")
    if preprocess is None and not hasattr(image, "shape"):
        raise LamettaError(f"{NEEDS_ARRAYS}, got {type(image).__name__}")
    one = torch.as_tensor(image if preprocess is None else preprocess(image))
    x = one.expand(batch_size, *one.shape).clone().to(device)
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
    outputs = output.features.shape[1] + output.logits.shape[1]
    backward = max(0.0, step - 2 * forward)
    return Speed(forward / len(x), backward / len(x), outputs, preprocess, math.prod(x.shape[2:]))


def _build(spec: ModelSpec) -> "tuple[nn.Module, Preprocess | None]":
    """A network with random weights, where that is possible without a download."""
    from lametta.preprocess import Preprocess

    network = networks.find(spec.zoo)
    family, _, name = spec.zoo.partition(":")
    if runs_third_party(spec):
        raise LamettaError(THIRD_PARTY)
    if family == "hf":
        raise LamettaError("its files are not asked for before the experiment runs")
    if network.package == "timm":  # whose own weights may have to be downloaded
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
