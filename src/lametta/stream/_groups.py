"""Index arithmetic of groups, and checks of labels, groups and keys.

Groups are numbered by their first appearance; ``codes`` [N] are the numbers of the samples' groups.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from lametta._checks import check_flag, check_integer, check_number
from lametta.stream._draws import Groups, Index, Rng, permutation
from lametta.types import Array, LamettaError

GroupOrder: TypeAlias = str | tuple[str | int, ...]
"""The order of groups: one of `_SEQUENCES`, or all their names."""

_SEQUENCES = ("appearance", "random", "given")


def factorize(values: Groups) -> tuple[Index, Groups]:
    """Codes [N] of the samples' groups, and the value [G] that each code means."""
    _, first, sorted_codes = np.unique(values, return_index=True, return_inverse=True)
    by_appearance = np.argsort(first)
    rank = np.empty_like(by_appearance)
    rank[by_appearance] = np.arange(len(first))
    return rank[sorted_codes], values[first[by_appearance]]


def group_index(codes: Index) -> tuple[Index, Index, Index]:
    """Positions [N] sorted by group, and each group's beginning [G] there and size [G]."""
    sizes = np.bincount(codes)
    return np.argsort(codes, kind="stable"), np.cumsum(sizes) - sizes, sizes


def rank_in_group(codes: Index, shuffle: bool, rng: Rng) -> Index:
    """Rank [N] of each sample in its group, from 0.

    Ranks follow the order of the data set, or a random one if they are to be shuffled.
    """
    order = permutation(rng, len(codes)) if shuffle else np.arange(len(codes))
    grouped, begin, sizes = group_index(codes[order])
    rank = np.empty_like(order)
    rank[order[grouped]] = np.arange(len(codes)) - np.repeat(begin, sizes)
    return rank


def group_ranks(codes: Index, names: Groups, sequence: GroupOrder, rng: Rng) -> Index:
    """Rank [G] of each group in the sequence of groups, from 0."""
    if sequence == "given":
        return np.arange(len(names))
    if sequence == "random":
        return permutation(rng, len(names))
    if sequence == "appearance":
        _, first = np.unique(codes[permutation(rng, len(codes))], return_index=True)
        return np.argsort(np.argsort(first))
    rank = {str(name): i for i, name in enumerate(sequence)}
    for name in names:
        if str(name) not in rank:
            raise LamettaError(f"sequence must name every group, got none for {str(name)!r}")
    return np.argsort(np.argsort([rank[str(name)] for name in names]))


def check_count(name: str, value: object) -> None:
    """Raise unless this is a count whose products with positions fit into 64 bits."""
    check_integer(name, value, 1)
    check_number(name, value, 1, 1e9)


def check_grouping(shuffle_inside: object, sequence: object) -> None:
    """Check the two options that orders of groups have in common."""
    check_flag("shuffle_inside", shuffle_inside)
    if isinstance(sequence, tuple):
        names = [str(name) for name in sequence]
        if len(set(names)) < len(names):
            raise LamettaError(f"sequence must name each group once, got {sequence!r}")
    elif not isinstance(sequence, str) or sequence not in _SEQUENCES:
        raise LamettaError(
            f"sequence must be one of {_SEQUENCES} or a tuple of groups, got {sequence!r}"
        )


def _to_array(name: str, x: Array) -> NDArray[np.generic]:
    try:
        return np.asarray(x)
    except (RuntimeError, TypeError, ValueError) as error:  # ragged, or out of NumPy's reach
        got = f"{type(x).__name__}: {error}"
        raise LamettaError(f"{name} must be an array [N], got {got}") from None


def checked_labels(labels: Array) -> Index:
    """Return labels as an array [N]."""
    array = _to_array("labels", labels)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
        raise LamettaError(
            f"labels must be integers [N], N >= 1, got {array.dtype} of shape {array.shape}"
        )
    return array.astype(np.int64)


def checked_groups(groups: Array, n: int) -> Groups:
    """Return groups as an array [N] of text or integers."""
    array = _to_array("groups", groups)
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
