"""What an experiment costs: images through networks, room on the disk, hours on a device."""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lametta import methods
from lametta.bench.experiment import Cell, Experiment, canonical
from lametta.bench.probe import Speed
from lametta.bench.specs import DatasetSpec
from lametta.bench.workspace import pixels_of
from lametta.data import catalog
from lametta.data.dataset import Dataset
from lametta.types import LamettaError

EXTRACTION = "banks of outputs"
"""What stands in the place of a method: each network once over each data set."""

_SAMPLES = 6  # images that are decoded to see how long that takes
_NUMBER = 4  # bytes


class Passes(NamedTuple):
    """Images that go through networks for a method, forward and backward."""

    method: str
    forward: int
    backward: int


class Network(NamedTuple):
    """A network's share: images forward and backward, and its speed, or why that is not known."""

    model: str
    forward: int
    backward: int
    speed: Speed | None
    reason: str = ""

    @property
    def hours(self) -> float | None:
        """What all its images take, one cell at a time."""
        if self.speed is None:
            return None
        seconds = self.forward * self.speed.forward + self.backward * self.speed.backward
        return seconds / 3600


@dataclass(frozen=True)
class Estimate:
    """What `estimate` gives.

    Attributes
    ----------
    passes : tuple of Passes
        By method; a cell of several studies counts once.
    networks : tuple of Network
        The same by network.
    banks, images : int
        Bytes of stored outputs, and of decoded images that are kept.
    beyond : int
        Bytes of decoded images that there is no room for: they are decoded again for each cell.
    decoding : float
        Hours of one core that decodes images.
    uncounted : tuple of str
        What is not in these numbers, and why.
    """

    passes: tuple[Passes, ...]
    networks: tuple[Network, ...]
    banks: int
    images: int
    beyond: int
    decoding: float
    uncounted: tuple[str, ...]

    def hours(self, device: str, jobs: int = 1) -> float:
        """Hours of the networks that were timed, and of decoding, as so many jobs share a machine.

        On a CPU, jobs divide both. A GPU is one for all jobs, and all cores decode for it.

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


def estimate(
    experiment: Experiment,
    cells: Iterable[Cell],
    data: Mapping[str, Dataset],
    probe: Callable[[str, int], Speed],
    image_cache: float,
) -> Estimate:
    """Count what cells do, and time a little of it.

    Parameters
    ----------
    experiment : Experiment
        What they belong to.
    cells : iterable of Cell
        Each once.
    data : mapping of str to Dataset
        Those data sets that are there. The size of others is the published one, if it is known.
    probe : callable
        Gives the speed of a network, by its name and the batch size, or raises a `LamettaError`.
    image_cache : float
        Gigabytes of decoded images that are kept.
    """
    cells = list(cells)
    count = _Count(experiment, data)
    for cell in cells:
        count.add(cell)
    speeds, reasons = dict[str, Speed](), dict[str, str]()
    for model, sizes in count.batch_sizes.items():
        try:
            speeds[model] = probe(model, sizes.most_common(1)[0][0])
        except LamettaError as error:
            reasons[model] = str(error)
    networks = (
        Network(
            model,
            count.models[model, "forward"],
            count.models[model, "backward"],
            speeds.get(model),
            reasons.get(model, ""),
        )
        for model in count.batch_sizes
    )
    banks = sum(
        count.sizes[dataset] * speeds[model].outputs * _NUMBER
        for model, dataset in count.pairs
        if model in speeds
    )
    room = _Room(count, speeds, image_cache)
    return Estimate(
        tuple(count.by_method()),
        tuple(networks),
        banks,
        sum(room.kept.values()),
        sum(room.beyond.values()),
        room.decoding(data) / 3600,
        (*count.unknown, *(f"{model}: {reason}" for model, reason in reasons.items())),
    )


class _Count:
    """Images by method and by network, and what has to be made before cells run."""

    def __init__(self, experiment: Experiment, data: Mapping[str, Dataset]) -> None:
        self.experiment = experiment
        self.sizes = Counter[str]()
        self.methods, self.models = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        self.pairs = dict[tuple[str, str], bool]()  # whether images are needed
        self.batch_sizes = dict[str, Counter[int]]()
        self.shown = Counter[tuple[str, str]]()  # images that cells show a network, by data set
        self.unknown = dict[str, None]()
        self._data = data
        self._each = dict[tuple[str, str], tuple[int, int] | None]()

    def add(self, cell: Cell) -> None:
        scenario = self.experiment.scenarios[cell.scenario]
        pair = (cell.model, scenario.dataset)
        if scenario.dataset not in self.sizes:
            self.sizes[scenario.dataset] = self._size(scenario.dataset)
        n = self.sizes[scenario.dataset]
        if pair not in self.pairs:
            self.pairs[pair] = False
            self._through(EXTRACTION, cell.model, n, 0)
        n = min(n, scenario.limit or n)
        self.batch_sizes.setdefault(cell.model, Counter())[cell.batch_size] += n
        key = (cell.kind, cell.config)
        if key not in self._each:
            self._each[key] = _passes(cell)
        each = self._each[key]
        if each is None:
            self.unknown[f"{cell.method}: its code is not run before the experiment is"] = None
            return
        forward, backward = each if each != (0, 0) or not cell.live else (1, 0)
        self._through(cell.method, cell.model, n * forward, n * backward)
        if forward:
            self.pairs[pair] = True
            self.shown[pair] += n

    def by_method(self) -> Iterator[Passes]:
        for name in (EXTRACTION, *self.experiment.methods):
            if (name, "forward") in self.methods:
                yield Passes(name, self.methods[name, "forward"], self.methods[name, "backward"])

    def _through(self, method: str, model: str, forward: int, backward: int) -> None:
        for counter, name in ((self.methods, method), (self.models, model)):
            counter[name, "forward"] += forward
            counter[name, "backward"] += backward

    def _size(self, name: str) -> int:
        if name in self._data:
            return len(self._data[name])
        size = _published(self.experiment.datasets[name])
        if size is None:
            self.unknown[f"{name}: how many samples it has is not known before it is read"] = None
        return size or 0


def _published(spec: DatasetSpec) -> int | None:
    """How many samples a data set has that is as it was published."""
    n = catalog.published(spec.reader)
    if n is None:
        return None
    severities = spec.options.get("severities")
    n *= len(severities) if isinstance(severities, list) else 1
    if spec.part is not None:
        n = len(range(spec.part[0], n, spec.part[1]))
    return min(n, spec.most or n) * len(spec.corruptions or "1")


def _passes(cell: Cell) -> tuple[int, int] | None:
    """How often an image goes through the network, forward and backward; None of a stranger."""
    if not methods.is_ours(cell.kind):
        return None
    method = methods.find(cell.kind)
    if not method.needs_network:
        return 0, 0
    from lametta.torch.rivals import GradientAdapter

    first = method.parts[0]
    options = {key: cell.params.get(f"{first.name}.{key}", cell.params.get(key)) for key in _LOOP}
    steps = options["steps"] if isinstance(options["steps"], int) else 1
    learns = isinstance(first.make, type) and issubclass(first.make, GradientAdapter)
    return steps + (not options["predict_first"]), steps if learns else 0


_LOOP = ("steps", "predict_first")


class _Room:
    """Which decoded images are kept, and how many images are decoded."""

    def __init__(self, count: _Count, speeds: Mapping[str, Speed], image_cache: float) -> None:
        self.kept, self.beyond = dict[str, int](), dict[str, int]()
        self.decoded = Counter[str]()
        for (model, dataset), needed in count.pairs.items():
            if model not in speeds or (preprocess := speeds[model].preprocess) is None:
                continue
            n = count.sizes[dataset]
            self.decoded[dataset] += n
            if not needed:
                continue
            key = canonical([pixels_of(preprocess), dataset])
            size = 3 * n * speeds[model].pixels
            if key not in self.kept | self.beyond:
                fits = sum(self.kept.values()) + 2 * size <= 1e9 * image_cache
                (self.kept if fits else self.beyond)[key] = size
                self.decoded[dataset] += n if fits else 0
            if key in self.beyond:
                self.decoded[dataset] += count.shown[model, dataset]

    def decoding(self, data: Mapping[str, Dataset]) -> float:
        """Seconds that it takes one core to decode all; none for data that are not there."""
        return sum(n * _decode(data[name]) for name, n in self.decoded.items() if name in data)


def _decode(data: Dataset) -> float:
    """Seconds to decode an image, the mean over a few."""
    chosen = np.linspace(0, len(data) - 1, _SAMPLES).astype(int)
    data.samples[int(chosen[0])]  # the first loads what decodes them
    start = time.perf_counter()
    for i in chosen:
        data.samples[int(i)]
    return (time.perf_counter() - start) / len(chosen)
