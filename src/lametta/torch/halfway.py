"""A network asked as it is, or with its first normalizations half-way to a stream's statistics."""

import math
from collections.abc import Sized
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from lametta.torch.model import Classifier
from lametta.torch.moments import Meter, change, has_statistics, measuring, shift
from lametta.torch.network import Outputs
from lametta.types import LamettaError

SHARE = 0.5  # of the layers, and of the way: .35 to .7 of either gain within 3 points
SKIPPED = 0.1  # of the layers, the first, say nothing of a domain: they follow single images' light
WINDOW = 64  # samples that statistics are of: 32 and 128 gain the same
LEAST = 16  # samples that say something of a domain


class Asked(Protocol):
    """What makes a pass in eval mode: a `lametta.torch.Network`, or a copy of one."""

    model: Classifier

    def __call__(self, x: Any, /, *, train: bool) -> Outputs: ...


@dataclass
class Halfway:
    """The moments of the last samples in the source, and in the network that moves.

    Both hold as many rows as a change of domain takes: 64, and the last batch or 16.

    Attributes
    ----------
    source, moved : tensor [n, 2, C] or None
        The moments, as `lametta.torch.moments` has them, of the layers that move.

    Examples
    --------
    >>> from lametta.torch import Classifier, NetworkMethod
    >>> from lametta.torch.digits import digits_net
    >>> class Always(NetworkMethod):
    ...     def adapt(self, batch, net):
    ...         return Halfway().ask_moved(batch, net)
    >>> Always(Classifier(digits_net())).step(torch.rand(8, 1, 8, 8)).info["forwards"]
    2
    """

    source: Tensor | None = None
    moved: Tensor | None = None
    norms: list[nn.Module] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)  # their channels
    skipped: int = 0  # layers

    def __post_init__(self) -> None:
        for name, held in (("source", self.source), ("moved", self.moved)):
            if held is not None and (held.ndim != 3 or held.shape[1] != 2):
                got = list(held.shape)
                raise LamettaError(f"halfway.{name} must be [n, 2, C] moments, got {got}")

    def ask_source(self, batch: Sized, net: Asked, /) -> Outputs:
        """The source's answer, by a pass in which its moments are measured."""
        with measuring(self.norms or _norms(net), len(batch)) as meter:
            answer = net(batch, train=False)
        self._choose(meter)
        self.source = self._joined(self.source, meter, len(batch))
        return answer

    def ask_moved(self, batch: Sized, net: Asked, /) -> Outputs:
        """The moved network's answer, by statistics of the last 64 samples and of the batch."""
        if not self.norms:  # whose order a pass tells
            with measuring(_norms(net), len(batch)) as meter:
                net(batch, train=False)
            self._choose(meter)
        rest = max(0, WINDOW - len(batch))
        before = self.moved[-rest:] if rest and self.moved is not None else None
        with measuring(self.norms, len(batch), before, SHARE) as meter:
            answer = net(batch, train=False)
        self.moved = self._joined(self.moved, meter, len(batch))
        return answer

    @property
    def is_full(self) -> bool:
        """Whether the moved network has seen as many samples as say something of a domain."""
        return self.moved is not None and len(self.moved) >= LEAST

    def begin(self) -> None:
        """Let the network move from the source again."""
        self.moved = None

    def keep(self, n: int) -> None:
        """Forget all that the source has seen but the last n samples."""
        self.source = self.source[-n:] if n and self.source is not None else None

    def shift(self, n: int) -> Tensor:
        """How far the last n samples are from the source; NaN where there are fewer."""
        held = self._telling(self.source)
        if len(held) < n:
            return held.new_full((), math.nan)
        return shift(held[-n:], self._sizes(held))

    def change(self, n: int, *, moved: bool = False) -> Tensor:
        """How far the last n samples are from the 64 before; NaN where there are fewer."""
        held = self._telling(self.moved if moved else self.source)
        if len(held) < WINDOW + n:
            return held.new_full((), math.nan)
        return change(held[-n - WINDOW : -n], held[-n:], self._sizes(held))

    def _choose(self, meter: Meter) -> None:
        """Take the first half of the layers, in the order of their calls."""
        if self.norms:
            return
        if not (called := meter.seen):
            raise LamettaError(
                "net must have batch normalizations for statistics that move, got none that a pass "
                "calls once"
            )
        self.norms = called[: math.ceil(SHARE * len(called))]
        self.skipped = min(math.ceil(SKIPPED * len(called)), len(self.norms) - 1)
        self.sizes = [len(norm.running_mean) for norm in self.norms]  # type: ignore[arg-type]
        channels = sum(self.sizes)
        for held in (self.source, self.moved):
            if held is not None and held.shape[2] != channels:
                raise LamettaError(
                    f"state must be of a network with {channels} channels in the layers that move, "
                    f"got {held.shape[2]}"
                )

    def _joined(self, held: Tensor | None, meter: Meter, n: int) -> Tensor:
        new = meter.moments(self.norms)
        kept = new if held is None else torch.cat([held.to(new), new])
        # A copy: sums over the same numbers at another alignment may round otherwise.
        return kept[-(WINDOW + max(LEAST, n)) :].clone()

    def _telling(self, held: Tensor | None) -> Tensor:
        """The columns that tell of a domain."""
        return torch.empty(0) if held is None else held[:, :, sum(self.sizes[: self.skipped]) :]

    def _sizes(self, held: Tensor) -> Tensor:
        return torch.tensor(self.sizes[self.skipped :]).to(held.device, non_blocking=True)


def _norms(net: Asked) -> list[nn.Module]:
    return [module for module in net.model.net.modules() if has_statistics(module)]
