"""An adapter as a module: probabilities instead of logits, corrected on the way."""

from typing import Any, Self

import torch
from torch import nn

from lametta.adapters import Corrected, Source
from lametta.classmap import ClassMap
from lametta.correctors import LAME
from lametta.torch.model import Classifier
from lametta.types import Adapter, LamettaError, Prediction

_METHODS = ("lame", "source")


class Wrapped(nn.Module):
    """What `wrap` gives: a module from inputs to probabilities [N, K].

    Attributes
    ----------
    net : torch.nn.Module
        The network as it was given.
    adapter : Adapter
        What makes the predictions.
    prediction : Prediction or None
        The last one, with its diagnostics in ``prediction.info``.
    """

    def __init__(self, net: nn.Module, adapter: Adapter) -> None:
        super().__init__()
        self.net = net
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
    **options: Any,
) -> Wrapped:
    """Wrap a classifier so that calling it gives corrected probabilities.

    Parameters
    ----------
    net : torch.nn.Module
        A classifier in eval mode. It is not changed but for a hook on its head.
    method : {"lame", "source"}
        ``"lame"`` corrects each batch; ``"source"`` gives the network's own probabilities.
    head, classes
        As for `Classifier`.
    **options
        Those of the method; for ``"lame"`` of `lametta.LAME`.

    Returns
    -------
    Wrapped
        A module: ``probs = wrapped(x)``.

    Examples
    --------
    >>> import torch
    >>> net = torch.nn.Sequential()
    >>> net.body, net.fc = torch.nn.Linear(3, 5), torch.nn.Linear(5, 2)
    >>> model = wrap(net.eval(), method="lame", weight=0.5)
    >>> model(torch.zeros(4, 3)).shape
    torch.Size([4, 2])
    """
    if not isinstance(net, nn.Module):
        raise LamettaError(f"net must be a torch.nn.Module, got {type(net).__name__}")
    if net.training:
        raise LamettaError("net must be in eval mode, got training mode: call net.eval()")
    if method not in _METHODS:
        raise LamettaError(f"method must be one of {_METHODS}, got {method!r}")
    allowed = list(LAME.__dataclass_fields__) if method == "lame" else []
    if unknown := sorted(options.keys() - set(allowed)):
        raise LamettaError(f"options of {method!r} must be among {allowed}, got {unknown}")
    corrector = LAME(**options)
    model = Classifier(net, head, classes)
    return Wrapped(net, Corrected(model, corrector) if method == "lame" else Source(model))
