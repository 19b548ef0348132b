"""Labels translated from one list of classes to another, and what arrays of them must be."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lametta.classmap import ClassMap
from lametta.types import LamettaError


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
    names = class_map.names
    used = [int(i) for i in np.unique(labels)]
    strange = [classes[i] for i in used if classes[i] not in names]
    named = not (is_numbered(names) or is_numbered(classes))
    target_of = np.full(len(classes), -1)
    if named and not strange:
        target_of[used] = [names.index(classes[i]) for i in used]
    elif n_outputs == len(classes):
        if class_map.room > n_outputs:
            raise LamettaError(f"class_map must map {n_outputs} classes, got {class_map.room}")
        target_of = targets_of(class_map, len(classes))
    elif not named and len(classes) == len(names):
        target_of = np.arange(len(classes))
    else:
        raise LamettaError(
            "class_map must have the classes of the labels as targets, "
            f"got {some_of(names)} without {some_of(strange or classes)}"
        )
    targets: NDArray[np.int64] = target_of[np.asarray(labels)]
    return targets


def targets_of(class_map: ClassMap, n: int) -> NDArray[np.int64]:
    """The target of each of a model's n classes; -1 for those without one."""
    target_of = np.full(n, -1)
    for target, members in enumerate(class_map.groups):
        target_of[list(members)] = target
    return target_of


def is_numbered(names: Sequence[str]) -> bool:
    """Whether the names are only the numbers from 0, as those of classes without names are."""
    return list(names) == [str(i) for i in range(len(names))]


def check_range(name: str, x: NDArray[np.integer], n: int) -> None:
    """Raise unless all integers lie in 0..n - 1."""
    if len(x) and not 0 <= x.min() <= x.max() < n:
        raise LamettaError(f"{name} must lie in 0..{n - 1}, got {x.min()}..{x.max()}")


def some_of(names: Sequence[str], most: int = 3) -> str:
    """The first few names, for a message."""
    return ", ".join(names[:most]) + ", ..." * (len(names) > most)


def check_unmasked(name: str, x: object) -> None:
    """Raise if an array has a mask, since the code that follows would ignore it."""
    if isinstance(x, np.ma.MaskedArray):
        n = int(np.ma.getmaskarray(x).sum())
        raise LamettaError(f"{name} must be an array without a mask, got one with {n} masked")
