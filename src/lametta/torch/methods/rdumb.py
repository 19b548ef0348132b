"""RDumb: ETA that begins anew at fixed intervals (Press et al., NeurIPS 2023)."""

from dataclasses import dataclass

from lametta._checks import check_integer
from lametta.torch.adapt import own
from lametta.torch.methods.eta import ETA
from lametta.torch.network import Batch, Network, Outputs


@dataclass(kw_only=True)
class RDumb(ETA):
    """RDumb: ETA that goes back to the source at fixed intervals. Other options as for `ETA`.

    Parameters, optimizer and moving average are those of the source again, whatever the loss says:
    a baseline that cannot collapse for long.

    Parameters
    ----------
    every : int
        After how many batches, those without a step among them.
    model, margin, redundancy, keep_mean, lr, optimizer, momentum, weight_decay, layers, bn_momentum
        As for `ETA`; the paper takes a redundancy of 0.4 on CIFAR-100.

    Examples
    --------
    >>> import torch
    >>> from lametta.torch import Classifier
    >>> from lametta.torch.digits import digits_net
    >>> method = RDumb(Classifier(digits_net()), every=100)
    >>> method.step(torch.rand(8, 1, 8, 8)).probs.shape
    torch.Size([8, 10])
    """

    every: int = 1000
    count: int = own(0)  # batches since the last time

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("every", self.every, 1)

    def adapt(self, batch: Batch, net: Network, /) -> Outputs:
        if self.count == self.every:
            net.restore()
            self.forget()
        self.count += 1
        return super().adapt(batch, net)
