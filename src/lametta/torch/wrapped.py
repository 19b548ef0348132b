"""An adapter as a module: probabilities instead of logits, corrected on the way."""

from typing import Any, Self

import torch
from torch import nn

from lametta import methods
from lametta.classmap import ClassMap
from lametta.torch.model import Classifier, check_ready
from lametta.types import Adapter, LamettaError, Prediction


class Wrapped(nn.Module):
    """What `wrap` gives: a module from inputs to probabilities [N, K].

    Attributes
    ----------
    net : torch.nn.Module
        The network as it was given.
    model : Classifier
        What reads its features.
    adapter : Adapter
        What makes the predictions.
    prediction : Prediction or None
        The last one, with its diagnostics in ``prediction.info``.
    """

    def __init__(self, model: Classifier, adapter: Adapter) -> None:
        super().__init__()
        self.net = model.net
        self.model = model
        self.adapter = adapter
        self.prediction: Prediction | None = None

    def forward(self, x: Any) -> Any:
        """Predict one batch: probabilities [N, K], without gradients."""
        with torch.no_grad():
            self.prediction = self.adapter.step(x)
        return self.prediction.probs

    def reset(self) -> None:
        """Return to exactly the state after construction."""
        self.adapter.reset()
        self.prediction = None

    def close(self) -> None:
        """Take the hook off the network, which is then as it was given, or as it was adapted."""
        self.model.close()

    def train(self, mode: bool = True) -> Self:
        """Switch this module's mode; the network is frozen and stays in eval mode."""
        super().train(mode)
        self.net.eval()
        return self


def wrap(
    net: nn.Module,
    method: str = "lame",
    *,
    head: nn.Module | str | None = None,
    classes: ClassMap | None = None,
    **options: object,
) -> Wrapped:
    """Wrap a classifier so that calling it gives corrected probabilities.

    Parameters
    ----------
    net : torch.nn.Module
        A classifier in eval mode. Methods that see outputs alone change nothing in it but for a
        hook on its head; the others adapt it in place, and ``reset()`` gives it back.
    method : str
        What corrects the predictions, by a name of `lametta.methods`: ``"lame"``, ``"tent"``,
        ``"tent+lame"``, ``"python:package.module:Name"``; ``"source"`` gives the network's own.
    head, classes
        As for `Classifier`.
    **options
        Those of the method: of `lametta.LAME`, `tent`, `shot_im`, `pseudo_label`, `adabn`, ...

    Returns
    -------
    Wrapped
        A module: ``probs = wrapped(x)``.

    Examples
    --------
    >>> import torch
    >>> net = torch.nn.Sequential()
    >>> net.body, net.fc = torch.nn.Linear(3, 5), torch.nn.Linear(5, 2)
    >>> model = wrap(net.eval(), method="lame", affinity="rbf", k=3, weight=0.5)
    >>> model(torch.zeros(4, 3)).shape
    torch.Size([4, 2])
    """
    if not isinstance(net, nn.Module):
        raise LamettaError(f"net must be a torch.nn.Module, got {type(net).__name__}")
    check_ready(net)
    found = methods.find(method)
    for name, message in found.problems(options):
        raise LamettaError(f"{name} {message}".strip())
    model = Classifier(net, head, classes)
    return Wrapped(model, found.build(model, options))
