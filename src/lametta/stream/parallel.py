"""Several cameras at once, each a stream of its own."""

from dataclasses import KW_ONLY, dataclass, field

import numpy as np

from lametta._checks import check_integer
from lametta.stream._draws import Groups, Index, Rng, permutation
from lametta.stream._groups import members, numbered
from lametta.stream._inputs import needed_groups
from lametta.stream.order import Order, recorded
from lametta.types import LamettaError


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
        if not callable(self.inside) or isinstance(self.inside, interleaved | type):
            raise LamettaError(f"inside must be an order of one stream, got {self.inside!r}")

    def __call__(self, labels: Index, groups: Groups | None, rng: Rng, /) -> dict[str, Index]:
        codes, names = self._cameras(len(labels), groups, rng)
        grouped, begin, _ = members(codes)
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
            return numbered(needed_groups("interleaved", groups))
        units, names = numbered(np.arange(n) if groups is None else groups)
        if self.sources > len(names):
            what = "samples" if groups is None else "groups"
            raise LamettaError(f"sources must be <= {len(names)} {what}, got {self.sources}")
        dealt = permutation(rng, len(names)) % self.sources
        return dealt[units], np.arange(self.sources)
