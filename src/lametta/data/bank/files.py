"""Files of features, predictions and labels: read, checked and written."""

import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from lametta._files import renamed
from lametta.classmap import ClassMap
from lametta.data.bank.store import Header, Rows, decode_columns, read_layout
from lametta.data.labels import check_unmasked, match_labels, some_of
from lametta.types import Array, LamettaError

_NAMES = ("features", "logits", "probs", "labels", "groups", "keys")
_RATIO = 1032  # that deflate shrinks bytes by at most


def read_arrays(path: Path, name: str = "path") -> tuple[dict[str, Array], Header]:
    """Read features [N, d] and logits or probs [N, K], and labels, groups and keys [N] if there.

    Whatever else a file holds is not read.

    Parameters
    ----------
    path : Path
        A ``.npz`` file, or a ``.safetensors`` file, of which arrays of two axes are not read yet.
    name : str
        What messages call the path.

    Returns
    -------
    arrays, header
        The arrays of these names, floats in float16 to float64 in the machine's byte order, and
        what the file says of itself.

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
    try:
        arrays, header, found = _load(path, name)
        check_header(header)
    except LamettaError:
        raise
    except Exception as error:  # whatever a broken file makes its reader raise
        raise LamettaError(
            f"{name} must be a readable {path.suffix} file, got {path}: {error}"
        ) from None
    if "features" not in arrays or not arrays.keys() & {"logits", "probs"}:
        have = ", ".join(sorted(found)) or "nothing"
        raise LamettaError(f"{name} must hold features, and logits or probs, got {have} in {path}")
    check_arrays(arrays)
    return arrays, header


def map_arrays(arrays: Mapping[str, Array], header: Header, classes: ClassMap) -> dict[str, Array]:
    """Pool logits or probs onto the targets of a class map, and line labels up with them.

    Parameters
    ----------
    arrays, header
        As `read_arrays` gives them.
    classes : ClassMap
        From the network's classes.

    Examples
    --------
    >>> arrays = {"features": np.eye(2), "probs": np.eye(2, 3), "labels": np.array([0, 1])}
    >>> classes = ClassMap({"dog": [1, 2], "cat": [0]})
    >>> map_arrays(arrays, {"classes": ["cat", "dog"]}, classes)["labels"]
    array([1, 0])
    """
    name = "logits" if "logits" in arrays else "probs"
    pool = classes.pool_logits if name == "logits" else classes.pool_probs
    mapped = dict(arrays) | {name: pool(np.asarray(arrays[name]))}
    if (labels := arrays.get("labels")) is not None:
        mapped["labels"] = map_labels(labels, header, classes, arrays[name].shape[1])
    return mapped


def map_labels(
    labels: NDArray[Any] | None, header: Header, classes: ClassMap, n_outputs: int
) -> NDArray[Any] | None:
    """Labels of a bank as they count in the targets of a class map, or an error that says why not.

    Parameters
    ----------
    labels : array of int [N], optional
        Indices into the ``classes`` of the header; of the targets, where it names no classes.
    header : dict
        What the bank says of itself.
    classes : ClassMap
        From the network's classes.
    n_outputs : int
        How many classes the network has.

    Examples
    --------
    >>> map_labels(np.array([0]), {"classes": ["cat"]}, ClassMap({"dog": [0]}), 2)
    Traceback (most recent call last):
    lametta.types.LamettaError: class_map must have the classes of the labels as targets, got dog
    without cat
    """
    if labels is None:
        return None
    names = header.get("classes")
    n = len(classes if names is None else names)
    if len(labels) and not 0 <= labels.min() <= labels.max() < n:
        raise LamettaError(f"labels must lie in 0..{n - 1}, got {labels.min()}..{labels.max()}")
    if names is None:
        return labels
    targets = match_labels(
        labels, names, classes, n_outputs if header.get("class_map") is None else None
    )
    if (targets < 0).any():
        lost = [names[i] for i in np.unique(labels[targets < 0])]
        raise LamettaError(
            f"class_map must have a target for the class of every label, got none for "
            f"{some_of(lost)} ({(targets < 0).sum()} of {len(labels)} labels)"
        )
    return targets


def check_finite(name: str, x: NDArray[Any]) -> None:
    """Raise unless all numbers of a matrix are finite, and name the first that is not.

    Examples
    --------
    >>> check_finite("logits", np.array([[0, 1], [2, np.nan]]))
    Traceback (most recent call last):
    lametta.types.LamettaError: logits must be finite, got nan in row 1, column 1 (rows and columns
    count from 0)
    """
    finite = np.isfinite(x)
    if not finite.all():
        row, column = np.unravel_index(int(finite.argmin()), x.shape)
        raise LamettaError(
            f"{name} must be finite, got {x[row, column]} in row {row}, column {column} "
            "(rows and columns count from 0)"
        )


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
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    if "groups" in arrays and arrays["groups"].dtype.kind not in "iufb":
        raise LamettaError(
            f"{name} must end in .npz to keep groups of type {arrays['groups'].dtype}, got {path}"
        )
    with renamed(path) as temporary:
        try:
            save_file({name: np.ascontiguousarray(x) for name, x in arrays.items()}, temporary)
        except SafetensorError as error:  # a full disk, say
            raise LamettaError(f"file must be written whole, got {path}: {error}") from None


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
    for key, x in arrays.items():
        check_unmasked(key, x)
    n = len(arrays["features"]) if arrays["features"].ndim else 0
    for key, ndim in (("features", 2), (name, 2), ("labels", 1), ("groups", 1), ("keys", 1)):
        if key not in arrays:
            continue
        shape = arrays[key].shape
        if len(shape) != ndim or shape[0] != n or 0 in shape[1:]:
            want = "[N]" if ndim == 1 else "[N, d]" if key == "features" else "[N, K]"
            raise LamettaError(f"{key} must have shape {want} with N = {n}, got {shape}")
    for key in ("features", name):
        if arrays[key].dtype.kind != "f":
            raise LamettaError(f"{key} must be of a floating dtype, got {arrays[key].dtype}")
    labels = arrays.get("labels")
    if labels is not None and len(labels) and labels.dtype.kind not in "iu":
        raise LamettaError(f"labels must be integers, got {labels.dtype}")


def check_header(header: Header) -> None:
    """Raise ``ValueError`` unless what a header says has the types that its readers rely on."""
    for field in ("classes", "failed"):
        names = header.get(field, [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"{field} must be a list of names, got {names!r:.60}")
    packed = header.get("class_map")
    if packed is not None:
        if not isinstance(packed, dict):
            raise ValueError(f"class_map must be an object, got {packed!r:.60}")
        ClassMap.from_dict(packed)


def _load(path: Path, name: str) -> tuple[dict[str, Array], Header, list[str]]:
    """The arrays that are wanted, the header, and the names of all arrays."""
    if path.suffix == ".safetensors":
        stored, header = read_layout(path, name)
        wanted = {key: x for key, x in stored.items() if key.partition(".")[0] in _NAMES}
        small = {key: x if x.ndim > 1 else np.asarray(x) for key, x in wanted.items()}
        return decode_columns(small), header, list(stored)
    with zipfile.ZipFile(path) as archive:
        found = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        wanted_names = [key for key in _NAMES if key in found]
        if "logits" in wanted_names and "probs" in wanted_names:
            wanted_names.remove("probs")
        arrays = {key: _member(archive, found[key], path) for key in wanted_names}
    return arrays, {}, list(found)


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> NDArray[Any]:
    """Read an array of an archive, unless it claims to be larger than its bytes can be."""
    with archive.open(info) as file:
        read_header = {
            (1, 0): npy.read_array_header_1_0,
            (2, 0): npy.read_array_header_2_0,
        }.get(npy.read_magic(file))
        if read_header is None:
            raise ValueError(f"{info.filename} is of a version that arrays of numbers are not of")
        shape, _, dtype = read_header(file)
    least = math.prod(shape) * dtype.itemsize
    most = min(info.file_size, _RATIO * min(info.compress_size, path.stat().st_size))
    if least > most:
        raise ValueError(f"{info.filename} must have {least} bytes for {dtype} {shape}, got {most}")
    with archive.open(info) as file:
        x: NDArray[Any] = npy.read_array(file, allow_pickle=False)
    wide = x.dtype.kind == "f" and x.dtype.itemsize > 8
    return x.astype(np.float64 if wide else x.dtype.newbyteorder("="), copy=False)
