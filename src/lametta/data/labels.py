"""Labels of one list of classes in terms of another, and what all arrays have to be."""

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
    """Labels that count in some classes, as they count in the targets of a class map.

    Targets of the names of the classes are meant, in whatever order. Where classes or targets have
    numbers for names, there have to be as many of both, and their order is taken to be the same.
    Where the model has ``n_outputs`` classes, and these are as many and not the targets by name,
    labels go the way of the map, to -1 where it has no target.

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
    """Whether names are but the numbers from 0, as classes without names have them."""
    return list(names) == [str(i) for i in range(len(names))]


def check_range(name: str, x: NDArray[np.integer], n: int) -> None:
    """Raise unless all integers lie in 0..n - 1."""
    if len(x) and not 0 <= x.min() <= x.max() < n:
        raise LamettaError(f"{name} must lie in 0..{n - 1}, got {x.min()}..{x.max()}")


def some_of(names: Sequence[str], most: int = 3) -> str:
    """The first few of some names."""
    return ", ".join(names[:most]) + ", ..." * (len(names) > most)


def check_unmasked(name: str, x: object) -> None:
    """Raise where an array has a mask, which what comes after would lose."""
    if isinstance(x, np.ma.MaskedArray):
        n = int(np.ma.getmaskarray(x).sum())
        raise LamettaError(f"{name} must be an array without a mask, got one with {n} masked")
