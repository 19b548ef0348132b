"""What an experiment costs: images through networks, disk space, hours on a device."""

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import starmap
from typing import NamedTuple

import numpy as np
import polars as pl

from lametta import methods
from lametta.bench.columns import SCHEMA
from lametta.bench.experiment import Cell, Experiment, canonical
from lametta.bench.experiment.schema import DatasetSpec
from lametta.bench.probe import Speed
from lametta.bench.running.workspace import pixels_of
from lametta.data import catalog
from lametta.data.dataset import Dataset
from lametta.types import LamettaError

EXTRACTION = "banks of outputs"
"""Stands in the place of a method: each network runs once over each data set."""

_SAMPLES = 6  # images that are decoded to see how long that takes
_NUMBER = 4  # bytes


class Passes(NamedTuple):
    """Images that go through networks for a method, forward and backward."""

    method: str
    forward: int
    backward: int


class Network(NamedTuple):
    """A network's share: images forward and backward, and its speed, if that is known."""

    model: str
    forward: int
    backward: int
    speed: Speed | None

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
        The data sets that were found. Others count with their published size, if it is known.
    probe : callable
        Gives the speed of a network, by its name and the batch size, or raises a `LamettaError`.
    image_cache : float
        Gigabytes of decoded images that are kept.
    """
    cells = list(cells)
    used = dict.fromkeys(experiment.scenarios[cell.scenario].dataset for cell in cells)
    known = {name: _size(experiment.datasets[name], data.get(name)) for name in used}
    sizes = {name: n or 0 for name, n in known.items()}
    work = _work(experiment, cells, sizes)
    strangers = work.filter(pl.col("forward").is_null())["method"].unique(maintain_order=True)
    unread = (name for name, n in known.items() if n is None)
    uncounted = [
        *(f"{name}: how many samples it has is not known before it is read" for name in unread),
        *(f"{name}: its code is not run before the experiment is" for name in strangers),
    ]
    speeds = dict[str, Speed]()
    commonest = (
        work.group_by("model", "batch_size", maintain_order=True)
        .agg(pl.col("n").sum())
        .group_by("model", maintain_order=True)
        .agg(pl.col("batch_size").get(pl.col("n").arg_max()))
    )
    for model, batch_size in commonest.iter_rows():
        try:
            speeds[model] = probe(model, batch_size)
        except LamettaError as error:
            uncounted.append(f"{model}: {error}")
    pairs = work.group_by("model", "dataset", maintain_order=True).agg(
        pl.col("dataset").replace_strict(sizes).first().alias("n"),
        pl.col("n").filter(pl.col("forward") > 0).sum().alias("shown"),
    )
    banks = pairs.select("model", "n", method=pl.lit(EXTRACTION), forward="n")
    through = pl.concat([banks, work.drop_nulls("forward")], how="diagonal")
    by_method = {passes.method: passes for passes in starmap(Passes, _sums(through, "method"))}
    kept, beyond, decoded = _room(pairs, speeds, image_cache)
    return Estimate(
        tuple(by_method[name] for name in (EXTRACTION, *experiment.methods) if name in by_method),
        tuple(Network(*sums, speeds.get(sums[0])) for sums in _sums(through, "model")),
        sum(
            n * speeds[model].outputs * _NUMBER
            for model, _, n, _ in pairs.iter_rows()
            if model in speeds
        ),
        kept,
        beyond,
        sum(n * _decode(data[name]) for name, n in decoded.items() if name in data) / 3600,
        tuple(uncounted),
    )


def _work(experiment: Experiment, cells: Iterable[Cell], sizes: Mapping[str, int]) -> pl.DataFrame:
    """One row a cell: its images ``n``, and those forward and backward; null if third-party."""
    passes, rows = cache(_passes), []  # many cells have the same configuration
    for cell in cells:
        scenario = experiment.scenarios[cell.scenario]
        n = sizes[scenario.dataset]
        n = min(n, scenario.limit or n)
        each = passes(cell.kind, cell.config)
        if each == (0, 0) and cell.live:
            each = 1, 0
        through = [None, None] if each is None else [n * times for times in each]
        rows.append([cell.method, cell.model, scenario.dataset, cell.batch_size, n, *through])
    known = {name: SCHEMA[name] for name in ("method", "model", "dataset", "batch_size", "n")}
    return pl.DataFrame(
        rows, known | {"forward": SCHEMA["n"], "backward": SCHEMA["n"]}, orient="row"
    )


def _sums(through: pl.DataFrame, by: str) -> Iterator[tuple[str, int, int]]:
    sums = through.group_by(by, maintain_order=True).agg(pl.col("forward", "backward").sum())
    return sums.iter_rows()


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


def _passes(kind: str, config: str) -> tuple[int, int] | None:
    """How often an image goes through the network, both ways; None for third-party methods."""
    if not methods.is_builtin(kind):
        return None
    method = methods.find(kind)
    if not method.needs_network:
        return 0, 0
    from lametta.torch import GradientMethod

    first, options = method.split_params(json.loads(config))[0]
    steps = options.get("steps", 1)
    learns = isinstance(first.factory, type) and issubclass(first.factory, GradientMethod)
    return steps + (not options.get("predict_first")), steps if learns else 0


def _room(
    pairs: pl.DataFrame, speeds: Mapping[str, Speed], image_cache: float
) -> tuple[int, int, Counter[str]]:
    """Bytes of decoded images that are kept, bytes beyond, and how many images are decoded."""
    kept, beyond, decoded = dict[str, int](), dict[str, int](), Counter[str]()
    for model, dataset, n, shown in pairs.iter_rows():
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
    chosen = np.linspace(0, len(data) - 1, _SAMPLES).astype(int)
    data.samples[int(chosen[0])]  # the first loads what decodes them
    start = time.perf_counter()
    for i in chosen:
        data.samples[int(i)]
    return (time.perf_counter() - start) / len(chosen)
