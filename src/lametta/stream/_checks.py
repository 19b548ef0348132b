"""What an argument has to be, said where it comes in."""

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

from lametta.stream._draws import Index
from lametta.types import Array, LamettaError


def check_integer(name: str, value: Any, least: int) -> None:
    """Refuse all but integers from ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise LamettaError(f"{name} must be an integer >= {least}, got {value!r}")


def check_flag(name: str, value: Any) -> None:
    """Refuse all but True and False: the text "false" would count as true."""
    if not isinstance(value, bool):
        raise LamettaError(f"{name} must be True or False, got {value!r}")


def is_number(value: Any) -> bool:
    """Whether this is a finite real number."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def checked_labels(labels: Array) -> Index:
    """Labels as an array [N]."""
    array = np.asarray(labels)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
        raise LamettaError(
            f"labels must be integers [N], N >= 1, got {array.dtype} of shape {array.shape}"
        )
    return array.astype(np.int64)


def checked_groups(groups: Array, n: int) -> Any:
    """Groups as an array [N] of text or integers."""
    array = np.asarray(groups)
    if array.dtype.kind not in "iuU" and all(isinstance(group, str) for group in array.flat):
        array = array.astype(str)
    if array.dtype.kind not in "iuU" or array.shape != (n,):
        raise LamettaError(
            f"groups must be text or integers, one a label, [{n}], "
            f"got {array.dtype} of shape {array.shape}"
        )
    return array


def checked_keys(keys: Sequence[str], n: int) -> Sequence[str]:
    """Keys, one a label."""
    if len(keys) != n:
        raise LamettaError(f"keys must have one entry a label, {n}, got {len(keys)}")
    for key in keys:
        if not isinstance(key, str):
            raise LamettaError(f"keys must be text, got {key!r}")
    return keys
