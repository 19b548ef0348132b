"""SoTTA: confident samples of all classes, and flat minima of their entropy (Gong et al., 2023).

T. Gong et al., "SoTTA: robust test-time adaptation on noisy data streams", NeurIPS 2023.
"""

from dataclasses import dataclass, field
from random import Random
from typing import ClassVar

from torch import Tensor, nn

from lametta._checks import check_number
from lametta.torch.memory import HUS
from lametta.torch.methods.note import NOTE
from lametta.torch.network import Batch, Network, length


@dataclass(kw_only=True)
class SoTTA(NOTE):
    """SoTTA: learn from a memory of confident samples alone, by a step that noise sways less.

    Answers as `NOTE` does, by running statistics, from before an update. An update lowers the mean
    entropy of the memory where it is highest nearby: with g its gradient, by that at
    theta + ``rho g / |g|``. Both passes move the running statistics. No sample in the memory, no
    update. The host waits for the device once a part, to see who enters the memory.

    Parameters
    ----------
    model : Classifier
        The network to adapt.
    threshold : float
        The lowest confidence of samples to learn from: 0.33 on ImageNet, 0.66 on CIFAR-100, 0.99
        on CIFAR-10.
    rho : float
        How far it climbs.
    capacity, update_every, seed, lr, optimizer, momentum, weight_decay, layers, bn_momentum
        As for `NOTE`.

    Examples
    --------
    >>> import torch
    >>> from lametta.torch import Classifier
    >>> from lametta.torch.digits import digits_net
    >>> method = SoTTA(Classifier(digits_net()), update_every=8, threshold=0)
    >>> method.step(torch.rand(16, 1, 8, 8)).info["backward_samples"]  # of 8, then of 16, twice
    48
    """

    lr: float = 1e-3
    bn_momentum: float = 0.2
    threshold: float = 0.33
    rho: float = 0.05
    k: float | None = field(default=None, init=False, repr=False)
    balanced: bool = field(default=True, init=False, repr=False)
    released: bool = field(default=False, init=False, repr=False)

    passes: ClassVar[tuple[float, float] | None] = (3, 2)  # once the memory is full

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("threshold", self.threshold, 0, 1)
        check_number("rho", self.rho, 0)

    def prepare(self, net: nn.Module, /) -> None:
        """Leave all layers as they are."""

    def make_memory(self) -> HUS:
        return HUS(self.capacity, draws=Random(self.seed), threshold=self.threshold)

    def learn(self, held: Batch, net: Network, /) -> Tensor:
        climb = net.gradients(held.outputs.entropy.mean())
        with net.moved(climb, scale=self.rho / (length(climb) + 1e-12)):
            gradients = net.gradients(loss := net(held).entropy.mean())
        net.apply(gradients)
        return loss.detach()
