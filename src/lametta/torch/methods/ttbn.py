"""TTBN: moving averages of a stream's statistics, and a share of the source (Su et al., AAAI 2024).

Z. Su et al., "Unraveling batch normalization for realistic test-time adaptation".
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from lametta._checks import check_number
from lametta.torch.adapt import NetworkMethod, own
from lametta.torch.network import Batch, Network
from lametta.torch.norm import Norm, moments, replace


@dataclass(kw_only=True)
class TTBN(NetworkMethod):
    """TTBN: moving averages of the stream's statistics, mixed with the source's layer by layer.

    The averages start from mean 0 and variance 1. With d the divergence of source and stream in a
    layer (the mean of both Kullback-Leibler divergences) and z its score among the layers, clipped
    to [-1, 1], the source's share is w = most (z + 1) / 2: a layer far from the source trusts it
    most. The first of two passes, by a moving average of w, moves the statistics; the second
    answers.

    Parameters
    ----------
    model : Classifier
        The network, whose batch normalizations are replaced.
    momentum : float
        How far the averages move: 1 for batches of 64 and more (ImageNet: of 200), 0.1 for 16,
        0.01 for single samples.
    most : float
        The highest share of the source.
    layers : Selector or str
        Which batch normalizations adapt.

    Examples
    --------
    >>> from lametta.torch import Classifier
    >>> from lametta.torch.digits import digits_net
    >>> TTBN(Classifier(digits_net()), momentum=1.0).step(torch.rand(8, 1, 8, 8)).info["forwards"]
    2
    """

    momentum: float = 0.1
    most: float = 0.5
    bn_momentum: float = field(init=False, repr=False)
    average: Tensor | None = own()  # of the source's shares, one a layer

    needs: ClassVar[frozenset[str]] = frozenset({"batch"})
    passes: ClassVar[tuple[float, float] | None] = (2, 0)

    def __post_init__(self) -> None:
        check_number("momentum", self.momentum, 0, 1)
        check_number("most", self.most, 0, 1)
        self.bn_momentum = self.momentum
        super().__post_init__()

    def prepare(self, net: nn.Module, /) -> None:
        replace(net, StreamNorm.of)

    def adapt(self, batch: Batch, net: Network, /) -> None:
        layers = [m for m in net.model.net.modules() if isinstance(m, StreamNorm)]
        average = torch.zeros(len(layers)) if self.average is None else self.average
        _share(layers, average)
        net(batch)
        far = torch.stack([layer.divergence() for layer in layers])
        score = (far - far.mean()) / far.std(correction=0).clamp(min=1e-12)
        share = self.most * (score.clamp(-1, 1) + 1) / 2
        self.average = 0.9 * average.to(share) + 0.1 * share
        _share(layers, share)


class StreamNorm(Norm):
    """A normalization by moving averages of the stream, and a share of the source (TTBN)."""

    source_mean: Tensor
    source_var: Tensor
    share: Tensor
    moved = False

    @classmethod
    def of(cls, norm: nn.Module, /, **attributes: Any) -> Self:
        made = super().of(norm, **attributes)
        source = {"mean": made.running_mean.clone(), "var": made.running_var.clone()}
        made.reset_running_stats()
        for name, value in source.items():
            made.register_buffer(f"source_{name}", value, persistent=False)
        made.register_buffer("share", made.running_mean.new_zeros(()), persistent=False)
        return made

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.training:
            self.move(*moments(x, correction=1))
            self.moved = True
        if not self.moved:  # a layer that is not to adapt, or has seen one position alone
            return self.source_mean, self.source_var
        w, gap = self.share, self.source_mean - self.running_mean
        var = w * self.source_var + (1 - w) * self.running_var + w * (1 - w) * gap**2
        return self.running_mean + w * gap, var

    def divergence(self) -> Tensor:
        """Mean of both Kullback-Leibler divergences of source and stream, as diagonal Gaussians."""
        source, stream = self.source_var + 1e-5, self.running_var + 1e-5
        gap = (self.source_mean - self.running_mean) ** 2
        return ((source + gap) / stream + (stream + gap) / source - 2).sum() / 4


def _share(layers: list[StreamNorm], shares: Tensor) -> None:
    for layer, share in zip(layers, shares, strict=True):
        layer.share.copy_(share)
