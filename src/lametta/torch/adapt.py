"""Methods that adapt the network itself: TENT, SHOT-IM, PseudoLabel and AdaBN.

All are one loop. In the *update pass* the chosen layers learn from the batch: batch normalizations
use the statistics of the batch and move their running statistics towards them, and a loss without
labels takes a gradient step. In the *prediction pass* the network is in eval mode as ever, so its
running statistics decide. `reset` gives the network back bit for bit.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from lametta.signals import signals
from lametta.torch import losses
from lametta.torch.clock import Clock
from lametta.torch.model import Classifier, check_ready
from lametta.torch.norm import batch_statistics, is_batch_norm
from lametta.torch.select import Selector, layers_of, norm
from lametta.types import LamettaError, Output, Prediction
from torch import nn

Loss = Callable[[torch.Tensor], torch.Tensor]
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


# What `tent`, `shot_im` and `pseudo_label` pass on to it.
ADAPTER_OPTIONS = ("layers", "bn_momentum", "steps", "predict_first")


@dataclass
class NetworkAdapter:
    """An adapter that changes the network; made by `tent`, `shot_im`, `pseudo_label`, `adabn`.

    Parameters
    ----------
    model : Classifier
        The network; it is adapted in place, and given back exactly by `reset`.
    loss : callable or None
        From log-probabilities [N, K] to a scalar; None to adapt statistics alone.
    optimizer : callable or None
        From parameters to an optimizer.
    layers : Selector
        Which layers adapt.
    bn_momentum : float
        How far running statistics move towards those of a batch: 0 keeps the source's for
        prediction, 1 takes the batch's.
    steps : int
        Update passes for each batch.
    predict_first : bool
        Predict from the first update pass, before its step, which saves the second forward pass.
    may_skip : bool
        Whether a loss of NaN means that there is nothing to learn from, and no step is to be taken.
        To look at it makes the host wait for the device.
    """

    model: Classifier
    loss: Loss | None = None
    optimizer: MakeOptimizer | None = None
    layers: Selector = norm
    bn_momentum: float = 0.1
    steps: int = 1
    predict_first: bool = False
    may_skip: bool = False
    _started: "_Started | None" = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.bn_momentum <= 1:
            raise LamettaError(f"bn_momentum must lie in [0, 1], got {self.bn_momentum!r}")
        if (self.loss is None) != (self.optimizer is None):
            raise LamettaError("loss and optimizer must be given both or neither, got one")
        if self.steps < 1:
            raise LamettaError(f"steps must be an integer >= 1, got {self.steps!r}")

    def step(self, x: Any, /) -> Prediction:
        """Update the network on this batch, then predict it."""
        with torch.inference_mode(False):  # where autograd cannot be switched on again
            if isinstance(x, torch.Tensor) and x.is_inference():
                x = x.clone()
            return self._step(x)

    def _step(self, x: Any) -> Prediction:
        if self._started is None:
            self._started = _start(self, x)
        started, clock = self._started, Clock(next(self.model.net.parameters()).device)
        if len(x) == 1 and any(map(is_batch_norm, started.modules)):
            raise LamettaError("x must hold 2 samples or more for batch statistics, got 1")
        output, loss = None, None
        if len(x) > 0:
            for _ in range(self.steps):
                first, loss = self._update(x, started, clock)
                output = output or first
        if output is None or not self.predict_first:
            with clock.stage("inference_time"):
                output = self.model(x)
        probs = output.logits.detach().softmax(1)
        info = {**signals(probs), "drift": started.drift(), **clock.info()}
        if loss is not None:
            info["loss"] = loss
        return Prediction(probs, output.features.detach(), info)

    def _update(
        self, x: Any, started: "_Started", clock: Clock
    ) -> tuple[Output, torch.Tensor | None]:
        with started.updating(self.bn_momentum):
            with clock.stage("forward_time"), torch.set_grad_enabled(self.loss is not None):
                output = self.model.forward(x)
            if self.loss is None or started.optimizer is None:
                return output, None
            with clock.stage("optimization_time"), torch.enable_grad():
                loss = self.loss(output.logits.log_softmax(1))
                if self.may_skip and bool(loss.isnan()):
                    return output, None
                loss.backward()  # type: ignore[no-untyped-call]
                started.optimizer.step()
                started.optimizer.zero_grad()
        return output, loss.detach()

    def reset(self) -> None:
        """Give the network back as it was before the first step."""
        if self._started is not None:
            self._started.restore()
            self._started = None


@dataclass
class _Started:
    """What there is from the first step on."""

    net: nn.Module
    modules: list[nn.Module]
    parameters: list[Any]
    optimizer: torch.optim.Optimizer | None

    def __post_init__(self) -> None:
        self.state = copy.deepcopy(self.net.state_dict())
        self.every = list(self.net.parameters())
        self.source = [parameter.detach().clone() for parameter in self.parameters]
        self.length = _length(self.source)

    @contextmanager
    def updating(self, bn_momentum: float) -> Iterator[None]:
        """The chosen layers ready to learn, and everything as it was behind it."""
        chosen = set(self.parameters)
        switched = [p for p in self.every if p.requires_grad != (p in chosen)]
        for parameter in switched:
            parameter.requires_grad_(parameter in chosen)
        try:
            with batch_statistics(self.modules, bn_momentum):
                yield
        finally:
            for parameter in switched:
                parameter.requires_grad_(parameter not in chosen)

    def drift(self) -> torch.Tensor:
        """How far the parameters are from the source's, as a share of their length."""
        with torch.no_grad():
            moved = _length(torch._foreach_sub(self.parameters, self.source))
            return moved / self.length.clamp(min=1e-12)

    def restore(self) -> None:
        self.net.load_state_dict(self.state)
        for parameter in self.parameters:
            parameter.grad = None


def _length(tensors: Any) -> torch.Tensor:
    """Euclidean length of all tensors together, in a handful of kernels."""
    # A network can hold parameters of several dtypes: hstack promotes them, stack does not.
    length: torch.Tensor = torch.linalg.vector_norm(torch.hstack(torch._foreach_norm(tensors)))
    return length


def _start(adapter: NetworkAdapter, x: Any) -> _Started:
    net = adapter.model.net
    check_ready(net, x)
    modules = [layer.module for layer in layers_of(net, x) if adapter.layers(layer)]
    if adapter.loss is None:
        modules = [module for module in modules if is_batch_norm(module)]
    parameters = [p for module in modules for p in module.parameters(recurse=False)]
    if not parameters:
        what = "layers" if adapter.loss is not None else "batch normalization layers"
        raise LamettaError(f"layers must choose {what} of net to adapt, got none")
    return _Started(
        net,
        modules,
        parameters,
        adapter.optimizer(parameters) if adapter.optimizer is not None else None,
    )


def _with_loss(
    model: Classifier,
    loss: Loss,
    lr: float,
    optimizer: "str | Callable[..., torch.optim.Optimizer]",
    momentum: float | None,
    options: dict[str, Any],
) -> NetworkAdapter:
    return NetworkAdapter(model, loss, _optimizer(optimizer, lr, momentum), **options)


def _optimizer(
    optimizer: "str | Callable[..., torch.optim.Optimizer]", lr: float, momentum: float | None
) -> MakeOptimizer:
    if not lr >= 0:
        raise LamettaError(f"lr must be >= 0, got {lr!r}")
    if callable(optimizer):
        if momentum is not None:
            raise LamettaError(f"momentum must be bound in a callable optimizer, got {momentum!r}")
        return partial(optimizer, lr=lr)
    momentum = 0.9 if momentum is None else float(momentum)  # Adam does not take an int
    if not 0 <= momentum < 1:
        raise LamettaError(f"momentum must lie in [0, 1), got {momentum!r}")
    if optimizer == "adam":
        return partial(torch.optim.Adam, lr=lr, betas=(momentum, 0.999))
    if optimizer == "sgd":
        nesterov = momentum > 0
        return partial(
            torch.optim.SGD, lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=1e-4
        )
    raise LamettaError(f"optimizer must be 'adam', 'sgd' or a callable, got {optimizer!r}")


def tent(
    model: Classifier,
    *,
    lr: float = 1e-3,
    optimizer: "str | Callable[..., torch.optim.Optimizer]" = "adam",
    momentum: float | None = None,
    **options: Any,
) -> NetworkAdapter:
    """TENT: minimize the entropy of the predictions.

    Parameters
    ----------
    model : Classifier
        The network to adapt.
    lr : float
        Learning rate.
    optimizer : {"adam", "sgd"} or callable
        Adam as in the paper; SGD with Nesterov momentum and a weight decay of 1e-4 as in its
        released code; or a class such as ``torch.optim.AdamW``, called with parameters and ``lr``.
    momentum : float, optional
        Adam's beta1, or the momentum of SGD: 0.9 if not given. A callable has its own.
    **options
        ``layers``, ``bn_momentum``, ``steps``, ``predict_first`` of `NetworkAdapter`.

    Examples
    --------
    >>> net = nn.Sequential()
    >>> net.conv, net.bn, net.pool = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1)
    >>> net.flat, net.fc = nn.Flatten(), nn.Linear(4, 2)
    >>> adapter = tent(Classifier(net.eval()), lr=0.01)
    >>> adapter.step(torch.randn(8, 3, 6, 6)).probs.shape
    torch.Size([8, 2])
    >>> adapter.reset()
    """
    return _with_loss(model, losses.entropy, lr, optimizer, momentum, options)


def shot_im(
    model: Classifier,
    *,
    lr: float = 1e-3,
    optimizer: "str | Callable[..., torch.optim.Optimizer]" = "adam",
    momentum: float | None = None,
    **options: Any,
) -> NetworkAdapter:
    """SHOT-IM: maximize the mutual information of inputs and predictions. Options as for `tent`."""
    return _with_loss(model, losses.information_maximization, lr, optimizer, momentum, options)


def pseudo_label(
    model: Classifier,
    *,
    threshold: float = 0.9,
    lr: float = 1e-3,
    optimizer: "str | Callable[..., torch.optim.Optimizer]" = "adam",
    momentum: float | None = None,
    **options: Any,
) -> NetworkAdapter:
    """PseudoLabel: learn from predictions above the threshold. Other options as for `tent`."""
    if not 0 <= threshold < 1:
        raise LamettaError(f"threshold must lie in [0, 1), got {threshold!r}")
    loss = partial(losses.pseudo_label, threshold=threshold)
    return _with_loss(model, loss, lr, optimizer, momentum, options | {"may_skip": True})


def adabn(model: Classifier, *, momentum: float = 0.1, layers: Selector = norm) -> NetworkAdapter:
    """AdaBN: move the statistics of batch normalizations towards those of the batch, and no more.

    Parameters
    ----------
    model : Classifier
        The network to adapt.
    momentum : float
        0 keeps the source's statistics, 1 takes those of the batch alone.
    layers : Selector
        Which batch normalizations adapt.
    """
    return NetworkAdapter(model, layers=layers, bn_momentum=momentum)
