"""Bank: features, logits and labels read from a file, as a `Model`."""

import math
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
from numpy.lib import format as npy
from numpy.typing import ArrayLike, NDArray

from lametta._arrays import log, widen
from lametta._checks import reading
from lametta._files import PathLike, check_regular_file, memory_limit
from lametta.classmap import ClassMap
from lametta.data.bank.safetensors import Header, Rows, decode_columns, read_layout
from lametta.data.dataset import (
    abbreviate,
    check_positions,
    check_range,
    check_unmasked,
    is_unnamed,
    match_labels,
)
from lametta.types import Array, LamettaError, Output, Prototypes

_NAMES = ("features", "logits", "probs", "labels", "groups", "keys", "prototypes", "bias")
_OPTIONAL = ("labels", "groups", "keys", "prototypes")
_UNREAD = ("classes", "stamps", "before", "after", "confidence")  # what lametta itself adds
_NEAR = 0.8  # how alike a name is to one that it was meant to be: "group" to "groups" is 0.91
_RATIO = 1032  # the most that deflate can shrink bytes by
_MAX_CLASSES = 2**26  # bytes that the names of classes may take up


@dataclass(frozen=True, eq=False)
class Bank:
    """The features and logits of a data set, which stand in for the network that gave them.

    A bank is a `Model` whose input is positions in it, so that every method that sees outputs
    alone runs on it as on the network: ``Corrected(bank, LAME()).step(positions)``.

    Parameters
    ----------
    features : array [N, d]
        The inputs of the classifier head. Those of a file are read when rows are asked for, as in
        ``bank.features[:10]``; ``np.asarray`` reads them all.
    logits : array [N, K]
        The class scores, over the network's own classes; read as the features are.
    labels : array of int [N], optional
        The class of each sample.
    groups : array [N], optional
        Where each sample comes from.
    keys : tuple of str
        A name for each sample, where they have any.
    header : dict
        What the file says of itself: ``model``, ``weights_hash``, ``preprocess``, ``dataset``,
        ``fingerprint``, ``classes``, ``failed`` and more for one by `extract`.
    classes : ClassMap, optional
        Pools the logits of what a call gives.
    prototypes : Prototypes, optional
        The weights and biases of the network's linear head, pooled as the logits are.

    Examples
    --------
    >>> from lametta import LAME, Corrected
    >>> bank = Bank(np.array([[1.0, 0], [0, 1], [0, 2]]), np.array([[2.0, 0], [0, 2], [0.1, 0]]))
    >>> Corrected(bank, LAME()).step([1, 2]).probs.argmax(axis=1)
    array([1, 1])
    """

    features: Rows
    logits: Rows
    labels: NDArray[np.integer] | None = None
    groups: NDArray[np.generic] | None = None
    keys: tuple[str, ...] = ()
    header: Header = field(default_factory=dict)
    classes: ClassMap | None = None
    prototypes: Prototypes | None = None
    _unmapped: Self | None = field(default=None, repr=False)  # the bank before `mapped`

    def __post_init__(self) -> None:
        arrays = {"features": self.features, "logits": self.logits}
        optional = {"labels": self.labels, "groups": self.groups}
        arrays |= {name: x for name, x in optional.items() if x is not None}
        for name, x in arrays.items():
            if not (hasattr(x, "ndim") and hasattr(x, "dtype")):
                raise LamettaError(f"{name} must be an array, got {type(x).__name__}")
        check_arrays(arrays)
        n_classes = self.logits.shape[1] if self.classes is None else len(self.classes)
        check_prototypes(self.prototypes, n_classes, self.features.shape[1])
        if not isinstance(self.keys, Sequence):
            raise LamettaError(f"keys must be a sequence of text, got {self.keys!r}")
        if self.keys and len(self.keys) != len(self):
            raise LamettaError(
                f"keys must have one entry a sample, {len(self)}, got {len(self.keys)}"
            )

    @classmethod
    def open(cls, path: PathLike) -> Self:
        """Open a ``.safetensors`` file, as `extract` writes it, or read an ``.npz`` file.

        It has to hold ``features`` [N, d] and ``logits`` [N, K]; ``labels``, ``groups`` and
        ``keys`` are optional, and so are ``prototypes`` [K, d] with a ``bias`` [K]. In place of
        logits there may be ``probs``, as ``lametta correct`` writes them, whose logarithms are
        taken. Features and logits of a ``.safetensors`` file are read later, when rows are asked
        for.
        """
        arrays, header, _ = read_arrays(Path(path))
        if "logits" not in arrays:
            probs = widen(np, np.asarray(arrays["probs"]))
            check_finite("probs", probs)
            if (probs < 0).any():
                raise LamettaError(f"probs must be >= 0, got {probs.min():g} in {path}")
            arrays["logits"] = log(np, probs)
        prototypes = pop_prototypes(arrays)
        columns = {name: np.asarray(x) for name, x in arrays.items() if x.ndim == 1}
        return cls(
            arrays["features"],
            arrays["logits"],
            columns.get("labels"),
            columns.get("groups"),
            tuple(columns["keys"].tolist()) if "keys" in columns else (),
            header,
            prototypes=prototypes,
        )

    def __len__(self) -> int:
        return len(self.features)

    def __call__(self, index: ArrayLike, /) -> Output:
        """Give the features and logits at these positions, in float32 where stored as float16."""
        positions = check_positions("index", index, len(self))
        features, logits = (widen(np, x[positions]) for x in (self.features, self.logits))
        return Output(features, logits if self.classes is None else self.classes(logits))

    @property
    def n_classes(self) -> int:
        """The number of classes that a call gives logits for."""
        return int(self.logits.shape[1]) if self.classes is None else len(self.classes)

    @cached_property
    def class_map(self) -> ClassMap | None:
        """The map from the network's classes onto those of the labels, if they differ."""
        packed = self.header.get("class_map")
        return None if packed is None else ClassMap.from_dict(packed)

    def mapped(self, classes: ClassMap | None) -> Self:
        """The same bank with pooled logits, and labels matched to them by the names of classes.

        Labels of the network's own classes are taken through the map. Names that do not fit are an
        error.

        Parameters
        ----------
        classes : ClassMap or None
            From the network's classes; None gives the bank back as it was before any mapping.

        Examples
        --------
        >>> header = {"classes": ["cat", "dog"]}
        >>> bank = Bank(np.eye(2), np.eye(2, 3), labels=np.array([0, 1]), header=header)
        >>> bank = bank.mapped(ClassMap({"dog": [1, 2], "cat": [0]}))
        >>> bank.labels, bank([0, 1]).logits.argmax(axis=1)
        (array([1, 0]), array([1, 0]))
        """
        unmapped = self if self._unmapped is None else self._unmapped
        if classes is None:
            return unmapped
        labels = map_labels(unmapped.labels, unmapped.header, classes, unmapped.logits.shape[1])
        header = unmapped.header | {"classes": list(classes.names)}
        prototypes = unmapped.prototypes
        return replace(
            unmapped,
            labels=labels,
            header=header,
            classes=classes,
            prototypes=None if prototypes is None else classes.pool_prototypes(prototypes),
            _unmapped=unmapped,
        )


def read_arrays(
    path: Path, name: str = "path", *, bare: bool = False
) -> tuple[dict[str, Array], Header, list[str]]:
    """Read features [N, d] and logits or probs [N, K], and labels, groups and keys [N] if there.

    Gives them by name, the header, and the names of arrays that mean nothing here. One that is
    nearly the name of a missing array is an error: without its ``groups``, videos would be mixed.

    Arrays of two axes in a ``.safetensors`` file are read later, when rows are asked for. Floats
    are float16 to float64 in the machine's byte order. Nothing else is read but the header, or the
    names of the ``classes`` in a ``.npz`` file. Messages call the path ``name``. ``bare`` allows
    features to be missing.
    """
    arrays, header, found = _read_file(path, name)
    if not (bare or "features" in arrays) or not arrays.keys() & {"logits", "probs"}:
        have = ", ".join(sorted(found)) or "nothing"
        raise LamettaError(f"{name} must hold features, and logits or probs, got {have} in {path}")
    check_arrays(arrays)
    return arrays, header, _unused(path, name, found)


def read_prototypes(path: Path, name: str = "path") -> tuple[Prototypes, Header]:
    """Read ``prototypes`` [K, d], ``bias`` [K] and the header from a file, such as a bank.

    The bias and the header may be missing.
    """
    arrays, header, found = _read_file(path, name)
    if (prototypes := pop_prototypes(arrays)) is None:
        have = ", ".join(sorted(found)) or "nothing"
        raise LamettaError(f"{name} must hold prototypes, got {have} in {path}")
    return prototypes, header


def _read_file(path: Path, name: str) -> tuple[dict[str, Array], Header, list[str]]:
    """The arrays that mean something here, the header, and the names of all arrays."""
    if path.suffix not in (".npz", ".safetensors"):
        raise LamettaError(f"{name} must end in .npz or .safetensors, got {path}")
    check_regular_file(name, path)
    with reading(path, f"a {path.suffix} file"):
        arrays, header, found = _load(path)
        check_header(header)
    return arrays, header, found


def _unused(path: Path, name: str, found: Sequence[str]) -> list[str]:
    """The names of arrays that are not read, unless one of them is misspelt."""
    names = dict.fromkeys(key.partition(".")[0] for key in found)  # without the suffix of texts
    unused = [key for key in names if key not in (*_NAMES, *_UNREAD)]
    missing = [key for key in ("features", *_OPTIONAL) if key not in names]
    for key in unused:
        if near := get_close_matches(key.lower()[:100], missing, n=1, cutoff=_NEAR):
            raise LamettaError(
                f"{name} must have arrays with the names {', '.join(_NAMES)}, got {key!r} in "
                f"{path}; did you mean {near[0]!r}?"
            )
    return unused


def map_labels(
    labels: NDArray[np.integer] | None, header: Header, classes: ClassMap, n_outputs: int
) -> NDArray[np.integer] | None:
    """Translate labels of a bank to the targets of a class map, or raise and say why not.

    They are indices into the ``classes`` of the header. If it names none, they are already those of
    the targets, which must not have names then. The network has ``n_outputs`` classes.
    """
    if labels is None:
        return None
    names = header.get("classes")
    if names is None and not is_unnamed(classes.names):
        raise LamettaError(
            "labels must have names of classes beside them, which say what they are in "
            f"{abbreviate(classes.names)}, got none"
        )
    check_range("labels", labels, len(classes if names is None else names))
    if names is None:
        return labels
    n_source = n_outputs if header.get("class_map") is None else None
    targets = match_labels(labels, names, classes, n_source)
    if (targets < 0).any():
        lost = [names[i] for i in np.unique(labels[targets < 0])]
        raise LamettaError(
            f"class_map must have a target for the class of every label, got none for "
            f"{abbreviate(lost)} ({(targets < 0).sum()} of {len(labels)} labels)"
        )
    return targets


def pop_prototypes(arrays: dict[str, Array]) -> Prototypes | None:
    """Take prototypes and their bias out of the arrays of a file, and read them, if there."""
    weight, bias = arrays.pop("prototypes", None), arrays.pop("bias", None)
    if weight is None:
        return None
    return Prototypes(np.asarray(weight), None if bias is None else np.asarray(bias))


def check_prototypes(prototypes: Prototypes | None, n_classes: int, n_features: int) -> None:
    """Raise unless prototypes, if there are any, are of these numbers of classes and features."""
    if prototypes is not None and tuple(prototypes.weight.shape) != (n_classes, n_features):
        raise LamettaError(
            f"prototypes must have shape [K, d] = {[n_classes, n_features]} as the logits and "
            f"features, got {list(prototypes.weight.shape)}"
        )


def check_finite(name: str, x: NDArray[np.generic], rows: NDArray[np.intp] | None = None) -> None:
    """Raise unless all numbers of a matrix are finite, and name the first that is not.

    Its rows are those of a file, or some of them: ``rows`` says which.
    """
    finite = np.isfinite(x)
    if not finite.all():
        row, column = np.unravel_index(int(finite.argmin()), x.shape)
        raise LamettaError(
            f"{name} must be finite, got {x[row, column]} in row "
            f"{row if rows is None else rows[row]}, column {column} (rows and columns count from 0)"
        )


def check_arrays(arrays: Mapping[str, Rows]) -> None:
    """Raise unless features, logits or probs, labels and groups have shapes and types that fit."""
    name = "logits" if "logits" in arrays else "probs"
    for key, x in arrays.items():
        check_unmasked(key, x)
    first = arrays.get("features", arrays[name])
    n = len(first) if first.ndim else 0
    wanted = {"features": "[N, d]", name: "[N, K]", "labels": "[N]", "groups": "[N]", "keys": "[N]"}
    for key in filter(arrays.__contains__, wanted):
        _check_shape(key, arrays[key].shape, wanted[key], n)
    for key in filter(arrays.__contains__, ("features", name)):
        if arrays[key].dtype.kind != "f":
            raise LamettaError(f"{key} must be of a floating dtype, got {arrays[key].dtype}")
    labels = arrays.get("labels")
    if labels is not None and len(labels) and labels.dtype.kind not in "iu":
        raise LamettaError(f"labels must be integers, got {labels.dtype}")


def _check_shape(name: str, shape: tuple[int, ...], wanted: str, n: int) -> None:
    if len(shape) != wanted.count(",") + 1 or shape[0] != n or 0 in shape[1:]:
        raise LamettaError(f"{name} must have shape {wanted} with N = {n}, got {shape}")


def check_header(header: Header) -> None:
    """Raise ``ValueError`` unless what a header says has the types that its readers rely on."""
    for key in ("classes", "failed"):
        names = header.get(key, [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"{key} must be a list of names, got {names!r:.60}")
    packed = header.get("class_map")
    if packed is not None:
        if not isinstance(packed, dict):
            raise ValueError(f"class_map must be an object, got {packed!r:.60}")
        ClassMap.from_dict(packed)


def _load(path: Path) -> tuple[dict[str, Array], Header, list[str]]:
    """The arrays that are wanted, the header, and the names of all arrays."""
    if path.suffix != ".safetensors":
        return _load_npz(path)
    stored, header = read_layout(path)
    wanted = {key: x for key, x in stored.items() if key.partition(".")[0] in _NAMES}
    small = {key: x if x.ndim > 1 else np.asarray(x) for key, x in wanted.items()}
    return decode_columns(small), header, list(stored)


def _load_npz(path: Path) -> tuple[dict[str, Array], Header, list[str]]:
    with zipfile.ZipFile(path) as archive:
        found = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        unwanted = "probs" if "logits" in found else ""
        wanted = {key: found[key] for key in _NAMES if key in found and key != unwanted}
        _check_expanded(wanted.values())
        arrays = {key: _member(archive, info, path) for key, info in wanted.items()}
        names = _class_names(archive, found.get("classes"), path)
    return arrays, {} if names is None else {"classes": names}, list(found)


def _class_names(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo | None, path: Path
) -> list[str] | None:
    """The names in an array of text; None if there is none, or another array is called so."""
    if info is None or info.file_size > _MAX_CLASSES:
        return None
    shape, dtype = _claim(archive, info)
    if dtype.kind != "U" or len(shape) != 1:
        return None
    names: list[str] = _member(archive, info, path).tolist()
    return names


def _check_expanded(members: Iterable[zipfile.ZipInfo]) -> None:
    """Raise if compressed arrays would not fit into memory, before the first of them is read."""
    size = sum(info.file_size for info in members)
    if size > (most := memory_limit()):
        raise ValueError(f"its arrays have {size:.3g} bytes, and there is memory for {most:.3g}")


def _claim(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo
) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
    """The shape and the type that an array of an archive says it has."""
    with archive.open(info) as file:
        read_header = {
            (1, 0): npy.read_array_header_1_0,
            (2, 0): npy.read_array_header_2_0,
        }.get(npy.read_magic(file))
        if read_header is None:
            raise ValueError(f"{info.filename} is of a version that arrays of numbers are not of")
        shape, _, dtype = read_header(file)
    return shape, dtype


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> NDArray[np.generic]:
    """Read an array of an archive, unless it claims to be larger than its bytes can be."""
    shape, dtype = _claim(archive, info)
    least = math.prod(shape) * dtype.itemsize
    most = min(info.file_size, _RATIO * min(info.compress_size, path.stat().st_size))
    if least > most:
        raise ValueError(f"{info.filename} must have {least} bytes for {dtype} {shape}, got {most}")
    with archive.open(info) as file:
        x: NDArray[np.generic] = npy.read_array(file, allow_pickle=False)
    wide = x.dtype.kind == "f" and x.dtype.itemsize > 8
    return x.astype(np.float64 if wide else x.dtype.newbyteorder("="), copy=False)
