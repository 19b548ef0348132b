"""Orders of domains, one a group: mixed, gradual, recurring, severities up and down."""

from dataclasses import KW_ONLY, dataclass

import numpy as np

from lametta._checks import check_flag, check_number
from lametta.stream._draws import Floats, Groups, Index, Rng, permutation, uniform
from lametta.stream._groups import (
    GroupOrder,
    check_count,
    check_grouping,
    factorize,
    group_ranks,
    needed_groups,
    rank_in_group,
)
from lametta.types import LamettaError


@dataclass(frozen=True)
class mixed:  # noqa: N801 - read as a value: order=mixed()
    """The samples of all groups shuffled together.

    Parameters
    ----------
    shuffle_inside : bool
        Shuffle the samples of each group too, which gives `iid`. Otherwise the samples of a group
        keep their order, with samples of other groups between them.

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

    def __call__(self, labels: Index, groups: Groups | None, rng: Rng, /) -> Index:
        codes, _ = factorize(needed_groups("mixed", groups))
        times = permutation(rng, len(codes)).astype(np.float64)
        return _arrivals(times, codes, rank_in_group(codes, self.shuffle_inside, rng))


@dataclass(frozen=True)
class gradual:  # noqa: N801
    """One group after another, each fading into the next.

    Each group has one unit of time, in which its samples arrive at random. Every arrival is then
    moved back or forth by a random time of up to ``overlap / 2``. So around the end of a unit the
    share of the next group rises linearly from 0 to 1.

    Parameters
    ----------
    overlap : float
        How long a change takes: from 0, where it is abrupt, to 1, where one change follows another.
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
        check_number("overlap", self.overlap, 0, 1)
        check_grouping(self.shuffle_inside, self.sequence)

    def __call__(self, labels: Index, groups: Groups | None, rng: Rng, /) -> Index:
        codes, names = factorize(needed_groups("gradual", groups))
        group_rank = group_ranks(codes, names, self.sequence, rng)
        moved = self.overlap * (uniform(rng, len(codes)) - 0.5)
        times = group_rank[codes] + uniform(rng, len(codes)) + moved
        return _arrivals(times, codes, rank_in_group(codes, self.shuffle_inside, rng))


@dataclass(frozen=True)
class recurring:  # noqa: N801
    """One group after another, in several rounds.

    Each group is cut into as many parts as there are rounds, of equal size but for one sample, and
    each round shows the next part. A group with fewer samples than rounds is absent from some.

    Parameters
    ----------
    rounds : int
        How often each group comes.
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
        check_count("rounds", self.rounds)
        check_grouping(self.shuffle_inside, self.sequence)

    def __call__(self, labels: Index, groups: Groups | None, rng: Rng, /) -> Index:
        codes, names = factorize(needed_groups("recurring", groups))
        group_rank = group_ranks(codes, names, self.sequence, rng)
        rank = rank_in_group(codes, self.shuffle_inside, rng)
        visit = rank * self.rounds // np.bincount(codes)[codes]
        return np.lexsort((rank, group_rank[codes], visit))


@dataclass(frozen=True)
class severity_ramp:  # noqa: N801
    """One corruption after another, from its least severity up to its worst and down again.

    Groups are named ``<corruption>/<severity>``. Of severities 1 to 5 the stream has 1, 2, 3, 4, 5,
    4, 3, 2, 1, the gradual change of Wang et al. (CVPR 2022); all samples of a severity come each
    time, so that all but the worst come twice. Corruptions come in the order of the data set.

    Parameters
    ----------
    shuffle_inside : bool
        Shuffle the samples of a severity, anew each time.

    Examples
    --------
    >>> from lametta.stream import Scenario
    >>> domains = np.array(["fog/1", "fog/2", "fog/3", "snow/1", "snow/2"])
    >>> domains[Scenario(severity_ramp())([0] * 5, domains).index].tolist()
    ['fog/1', 'fog/2', 'fog/3', 'fog/2', 'fog/1', 'snow/1', 'snow/2', 'snow/1']
    """

    _: KW_ONLY
    shuffle_inside: bool = True

    def __post_init__(self) -> None:
        check_flag("shuffle_inside", self.shuffle_inside)

    def __call__(self, labels: Index, groups: Groups | None, rng: Rng, /) -> Index:
        codes, names = factorize(needed_groups("severity_ramp", groups))
        ramps: dict[str, list[tuple[int, int]]] = {}
        for code, name in enumerate(names):
            corruption, _, severity = str(name).rpartition("/")
            if not corruption or not severity.isdecimal():
                raise LamettaError(
                    "groups must be <corruption>/<severity> for the order 'severity_ramp', "
                    f"got {str(name)!r}"
                )
            ramps.setdefault(corruption, []).append((int(severity), code))
        visits = []
        for ramp in ramps.values():
            up = [code for _, code in sorted(ramp)]
            for code in (*up, *up[-2::-1]):
                own = np.flatnonzero(codes == code)
                visits.append(own[permutation(rng, len(own))] if self.shuffle_inside else own)
        return np.concatenate(visits)


def _arrivals(times: Floats, codes: Index, rank: Index) -> Index:
    """Sort samples by time of arrival, after dealing out the times of each group by rank.

    The sample of rank t in its group gets the t-th earliest of the times that its group has.
    """
    taken = np.empty_like(times)
    taken[np.lexsort((rank, codes))] = times[np.lexsort((times, codes))]
    return np.argsort(taken, kind="stable")
