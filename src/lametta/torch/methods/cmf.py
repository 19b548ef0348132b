"""CMF: ROID with a Kalman filter of its parameters (Lee and Chang, ICLR 2024).

J.-H. Lee, J.-H. Chang, "Continual momentum filtering on parameter space for online test-time
adaptation".
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from lametta._checks import check_number
from lametta.torch.adapt import own
from lametta.torch.methods.roid import ROID
from lametta.torch.network import Network

_PARAMETERS = 38400  # the number of them that `noise` is given for
_LEAST, _MOST = 0.89, 0.9999  # momentum of the filter; above, it keeps to its prediction


@dataclass(kw_only=True)
class CMF(ROID):
    """CMF: as ROID, but return to a filtered mean of source and adapted parameters.

    Parameters
    ----------
    model : Classifier
        The network to adapt, with the ``preprocess`` that augmentations need.
    noise : float
        Variance that each step adds to the filter, for 38,400 adapted parameters; it grows with
        their number.
    alpha : float
        How much of itself the filter keeps, against the source, before it sees the parameters.
    temperature, decay, ensemble, correction, batch_size, seed
        As for `ROID`; ``ensemble`` is how far parameters go to the filter's.
    lr, optimizer, momentum, weight_decay, layers, bn_momentum
        As for `GradientMethod`.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from lametta.torch import Classifier, Preprocess
    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2))
    >>> method = CMF(Classifier(net.eval(), preprocess=Preprocess()), noise=50)
    >>> _ = method.step(torch.randn(8, 3, 8, 8))
    >>> round(method.variance, 4)
    0.0103
    """

    noise: float = 0.005
    alpha: float = 0.99
    hidden: Mapping[str, Tensor] | None = own()
    variance: float = own(0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("noise", self.noise, 0)
        check_number("alpha", self.alpha, 0, 1)

    def home(self, net: Network, /) -> Mapping[str, Tensor]:
        a, source, hidden = self.alpha, net.source, self.hidden or net.source
        noise = self.noise * sum(p.numel() for p in source.values()) / _PARAMETERS
        variance = a**2 * self.variance + noise
        observed = 1 - noise  # the variance of what the filter sees
        b = max(observed / (variance + observed), _LEAST)
        b = 1.0 if b >= _MOST else b
        self.variance = b * variance
        self.hidden = {
            name: b * (a * hidden[name] + (1 - a) * source[name]) + (1 - b) * p.detach()
            for name, p in net.parameters.items()
        }
        return self.hidden
