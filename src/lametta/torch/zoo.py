"""Models by name: a network, and how its images have to be prepared."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from lametta._checks import raise_as
from lametta._files import PathLike
from lametta.networks import find, names
from lametta.registry import import_object
from lametta.torch.preprocess import Preprocess
from lametta.types import LamettaError

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
        The name that was asked for.

    Examples
    --------
    >>> loaded = Loaded(torch.nn.Linear(3, 2).eval(), Preprocess(), "torch:mine:net")
    >>> loaded.preprocess.crop
    224
    """

    net: nn.Module
    preprocess: Preprocess | None
    name: str


def load(
    name: str, *, weights: PathLike | None = None, device: str | torch.device = "cpu"
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
    with raise_as("device must be one that torch can use here", device):
        torch.empty(0, device=device)
    file = None if weights is None else Path(weights)
    if file is not None and not file.is_file():
        raise LamettaError(f"weights must be a file, got {str(file)!r}, which is none")
    network = find(name)
    if network.published and file is None:
        raise LamettaError(f"weights must be given for {name!r}, got None: {network.published}")
    net, preprocess = import_object(network.loader, "loader")(name, file, **network.options)
    return Loaded(net.to(device).eval(), preprocess, name)
