"""Orders of arrival: i.i.d., recorded, by class, by group, Dirichlet; the registry of orders.

An order is a callable ``order(labels, groups, rng)`` that gives positions [N]; or, where several
cameras arrive side by side, a dict with the positions of each; or, where several streams come one
after another, a list of pairs of a name and positions. Labels and groups come in the order of the
data set, which for recordings is that of time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Protocol, TypeAlias

import numpy as np

from lametta._checks import check_flag, check_number
from lametta.registry import GROUPS, FactoryRegistry, summary_of
from lametta.stream._draws import Groups, Index, Rng, below, permutation, uniform
from lametta.stream._groups import (
    GroupOrder,
    check_count,
    check_grouping,
    factorize,
    group_index,
    group_ranks,
    needed_groups,
    rank_in_group,
)
from lametta.types import LamettaError

_MOST_DRAWS = 1000  # of a stream that is drawn again until it fits

Arrival: TypeAlias = Index | Mapping[str, Index] | Sequence[tuple[str, Index]]
"""The positions of one stream, of streams side by side, or of streams one after another."""


class Order(Protocol):
    """A callable from labels [N], groups [N] or None and a generator to an `Arrival`.

    Examples
    --------
    >>> import numpy as np
    >>> iid()(np.array([0, 0, 1, 1]), None, np.random.default_rng(0)).shape
    (4,)
    """

    def __call__(self, labels: Index, groups: Groups | None, rng: Rng, /) -> Arrival: ...


@dataclass(frozen=True)
class iid:  # noqa: N801 - read as a value: order=iid()
    """All samples shuffled.

    Examples
    --------
    >>> from lametta.stream import Scenario
    >>> Scenario(iid())([0, 0, 0, 1, 1, 1]).index
    array([3, 2, 1, 0, 4, 5])
    """

    def __call__(self, labels: Index, groups: Groups | None, rng: Rng, /) -> Index:
        return permutation(rng, len(labels))


@dataclass(frozen=True)
class recorded:  # noqa: N801
    """The order of the data set itself.

    Examples
    --------
    >>> from lametta.stream import Scenario
    >>> Scenario(recorded())([0, 1, 0]).index
    array([0, 1, 2])
    """

    def __call__(self, labels: Index, groups: Groups | None, rng: Rng, /) -> Index:
        return np.arange(len(labels))


@dataclass(frozen=True, kw_only=True)
class Grouped:
    """Base of orders of groups, with the options of `by_group`."""

    shuffle_inside: bool = False
    sequence: GroupOrder = "appearance"

    def __post_init__(self) -> None:
        check_grouping(self.shuffle_inside, self.sequence)

    def in_groups(self, name: str, groups: Groups | None, rng: Rng) -> Index:
        """The positions of all samples, one group after another."""
        codes, names = factorize(needed_groups(name, groups))
        group_rank = group_ranks(codes, names, self.sequence, rng)
        return np.lexsort((rank_in_group(codes, self.shuffle_inside, rng), group_rank[codes]))


@dataclass(frozen=True)
class by_group(Grouped):  # noqa: N801
    """One group after another: videos, corruptions.

    A batch may hold the end of a group and the beginning of the next, unless the scenario has
    ``split_groups``. Files of corrupted images are commonly sorted by class: unless they are
    shuffled, samples then arrive class by class too.

    Parameters
    ----------
    shuffle_inside : bool
        Shuffle the samples of a group, as the released code does; they keep their order otherwise.
    sequence : {"appearance", "random", "given"} or tuple of str
        The order of the groups. ``"appearance"`` is that of their first samples in a shuffled list,
        as in the released code, so that large groups tend to come early; in ``"random"`` every
        order is equally likely; ``"given"`` is that of the data set; a tuple names them in order.

    Examples
    --------
    >>> from lametta.stream import Scenario
    >>> Scenario(by_group(), seed=2)([0, 0, 1, 1], ["a", "b", "a", "b"]).index
    array([1, 3, 0, 2])
    """

    def __call__(self, labels: Index, groups: Groups | None, rng: Rng, /) -> Index:
        return self.in_groups("by_group", groups, rng)


@dataclass(frozen=True)
class by_class(Grouped):  # noqa: N801
    """One class after another: `by_group` with the label as the group, shuffled inside.

    Parameters
    ----------
    shuffle_inside, sequence
        As in `by_group`.

    Examples
    --------
    >>> from lametta.stream import Scenario
    >>> labels = np.array([0, 1, 2, 0, 1, 2])
    >>> labels[Scenario(by_class())(labels).index]
    array([0, 0, 2, 2, 1, 1])
    """

    _: KW_ONLY
    shuffle_inside: bool = True

    def __call__(self, labels: Index, groups: Groups | None, rng: Rng, /) -> Index:
        return self.in_groups("by_class", labels, rng)


@dataclass(frozen=True)
class dirichlet:  # noqa: N801
    """Each class spread unevenly over time slots, by shares of a Dirichlet distribution.

    The slots follow each other. For each class, shares of the slots are drawn from a symmetric
    Dirichlet(gamma), and each of its samples then goes to a slot at random by these shares. (Other
    samplers cut the class exactly at the shares; the two differ by noise alone.) Inside a slot the
    classes come one after another, in random order.

    Parameters
    ----------
    gamma : float
        The smaller, the fewer slots hold a class: near 0 each class has one slot; as gamma grows,
        the stream approaches an i.i.d. one.
    slots : int, optional
        How many; by default as many as there are classes, but at most 100.
    bursts : bool
        Show the classes of a slot one after another; they are mixed otherwise.
    within_groups : bool
        Give each group slots of its own, one group after another in the order of the data set.

    Examples
    --------
    >>> from lametta.stream import Scenario
    >>> labels = np.repeat([0, 1, 2], 4)
    >>> labels[Scenario(dirichlet(0.1))(labels).index]
    array([0, 0, 0, 2, 2, 0, 2, 2, 1, 1, 1, 1])
    """

    gamma: float = 0.1
    slots: int | None = None
    _: KW_ONLY
    bursts: bool = True
    within_groups: bool = False

    def __post_init__(self) -> None:
        check_number("gamma", self.gamma, above=0)
        if self.slots is not None:
            check_count("slots", self.slots)
        check_flag("bursts", self.bursts)
        check_flag("within_groups", self.within_groups)

    def __call__(self, labels: Index, groups: Groups | None, rng: Rng, /) -> Index:
        classes, names = factorize(labels)
        group = np.zeros_like(classes)
        if self.within_groups:
            group, _ = factorize(needed_groups("dirichlet", groups))
        slots = self.slots or min(len(names), 100)
        urn, _ = factorize(group * len(names) + classes)
        slot = group * slots + _polya_slots(urn, slots, self.gamma, rng)
        burst, bursts = factorize(slot * len(names) + classes)
        burst_rank = permutation(rng, len(bursts))[burst] if self.bursts else np.zeros_like(burst)
        return np.lexsort((permutation(rng, len(labels)), burst_rank, slot))


@dataclass(frozen=True)
class balanced_dirichlet:  # noqa: N801
    """Each class spread unevenly over time slots of about equal size, by NOTE's generator.

    As `dirichlet`, but a slot that holds its part of the samples is closed to further classes, and
    all is drawn again until each slot has at least ``least`` samples (Gong et al., NeurIPS 2022).
    Inside a slot the classes come one after another, in random order. Where there are not as many
    samples as the slots need at least, no draw can end this, which is an error; so is a data set
    for which 1000 draws do not.

    Parameters
    ----------
    gamma : float
        As in `dirichlet`.
    slots : int, optional
        How many; by default as many as there are classes.
    least : int
        The fewest samples of a slot.

    Examples
    --------
    >>> from lametta.stream import Scenario
    >>> labels = np.repeat([0, 1, 2], 4)
    >>> labels[Scenario(balanced_dirichlet(0.1, least=3))(labels).index]
    array([2, 2, 2, 2, 0, 0, 0, 0, 1, 1, 1, 1])
    >>> Scenario(balanced_dirichlet(0.1))(labels)
    Traceback (most recent call last):
    lametta.types.LamettaError: labels must have at least 10 samples for each of 3 slots of the
    order 'balanced_dirichlet', got 12 samples
    """

    gamma: float = 0.1
    slots: int | None = None
    _: KW_ONLY
    least: int = 10

    def __post_init__(self) -> None:
        check_number("gamma", self.gamma, above=0)
        if self.slots is not None:
            check_count("slots", self.slots)
        check_count("least", self.least)

    def __call__(self, labels: Index, groups: Groups | None, rng: Rng, /) -> Index:
        classes, names = factorize(labels)
        slots, n = self.slots or len(names), len(labels)
        if n < slots * self.least:
            raise LamettaError(
                f"labels must have at least {self.least} samples for each of {slots} slots of the "
                f"order 'balanced_dirichlet', got {n} samples"
            )
        for _ in range(_MOST_DRAWS):
            slot = self._draw(classes, slots, rng)
            if np.bincount(slot, minlength=slots).min() >= self.least:
                break
        else:
            raise LamettaError(
                f"labels must fill {slots} slots of the order 'balanced_dirichlet' with at least "
                f"{self.least} samples each, got {n} samples, for which {_MOST_DRAWS} draws did not"
            )
        burst, bursts = factorize(slot * len(names) + classes)
        return np.lexsort((permutation(rng, n), permutation(rng, len(bursts))[burst], slot))

    def _draw(self, classes: Index, slots: int, rng: Rng) -> Index:
        """A slot for each sample. Shares of the open slots, renormalized, are Dirichlet too."""
        slot, held = np.empty_like(classes), np.zeros(slots, np.int64)
        grouped, begin, _ = group_index(classes)
        for own in np.split(grouped, begin[1:]):
            still_open = np.flatnonzero(held * slots < len(classes))
            drawn = _polya_slots(np.zeros(len(own), np.int64), len(still_open), self.gamma, rng)
            slot[own] = still_open[drawn]
            held += np.bincount(slot[own], minlength=slots)
        return slot


def _polya_slots(codes: Index, n_slots: int, gamma: float, rng: Rng) -> Index:
    """The slot of each sample, by Polya's urn, one for each class.

    The i-th sample of a class takes a random slot with probability gamma / (gamma + i / n_slots),
    and otherwise the slot of a random earlier one. The distribution is the same as if shares were
    drawn first, without gamma variates, whose logarithms differ between machines.
    """
    grouped, begin, sizes = group_index(codes)
    start = np.repeat(begin, sizes)
    rank = np.arange(len(codes)) - start
    any_slot = below(rng, np.full(len(codes), n_slots))
    fresh = uniform(rng, len(codes)) < gamma / (gamma + rank / n_slots)
    earlier = start + below(rng, np.maximum(rank, 1))
    origin = np.where(fresh, np.arange(len(codes)), earlier)
    while np.any(origin != origin[origin]):
        origin = origin[origin]
    slot = np.empty_like(grouped)
    slot[grouped] = any_slot[origin]
    return slot


_NAMES = (
    *("iid", "recorded", "by_class", "by_group", "dirichlet", "balanced_dirichlet"),
    *("markov", "label_shift", "imbalanced"),
    *("interleaved", "alone", "tracks", "few_classes"),
    *("mixed", "gradual", "recurring", "severity_ramp"),
    *("each_group", "repeated"),
)
ORDERS: FactoryRegistry[Order] = FactoryRegistry(
    "order",
    {name: f"lametta.stream:{name}" for name in _NAMES},
    group=GROUPS["orders"],
    makes=Order,
)
"""The orders by name, for files and for ``lametta list``."""


def orders() -> dict[str, str]:
    """The names of the orders, and what each is.

    Examples
    --------
    >>> orders()["iid"]
    'All samples shuffled.'
    """
    return {name: summary_of(order) for name, order in ORDERS.items()}
