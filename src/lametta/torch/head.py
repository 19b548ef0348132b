"""The head of a network, the part that makes the logits, and the features that go into it."""

import math

import torch
from torch import nn

from lametta.types import LamettaError

# Where torchvision, timm, Hugging Face and most others keep the layer that makes the logits.
_CONVENTIONAL = ("fc", "classifier", "head", "heads", "_fc", "linear", "score")


def find_head(net: nn.Module, head: nn.Module | str | None) -> nn.Module:
    """Find the head of a network, as `lametta.torch.Classifier` describes it."""
    if isinstance(head, nn.Module):
        if all(head is not module for module in net.modules()):
            raise LamettaError(f"head must be a module of net, got {type(head).__name__}")
        return head
    if isinstance(head, str):
        try:
            return net.get_submodule(head)
        except AttributeError:
            raise LamettaError(
                f"head must name a module of net, got {head!r}; {_described(net)}"
            ) from None
    if head is not None:
        raise LamettaError(f"head must be a module or its name, got {type(head).__name__}")
    get_classifier = getattr(net, "get_classifier", None)
    found = [get_classifier()] if callable(get_classifier) else []
    found += [getattr(net, name, None) for name in _CONVENTIONAL]
    for module in found:
        # An identity stands where a network was made without a head.
        if isinstance(module, nn.Module) and not isinstance(module, nn.Identity):
            return module
    if len(layers := _candidates(net)) == 1:
        return next(iter(layers.values()))
    raise LamettaError(
        f"head must be given for {type(net).__name__}, got none and found none; {_described(net)}"
    )


def pooled(head: nn.Module, x: torch.Tensor, logits: torch.Tensor | None = None) -> torch.Tensor:
    """Features [N, d] from what goes into the head, averaged over places unless it flattens them.

    A head may score each of the tokens, and the network return the scores of one, often the last
    that is not padding: if ``logits`` are the scores of one token, the features are that token.

    Examples
    --------
    >>> pooled(nn.Conv2d(8, 10, 1), torch.zeros(2, 8, 7, 7)).shape
    torch.Size([2, 8])
    >>> pooled(nn.Sequential(nn.Flatten(), nn.Linear(32, 10)), torch.zeros(2, 8, 2, 2)).shape
    torch.Size([2, 32])
    """
    if x.ndim <= 2:
        return x.flatten(1)
    linear = next((layer for layer in head.modules() if isinstance(layer, nn.Linear)), None)
    if linear is not None and linear.in_features == math.prod(x.shape[1:]):
        return x.flatten(1)
    if x.ndim == 3:  # tokens [N, T, C]
        return x.mean(1) if logits is None or linear is not head else _returned(linear, x, logits)
    return x.flatten(2).mean(2)


def _returned(head: nn.Linear, tokens: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """The token of each row whose scores are the logits; the mean of tokens if there is none."""
    with torch.no_grad():
        scores = head.forward(tokens)  # past the hooks, which have seen this call
        apart, place = (scores - logits[:, None]).abs().amax(2).min(1)
        fits = apart <= 4 * torch.finfo(logits.dtype).eps * (1 + logits.abs().amax(1))
    found = tokens[torch.arange(len(tokens), device=tokens.device), place]
    return torch.where(fits.all(), found, tokens.mean(1))  # an if would wait for the device


def _candidates(net: nn.Module) -> dict[str, nn.Module]:
    """Linear layers, which could be the head."""
    return {
        name: module
        for name, module in net.named_modules()
        if isinstance(getattr(module, "out_features", None), int)
    }


def _described(net: nn.Module) -> str:
    layers = [
        f"{name} ({type(module).__name__} to {module.out_features})"
        for name, module in _candidates(net).items()
    ]
    return f"layers that could be it: {', '.join(layers[-5:]) or 'none'}"
