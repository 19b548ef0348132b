"""Weight files, read without unpickling code, and compared with a network."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from pickle import UnpicklingError
from types import ModuleType

import numpy as np
import torch
from torch import nn

from lametta._checks import import_optional, reading
from lametta.types import LamettaError


def load_weights(net: nn.Module, file: Path | None) -> nn.Module:
    """Load a file into a network, or say how the two differ; without a file nothing changes."""
    if file is not None:
        state = _read_weights(file)
        if difference := state_dict_mismatch(net, state):
            raise LamettaError(
                f"weights must fit {type(net).__name__}, got {str(file)!r}: {difference}"
            )
        net.load_state_dict(state)
    return net


def _read_weights(file: Path) -> dict[str, torch.Tensor]:
    with reading(file, "weights"):
        stored = _load_tensors(file)
    if isinstance(stored, Mapping):
        stored = stored.get("state_dict", stored)
    if not isinstance(stored, Mapping) or not all(
        isinstance(value, torch.Tensor) for value in stored.values()
    ):
        raise LamettaError(f"weights must hold a dict of tensors, got {str(file)!r} without one")
    # What DataParallel puts before each name.
    prefix = "module." if all(key.startswith("module.") for key in stored) else ""
    return {key.removeprefix(prefix): value for key, value in stored.items()}


def _load_tensors(file: Path) -> object:
    """What is in a file; of what `torch.save` wrote, tensors and plain values alone."""
    if file.suffix == ".safetensors":
        return safetensors_module().load_file(file)
    if file.suffix == ".npz":
        with np.load(file, allow_pickle=False) as arrays:
            return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except UnpicklingError as error:  # whose message advises to run the file's code
        raise ValueError(
            "it is no .safetensors or .npz file, and none that torch.load(weights_only=True) reads"
        ) from error


def read_tensors(file: str | PathLike[str]) -> dict[str, torch.Tensor]:
    """The tensors in a .safetensors file, by name."""
    with reading(file, "a .safetensors file"):
        tensors: dict[str, torch.Tensor] = safetensors_module().load_file(file)
    return tensors


def safetensors_module() -> ModuleType:
    """The module that reads and writes safetensors of PyTorch."""
    return import_optional("safetensors.torch", "safetensors", "a .safetensors file")


def state_dict_mismatch(net: nn.Module, state: Mapping[str, torch.Tensor]) -> str:
    """Say how a state dict differs from a network's; an empty text where it fits."""
    wanted = net.state_dict()
    # A count that only training uses; older files have none.
    missing = [k for k in wanted if k not in state and not k.endswith("num_batches_tracked")]
    other = [
        f"{k} {list(state[k].shape)} for {list(wanted[k].shape)}"
        for k in wanted
        if k in state and state[k].shape != wanted[k].shape
    ]
    found = {
        "missing": missing,
        "unexpected": [k for k in state if k not in wanted],
        "of another shape": other,
    }
    return "; ".join(
        f"{len(keys)} {what} ({', '.join(keys[:3])}{', ...' if len(keys) > 3 else ''})"
        for what, keys in found.items()
        if keys
    )
