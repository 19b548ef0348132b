"""An adapter as a module: probabilities instead of logits, corrected on the way."""

import inspect
from collections.abc import Callable
from typing import Any, Self

import torch
from lametta.adapters import Corrected, Source
from lametta.classmap import ClassMap
from lametta.correctors import LAME
from lametta.torch.adapt import ADAPTER_OPTIONS, adabn, pseudo_label, shot_im, tent
from lametta.torch.model import Classifier, check_ready
from lametta.types import Adapter, LamettaError, Prediction
from torch import nn


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
    **options: Any,
) -> Wrapped:
    """Wrap a classifier so that calling it gives corrected probabilities.

    Parameters
    ----------
    net : torch.nn.Module
        A classifier in eval mode. ``"lame"`` and ``"source"`` change nothing in it but for a hook
        on its head; the other methods adapt it in place, and ``reset()`` gives it back.
    method : {"lame", "source", "tent", "shot_im", "pseudo_label", "adabn"}
        What corrects the predictions; ``"source"`` gives the network's own.
    head, classes
        As for `Classifier`.
    **options
        Those of the method: of `lametta.LAME`, `tent`, `shot_im`, `pseudo_label` or `adabn`.

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
    check_ready(net)
    if method not in _METHODS:
        raise LamettaError(f"method must be one of {tuple(_METHODS)}, got {method!r}")
    make = _METHODS[method]
    allowed = _options(make)
    if unknown := sorted(options.keys() - set(allowed)):
        raise LamettaError(f"options of {method!r} must be among {allowed}, got {unknown}")
    model = Classifier(net, head, classes)
    return Wrapped(model, make(model, **options))


def _lame(model: Classifier, **options: Any) -> Adapter:
    return Corrected(model, LAME(**options))


_METHODS: dict[str, Callable[..., Adapter]] = {
    "lame": _lame,
    "source": Source,
    "tent": tent,
    "shot_im": shot_im,
    "pseudo_label": pseudo_label,
    "adabn": adabn,
}


def _options(make: Callable[..., Adapter]) -> list[str]:
    """The names of a method's options, those it passes on included."""
    passed_on = inspect.signature(LAME).parameters if make is _lame else ADAPTER_OPTIONS
    names: list[str] = []
    for name, parameter in inspect.signature(make).parameters.items():
        names += passed_on if parameter.kind is parameter.VAR_KEYWORD else [name]
    return [name for name in names if name != "model"]
