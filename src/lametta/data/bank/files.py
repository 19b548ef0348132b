"""Files of features, predictions and labels: read, checked and written."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lametta._files import renamed
from lametta.data.bank.store import Header, Rows, decode_columns, read_layout
from lametta.types import Array, LamettaError


def read_arrays(path: Path, name: str = "path") -> tuple[dict[str, Array], Header]:
    """Read features [N, d] and logits or probs [N, K], and labels [N] and groups [N] if there.

    Parameters
    ----------
    path : Path
        A ``.npz`` file, or a ``.safetensors`` file, of which arrays of two axes are not read yet.
    name : str
        What messages call the path.

    Returns
    -------
    arrays, header
        Everything the file holds, and what it says of itself.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "bank.npz")
    ...     write_arrays(path, {"features": np.eye(3), "logits": np.zeros((3, 2))})
    ...     arrays, header = read_arrays(path)
    >>> arrays["logits"].shape, header
    ((3, 2), {})
    """
    check_suffix(name, path)
    if not path.is_file():
        raise LamettaError(f"{name} must be a file, got {path}, which does not exist")
    arrays, header = _load(path, name)
    if "features" not in arrays or not arrays.keys() & {"logits", "probs"}:
        have = ", ".join(sorted(arrays)) or "nothing"
        raise LamettaError(f"{name} must hold features, and logits or probs, got {have} in {path}")
    check_arrays(arrays)
    return arrays, header


def write_arrays(path: Path, arrays: Mapping[str, Any], name: str = "path") -> None:
    """Write a ``.npz`` or ``.safetensors`` file that is whole, or not there.

    Parameters
    ----------
    path : Path
        Where; a file that is there is replaced.
    arrays : mapping of str to array
        What it will hold.
    name : str
        What messages call the path.

    Examples
    --------
    >>> write_arrays(Path("bank.csv"), {"features": np.eye(3)})
    Traceback (most recent call last):
    lametta.types.LamettaError: path must end in .npz or .safetensors, got bank.csv
    """
    check_suffix(name, path)
    if path.suffix == ".npz":
        with renamed(path) as temporary, temporary.open("wb") as file:
            np.savez(file, **arrays)
        return
    from safetensors.numpy import save_file

    if "groups" in arrays and arrays["groups"].dtype.kind not in "iufb":
        raise LamettaError(
            f"{name} must end in .npz to keep groups of type {arrays['groups'].dtype}, got {path}"
        )
    with renamed(path) as temporary:
        save_file({name: np.ascontiguousarray(x) for name, x in arrays.items()}, temporary)


def check_suffix(name: str, path: Path) -> None:
    """Raise unless the path is one of a file that can hold arrays.

    Examples
    --------
    >>> check_suffix("path", Path("bank.csv"))
    Traceback (most recent call last):
    lametta.types.LamettaError: path must end in .npz or .safetensors, got bank.csv
    """
    if path.suffix not in (".npz", ".safetensors"):
        raise LamettaError(f"{name} must end in .npz or .safetensors, got {path}")


def check_arrays(arrays: Mapping[str, Rows]) -> None:
    """Raise unless features, logits or probs, labels and groups have shapes and types that fit."""
    name = "logits" if "logits" in arrays else "probs"
    n = len(arrays["features"]) if arrays["features"].ndim else 0
    for key, ndim in (("features", 2), (name, 2), ("labels", 1), ("groups", 1)):
        if key in arrays and (arrays[key].ndim != ndim or len(arrays[key]) != n):
            want = "[N]" if ndim == 1 else "[N, d]" if key == "features" else "[N, K]"
            raise LamettaError(
                f"{key} must have shape {want} with N = {n}, got {arrays[key].shape}"
            )
    for key in ("features", name):
        if arrays[key].dtype.kind != "f":
            raise LamettaError(f"{key} must be of a floating dtype, got {arrays[key].dtype}")
    labels = arrays.get("labels")
    if labels is not None and len(labels) and labels.dtype.kind not in "iu":
        raise LamettaError(f"labels must be integers, got {labels.dtype}")


def _load(path: Path, name: str) -> tuple[dict[str, Array], Header]:
    if path.suffix == ".safetensors":
        stored, header = read_layout(path, name)
        small = {key: x if x.ndim > 1 else np.asarray(x) for key, x in stored.items()}
        return decode_columns(small), header
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}, {}
    except Exception as error:  # whatever a broken file makes its reader raise
        raise LamettaError(f"{name} must be a readable .npz file, got {path}: {error}") from None
