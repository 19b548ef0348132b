"""Inputs of cells: data, weights and packages, and whether they are there and fit."""

import importlib.util
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lametta import networks
from lametta._files import PathLike
from lametta.bench.experiment import Cell, Experiment
from lametta.bench.experiment.schema import DatasetSpec, ModelSpec, source_data
from lametta.bench.running.workspace import Workspace, as_specified, load_specified
from lametta.data import catalog
from lametta.data.corruption import packages
from lametta.data.dataset import Dataset, abbreviate, is_unnamed
from lametta.data.loader import NEEDS_ARRAYS
from lametta.methods import Method, find, is_builtin
from lametta.registry import import_object
from lametta.types import LamettaError

THIRD_PARTY = "its code is not run before the experiment is"
"""Why something is not known before a run."""

_NO_PIXELS = "it augments images in color, and how they become the network's inputs is not known"
_WHEELS = {"imagecorruptions": "imagecorruptions-imaug"}  # those that are not called as imported
_FAMILIES = ("embedded", "folder", "videos")  # readers of our own that take a path, or need none


def check_inputs(workspace: Workspace, cells: Iterable[Cell]) -> None:
    """Raise unless cells find their data and weights, and networks fit the data and the methods."""
    scenarios, cells = workspace.experiment.scenarios, list(cells)
    pairs = dict.fromkeys((cell.model, scenarios[cell.scenario].dataset) for cell in cells)
    _check_files(workspace, [*pairs, *_source_pairs(cells)])
    for model, name in pairs:
        data = workspace.dataset(name)
        if message := _unlike(data, _count_classes(workspace, model, data)):
            raise LamettaError(f"datasets.{name} must be labeled as models.{model} is: {message}")
    for model, name, kind in dict.fromkeys((cell.model, cell.method, cell.kind) for cell in cells):
        if message := _lacking(workspace, model, find(kind)):
            raise LamettaError(f"models.{model} does not fit methods.{name}: {message}")


def _source_pairs(cells: Iterable[Cell]) -> list[tuple[str, str]]:
    """The models and data sets of the methods that take source data."""
    found = ((cell.model, name) for cell in cells for name in source_data(cell.params).values())
    return list(dict.fromkeys(found))


def _check_files(workspace: Workspace, pairs: Iterable[tuple[str, str]]) -> None:
    """Raise unless the data of these models and data sets can be read, and weights are there."""
    for _, name in pairs:
        try:
            workspace.dataset(name)
        except (LamettaError, OSError) as error:
            raise LamettaError(f"datasets.{name} cannot be read: {error}") from None
    for model, _ in pairs:
        file = workspace.weights(model)
        if file is not None and not file.is_file():
            raise LamettaError(f"models.{model} cannot be loaded: no such file: '{file}'")


def _lacking(workspace: Workspace, model: str, method: Method) -> str:
    """What a method needs and a network does not have; empty if it has all."""
    if method.augments_pixels and workspace.network(model)[1] is None:
        return _NO_PIXELS
    with workspace.classifier(model, None) as network:
        lacks = "prototypes" in method.needs and network.prototypes is None
    return "it needs prototypes, and the network's head is no linear layer" if lacks else ""


def _count_classes(workspace: Workspace, model: str, data: Dataset) -> int:
    """How many classes a network tells apart, by its head or by its output for a sample."""
    import torch

    _, preprocess = workspace.network(model)
    with workspace.classifier(model, None) as network, torch.no_grad():
        if isinstance(network.head, torch.nn.Linear):
            return max(network.head.out_features, 2)  # one logit stands for two classes
        x = data.samples[0]
        x = torch.as_tensor(x if preprocess is None else preprocess(x))
        return int(network(x[None].to(workspace.device)).logits.shape[1])


def _unlike(data: Dataset, n_classes: int) -> str:
    """Why labels cannot be compared with the answers of a network; empty if they can.

    Numbers as names are the network's own classes, of which some may not occur.
    """
    n, classes = data.n_known, data.class_map
    if classes is not None:
        fits = classes.n_source in (None, n_classes)
        return "" if fits else f"its map is of {classes.n_source} classes, not of {n_classes}"
    if n == n_classes or (n < n_classes and is_unnamed(data.classes[:n])):
        return ""
    return (
        f"the {n} classes {abbreviate(data.classes)} are not its {n_classes}; targets or classes "
        "of the data set say how they are related"
    )


class Requirement(NamedTuple):
    """A data set, weights or a package, and where it is, or why it is not there."""

    kind: str
    name: str
    found: bool | None  # None where only third-party code could tell
    where: str


def find_inputs(
    experiment: Experiment, cells: Sequence[Cell], root: PathLike | None
) -> tuple[tuple[Requirement, ...], dict[str, Dataset]]:
    """Look for data sets, weights and packages, and give the data sets that are there.

    No code of unknown packages is imported.
    """
    given = root or os.environ.get("LAMETTA_DATA")
    folder = Path(given or "$LAMETTA_DATA")
    names = [experiment.scenarios[cell.scenario].dataset for cell in cells]
    names += [name for _, name in _source_pairs(cells)]
    used = {name: experiment.datasets[name] for name in names}
    models = {cell.model: experiment.models[cell.model] for cell in cells}
    data: dict[str, Dataset] = {}
    needs = list(_data_sets(used, folder, folder if given else None, data))
    needs += _weights(models, folder)
    needs += _pixels(models, cells)
    pairs = dict.fromkeys((x.model, experiment.scenarios[x.scenario].dataset) for x in cells)
    needs += _arrays(models, [(model, x, data[x]) for model, x in pairs if x in data])
    return (*needs, *_packages(models.values(), used.values())), data


def _pixels(models: Mapping[str, ModelSpec], cells: Sequence[Cell]) -> Iterator[Requirement]:
    """The networks without pixels that methods would augment: a digit is the input as it is."""
    for name, method, kind in dict.fromkeys((x.model, x.method, x.kind) for x in cells):
        is_input = models[name].zoo.startswith("embedded:")
        if is_input and is_builtin(kind) and find(kind).augments_pixels:
            yield Requirement("pixels", name, False, f"for methods.{method}")


def _arrays(
    models: Mapping[str, ModelSpec], pairs: Iterable[tuple[str, str, Dataset]]
) -> Iterator[Requirement]:
    """The networks without preprocessing that would get images."""
    for model, name, data in pairs:
        if models[model].zoo.startswith("embedded:") and not hasattr(data.samples[0], "shape"):
            yield Requirement("arrays", model, False, f"in datasets.{name}: {NEEDS_ARRAYS}")


def _data_sets(
    used: Mapping[str, DatasetSpec], folder: Path, root: Path | None, data: dict[str, Dataset]
) -> Iterator[Requirement]:
    """Whether each data set can be read; those that can be are put into ``data``."""
    places = {found.name: str(found.where) for found in catalog.locate(folder)}
    for name, spec in used.items():
        readers = [table.reader for table in (spec, spec.unknown) if table is not None]
        if any(x not in places and x.partition(":")[0] not in _FAMILIES for x in readers):
            yield Requirement("data set", name, None, THIRD_PARTY)
            continue
        try:
            data[name], where = _read(name, spec, root, places)
        except (LamettaError, OSError) as error:
            where = str(error)
        yield Requirement("data set", name, name in data, where)


def _read(
    name: str, spec: DatasetSpec, root: Path | None, places: Mapping[str, str]
) -> tuple[Dataset, str]:
    """List a data set as the experiment would, look at a few of its samples, and say where."""
    found, unknown = load_specified(spec, root)
    data = as_specified(name, spec, found, unknown)
    for i in (0, len(data) // 2, len(data) - 1):
        data.samples[i]
    family, _, path = spec.reader.partition(":")
    place = "in the package" if family == "embedded" else str((root or Path()) / path)
    difference = catalog.count_mismatch(spec.reader, found)
    return data, places.get(spec.reader, place) + (f": {difference}" if difference else "")


def _weights(models: Mapping[str, ModelSpec], folder: Path) -> Iterator[Requirement]:
    for name, model in models.items():
        if model.weights is not None:
            yield Requirement("weights", name, *_load_weights(model, folder / model.weights))


def _load_weights(spec: ModelSpec, file: Path) -> tuple[bool | None, str]:
    """Whether a file of weights is there and fits the network, and where it is, or why not."""
    if not file.is_file():
        return False, str(file)
    network = networks.find(spec.zoo)
    lacking = network.package and importlib.util.find_spec(network.module) is None
    if lacking or runs_third_party(spec):
        return None, f"{file}, which is not read before the experiment runs"
    try:
        import_object(network.loader, "loader")(spec.zoo, file, **network.options)
    except LamettaError as error:
        return False, str(error)
    return True, str(file)


def runs_third_party(spec: ModelSpec) -> bool:
    """Whether building a network runs code of packages that lametta does not know."""
    if spec.zoo.startswith("torch:"):
        return not spec.zoo.startswith("torch:lametta.")
    return not networks.NETWORKS.is_builtin(spec.zoo)


def _packages(
    models: Iterable[ModelSpec], datasets: Iterable[DatasetSpec]
) -> Iterator[Requirement]:
    for module, (wheel, install) in sorted(_modules(models, datasets).items()):
        found = importlib.util.find_spec(module) is not None
        yield Requirement(
            "package", wheel, found, "installed" if found else f"pip install {install}"
        )


def _modules(
    models: Iterable[ModelSpec], datasets: Iterable[DatasetSpec]
) -> dict[str, tuple[str, str]]:
    """The modules that a run imports, each with its wheel and what pip installs."""
    wanted = {"torch": ("torch", "torch")}
    for spec in datasets:
        for module, install in packages(spec.corruptions or (), spec.constants).items():
            wanted[module] = (_WHEELS.get(module, module), install)
        if spec.reader.startswith("embedded:"):
            wanted["sklearn"] = ("scikit-learn", "scikit-learn")
    for network in (networks.find(spec.zoo) for spec in models):
        if network.package:
            wanted[network.module] = (network.module, network.install)
    return wanted
