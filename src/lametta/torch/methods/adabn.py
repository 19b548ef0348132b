"""AdaBN: batch-normalization statistics of the target (Li et al., 2018)."""

from dataclasses import dataclass, field
from typing import ClassVar

from lametta._checks import check_number
from lametta.torch.adapt import BN_MOMENTUM, NetworkMethod
from lametta.torch.network import Batch, Network
from lametta.types import LamettaError


@dataclass(kw_only=True)
class AdaBN(NetworkMethod):
    """AdaBN: move the statistics of batch normalizations towards those of the batch, and no more.

    Parameters
    ----------
    model : Classifier
        The network to adapt.
    momentum : float
        0 keeps the source's statistics, 1 takes those of the batch alone.
    layers : Selector or str
        Which batch normalizations adapt.

    Examples
    --------
    >>> import torch
    >>> from lametta.torch import Classifier
    >>> from lametta.torch.digits import digits_net
    >>> AdaBN(Classifier(digits_net()), momentum=0.1).step(torch.rand(8, 1, 8, 8)).probs.shape
    torch.Size([8, 10])
    """

    momentum: float = BN_MOMENTUM
    bn_momentum: float = field(init=False, repr=False)

    needs: ClassVar[frozenset[str]] = frozenset({"batch"})
    passes: ClassVar[tuple[float, float] | None] = (2, 0)

    def __post_init__(self) -> None:
        check_number("momentum", self.momentum, 0, 1)
        self.bn_momentum = self.momentum
        super().__post_init__()
        if str(self.layers).startswith("conv"):
            raise LamettaError(f"layers must choose normalizations, got {self.layers!r}")

    def adapt(self, batch: Batch, net: Network, /) -> None:
        net(batch)  # in which the running statistics move
