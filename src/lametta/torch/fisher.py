"""Diagonal Fisher matrix of the source, as EATA has it: how much each parameter matters.

For each batch of the source, without labels, the gradient of the mean cross-entropy to the classes
that the network itself predicts; squared, and its mean over batches. As published, that is the
square of a batch's mean gradient, and not the mean of squares.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from os import PathLike
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from lametta.torch import losses
from lametta.torch.adapt import GradientMethod
from lametta.torch.model import Classifier
from lametta.torch.network import Batch, Network, Outputs, check_finite
from lametta.torch.select import Selector
from lametta.torch.weights import read_tensors, safetensors_module
from lametta.types import LamettaError


def measure_fisher(
    model: Classifier,
    inputs: Iterable[Any],
    file: str | PathLike[str] | None = None,
    *,
    layers: Selector | str = "norms",
) -> dict[str, Tensor]:
    """Measure how much each parameter matters for batches of the source, for ``EATA(fisher=...)``.

    Parameters
    ----------
    model : Classifier
        The network, which stays as it is.
    inputs : iterable
        Batches of inputs, or pairs of inputs and labels, which are not looked at.
    file : path, optional
        Where to store it: a .safetensors file.
    layers : Selector or str
        Those that are to adapt.

    Examples
    --------
    >>> from lametta.torch.digits import digits_net
    >>> found = measure_fisher(Classifier(digits_net()), [torch.rand(8, 1, 8, 8)])
    >>> all((value >= 0).all() for value in found.values())
    True
    """
    batches = iter(inputs)
    first = next(batches, None)
    if first is None:
        raise LamettaError("inputs must give a batch or more, got none")
    method = _Measure(model, inputs=chain([first], batches), layers=layers)
    try:
        method.step(inputs_of(first, next(model.net.parameters()).device))
    finally:
        method.reset()
    if file is not None:
        safetensors_module().save_file(method.found, file)
    return method.found


def find_fisher(
    given: Iterable[Any] | Mapping[str, Tensor] | str | PathLike[str], net: Network
) -> dict[str, Tensor]:
    """Weights for the parameters that adapt: measured, or those of a mapping or a file."""
    if isinstance(given, str | PathLike):
        given = read_tensors(given)
    if not isinstance(given, Mapping):
        return _measured(given, net)
    for name, parameter in net.parameters.items():
        wanted, got = list(parameter.shape), list(given[name].shape) if name in given else "none"
        if got != wanted:
            raise LamettaError(
                f"fisher must have the parameters that adapt, {name} {wanted}, got {got}"
            )
    return {name: given[name].to(parameter) for name, parameter in net.parameters.items()}


def _measured(loader: Iterable[Any], net: Network) -> dict[str, Tensor]:
    found = {name: torch.zeros_like(p) for name, p in net.parameters.items()}
    count, device = 0, next(iter(found.values())).device
    for batch in loader:
        check_finite(x := inputs_of(batch, device))
        loss = losses.pseudo_label(net(x).log_probs).mean()
        for total, gradient in zip(found.values(), net.gradients(loss), strict=True):
            if gradient is not None:
                total += gradient**2
        count += 1
    if not count:
        raise LamettaError("fisher must give a batch or more, got none")
    net.restore()  # its running statistics, where they move
    return {name: total / count for name, total in found.items()}


def inputs_of(batch: Any, device: torch.device) -> Any:
    """The inputs of a loader's batch, without labels, on a device."""
    x = batch[0] if isinstance(batch, tuple | list) else batch
    return x.to(device) if isinstance(x, Tensor) else x


@dataclass(kw_only=True)
class _Measure(GradientMethod):
    """A method that measures, and learns nothing."""

    bn_momentum: float = 0.0
    inputs: Iterable[Any]
    found: dict[str, Tensor] = field(default_factory=dict, init=False)
    statistics: ClassVar[Literal["chosen", "all"]] = "all"

    def start(self, net: Network, /) -> None:
        self.found = _measured(self.inputs, net)

    def adapt(self, batch: Batch, net: Network, /) -> Outputs:
        return batch.outputs
