"""TENT: entropy minimization (Wang et al., ICLR 2021)."""

from torch import Tensor

from lametta.torch.adapt import LossMethod
from lametta.torch.network import Outputs


class TENT(LossMethod):
    """TENT: minimize the entropy of the predictions.

    Parameters
    ----------
    model, lr, optimizer, momentum, weight_decay, layers, bn_momentum, steps, predict_first
        As for `LossMethod`.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from lametta.torch import Classifier
    >>> net = nn.Sequential()
    >>> net.conv, net.bn, net.pool = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1)
    >>> net.flat, net.fc = nn.Flatten(), nn.Linear(4, 2)
    >>> adapter = TENT(Classifier(net.eval()), lr=0.01)
    >>> adapter.step(torch.randn(8, 3, 6, 6)).probs.shape
    torch.Size([8, 2])
    >>> adapter.reset()
    """

    def loss(self, outputs: Outputs, /) -> Tensor:
        return outputs.entropy.mean()
