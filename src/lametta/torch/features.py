"""Mean and variance of the source's features, class by class, which PeTTA compares with."""

from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lametta.torch.fisher import inputs_of
from lametta.torch.model import Classifier
from lametta.torch.network import Network, check_finite
from lametta.torch.weights import read_tensors, safetensors_module
from lametta.types import LamettaError, Output


def measure_features(
    model: Classifier, inputs: Iterable[Any], file: str | PathLike[str] | None = None
) -> dict[str, Tensor]:
    """Measure the features of each class on batches of the source, for ``PeTTA(source=...)``.

    Parameters
    ----------
    model : Classifier
        The network, whose own predictions say of which class a sample is.
    inputs : iterable
        Batches of inputs, or pairs of inputs and labels, which are not looked at.
    file : path, optional
        Where to store it: a .safetensors file.

    Returns
    -------
    dict of str to tensor
        ``mean`` and ``var`` [K, d]; NaN of a class with fewer than 2 samples.

    Examples
    --------
    >>> from lametta.torch.digits import digits_net
    >>> found = measure_features(Classifier(digits_net()), [torch.rand(64, 1, 8, 8)])
    >>> found["mean"].shape
    torch.Size([10, 64])
    """
    device, count = next(model.net.parameters()).device, torch.zeros(())
    mean, square = torch.zeros(()), torch.zeros(())
    for batch in inputs:
        check_finite(x := inputs_of(batch, device))
        with torch.no_grad():
            n, center, spread = moments_of_classes(model(x))
        count, mean, square = count.to(n), mean.to(center), square.to(center)
        total, gap = (count + n).clamp(min=1)[:, None], center - mean
        square = square + spread + gap**2 * count.expand_as(n)[:, None] * n[:, None] / total
        mean = mean + gap * n[:, None] / total
        count = count + n
    if not count.ndim:
        raise LamettaError("source must give a batch or more, got none")
    few = (count < 2)[:, None]
    found = {"mean": mean, "var": square / (count - 1).clamp(min=1)[:, None]}
    found = {name: torch.where(few, torch.nan, value) for name, value in found.items()}
    if file is not None:
        safetensors_module().save_file(found, file)
    return found


def find_features(
    given: Iterable[Any] | Mapping[str, Tensor] | str | PathLike[str], net: Network
) -> dict[str, Tensor]:
    """The same for a network that begins to adapt: measured, or those of a mapping or a file."""
    if isinstance(given, str | PathLike):
        given = read_tensors(given)
    if not isinstance(given, Mapping):
        return measure_features(net.model, given)
    like = next(iter(net.parameters.values()))
    for name in ("mean", "var"):
        if name not in given or given[name].ndim != 2 or given[name].shape != given["mean"].shape:
            got = {key: list(value.shape) for key, value in given.items()}
            raise LamettaError(f"source must have mean and var [K, d] of one shape, got {got}")
    return {name: given[name].to(like) for name in ("mean", "var")}


def moments_of_classes(out: Output) -> tuple[Tensor, Tensor, Tensor]:
    """Of each predicted class its samples [K], mean, and sum of squared deviations [K, d].

    A class without samples has zeros.

    Examples
    --------
    >>> features, logits = torch.tensor([[1.0], [3.0]]), torch.tensor([[9.0, 0.0], [9.0, 0.0]])
    >>> count, mean, square = moments_of_classes(Output(features, logits))
    >>> count, mean.flatten(), square.flatten()
    (tensor([2., 0.]), tensor([2., 0.]), tensor([2., 0.]))
    """
    f, labels = out.features.detach(), out.logits.argmax(1)
    member = functional.one_hot(labels, out.logits.shape[1]).to(f)  # [N, K]
    count = member.sum(0)
    mean = member.T @ f / count.clamp(min=1)[:, None]
    return count, mean, member.T @ (f - mean[labels]) ** 2
