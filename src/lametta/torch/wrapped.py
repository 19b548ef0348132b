"""An adapter as a module: probabilities instead of logits, corrected on the way."""

from typing import Any, Self

import torch
from torch import nn

from lametta import methods
from lametta.classmap import ClassMap
from lametta.torch.model import Classifier, Inputs, check_ready, unwrapped
from lametta.torch.outputs import Pick
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

    Examples
    --------
    >>> from lametta.torch import wrap
    >>> from lametta.torch.digits import digits_net
    >>> model = wrap(digits_net(), "lame")
    >>> model(torch.rand(8, 1, 8, 8)).shape
    torch.Size([8, 10])
    >>> model.prediction.info["neighbors"]
    5
    """

    def __init__(self, model: Classifier, adapter: Adapter) -> None:
        super().__init__()
        self.net = model.net
        self.model = model
        self.adapter = adapter
        self.prediction: Prediction | None = None

    def forward(self, *args: object, **kwargs: object) -> object:
        """Predict one batch: probabilities [N, K], without gradients.

        Called with keywords, as Hugging Face's pipelines call a model, a network whose own output
        has ``logits`` gives an output of that kind, with the logarithms of the probabilities in
        their place: their softmax is the corrected prediction.
        """
        x = args[0] if len(args) == 1 and not kwargs else Inputs(args, kwargs)
        with torch.no_grad():
            prediction = self.prediction = self.adapter.step(x)
        if kwargs and (kind := self.model.returns) is not None:
            return kind(logits=prediction.probs.log())
        return prediction.probs

    def __getattr__(self, name: str) -> Any:
        """Look up in the network what this module lacks: ``config``, ``device``, ``dtype``, ..."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or "net" not in self.__dict__.get("_modules", {}):
                raise
            return getattr(self.net, name)

    def reset(self) -> None:
        """Return to exactly the state after construction."""
        self.adapter.reset()
        self.prediction = None

    def close(self) -> None:
        """Take the hook off the network, and leave its weights as they are."""
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
    output: Pick = None,
    probabilities: bool = False,
    **options: object,
) -> Wrapped:
    """Wrap a classifier so that calling it gives corrected probabilities.

    Parameters
    ----------
    net : torch.nn.Module
        A classifier in eval mode. Methods that see outputs alone change nothing in it; the others
        adapt it in place, and ``reset()`` gives it back.
    method : str
        What corrects the predictions, by a name of `lametta.methods`: ``"lame"``, ``"tent"``,
        ``"tent+lame"``, ``"python:package.module:Name"``; ``"source"`` gives the network's own.
    head, classes, output, probabilities
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
    if isinstance(net, Wrapped):
        raise LamettaError("net must be a network, got one that is wrapped already: take its .net")
    check_ready(unwrapped(net))
    found = methods.find(method)
    for name, message in found.problems(options):
        raise LamettaError(f"{name} {message}".strip())
    model = Classifier(net, head, classes, output=output, probabilities=probabilities)
    return Wrapped(model, found.build(model, options))
