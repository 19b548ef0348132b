"""Samples by the group they belong to: numbers for groups, and for samples within a group."""

from typing import Any, TypeAlias

import numpy as np

from lametta.stream._checks import check_flag
from lametta.stream._draws import Index, permutation
from lametta.types import LamettaError

GroupOrder: TypeAlias = str | tuple[str | int, ...]
"""The order of groups: one of `_SEQUENCES`, or their names."""

_SEQUENCES = ("appearance", "random", "given")


def numbered(values: Any) -> tuple[Index, Any]:
    """Numbers [N] for the distinct values, by their first appearance, and those values [G]."""
    _, first, sorted_codes = np.unique(values, return_index=True, return_inverse=True)
    by_appearance = np.argsort(first)
    rank = np.empty_like(by_appearance)
    rank[by_appearance] = np.arange(len(first))
    return rank[sorted_codes], np.asarray(values)[first[by_appearance]]


def members(codes: Index) -> tuple[Index, Index, Index]:
    """The samples [N] group by group, where each group begins in there [G], and its size [G]."""
    sizes = np.bincount(codes)
    return np.argsort(codes, kind="stable"), np.cumsum(sizes) - sizes, sizes


def turns(codes: Index, shuffle: bool, rng: np.random.Generator) -> Index:
    """The place [N] of each sample in its own group, from 0, in the given or a random order."""
    order = permutation(rng, len(codes)) if shuffle else np.arange(len(codes))
    grouped, begin, sizes = members(codes[order])
    turn = np.empty_like(order)
    turn[order[grouped]] = np.arange(len(codes)) - np.repeat(begin, sizes)
    return turn


def places(codes: Index, names: Any, sequence: GroupOrder, rng: np.random.Generator) -> Index:
    """The place [G] of each group in the sequence, from 0."""
    if sequence == "given":
        return np.arange(len(names))
    if sequence == "random":
        return permutation(rng, len(names))
    if sequence == "appearance":
        _, first = np.unique(codes[permutation(rng, len(codes))], return_index=True)
        return np.argsort(np.argsort(first))
    place = {str(name): i for i, name in enumerate(sequence)}
    for name in names:
        if str(name) not in place:
            raise LamettaError(f"sequence must name every group, got none for {str(name)!r}")
    return np.argsort(np.argsort([place[str(name)] for name in names]))


def check_grouping(shuffle_inside: Any, sequence: Any) -> None:
    """Refuse what is no order of samples in a group or no sequence of groups."""
    check_flag("shuffle_inside", shuffle_inside)
    if isinstance(sequence, tuple):
        names = [str(name) for name in sequence]
        if len(set(names)) < len(names):
            raise LamettaError(f"sequence must name each group once, got {sequence!r}")
    elif sequence not in _SEQUENCES:
        raise LamettaError(
            f"sequence must be one of {_SEQUENCES} or a tuple of groups, got {sequence!r}"
        )


def needed(order: str, groups: Any) -> Any:
    """The groups, which this order cannot do without."""
    if groups is None:
        raise LamettaError(f"groups must be given for the order {order!r}, got None")
    return groups
