"""Predicates that choose which layers of a network adapt, combined with ``&`` and ``|``.

A predicate is asked about each layer that a forward pass calls and that holds parameters of its
own. Halves are those of the pass itself: with n normalization layers in the order of their calls, a
layer belongs to the first half if fewer than n / 2 of them were called before it. (The released
code splits by stage: 24 and 29 of the 53 layers of a ResNet-50, where we have 27 and 26.)
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from lametta._checks import check_choice
from lametta.torch.model import call
from lametta.torch.norm import is_batch_norm

_OTHER_NORMS = (nn.LayerNorm, nn.GroupNorm)
_CONVOLUTIONS = (nn.modules.conv._ConvNd,)


@dataclass(frozen=True)
class Layer:
    """A layer as a predicate sees it.

    Attributes
    ----------
    name : str
        Its dotted name in the network.
    module : torch.nn.Module
        The layer itself.
    is_norm : bool
        Whether it is a batch normalization; in a network without any, a layer or group one.
    place : float
        The share of the network's normalization layers that are called before it.
    """

    name: str
    module: nn.Module
    is_norm: bool
    place: float


@dataclass(frozen=True)
class Selector:
    """A predicate on layers.

    Examples
    --------
    >>> chosen = norm & second_half
    >>> chosen(Layer("bn1", nn.BatchNorm2d(3), is_norm=True, place=0.2))
    False
    """

    test: Callable[[Layer], bool]

    def __call__(self, layer: Layer) -> bool:
        return self.test(layer)

    def __and__(self, other: "Selector") -> "Selector":
        return Selector(partial(_both, self, other))

    def __or__(self, other: "Selector") -> "Selector":
        return Selector(partial(_either, self, other))


# Functions of the module, not closures: an adapter has to pickle.
def _both(one: Selector, other: Selector, layer: Layer) -> bool:
    return one(layer) and other(layer)


def _either(one: Selector, other: Selector, layer: Layer) -> bool:
    return one(layer) or other(layer)


def _is_conv(layer: Layer) -> bool:
    return isinstance(layer.module, _CONVOLUTIONS)


def _is_first(layer: Layer) -> bool:
    return layer.place < 0.5


def _is_second(layer: Layer) -> bool:
    return layer.place >= 0.5


def _is_any(layer: Layer) -> bool:
    return True


norm = Selector(attrgetter("is_norm"))
conv = Selector(_is_conv)
first_half = Selector(_is_first)
second_half = Selector(_is_second)
everything = Selector(_is_any)

NAMES = {
    # In the paper's words, halves and everything are of the normalization layers.
    "first_half": norm & first_half,
    "second_half": norm & second_half,
    "everything": norm,
    "conv_first_half": conv & first_half,
    "conv_second_half": conv & second_half,
    "conv": conv,
}
"""What experiments call layers, and the predicate that each name stands for."""


def as_selector(layers: "Selector | str") -> Selector:
    """Give the predicate that a name of `NAMES` stands for; a predicate as it is.

    Examples
    --------
    >>> as_selector("everything") is norm
    True
    """
    if callable(layers):
        return layers
    check_choice("layers", layers, NAMES)
    return NAMES[layers]


def layers_of(net: nn.Module, x: Any) -> list[Layer]:
    """The layers with parameters, in the order in which a forward pass of ``x`` calls them."""
    names = {module: name for name, module in net.named_modules()}
    order: dict[nn.Module, None] = {}
    hooks = [
        module.register_forward_pre_hook(lambda module, _: order.setdefault(module))
        for module in names
        if any(True for _ in module.parameters(recurse=False))
    ]
    try:
        with torch.no_grad():
            call(net, x)
    finally:
        for hook in hooks:
            hook.remove()
    norms = {module for module in order if is_batch_norm(module)}
    norms = norms or {module for module in order if isinstance(module, _OTHER_NORMS)}
    layers, before = [], 0
    for module in order:
        is_norm = module in norms
        layers.append(Layer(names[module], module, is_norm, before / max(len(norms), 1)))
        before += is_norm
    return layers
