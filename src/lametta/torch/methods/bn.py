"""Batch normalization by mixed or running statistics, without gradients.

AlphaBN: S. Schneider et al., "Improving robustness against common corruptions by covariate shift
adaptation", NeurIPS 2020, of which EMABN with the mean of all batches is a part of the code;
F. You, J. Li, Z. Zhao, "Test-time batch statistics calibration for covariate shift", 2021.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor, nn

from lametta._checks import check_number
from lametta.torch.adapt import NetworkMethod
from lametta.torch.network import Batch, Network, Outputs
from lametta.torch.norm import MixedNorm, Norm, moments, replace


@dataclass(kw_only=True)
class AlphaBN(NetworkMethod):
    """AlphaBN: normalize by a mix of the source's statistics and the batch's, and remember nothing.

    Mean and variance are (1 - alpha) source + alpha batch, the batch's variance without bias, as
    published. With ``alpha=1`` it is the field's BN-1: layers as in PyTorch's training mode.

    Parameters
    ----------
    model : Classifier
        The network, whose batch normalizations are replaced.
    alpha : float
        The share of the batch: 0 is the source, 1 the batch alone. n / (n + N), for batches of n,
        takes the source for N samples more.
    layers : Selector or str
        Which batch normalizations mix.

    Examples
    --------
    >>> import torch
    >>> from lametta.torch import Classifier
    >>> from lametta.torch.digits import digits_net
    >>> AlphaBN(Classifier(digits_net()), alpha=0.5).step(torch.rand(8, 1, 8, 8)).info["forwards"]
    1
    """

    alpha: float = 0.1
    bn_momentum: float = field(init=False, repr=False)

    stateful: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"batch"})
    passes: ClassVar[tuple[float, float] | None] = (1, 0)

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha, 0, 1)
        self.bn_momentum = self.alpha if self.alpha < 1 else 0.0
        super().__post_init__()

    def prepare(self, net: nn.Module, /) -> None:
        if self.alpha < 1:
            replace(net, MixedNorm.of)

    def adapt(self, batch: Batch, net: Network, /) -> Outputs:
        return batch.outputs


@dataclass(kw_only=True)
class EMABN(NetworkMethod):
    """EMABN: move the running statistics of each layer by the batch, and normalize it by them.

    One pass, unlike `AdaBN`, whose first one normalizes by the batch.

    Parameters
    ----------
    model : Classifier
        The network, whose batch normalizations are replaced.
    momentum : float, optional
        How far they move from the source's to the batch's. None takes the mean over all batches so
        far and nothing of the source, as published.
    layers : Selector or str
        Which batch normalizations adapt.

    Examples
    --------
    >>> import torch
    >>> from lametta.torch import Classifier
    >>> from lametta.torch.digits import digits_net
    >>> EMABN(Classifier(digits_net())).step(torch.rand(8, 1, 8, 8)).info["forwards"]
    1
    """

    momentum: float | None = None
    bn_momentum: float = field(init=False, repr=False)

    needs: ClassVar[frozenset[str]] = frozenset({"batch"})
    passes: ClassVar[tuple[float, float] | None] = (1, 0)

    def __post_init__(self) -> None:
        if self.momentum is not None:
            check_number("momentum", self.momentum, 0, 1)
        self.bn_momentum = 0.0 if self.momentum is None else self.momentum
        super().__post_init__()

    def prepare(self, net: nn.Module, /) -> None:
        replace(net, MeanNorm.of if self.momentum is None else RunningNorm.of)

    def adapt(self, batch: Batch, net: Network, /) -> Outputs:
        return batch.outputs


class RunningNorm(Norm):
    """A normalization by running statistics, which move first."""

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.move(*moments(x, correction=1)) if self.training else super().statistics(x)


class MeanNorm(RunningNorm):
    """A normalization by the mean of the statistics of all batches so far."""

    batches = 0

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.training:
            self.batches += 1
            self.momentum = 1 / self.batches
        return super().statistics(x)
