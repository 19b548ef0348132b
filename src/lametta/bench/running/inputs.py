"""Checks before a run: data, weights and classes of its cells."""

from collections.abc import Iterable

from lametta.bench.experiment import Cell
from lametta.bench.running.workspace import Workspace
from lametta.data.dataset import Dataset, abbreviate, is_unnamed
from lametta.types import LamettaError


def check_inputs(workspace: Workspace, cells: Iterable[Cell]) -> None:
    """Raise unless cells find their data and weights, and networks have the classes of the data."""
    scenarios = workspace.experiment.scenarios
    pairs = dict.fromkeys((cell.model, scenarios[cell.scenario].dataset) for cell in cells)
    for name in dict.fromkeys(name for _, name in pairs):
        try:
            workspace.dataset(name)
        except (LamettaError, OSError) as error:
            raise LamettaError(f"datasets.{name} cannot be read: {error}") from None
    for model in dict.fromkeys(model for model, _ in pairs):
        file = workspace.weights(model)
        if file is not None and not file.is_file():
            raise LamettaError(f"models.{model} cannot be loaded: no such file: '{file}'")
    for model, name in pairs:
        data = workspace.dataset(name)
        if message := _unlike(data, _count_classes(workspace, model, data)):
            raise LamettaError(f"datasets.{name} must be labeled as models.{model} is: {message}")


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
    n, classes = len(data.classes), data.class_map
    if classes is not None:
        fits = classes.n_source in (None, n_classes)
        return "" if fits else f"its map is of {classes.n_source} classes, not of {n_classes}"
    if n == n_classes or (n < n_classes and is_unnamed(data.classes)):
        return ""
    return (
        f"the {n} classes {abbreviate(data.classes)} are not its {n_classes}; targets or classes "
        "of the data set say how they are related"
    )
