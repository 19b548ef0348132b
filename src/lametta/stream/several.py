"""Orders of several streams: interleaved cameras, episodes one after another.

Each stream has an id of its own, and no batch holds samples of two.
"""

from dataclasses import KW_ONLY, dataclass, field, is_dataclass
from typing import TypeAlias

import numpy as np

from lametta._checks import check_integer
from lametta.stream._draws import Groups, Index, Rng, below, permutation, uniform, weighted
from lametta.stream._groups import check_count, factorize, group_index, needed_groups, rank_in_group
from lametta.stream.order import Grouped, Order, recorded
from lametta.types import LamettaError

_Episodes: TypeAlias = list[tuple[str, Index]]
"""The id of each stream and its positions, one stream after another."""


@dataclass(frozen=True)
class interleaved:  # noqa: N801 - read as a value: order=interleaved()
    """Several cameras side by side: their batches take turns, and no batch mixes them.

    Parameters
    ----------
    sources : int, optional
        How many cameras there are. The groups are dealt to them at random, or single samples where
        there are no groups. By default each group is a camera, and its name the stream id.
    inside : order
        The order of the samples of each camera.

    Examples
    --------
    >>> from lametta.stream import Scenario
    >>> cameras = ["left", "right", "left", "right", "left"]
    >>> stream = Scenario(interleaved(), batch_size=2)([0, 0, 1, 1, 0], cameras)
    >>> for name, batch in zip(stream.ids, stream):
    ...     print(name, batch)
    left [0 2]
    right [1 3]
    left [4]
    """

    sources: int | None = None  # how many cameras; fingerprints of streams hash this name
    _: KW_ONLY
    inside: Order = field(default_factory=recorded)

    def __post_init__(self) -> None:
        if self.sources is not None:
            check_integer("sources", self.sources, 1)
        is_order = callable(self.inside) and is_dataclass(self.inside)
        if not is_order or isinstance(self.inside, interleaved | type):
            raise LamettaError(f"inside must be an order of one stream, got {self.inside!r}")

    def __call__(self, labels: Index, groups: Groups | None, rng: Rng, /) -> dict[str, Index]:
        codes, names = self._cameras(len(labels), groups, rng)
        grouped, begin, _ = group_index(codes)
        streams = {}
        for name, own in zip(names, np.split(grouped, begin[1:]), strict=True):
            inside = self.inside(labels[own], None if groups is None else groups[own], rng)
            if not isinstance(inside, np.ndarray):
                raise LamettaError(f"inside must be an order of one stream, got {self.inside!r}")
            streams[str(name)] = own[inside]
        return streams

    def _cameras(self, n: int, groups: Groups | None, rng: Rng) -> tuple[Index, Groups]:
        """The camera of each sample, as a number [N], and the names of the cameras."""
        if self.sources is None:
            return factorize(needed_groups("interleaved", groups))
        units, names = factorize(np.arange(n) if groups is None else groups)
        if self.sources > len(names):
            what = "samples" if groups is None else "groups"
            raise LamettaError(f"sources must be <= {len(names)} {what}, got {self.sources}")
        dealt = permutation(rng, len(names)) % self.sources
        return dealt[units], np.arange(self.sources)


@dataclass(frozen=True)
class alone(Grouped):  # noqa: N801
    """A video at a time: each group is a stream of its own, one after another.

    Its samples are those of `by_group` in the same order. But no batch holds samples of two groups,
    the group's name is the stream id, and a method begins each group anew.

    Parameters
    ----------
    shuffle_inside, sequence
        As in `by_group`.

    Examples
    --------
    >>> from lametta.stream import Scenario
    >>> stream = Scenario(alone(sequence="given"), batch_size=2)([0] * 5, ["a", "b", "a", "b", "a"])
    >>> [(name, batch.tolist()) for name, batch in zip(stream.ids, stream)]
    [('a', [0, 2]), ('a', [4]), ('b', [1, 3])]
    """

    def __call__(self, labels: Index, groups: Groups | None, rng: Rng, /) -> _Episodes:
        groups = needed_groups("alone", groups)
        arrival = self.in_groups("alone", groups, rng)
        ends = np.flatnonzero(groups[arrival[1:]] != groups[arrival[:-1]]) + 1
        return [(str(groups[part[0]]), part) for part in np.split(arrival, ends)]


@dataclass(frozen=True)
class tracks:  # noqa: N801
    """Pseudo-tracks: samples of one class, as if they were one object, each track a stream.

    The samples of each class are dealt at random to tracks of equal length; the last track of a
    class may be shorter. The tracks come in random order.

    Parameters
    ----------
    length : int
        The samples of a track.

    Examples
    --------
    >>> from lametta.stream import Scenario
    >>> labels = np.repeat([3, 4], [4, 2])
    >>> stream = Scenario(tracks(length=2))(labels)
    >>> [(name, labels[batch].tolist()) for name, batch in zip(stream.ids, stream)]
    [('0', [3, 3]), ('1', [4, 4]), ('2', [3, 3])]
    """

    length: int = 5

    def __post_init__(self) -> None:
        check_count("length", self.length)

    def __call__(self, labels: Index, groups: Groups | None, rng: Rng, /) -> _Episodes:
        codes, names = factorize(labels)
        rank = rank_in_group(codes, True, rng)
        track, found = factorize((rank // self.length) * len(names) + codes)
        track_rank = permutation(rng, len(found))[track]
        _, begin, _ = group_index(track_rank)
        parts = np.split(np.lexsort((rank, track_rank)), begin[1:])
        return [(str(i), part) for i, part in enumerate(parts)]


@dataclass(frozen=True)
class few_classes:  # noqa: N801
    """Batches of few effective classes, each a task of its own.

    A task draws a random number of classes, and a batch from the samples that these have left, as
    in the batch protocol of StatA (Zanella et al. 2025). Classes are drawn in proportion to the
    samples that they have left. Every sample comes once, so that a task is smaller where its
    classes run out of samples, and has fewer classes where fewer are left.

    Parameters
    ----------
    least, most : int
        The fewest and the most classes of a task; every number in that range is equally likely.
    size : int
        The samples of a task. The batch size of the scenario should be no less, so that a method
        sees a task at once.

    Examples
    --------
    >>> from lametta.stream import Scenario
    >>> labels = np.arange(24) % 6
    >>> stream = Scenario(few_classes(1, 2, size=6))(labels)
    >>> [sorted(set(labels[batch].tolist())) for batch in stream]
    [[2, 5], [1, 3], [1, 2], [0, 4], [5], [4], [3]]
    """

    least: int = 1
    most: int = 4
    _: KW_ONLY
    size: int = 64

    def __post_init__(self) -> None:
        check_integer("least", self.least, 1)
        check_count("most", self.most)
        if self.most < self.least:
            raise LamettaError(f"most must be >= least, {self.least}, got {self.most}")
        check_count("size", self.size)

    def __call__(self, labels: Index, groups: Groups | None, rng: Rng, /) -> _Episodes:
        codes, _ = factorize(labels)
        order = np.lexsort((permutation(rng, len(labels)), codes))
        left = np.bincount(codes)
        queues = [own.tolist() for own in np.split(order, np.cumsum(left)[:-1])]
        tasks: _Episodes = []
        while left.any():
            chosen = self._classes(left.copy(), rng)
            own, positions = left[chosen], []
            for draw in uniform(rng, min(self.size, int(own.sum()))):
                which = weighted(draw, own)
                own[which] -= 1
                positions.append(queues[chosen[which]].pop())
            left[chosen] = own
            tasks.append((str(len(tasks)), np.array(positions, np.int64)))
        return tasks

    def _classes(self, left: Index, rng: Rng) -> list[int]:
        """Draw the classes of a task in proportion to the samples that they have left."""
        n = self.least + int(below(rng, np.array([self.most - self.least + 1]))[0])
        chosen = []
        for draw in uniform(rng, min(n, int(np.count_nonzero(left)))):
            chosen.append(weighted(draw, left))
            left[chosen[-1]] = 0
        return chosen
