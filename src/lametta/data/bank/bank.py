"""Banks: what a network says of a data set, extracted once and replayed without it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lametta._arrays import log, widen
from lametta._files import PathLike
from lametta.classmap import ClassMap
from lametta.data.bank.files import check_arrays, check_finite, map_labels, read_arrays
from lametta.data.bank.store import Header, Rows
from lametta.data.dataset import check_positions
from lametta.types import LamettaError, Output


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
    _whole: Self | None = field(default=None, repr=False)  # the bank that `mapped` was called on

    def __post_init__(self) -> None:
        arrays = {name: getattr(self, name) for name in ("features", "logits", "labels", "groups")}
        for name, x in arrays.items():
            optional = x is None and name in ("labels", "groups")
            if not optional and not (hasattr(x, "ndim") and hasattr(x, "dtype")):
                raise LamettaError(f"{name} must be an array, got {type(x).__name__}")
        check_arrays({name: x for name, x in arrays.items() if x is not None})
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
        ``keys`` are optional. In place of logits there may be ``probs``, as ``lametta correct``
        writes them, whose logarithms are taken. Features and logits of a ``.safetensors`` file are
        read later, when rows are asked for.
        """
        arrays, header, _ = read_arrays(Path(path))
        if "logits" not in arrays:
            probs = widen(np, np.asarray(arrays["probs"]))
            check_finite("probs", probs)
            if (probs < 0).any():
                raise LamettaError(f"probs must be >= 0, got {probs.min():g} in {path}")
            arrays["logits"] = log(np, probs)
        columns = {name: np.asarray(x) for name, x in arrays.items() if x.ndim == 1}
        return cls(
            arrays["features"],
            arrays["logits"],
            columns.get("labels"),
            columns.get("groups"),
            tuple(columns["keys"].tolist()) if "keys" in columns else (),
            header,
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
        whole = self if self._whole is None else self._whole
        if classes is None:
            return whole
        labels = map_labels(whole.labels, whole.header, classes, whole.logits.shape[1])
        header = whole.header | {"classes": list(classes.names)}
        return replace(whole, labels=labels, header=header, classes=classes, _whole=whole)
