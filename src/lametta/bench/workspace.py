"""What cells share: data sets, networks, banks of outputs and decoded images, each made once."""

import hashlib
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from lametta.bench.experiment import Experiment, canonical
from lametta.classmap import ClassMap
from lametta.data import catalog, corrupt
from lametta.data.bank.bank import Bank
from lametta.data.bank.build import OnProgress
from lametta.data.bank.extraction import extract, weights_hash
from lametta.data.bank.images import cache_images, open_images
from lametta.data.classes.wordnet import ancestral_map
from lametta.data.dataset import Dataset
from lametta.types import Array, LamettaError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from lametta.torch import Classifier
    from lametta.torch.preprocess import Preprocess

T = TypeVar("T")


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
    run : str
        Processes make anew what they share when this changes, as it does with each `run`.
    """

    experiment: Experiment
    folder: Path
    root: Path | None = None
    device: str = "cpu"
    run: str = field(default_factory=secrets.token_hex)

    def bank(self, model: str, dataset: str) -> Bank:
        """What a network says of a data set, pooled onto its classes; `prepare` makes it."""
        file = self._file("banks", model, dataset)
        bank = self._once(file, lambda: Bank.open(file))
        return bank.mapped(bank.class_map)

    @contextmanager
    def classifier(self, model: str, classes: ClassMap | None) -> Iterator["Classifier"]:
        """The network itself, pooled onto the classes of a data set."""
        from lametta.torch import Classifier

        with Classifier(self._network(model)[0], classes=classes) as network:
            yield network

    def samples(self, model: str, dataset: str) -> Dataset:
        """The data set as arrays: as it is, or of decoded images, which `prepare` makes."""
        if self._network(model)[1] is None:
            return self.dataset(dataset)
        file = self._file("images", model, dataset)
        return self._once(file, lambda: open_images(file))

    def inputs(self, model: str, samples: Dataset) -> "Callable[[Array], torch.Tensor]":
        """From positions in `samples` to the network's input, on its device."""
        import torch

        _, preprocess = self._network(model)

        def batch(index: Array) -> torch.Tensor:
            x = torch.from_numpy(np.stack([samples.samples[int(i)] for i in index]))
            return (x if preprocess is None else preprocess.standardize(x)).to(self.device)

        return batch

    def dataset(self, name: str) -> Dataset:
        """The data set, as its reader gives it."""
        return self._once(("dataset", name), lambda: self._read(name))

    def prepare(
        self, model: str, dataset: str, *, images: bool, progress: OnProgress | None = None
    ) -> None:
        """Run the network over the data set once; decode it once too, if ``images`` are needed."""
        import torch

        data, (net, preprocess) = self.dataset(dataset), self._network(model)
        header = {"model": self.experiment.models[model].zoo, "weights_hash": weights_hash(net)}
        file = self._file("banks", model, dataset)
        file.parent.mkdir(parents=True, exist_ok=True)
        with self.classifier(model, None) as network, torch.no_grad():
            extract(
                lambda x: network(x.to(self.device)),
                data,
                preprocess,
                file,
                workers=0 if preprocess is None else 1,
                header=header,
                progress=progress,
            )
        if images and preprocess is not None:
            file = self._file("images", model, dataset)
            file.parent.mkdir(parents=True, exist_ok=True)
            cache_images(data, preprocess.pixels, file, progress=progress)

    def _read(self, name: str) -> Dataset:
        spec = self.experiment.datasets[name]
        data = catalog.load(spec.reader, self.root, **spec.options)
        if not data.classes:
            raise LamettaError(f"datasets.{name} must have labels, got none from {spec.reader}")
        if spec.part is not None:
            first, step = spec.part
            data = data.take(np.arange(first, len(data), step))
        if spec.corruptions is not None:
            data = corrupt(data, spec.corruptions, severity=spec.severity)
        if spec.classes is not None:
            data = data.relabeled(spec.classes)
        if spec.targets is not None:
            data = data.mapped(ancestral_map(spec.targets))
        if data.class_map is None:
            return data
        return replace(data, class_map=replace(data.class_map, pooling=spec.pooling))

    def _network(self, name: str) -> "tuple[nn.Module, Preprocess | None]":
        return self._once(("network", name), lambda: self._load(name))

    def _load(self, name: str) -> "tuple[nn.Module, Preprocess | None]":
        from lametta.torch import zoo

        spec = self.experiment.models[name]
        weights = None if spec.weights is None else catalog.data_root(self.root) / spec.weights
        loaded = zoo.load(spec.zoo, weights=weights, device=self.device)
        return loaded.net, loaded.preprocess

    def _once(self, key: object, make: Callable[[], T]) -> T:
        """A process runs many cells on the same network and data."""
        made = _made_in(self.run)
        if key not in made:
            made[key] = make()
        found: T = made[key]
        return found

    def _file(self, kind: str, model: str, dataset: str) -> Path:
        specs = (self.experiment.models[model], self.experiment.datasets[dataset])
        text = canonical([spec.identity() for spec in specs])
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        return self.folder / kind / f"{model}-{dataset}-{digest}.safetensors"


@lru_cache(maxsize=1)
def _made_in(_run: str) -> dict[object, Any]:
    """What this process has made for a run. The next run finds what was changed in between."""
    return {}
