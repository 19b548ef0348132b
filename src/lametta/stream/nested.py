"""Orders made of another one: each group by itself, the whole again and again."""

from dataclasses import KW_ONLY, dataclass, field, is_dataclass

import numpy as np

from lametta._checks import check_flag
from lametta.stream._draws import Groups, Index, Rng, generator
from lametta.stream._groups import (
    GroupOrder,
    check_count,
    check_grouping,
    factorize,
    group_index,
    group_ranks,
    needed_groups,
)
from lametta.stream.order import Order, recorded
from lametta.types import LamettaError


@dataclass(frozen=True)
class each_group:  # noqa: N801 - read as a value: order=each_group()
    """One group after another, the samples of each in an order of its own.

    Parameters
    ----------
    inside : order
        The order of the samples of a group.
    sequence : {"given", "appearance", "random"} or tuple of str
        The order of the groups, as in `by_group`; by default that of the data set.
    same : bool
        Draw alike in each group. Where groups hold the same samples in the same order, as
        corruptions of one data set do, these then come in the same order in each: the correlated
        streams of Marsden et al. (WACV 2024).
    fresh : bool
        Make each group a stream of its own, which a method begins anew, as `alone` does.

    Examples
    --------
    >>> from lametta.stream import Scenario, by_class
    >>> labels, weather = np.array([1, 0, 1, 0] * 2), np.repeat(["sun", "rain"], 4)
    >>> Scenario(each_group(by_class(sequence=(0, 1)), same=True))(labels, weather).index
    array([3, 1, 0, 2, 7, 5, 4, 6])
    """

    inside: Order = field(default_factory=recorded)
    _: KW_ONLY
    sequence: GroupOrder = "given"
    same: bool = False
    fresh: bool = False

    def __post_init__(self) -> None:
        _check_inside(self.inside)
        check_grouping(False, self.sequence)
        check_flag("same", self.same)
        check_flag("fresh", self.fresh)

    def __call__(
        self, labels: Index, groups: Groups | None, rng: Rng, /
    ) -> Index | list[tuple[str, Index]]:
        groups = needed_groups("each_group", groups)
        codes, names = factorize(groups)
        sequence = np.argsort(group_ranks(codes, names, self.sequence, rng))
        grouped, begin, _ = group_index(codes)
        members = np.split(grouped, begin[1:])
        seed = int(rng.bit_generator.random_raw()) if self.same else 0
        episodes = []
        for code in sequence:
            own, draws = members[code], generator(seed) if self.same else rng
            arrival = _one_stream(self.inside, labels[own], groups[own], draws)
            episodes.append((str(names[code]), own[arrival]))
        return episodes if self.fresh else np.concatenate([own for _, own in episodes])


@dataclass(frozen=True)
class repeated:  # noqa: N801
    """The stream of another order again and again: each sample comes once a round.

    Twenty rounds of ``dirichlet(0.1, within_groups=True)`` are the recurring stream of PeTTA (Hoang
    et al., NeurIPS 2024).

    Parameters
    ----------
    inside : order
        The order of a round, the same in each.
    rounds : int
        How often it comes.

    Examples
    --------
    >>> from lametta.stream import Scenario, iid
    >>> Scenario(repeated(iid(), rounds=2))([0, 0, 1]).index
    array([2, 1, 0, 2, 1, 0])
    """

    inside: Order = field(default_factory=recorded)
    _: KW_ONLY
    rounds: int = 20

    def __post_init__(self) -> None:
        _check_inside(self.inside)
        check_count("rounds", self.rounds)

    def __call__(self, labels: Index, groups: Groups | None, rng: Rng, /) -> Index:
        return np.tile(_one_stream(self.inside, labels, groups, rng), self.rounds)


def _check_inside(inside: object) -> None:
    if not callable(inside) or not is_dataclass(inside) or isinstance(inside, type):
        raise LamettaError(f"inside must be an order of one stream, got {inside!r}")


def _one_stream(inside: Order, labels: Index, groups: Groups | None, rng: Rng) -> Index:
    arrival = inside(labels, groups, rng)
    if not isinstance(arrival, np.ndarray):
        raise LamettaError(f"inside must be an order of one stream, got {inside!r}")
    return arrival
