"""What every reader gives: samples, read when they are asked for, and what is known of them."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from lametta.classmap import ClassMap
from lametta.types import Array, LamettaError


class Samples(Protocol):
    """Inputs by position, read at the moment they are asked for: a list of images or an array."""

    def __len__(self) -> int: ...
    def __getitem__(self, i: int, /) -> Any: ...


class Sample(NamedTuple):
    """One sample: the input, its class and where it comes from (a video, say; None if unknown)."""

    x: Any
    y: int
    group: str | None


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labeled samples in a fixed order.

    Parameters
    ----------
    name : str
        What tables call it.
    samples : sequence
        The inputs, by position: PIL images, or rows of an array.
    labels : array of int [N]
        The class of each sample, an index into ``classes``.
    classes : tuple of str
        The names of the classes.
    keys : tuple of str
        A name for each sample that is the same on every machine: its path below the root.
    groups : array of str [N], optional
        Where each sample comes from: its video, its corruption.
    class_map : ClassMap, optional
        From ImageNet's 1000 classes onto ``classes``, where these are not those.
    skipped : tuple of str
        Keys of what the reader left out, since it is broken or no class map reaches it.

    Examples
    --------
    >>> data = Dataset("tiny", np.zeros((2, 3)), np.array([0, 1]), ("cat", "dog"), ("a", "b"))
    >>> len(data), data[1].y, data[1].group
    (2, 1, None)
    """

    name: str
    samples: Samples
    labels: Array
    classes: tuple[str, ...]
    keys: tuple[str, ...]
    groups: Array = None
    class_map: ClassMap | None = None
    skipped: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        n = len(self.samples)
        for name in ("labels", "keys", "groups"):
            value = getattr(self, name)
            if value is not None and len(value) != n:
                raise LamettaError(f"{name} must have one entry a sample, {n}, got {len(value)}")
        labels = np.asarray(self.labels)
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            raise LamettaError(f"labels must be integers [N], got {labels.dtype} {labels.shape}")
        if n and not 0 <= labels.min() <= labels.max() < len(self.classes):
            raise LamettaError(
                f"labels must lie in 0..{len(self.classes) - 1}, got {labels.min()}..{labels.max()}"
            )

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, i: int, /) -> Sample:
        group = None if self.groups is None else str(self.groups[i])
        return Sample(self.samples[i], int(self.labels[i]), group)

    def __iter__(self) -> Iterator[Sample]:
        return (self[i] for i in range(len(self)))

    def take(self, index: Array, /) -> Self:
        """The samples at these positions, in this order."""
        index = np.asarray(index)
        return type(self)(
            self.name,
            _Taken(self.samples, index),
            np.asarray(self.labels)[index],
            self.classes,
            tuple(self.keys[i] for i in index),
            None if self.groups is None else np.asarray(self.groups)[index],
            self.class_map,
            self.skipped,
        )

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of keys, labels and groups: equal where two machines see the same data set."""
        digest = hashlib.sha256()
        groups = [""] * len(self) if self.groups is None else self.groups
        for key, label, group in zip(self.keys, self.labels, groups, strict=True):
            digest.update(f"{key}\0{int(label)}\0{group}\n".encode())
        return digest.hexdigest()


@dataclass(frozen=True)
class _Taken:
    samples: Samples
    index: Array

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, i: int, /) -> Any:
        return self.samples[int(self.index[i])]
