"""Arithmetic of groups: which group a sample is in, its turn there, and when the group comes.

Groups are numbered by their first appearance; ``codes`` [N] are the numbers of the samples' groups.
"""

from typing import TypeAlias

import numpy as np

from lametta._checks import check_flag, check_integer, check_number
from lametta.stream._draws import Groups, Index, Rng, permutation
from lametta.types import LamettaError

GroupOrder: TypeAlias = str | tuple[str | int, ...]
"""The order of groups: one of `_SEQUENCES`, or all their names."""

_SEQUENCES = ("appearance", "random", "given")


def numbered(values: Groups) -> tuple[Index, Groups]:
    """Number the groups: the codes [N] of the samples, and the value [G] that each code means."""
    _, first, sorted_codes = np.unique(values, return_index=True, return_inverse=True)
    by_appearance = np.argsort(first)
    rank = np.empty_like(by_appearance)
    rank[by_appearance] = np.arange(len(first))
    return rank[sorted_codes], values[first[by_appearance]]


def members(codes: Index) -> tuple[Index, Index, Index]:
    """Sort samples by group: give their positions [N], each group's beginning [G] and size [G]."""
    sizes = np.bincount(codes)
    return np.argsort(codes, kind="stable"), np.cumsum(sizes) - sizes, sizes


def turns(codes: Index, shuffle: bool, rng: Rng) -> Index:
    """Give each sample its turn [N] in its group, counted from 0.

    The turns follow the order of the data set, or a random one if they are to be shuffled.
    """
    order = permutation(rng, len(codes)) if shuffle else np.arange(len(codes))
    grouped, begin, sizes = members(codes[order])
    turn = np.empty_like(order)
    turn[order[grouped]] = np.arange(len(codes)) - np.repeat(begin, sizes)
    return turn


def places(codes: Index, names: Groups, sequence: GroupOrder, rng: Rng) -> Index:
    """Give each group its place [G] in the sequence of groups, counted from 0."""
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
