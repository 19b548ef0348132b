"""Predicates that choose which layers of a network adapt, combined with ``&`` and ``|``.

A predicate is asked about each layer that a forward pass calls and that holds parameters of its
own. Halves are those of the pass itself: with n normalization layers in the order of their calls, a
layer belongs to the first half if fewer than n / 2 of them were called before it.

The paper's released code cuts a network between its parts instead: a ResNet after the stem and two
of its four stages, which leaves 24 and 29 of the 53 normalization layers of a ResNet-50 where we
have 27 and 26, and a network of n blocks after block n // 2. What lies outside the blocks, as the
stem of an EfficientNet or the last normalization of a ViT, is in neither half there.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import cast
from weakref import WeakKeyDictionary

import torch
from torch import nn

from lametta._checks import check_callable
from lametta.registry import GROUPS, Registry, import_object, summary_of
from lametta.torch.model import call
from lametta.torch.norm import is_batch_norm

_OTHER_NORMS = (nn.LayerNorm, nn.GroupNorm)


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
    released_half : int, optional
        0 or 1, the half that the released code would put it in; None where that is neither, or
        where the network has none of the parts that the code cuts by.

    Examples
    --------
    >>> from lametta.torch.digits import digits_net
    >>> first = layers_of(digits_net(), torch.rand(2, 1, 8, 8))[0]
    >>> first.is_norm, first.place
    (False, 0.0)
    """

    name: str
    module: nn.Module
    is_norm: bool
    place: float
    released_half: int | None = None


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
    summary: str = field(default="", compare=False, repr=False)

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
    return isinstance(layer.module, nn.modules.conv._ConvNd)


def _is_in_half(half: int, layer: Layer) -> bool:
    return int(layer.place >= 0.5) == half


def _is_in_released_half(half: int, layer: Layer) -> bool:
    return layer.released_half == half


_TOP = re.compile(r"layer4|blocks\.(9|10|11)|norm\.|^norm$")


def _is_below_top(layer: Layer) -> bool:
    return _TOP.search(layer.name) is None


def _is_any(layer: Layer) -> bool:
    return True


norm = Selector(attrgetter("is_norm"), "normalization layers")
conv = Selector(_is_conv, "convolutions")
first_half, second_half = (Selector(partial(_is_in_half, half)) for half in (0, 1))
released_first_half, released_second_half = (
    Selector(partial(_is_in_released_half, half)) for half in (0, 1)
)
below_top = Selector(_is_below_top)
all_layers = Selector(_is_any, "all layers that have parameters")
everything = all_layers  # the name that it had


def _load(target: str, argument: str, name: str) -> Selector:
    """A predicate of another package: a `Selector`, or a function from a `Layer` to a bool."""
    found: object = import_object(target, argument, name)
    check_callable(argument, found, "a predicate on layers")
    if isinstance(found, Selector):
        return found
    return Selector(cast(Callable[[Layer], bool], found), summary_of(found))


def _half(kind: Selector, half: Selector, summary: str) -> Selector:
    return replace(kind & half, summary=summary)


LAYERS: Registry[Selector] = Registry(
    "layers",
    {
        "first_half": _half(norm, first_half, "the first half of the normalization layers"),
        "second_half": _half(norm, second_half, "the second half of the normalization layers"),
        "norms": norm,
        "all": all_layers,
        "conv_first_half": _half(conv, first_half, "the first half of the convolutions"),
        "conv_second_half": _half(conv, second_half, "the second half of the convolutions"),
        "conv": conv,
        "released_first_half": _half(
            norm, released_first_half, "the first half as the paper's released code cuts it"
        ),
        "released_second_half": _half(
            norm, released_second_half, "the second half as the paper's released code cuts it"
        ),
        "lower_norms": _half(
            norm,
            below_top,
            "normalization layers but those of the top, by their names, as SAR and DeYO: in a "
            "ResNet's layer4, in blocks 9 to 11 of a ViT and called norm",
        ),
    },
    group=GROUPS["layers"],
    aliases={"everything": "norms"},  # as the paper has it, and results are stored
    load=_load,
)
"""What experiments call layers, and the predicate that each name stands for."""


def as_selector(layers: "Selector | str") -> Selector:
    """Give the predicate that a name of `LAYERS` stands for; a predicate as it is.

    Examples
    --------
    >>> as_selector("norms") is norm
    True
    """
    return layers if callable(layers) else LAYERS.find(layers)


def layers_of(net: nn.Module, x: object) -> list[Layer]:
    """The layers with parameters, in the order in which a forward pass of ``x`` calls them.

    The order is kept, so that later batches need no pass, unless layers were added or removed.

    Examples
    --------
    >>> from lametta.torch.digits import digits_net
    >>> layers = layers_of(digits_net(), torch.rand(2, 1, 8, 8))
    >>> [layer.place for layer in layers if layer.is_norm][0]
    0.0
    """
    modules = _called(net, x)
    order, called = list(modules), list(modules.values())
    norms = {module for module in called if is_batch_norm(module)}
    norms = norms or {module for module in called if isinstance(module, _OTHER_NORMS)}
    layers, before = [], 0
    for name, module, half in zip(order, called, _released_halves(net, order), strict=True):
        is_norm, place = module in norms, before / max(len(norms), 1)
        layers.append(Layer(name, module, is_norm, place, half))
        before += is_norm
    return layers


# Names, since the modules would keep their network alive.
_orders: WeakKeyDictionary[nn.Module, tuple[set[str], list[str]]] = WeakKeyDictionary()


def _called(net: nn.Module, x: object) -> dict[str, nn.Module]:
    """The modules with parameters of their own that a pass calls, in order."""
    modules = {n: m for n, m in net.named_modules() if any(True for _ in m.parameters(False))}
    known, order = _orders.get(net, (set[str](), list[str]()))
    if known != modules.keys():
        order = _order(net, modules, x)
        _orders[net] = set(modules), order
    return {name: modules[name] for name in order}


def _order(net: nn.Module, modules: dict[str, nn.Module], x: object) -> list[str]:
    """The names of those modules that a pass calls, in the order of their first calls."""
    names = {module: name for name, module in modules.items()}
    order: dict[str, None] = {}
    hooks = [
        module.register_forward_pre_hook(lambda module, _: order.setdefault(names[module]))
        for module in modules.values()
    ]
    try:
        with torch.no_grad():
            call(net, x)
    finally:
        for hook in hooks:
            hook.remove()
    return list(order)


_STAGES = ("layer1", "layer2", "layer3", "layer4")  # of a ResNet, as torchvision calls them
_BLOCKS = ("blocks", "_blocks")  # as timm calls them, and the code that EN-B4 was published with
_LISTS = (nn.Sequential, nn.ModuleList)


def _released_halves(net: nn.Module, layers: Sequence[str]) -> list[int | None]:
    """The half of each layer, given by name in the order of the pass."""
    modules = net.named_modules()
    lists = [(name, m) for name, m in modules if name.rpartition(".")[2] in _BLOCKS]
    if lists:
        blocks = _blocks(*lists[0])
        return [_half_of(layer, blocks, len(blocks) // 2 + 1) for layer in layers]
    if not all(hasattr(net, stage) for stage in _STAGES):
        return [None] * len(layers)
    # The stem of a ResNet is a part as its stages are: three of five come first.
    halves = [_half_of(layer, _STAGES, 2) for layer in layers]
    second = halves.index(1) if 1 in halves else len(halves)
    return [0 if half is None else half for half in halves[:second]] + halves[second:]


def _half_of(layer: str, parts: Sequence[str], n_first: int) -> int | None:
    """0 for a layer inside the first parts, 1 inside the others, None outside of all."""
    inside = (i for i, part in enumerate(parts) if layer.startswith(f"{part}."))
    part = next(inside, None)
    return None if part is None else int(part >= n_first)


def _blocks(name: str, module: nn.Module) -> list[str]:
    """The names of the blocks in a list of them, whether or not they lie in lists themselves."""
    if not isinstance(module, _LISTS):
        return [name]
    inner = module.named_children()
    return [block for i, one in inner for block in _blocks(f"{name}.{i}", one)]
