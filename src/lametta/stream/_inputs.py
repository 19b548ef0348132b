"""Checks of the labels, groups and keys that a scenario takes."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lametta.stream._draws import Groups, Index
from lametta.types import Array, LamettaError


def _array(name: str, x: Array) -> npt.NDArray[np.generic]:
    try:
        return np.asarray(x)
    except (RuntimeError, TypeError, ValueError) as error:  # ragged, or out of NumPy's reach
        got = f"{type(x).__name__}: {error}"
        raise LamettaError(f"{name} must be an array [N], got {got}") from None


def checked_labels(labels: Array) -> Index:
    """Return labels as an array [N]."""
    array = _array("labels", labels)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
        raise LamettaError(
            f"labels must be integers [N], N >= 1, got {array.dtype} of shape {array.shape}"
        )
    return array.astype(np.int64)


def checked_groups(groups: Array, n: int) -> Groups:
    """Return groups as an array [N] of text or integers."""
    array = _array("groups", groups)
    if array.dtype.kind not in "iuU" and all(isinstance(group, str) for group in array.flat):
        array = array.astype(str)
    if array.dtype.kind not in "iuU" or array.shape != (n,):
        raise LamettaError(
            f"groups must be text or integers, one a label, [{n}], "
            f"got {array.dtype} of shape {array.shape}"
        )
    return array


def needed_groups(name: str, groups: Groups | None, what: str = "order") -> Groups:
    """Return the groups, or raise since this order or prior needs them."""
    if groups is None:
        raise LamettaError(f"groups must be given for the {what} {name!r}, got None")
    return groups


def checked_keys(keys: Sequence[str], n: int) -> Sequence[str]:
    """Return keys, one for each label."""
    if not isinstance(keys, Sequence | np.ndarray) or len(keys) != n:
        got = len(keys) if isinstance(keys, Sequence | np.ndarray) else repr(keys)
        raise LamettaError(f"keys must have one entry a label, {n}, got {got}")
    for key in keys:
        if not isinstance(key, str):
            raise LamettaError(f"keys must be text, got {key!r}")
    return keys
