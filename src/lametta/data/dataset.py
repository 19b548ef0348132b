"""Dataset: lazily read samples with labels, keys and groups; matching of labels to a class map."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lametta.classmap import ClassMap
from lametta.types import LamettaError

MOST_CLASSES = 10**6
"""The most classes that labels without names may have: each takes an entry in several lists."""


UNKNOWN = "(unknown)"
"""The last class of a data set with samples of classes that the model does not know."""


class UnreadableImageError(LamettaError):
    """A sample that cannot be read. The message names its path and the reason."""


class Samples(Protocol):
    """Inputs by position, read when asked for: a list of images or an array.

    One that is broken raises `UnreadableImageError`. An optional method ``file_versions`` gives a
    text for each sample that changes when its file does, or None.
    """

    def __len__(self) -> int: ...
    def __getitem__(self, i: int, /) -> Any: ...


class Sample(NamedTuple):
    """One sample: the input, its class and where it comes from (a video, say; None if unknown).

    Examples
    --------
    >>> Sample(x=0.5, y=3, group="video 1").y
    3
    """

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
        The class of each sample, an index into ``classes``; all -1 where there are no classes.
    classes : tuple of str
        The names of the classes; empty where samples have no labels.
    keys : tuple of str
        A name for each sample that is the same on every machine: its path below the root.
    groups : array of str [N], optional
        Where each sample comes from: its video, its corruption.
    class_map : ClassMap, optional
        From ImageNet's 1000 classes onto ``classes``, if they differ.
    skipped : tuple of str
        Keys of the samples that the reader left out: broken ones, and those that the class map has
        no class for.
    differs : str
        How its counts differ from the published ones, ``"9 images where 10,000 were published"``;
        empty if they do not, or if none are known.

    Examples
    --------
    >>> data = Dataset("tiny", np.zeros((2, 3)), np.array([0, 1]), ("cat", "dog"), ("a", "b"))
    >>> len(data), data[1].y, data[1].group
    (2, 1, None)
    """

    name: str
    samples: Samples
    labels: NDArray[np.integer]
    classes: tuple[str, ...]
    keys: tuple[str, ...]
    groups: NDArray[np.generic] | None = None
    class_map: ClassMap | None = None
    skipped: tuple[str, ...] = ()
    differs: str = ""

    def __post_init__(self) -> None:
        n = len(self.samples)
        check_unmasked("samples", self.samples)
        for name in ("labels", "keys", "groups"):
            value = getattr(self, name)
            check_unmasked(name, value)
            if value is not None and len(value) != n:
                raise LamettaError(f"{name} must have one entry a sample, {n}, got {len(value)}")
        labels = np.asarray(self.labels)
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            raise LamettaError(f"labels must be integers [N], got {labels.dtype} {labels.shape}")
        if not self.classes and (labels == -1).all():
            return
        check_range("labels", labels, len(self.classes))

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, i: int, /) -> Sample:
        group = None if self.groups is None else str(self.groups[i])
        return Sample(self.samples[i], int(self.labels[i]), group)

    def __iter__(self) -> Iterator[Sample]:
        return (self[i] for i in range(len(self)))

    def take(self, index: ArrayLike, /) -> Self:
        """The samples at these positions, in this order."""
        index = np.asarray(index)
        samples = self.samples
        return replace(
            self,
            samples=samples[index] if isinstance(samples, np.ndarray) else _Subset(samples, index),
            labels=np.asarray(self.labels)[index],
            keys=tuple(self.keys[i] for i in index),
            groups=None if self.groups is None else np.asarray(self.groups)[index],
        )

    def relabeled(self, classes: Mapping[str, Sequence[int]], /) -> Self:
        """The samples of these classes, labeled by the super-classes that they belong to.

        Parameters
        ----------
        classes : mapping of str to sequence of int
            The classes in each super-class, by index. The class map of what is returned leads from
            them to the super-classes.

        Examples
        --------
        >>> data = arrays(np.zeros((4, 2)), [0, 1, 2, 3]).relabeled({"odd": [1, 3], "two": [2]})
        >>> data.classes, data.labels, data.keys
        (('odd', 'two'), array([0, 1, 0]), ('1', '2', '3'))
        """
        if self.class_map is not None:
            raise LamettaError(f"classes must not be given for {self.name}, which has its own")
        class_map = ClassMap(classes, n_source=len(self.classes))
        return self._with_targets(targets_of(class_map, len(self.classes))[self.labels], class_map)

    def mapped(self, class_map: ClassMap, /) -> Self:
        """The samples labeled by the targets of a class map, which becomes theirs.

        If the classes have the names of targets, labels are matched by name. If they are the
        model's own, the map takes them to targets, and samples without a target are left out.

        Parameters
        ----------
        class_map : ClassMap
            From the model's classes onto the targets.

        Examples
        --------
        >>> data = arrays(np.zeros((3, 2)), [0, 1, 1], classes=["cat", "dog"])
        >>> data.mapped(ClassMap({"dog": [0, 1], "cat": [2]})).labels
        array([1, 0, 0])
        """
        if not self.classes:
            return replace(self, class_map=class_map)
        n_source = class_map.n_source if self.class_map is None else None
        targets = match_labels(self.labels, self.classes, class_map, n_source)
        if not (targets >= 0).any():
            raise LamettaError(
                "class_map must have a target for the class of a sample, "
                f"got {abbreviate(class_map.names)} for none of {len(self)}"
            )
        return self._with_targets(targets, class_map)

    def _with_targets(self, targets: NDArray[np.int64], class_map: ClassMap) -> Self:
        kept = np.flatnonzero(targets >= 0)
        return replace(
            self.take(kept), labels=targets[kept], classes=class_map.names, class_map=class_map
        )

    def with_unknown(self, others: "Dataset", /) -> Self:
        """These samples, and then others as those of a last class, `UNKNOWN`.

        Parameters
        ----------
        others : Dataset
            Samples of classes that the model does not know; their labels do not matter.

        Examples
        --------
        >>> data = arrays(np.zeros((2, 3)), [0, 1]).with_unknown(arrays(np.ones((1, 3)), [0]))
        >>> data.classes, data.labels, data.keys
        (('0', '1', '(unknown)'), array([0, 1, 2]), ('0', '1', 'unknown/0'))
        """
        if self.class_map is not None:
            raise LamettaError(f"unknown must not be given for {self.name}, which has a class map")
        if self.groups is not None:
            raise LamettaError(f"unknown must not be given for {self.name}, which has groups")
        n = len(others)
        return replace(
            self,
            samples=_Joined(self.samples, others.samples),
            labels=np.concatenate([self.labels, np.full(n, len(self.classes))]),
            classes=(*self.classes, UNKNOWN),
            keys=(*self.keys, *(f"unknown/{key}" for key in others.keys)),
            skipped=(*self.skipped, *(f"unknown/{key}" for key in others.skipped)),
        )

    @property
    def n_known(self) -> int:
        """How many classes there are without `UNKNOWN`."""
        return len(self.classes) - (UNKNOWN in self.classes)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of keys, labels and groups: equal where two machines see the same data set."""
        digest = hashlib.sha256()
        groups = [""] * len(self) if self.groups is None else self.groups
        for key, label, group in zip(self.keys, self.labels, groups, strict=True):
            digest.update(f"{key}\0{int(label)}\0{group}\n".encode())
        return digest.hexdigest()


@dataclass(frozen=True)
class _Subset:
    samples: Samples
    index: NDArray[np.integer]

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, i: int, /) -> object:
        return self.samples[int(self.index[i])]

    def file_versions(self) -> tuple[str, ...] | None:
        versions = file_versions(self.samples)
        return None if versions is None else tuple(versions[i] for i in self.index)


@dataclass(frozen=True, eq=False)
class _Joined:
    """Samples, and then others."""

    first: Samples
    second: Samples

    def __len__(self) -> int:
        return len(self.first) + len(self.second)

    def __getitem__(self, i: int, /) -> object:
        n = len(self.first)
        return self.first[i] if i < n else self.second[i - n]

    def file_versions(self) -> tuple[str, ...] | None:
        first, second = file_versions(self.first), file_versions(self.second)
        return None if first is None or second is None else (*first, *second)


def file_versions(samples: Samples) -> tuple[str, ...] | None:
    """A text for each sample that changes when its file does; None if that is not known."""
    versions = getattr(samples, "file_versions", None)
    return None if versions is None else versions()


def check_positions(name: str, index: ArrayLike, n: int) -> NDArray[np.intp]:
    """Give positions as an array, or raise unless they are integers [N] from 0 to n - 1."""
    check_unmasked(name, index)
    x = np.asarray(index)
    if x.ndim != 1 or (x.size and x.dtype.kind not in "iu"):
        raise LamettaError(f"{name} must be integers [N], got {x.dtype} of shape {x.shape}")
    check_range(name, x, n)
    return x.astype(np.intp)


def arrays(
    x: Samples,
    y: ArrayLike,
    groups: ArrayLike | None = None,
    *,
    classes: Sequence[str] | None = None,
    class_map: ClassMap | None = None,
    name: str = "arrays",
) -> Dataset:
    """Samples that are in memory already.

    Parameters
    ----------
    x : array [N, ...]
        The inputs.
    y : array of int [N]
        Their classes.
    groups : array of str [N], optional
        Where they come from.
    classes : sequence of str, optional
        Names of the classes; by default their numbers.
    class_map : ClassMap, optional
        From a model's classes onto these.
    name : str
        What tables call it.

    Examples
    --------
    >>> data = arrays(np.zeros((3, 8)), [0, 2, 1])
    >>> data.classes, data.keys
    (('0', '1', '2'), ('0', '1', '2'))
    """
    for argument, value in (("x", x), ("y", y), ("groups", groups)):
        check_unmasked(argument, value)
    labels = np.asarray(y)
    if classes is None:
        most = int(labels.max(initial=-1)) if labels.dtype.kind in "iu" else -1
        if most >= MOST_CLASSES:
            raise LamettaError(f"classes must be given for labels >= {MOST_CLASSES}, got {most}")
        classes = [str(i) for i in range(most + 1)]
    keys = tuple(str(i) for i in range(len(x)))
    named = None if groups is None else np.asarray(groups).astype(str)
    return Dataset(name, x, labels, tuple(classes), keys, named, class_map)


def match_labels(
    labels: NDArray[np.integer],
    classes: Sequence[str],
    class_map: ClassMap,
    n_outputs: int | None = None,
) -> NDArray[np.int64]:
    """Translate labels from indices into ``classes`` to indices of the targets of a class map.

    Classes and targets are matched by name, in any order. If that fails and there are as many
    classes as the model has, ``n_outputs``, they are the model's own: the map takes them to
    targets, or to -1 where it has none. Otherwise, if the names of either are only numbers, there
    have to be as many classes as targets, in the same order.

    Examples
    --------
    >>> match_labels(np.array([0, 1]), ["cat", "dog"], ClassMap({"dog": [0], "cat": [1]}))
    array([1, 0])
    """
    used = [int(i) for i in np.unique(labels)]
    targets: NDArray[np.int64] = _match(used, classes, class_map, n_outputs)[np.asarray(labels)]
    return targets


def _match(
    used: Sequence[int], classes: Sequence[str], class_map: ClassMap, n_outputs: int | None
) -> NDArray[np.int64]:
    """The target of each class, of which those used have one or raise."""
    names = class_map.names
    strange = [classes[i] for i in used if classes[i] not in names]
    named = not (is_unnamed(names) or is_unnamed(classes))
    if named and not strange:
        target_of = np.full(len(classes), -1)
        target_of[used] = [names.index(classes[i]) for i in used]
        return target_of
    if n_outputs == len(classes):
        return targets_of(class_map, n_outputs)
    if not named and len(classes) == len(names):
        return np.arange(len(classes))
    raise LamettaError(
        "class_map must have the classes of the labels as targets, "
        f"got {abbreviate(names)} without {abbreviate(strange or classes)}"
    )


def targets_of(class_map: ClassMap, n: int) -> NDArray[np.int64]:
    """The target of each of a model's n classes; -1 for those without one."""
    if (least := class_map.min_classes) > n:
        raise LamettaError(f"class_map must map {n} classes, got {least}")
    target_of = np.full(n, -1)
    for target, members in enumerate(class_map.groups):
        target_of[list(members)] = target
    return target_of


def is_unnamed(names: Sequence[str]) -> bool:
    """Whether the names are only the numbers from 0, as those of classes without names are."""
    return list(names) == [str(i) for i in range(len(names))]


def check_range(name: str, x: NDArray[np.integer], n: int) -> None:
    """Raise unless all integers lie in 0..n - 1."""
    if len(x) and not 0 <= x.min() <= x.max() < n:
        raise LamettaError(f"{name} must lie in 0..{n - 1}, got {x.min()}..{x.max()}")


def abbreviate(names: Sequence[str], most: int = 3) -> str:
    """The first few names, for a message."""
    return ", ".join(names[:most]) + ", ..." * (len(names) > most)


def check_unmasked(name: str, x: object) -> None:
    """Raise if an array has a mask, since the code that follows would ignore it."""
    if isinstance(x, np.ma.MaskedArray):
        n = int(np.ma.getmaskarray(x).sum())
        raise LamettaError(f"{name} must be an array without a mask, got one with {n} masked")
