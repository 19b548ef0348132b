"""The paper's rivals, methods that adapt the network itself: TENT, SHOT-IM, PseudoLabel and AdaBN.

Each adds to the loop of `lametta.torch.adapt` what it learns from.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from inspect import unwrap
from typing import ClassVar

import torch

from lametta._checks import check_choice, check_number
from lametta.torch import losses
from lametta.torch.adapt import BN_MOMENTUM, NetworkAdapter
from lametta.types import LamettaError


# Without what PyTorch wraps around its optimizers for its compiler, which takes as long to load as
# all else in PyTorch.
class _Adam(torch.optim.Adam):
    add_param_group = unwrap(torch.optim.Adam.add_param_group)
    zero_grad = unwrap(torch.optim.Adam.zero_grad)
    step = torch.no_grad()(unwrap(torch.optim.Adam.step))


class _SGD(torch.optim.SGD):
    add_param_group = unwrap(torch.optim.SGD.add_param_group)
    zero_grad = unwrap(torch.optim.SGD.zero_grad)
    step = torch.no_grad()(unwrap(torch.optim.SGD.step))


@dataclass(kw_only=True)
class GradientAdapter(NetworkAdapter):
    """A method that takes gradient steps on a loss: derive from it and define ``loss``.

    Parameters
    ----------
    model : Classifier
        The network to adapt.
    lr : float
        Learning rate.
    optimizer : {"adam", "sgd"} or callable
        Adam as in the paper; SGD with Nesterov momentum as in its released code; or a class such
        as ``torch.optim.AdamW``, called with parameters and ``lr``.
    momentum : float, optional
        Adam's beta1, or the momentum of SGD: 0.9 if not given. A callable has its own.
    weight_decay : float, optional
        How strongly parameters are pulled to 0. If not given, none with Adam, as in the paper, and
        1e-4 with SGD, as in its released code. A callable has its own.
    layers, bn_momentum, steps, predict_first
        As for `NetworkAdapter`.

    Examples
    --------
    >>> from lametta.torch import Classifier
    >>> from lametta.torch.digits import digits_net
    >>> class Sure(GradientAdapter):
    ...     def loss(self, logits):
    ...         return -torch.log_softmax(logits, dim=1).max(dim=1).values.mean()
    >>> Sure(model=Classifier(digits_net()), lr=0.001).step(torch.rand(8, 1, 8, 8)).probs.shape
    torch.Size([8, 10])
    """

    lr: float = 1e-3
    optimizer: str | Callable[..., torch.optim.Optimizer] = "adam"
    momentum: float | None = None
    weight_decay: float | None = None

    adapts: ClassVar[str] = "layers"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("lr", self.lr, 0)
        if not callable(self.optimizer):
            check_choice("optimizer", self.optimizer, ("adam", "sgd"))
        for name, value, below in (
            ("momentum", self.momentum, 1),
            ("weight_decay", self.weight_decay, None),
        ):
            if value is None:
                continue
            if callable(self.optimizer):
                raise LamettaError(f"{name} must be bound in a callable optimizer, got {value!r}")
            check_number(name, value, 0, below=below)
        if str(self.layers).startswith("conv") and self.bn_momentum != BN_MOMENTUM:
            raise LamettaError(
                f"bn_momentum is no option of the layers {self.layers!r}, "
                f"which have no statistics, got {self.bn_momentum!r}"
            )

    def make_optimizer(self, parameters: Sequence[torch.Tensor]) -> torch.optim.Optimizer:
        """Make Adam, SGD or the one that was given."""
        if callable(self.optimizer):
            return self.optimizer(parameters, lr=self.lr)
        momentum = 0.9 if self.momentum is None else float(self.momentum)  # Adam takes no int
        decay = self.weight_decay
        if self.optimizer == "adam":
            betas = (momentum, 0.999)
            return _Adam(parameters, lr=self.lr, betas=betas, weight_decay=decay or 0)
        decay = 1e-4 if decay is None else decay
        return _SGD(
            parameters, lr=self.lr, momentum=momentum, nesterov=momentum > 0, weight_decay=decay
        )


@dataclass(kw_only=True)
class tent(GradientAdapter):  # noqa: N801 - read as a verb: tent(model, lr=0.01)
    """TENT: minimize the entropy of the predictions.

    Parameters
    ----------
    model, lr, optimizer, momentum, weight_decay, layers, bn_momentum, steps, predict_first
        As for `GradientAdapter`.

    Examples
    --------
    >>> from torch import nn
    >>> from lametta.torch import Classifier
    >>> net = nn.Sequential()
    >>> net.conv, net.bn, net.pool = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1)
    >>> net.flat, net.fc = nn.Flatten(), nn.Linear(4, 2)
    >>> adapter = tent(Classifier(net.eval()), lr=0.01)
    >>> adapter.step(torch.randn(8, 3, 6, 6)).probs.shape
    torch.Size([8, 2])
    >>> adapter.reset()
    """

    def loss(self, log_probs: torch.Tensor, /) -> torch.Tensor:
        return losses.entropy(log_probs)


@dataclass(kw_only=True)
class shot_im(GradientAdapter):  # noqa: N801
    """SHOT-IM: maximize the mutual information of inputs and predictions. Options as for `tent`.

    Examples
    --------
    >>> from lametta.torch import Classifier
    >>> from lametta.torch.digits import digits_net
    >>> shot_im(Classifier(digits_net()), lr=0.001).step(torch.rand(8, 1, 8, 8)).probs.shape
    torch.Size([8, 10])
    """

    def loss(self, log_probs: torch.Tensor, /) -> torch.Tensor:
        return losses.information_maximization(log_probs)


@dataclass(kw_only=True)
class pseudo_label(GradientAdapter):  # noqa: N801
    """PseudoLabel: learn from predictions above the threshold. Other options as for `tent`.

    Examples
    --------
    >>> from lametta.torch import Classifier
    >>> from lametta.torch.digits import digits_net
    >>> adapter = pseudo_label(Classifier(digits_net()), threshold=0.8)
    >>> adapter.step(torch.rand(8, 1, 8, 8)).probs.shape
    torch.Size([8, 10])
    """

    threshold: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("threshold", self.threshold, 0, below=1)

    def loss(self, log_probs: torch.Tensor, /) -> torch.Tensor | None:
        loss = losses.pseudo_label(log_probs, self.threshold)
        # NaN where no prediction is above it. To look makes the host wait for the device.
        return None if bool(loss.isnan()) else loss


@dataclass(kw_only=True)
class adabn(NetworkAdapter):  # noqa: N801
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
    >>> from lametta.torch import Classifier
    >>> from lametta.torch.digits import digits_net
    >>> adabn(Classifier(digits_net()), momentum=0.1).step(torch.rand(8, 1, 8, 8)).probs.shape
    torch.Size([8, 10])
    """

    momentum: float = BN_MOMENTUM
    bn_momentum: float = field(init=False, repr=False)
    steps: int = field(init=False, default=1, repr=False)
    predict_first: bool = field(init=False, default=False, repr=False)

    def __post_init__(self) -> None:
        check_number("momentum", self.momentum, 0, 1)
        self.bn_momentum = self.momentum
        super().__post_init__()
        if str(self.layers).startswith("conv"):
            raise LamettaError(f"layers must choose normalizations, got {self.layers!r}")
