"""Workspace: data sets, networks, banks and image caches, made once per process."""

import hashlib
import multiprocessing
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from lametta.bench.experiment import Experiment, canonical
from lametta.bench.experiment.schema import DatasetSpec, UnknownSpec
from lametta.classmap import ClassMap
from lametta.data import catalog, corrupt
from lametta.data.bank.bank import Bank
from lametta.data.bank.build import OnProgress
from lametta.data.bank.extraction import extract, weights_hash
from lametta.data.bank.images import cache_images, open_images
from lametta.data.classes.wordnet import ancestral_map
from lametta.data.dataset import Dataset
from lametta.data.loader import load_batches
from lametta.types import Array, LamettaError, Output

if TYPE_CHECKING:
    import torch
    from torch import nn

    from lametta.preprocess import Preprocess
    from lametta.torch import Classifier

T = TypeVar("T")

IMAGE_CACHE = 100.0
"""Gigabytes of decoded images that a folder of results may hold."""


@dataclass(frozen=True)
class Workspace:
    """An experiment, its folder and its data; each process makes what it needs from this.

    Parameters
    ----------
    experiment : Experiment
        What to run.
    folder : Path
        The results.
    root : Path or None
        The data root.
    device : str
        Where networks run.
    jobs : int
        How many cells run at once on this machine, whose cores they share.
    image_cache : float
        The most gigabytes of decoded images to keep in the folder. What goes beyond is decoded
        again for each cell that runs the network.
    mirrored : bool
        Whether networks see the mirror images of all inputs.
    run : str
        Changes with each `run`; then processes make anew what their cells share.

    Examples
    --------
    >>> from lametta.bench.experiment import bundled, load
    >>> workspace = Workspace(load(bundled("demo")), Path("results/demo"), None)
    >>> workspace.experiment.name, workspace.device
    ('demo', 'cpu')
    """

    experiment: Experiment
    folder: Path
    root: Path | None = None
    device: str = "cpu"
    jobs: int = 1
    image_cache: float = IMAGE_CACHE
    mirrored: bool = False
    run: str = field(default_factory=secrets.token_hex)

    def bank(self, model: str, dataset: str) -> Bank:
        """The outputs of a network for a data set, pooled onto its classes; `prepare` makes it."""
        file = self.bank_file(model, dataset)
        bank = self._once(file, lambda: Bank.open(file))
        return bank.mapped(bank.class_map)

    def classifier(self, model: str, classes: ClassMap | None) -> "Classifier":
        """The network itself, pooled onto the classes of a data set; the caller closes it."""
        from lametta.torch import Classifier

        net, preprocess = self.network(model)
        return Classifier(net, classes=classes, preprocess=preprocess)

    def samples(self, model: str, dataset: str) -> Dataset:
        """The data set as a network's cells read it: decoded, if `prepare` kept that, or as it is.

        Networks that see the same pixels share what is kept, however each standardizes them.
        """
        preprocess = self.network(model)[1]
        file = None if preprocess is None else self._images(preprocess, dataset)
        if file is None or not file.exists():
            return self.dataset(dataset)
        return self._once(file, lambda: open_images(file))

    def inputs(
        self, model: str, samples: Dataset, stream: Iterable[Array]
    ) -> "Iterator[torch.Tensor]":
        """The network's inputs, on its device, for each batch of positions in `samples`."""
        import torch

        _, preprocess = self.network(model)
        batches: Iterable[torch.Tensor]
        if hasattr(samples.samples, "dtype"):  # an array, whose rows are read together
            array: Array = samples.samples
            batches = (torch.from_numpy(array[np.asarray(index)]) for index in stream)
        elif preprocess is None:
            rows = (np.stack([samples.samples[int(i)] for i in index]) for index in stream)
            batches = map(torch.from_numpy, rows)
        else:
            found = load_batches(
                samples,
                stream,
                preprocess.pixels,
                workers=decoders(self.device, self.jobs),
                # The platform's default, also in a process of joblib, which has another one.
                context=multiprocessing.get_all_start_methods()[0],
            )
            batches = (batch.x for batch in found)
        for batch in batches:
            x = batch.to(self.device)  # as bytes, which are a fourth of the floats
            x = x if preprocess is None else preprocess.standardize(x)
            yield x.flip(-1) if self.mirrored else x

    def dataset(self, name: str) -> Dataset:
        """The data set, as the experiment has it."""
        spec = self.experiment.datasets[name]

        def read() -> Dataset:
            return as_specified(name, spec, *load_specified(spec, self.root))

        return self._once(("dataset", name), read)

    def prepare(
        self, model: str, dataset: str, *, images: bool, progress: OnProgress | None = None
    ) -> None:
        """Run the network over the data set once, and keep its outputs.

        If ``images`` are needed, those that were decoded are kept too, where there is room.
        """
        import torch

        data, (net, preprocess) = self.dataset(dataset), self.network(model)
        spec = self.experiment.models[model]
        header = {"model": spec.zoo, "weights_hash": weights_hash(net), **spec.computed}
        file = self.bank_file(model, dataset)
        file.parent.mkdir(parents=True, exist_ok=True)
        with self.classifier(model, None) as network, torch.no_grad():
            extract(
                _Mirrored(network) if self.mirrored else network,
                data,
                preprocess,
                file,
                device=self.device,
                workers=0 if preprocess is None else max(1, decoders(self.device)),
                header=header,
                progress=progress,
            )
        if images and preprocess is not None:
            self._keep_images(data, preprocess, self._images(preprocess, dataset), progress)

    def _keep_images(
        self, data: Dataset, preprocess: "Preprocess", file: Path, progress: OnProgress | None
    ) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        others = sum(other.stat().st_size for other in file.parent.glob("*") if other.is_file())
        size = len(data) * preprocess.pixels(data.samples[0]).nbytes
        # Twice, since rows are in small files until all are there.
        if file.exists() or others + 2 * size <= 1e9 * self.image_cache:
            cache_images(
                data,
                preprocess.pixels,
                file,
                workers=max(1, decoders(self.device)),
                header={"preprocess": pixels_of(preprocess)},
                progress=progress,
            )

    def network(self, name: str) -> "tuple[nn.Module, Preprocess | None]":
        return self._once(("network", name), lambda: self._load(name))

    def _load(self, name: str) -> "tuple[nn.Module, Preprocess | None]":
        from lametta.torch import zoo

        spec = self.experiment.models[name]
        loaded = zoo.load(
            spec.zoo,
            weights=self.weights(name),
            device=self.device,
            precision=spec.precision,
            compile=spec.compile,
        )
        return loaded.net, loaded.preprocess

    def weights(self, model: str) -> Path | None:
        """The file of a network's weights, if the experiment names one."""
        file = self.experiment.models[model].weights
        return None if file is None else catalog.data_root(self.root) / file

    def _once(self, key: object, make: Callable[[], T]) -> T:
        """Make something once in a process, whose many cells share networks and data."""
        made = _made_in(self.run)
        if key not in made:
            made[key] = make()
        found: T = made[key]
        return found

    def bank_file(self, model: str, dataset: str) -> Path:
        """Where the outputs of a network for a data set are, once `prepare` has made them."""
        specs = (self.experiment.models[model], self.experiment.datasets[dataset])
        kind = "banks/mirrored" if self.mirrored else "banks"
        return self._named(kind, f"{model}-{dataset}", [spec.identity() for spec in specs])

    def _images(self, preprocess: "Preprocess", dataset: str) -> Path:
        identity = [pixels_of(preprocess), self.experiment.datasets[dataset].identity()]
        return self._named("images", dataset, identity)

    def _named(self, kind: str, name: str, identity: object) -> Path:
        digest = hashlib.sha256(canonical(identity).encode()).hexdigest()[:8]
        return self.folder / kind / f"{name}-{digest}.safetensors"


class _Mirrored:
    """A network that sees the mirror images of its inputs."""

    def __init__(self, network: "Classifier") -> None:
        self.network, self.prototypes = network, network.prototypes

    def __call__(self, x: "torch.Tensor", /) -> Output:
        return self.network(x.flip(-1))


def load_specified(spec: DatasetSpec, root: Path | None) -> tuple[Dataset, Dataset | None]:
    """What the reader of a data set gives, and that of its unknown samples, if it has any."""
    known, others = catalog.load(spec.reader, root, **spec.options), spec.unknown
    if others is None:
        return known, None
    return known, catalog.load(others.reader, root, **others.options)


def as_specified(
    name: str, spec: DatasetSpec, data: Dataset, unknown: Dataset | None = None
) -> Dataset:
    """Apply the table of a data set to what its reader gives."""
    if not data.classes:
        raise LamettaError(f"datasets.{name} must have labels, got none from {spec.reader}")
    data = _part_of(data, spec)
    if spec.unknown is not None and unknown is not None:
        data = data.with_unknown(_part_of(unknown, spec.unknown))
    if spec.corruptions is not None:
        data = corrupt(data, spec.corruptions, severity=spec.severity, constants=spec.constants)
    if spec.classes is not None:
        data = data.relabeled(spec.classes)
    if spec.targets is not None:
        data = data.mapped(ancestral_map(spec.targets))
    if data.class_map is None:
        return data
    return replace(data, class_map=replace(data.class_map, pooling=spec.pooling))


def _part_of(data: Dataset, spec: UnknownSpec) -> Dataset:
    """The part that a table asks for, and no more than it wants."""
    if spec.part is not None:
        first, step = spec.part
        data = data.take(np.arange(first, len(data), step))
    if spec.most is not None and len(data) > spec.most:
        draws = [hashlib.sha256(key.encode()).digest() for key in data.keys]
        data = data.take(sorted(sorted(range(len(data)), key=draws.__getitem__)[: spec.most]))
    return data


def pixels_of(preprocess: "Preprocess") -> dict[str, object]:
    """What decides the pixels of an image; networks that differ in the rest share them."""
    plain = replace(preprocess, mean=(0.0,) * 3, std=(1.0,) * 3, scale=1, bgr=False)
    return asdict(plain)


def decoders(device: str, jobs: int = 1) -> int:
    """How many processes decode images for each of the jobs, which share the machine's cores."""
    cores = os.cpu_count() or 1
    return int(cores > jobs) if device == "cpu" else max(1, cores // jobs)


@lru_cache(maxsize=1)
def _made_in(_run: str) -> dict[object, Any]:
    """What this process has made for a run; the next starts anew, since files may change."""
    return {}
