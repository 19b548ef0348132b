"""Orders of whole domains: mixed, gradually shifting, coming back."""

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from lametta.stream._checks import check_flag, check_integer, is_number
from lametta.stream._draws import Floats, Index, permutation, uniform
from lametta.stream._groups import GroupOrder, check_grouping, needed, numbered, places, turns
from lametta.types import LamettaError


@dataclass(frozen=True)
class mixed:  # noqa: N801 - read as a value: order=mixed()
    """The samples of all groups shuffled together.

    Parameters
    ----------
    shuffle_inside : bool
        Shuffle each group too, which is `iid`; otherwise the samples of a group keep their order
        while other groups come between them.

    Examples
    --------
    >>> from lametta.stream import Scenario
    >>> Scenario(mixed(shuffle_inside=False))([0] * 6, [0, 0, 0, 1, 1, 1]).index
    array([3, 0, 1, 2, 4, 5])
    """

    _: KW_ONLY
    shuffle_inside: bool = True

    def __post_init__(self) -> None:
        check_flag("shuffle_inside", self.shuffle_inside)

    def __call__(self, labels: Index, groups: Any, rng: np.random.Generator, /) -> Index:
        codes, _ = numbered(needed("mixed", groups))
        times = permutation(rng, len(codes)).astype(np.float64)
        return _arrivals(times, codes, turns(codes, self.shuffle_inside, rng))


@dataclass(frozen=True)
class gradual:  # noqa: N801
    """One group after another, each fading into the next.

    Each group has one unit of time, in which its samples arrive evenly. Every arrival is then moved
    by a random time of up to ``overlap / 2`` either way, so that around the end of a unit the next
    group replaces the last one linearly.

    Parameters
    ----------
    overlap : float
        How long a change takes, from 0, abrupt, to 1, always under way.
    shuffle_inside, sequence
        As in `by_group`.

    Examples
    --------
    >>> from lametta.stream import Scenario
    >>> weather = np.repeat(["sun", "rain"], 6)
    >>> weather[Scenario(gradual(1, sequence="given"))([0] * 12, weather).index]
    array(['sun', 'sun', 'sun', 'sun', 'sun', 'rain', 'rain', 'sun', 'rain',
           'rain', 'rain', 'rain'], dtype='<U4')
    """

    overlap: float = 0.5
    _: KW_ONLY
    shuffle_inside: bool = True
    sequence: GroupOrder = "random"

    def __post_init__(self) -> None:
        if not is_number(self.overlap) or not 0 <= self.overlap <= 1:
            raise LamettaError(f"overlap must be a number from 0 to 1, got {self.overlap!r}")
        check_grouping(self.shuffle_inside, self.sequence)

    def __call__(self, labels: Index, groups: Any, rng: np.random.Generator, /) -> Index:
        codes, names = numbered(needed("gradual", groups))
        place = places(codes, names, self.sequence, rng)
        moved = self.overlap * (uniform(rng, len(codes)) - 0.5)
        times = place[codes] + uniform(rng, len(codes)) + moved
        return _arrivals(times, codes, turns(codes, self.shuffle_inside, rng))


@dataclass(frozen=True)
class recurring:  # noqa: N801
    """One group after another, and again from the first: each visit shows a part not seen yet.

    A group is cut into as many parts as there are rounds, equal but for one sample. A group of
    fewer samples than rounds is absent from some.

    Parameters
    ----------
    rounds : int
        How often each group is visited.
    shuffle_inside, sequence
        As in `by_group`; the sequence is the same in each round.

    Examples
    --------
    >>> from lametta.stream import Scenario
    >>> weather = np.repeat(["sun", "rain"], 4)
    >>> weather[Scenario(recurring(2, sequence="given"))([0] * 8, weather).index]
    array(['sun', 'sun', 'rain', 'rain', 'sun', 'sun', 'rain', 'rain'],
          dtype='<U4')
    """

    rounds: int = 2
    _: KW_ONLY
    shuffle_inside: bool = True
    sequence: GroupOrder = "random"

    def __post_init__(self) -> None:
        check_integer("rounds", self.rounds, 1)
        check_grouping(self.shuffle_inside, self.sequence)

    def __call__(self, labels: Index, groups: Any, rng: np.random.Generator, /) -> Index:
        codes, names = numbered(needed("recurring", groups))
        place = places(codes, names, self.sequence, rng)
        turn = turns(codes, self.shuffle_inside, rng)
        visit = turn * self.rounds // np.bincount(codes)[codes]
        return np.lexsort((turn, place[codes], visit))


def _arrivals(times: Floats, codes: Index, turn: Index) -> Index:
    """Positions by time, where the sample whose turn is t takes the t-th time of its group."""
    taken = np.empty_like(times)
    taken[np.lexsort((turn, codes))] = times[np.lexsort((times, codes))]
    return np.argsort(taken, kind="stable")
