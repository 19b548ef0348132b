"""The loop of the methods that adapt the network itself; `lametta.torch.rivals` has the methods.

In the *update pass* the chosen layers learn from the batch: batch normalizations
use the statistics of the batch and move their running statistics towards them, and a loss without
labels takes a gradient step. In the *prediction pass* the network is in eval mode as ever, so its
running statistics decide. `reset` gives the network back bit for bit.
"""

import copy
import threading
from collections.abc import Iterator, Sequence, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import nn

from lametta._checks import check_flag, check_integer, check_number
from lametta.signals import signals
from lametta.torch.clock import Clock
from lametta.torch.model import Classifier, Inputs, check_ready, first_tensor
from lametta.torch.norm import batch_statistics, is_batch_norm
from lametta.torch.select import Selector, as_selector, layers_of
from lametta.types import LamettaError, Output, Prediction

BN_MOMENTUM = 0.1  # PyTorch's own


@dataclass
class NetworkAdapter:
    """The loop that all methods here share: what adapts, and how a batch is predicted.

    Parameters
    ----------
    model : Classifier
        The network; it is adapted in place, and given back exactly by `reset`.
    layers : Selector or str
        Which layers adapt: a predicate of `lametta.torch.select`, or one of its `NAMES`.
    bn_momentum : float
        How far running statistics move towards those of a batch: 0 keeps the source's for
        prediction, 1 takes the batch's.
    steps : int
        Update passes for each batch.
    predict_first : bool
        Predict from the first update pass, before its step, which saves the second forward pass.

    Examples
    --------
    >>> from lametta.torch import Classifier, tent
    >>> from lametta.torch.digits import digits_net
    >>> adapter = tent(Classifier(digits_net()), steps=2, predict_first=True)
    >>> isinstance(adapter, NetworkAdapter), adapter.step(torch.rand(8, 1, 8, 8)).probs.shape
    (True, torch.Size([8, 10]))
    """

    model: Classifier
    _: KW_ONLY
    layers: Selector | str = "everything"
    bn_momentum: float = BN_MOMENTUM
    steps: int = 1
    predict_first: bool = False
    _started: "_Started | None" = field(default=None, init=False, repr=False)

    adapts: ClassVar[str] = "batch normalization layers"  # for messages

    def __post_init__(self) -> None:
        as_selector(self.layers)
        check_number("bn_momentum", self.bn_momentum, 0, 1)
        check_integer("steps", self.steps, 1)
        check_flag("predict_first", self.predict_first)

    def loss(self, log_probs: torch.Tensor, /) -> torch.Tensor | None:
        """What to minimize, from log-probabilities [N, K]; None takes no step."""
        return None

    def make_optimizer(self, parameters: Sequence[torch.Tensor]) -> torch.optim.Optimizer | None:
        """What takes the gradient steps; None to adapt the statistics of batches alone."""
        return None

    def step(self, x: Sized, /) -> Prediction:
        """Update the network on this batch, then predict it.

        A batch with NaN or infinity is refused before anything changes, since it would poison the
        network for good; to look for them makes the host wait for the device. Steps of several
        threads on one network take turns.

        The statistics of a batch of one image are those of its pixels. A batch normalization whose
        maps have shrunk to 1 x 1 keeps to its running statistics then; one of vectors [N, d] has no
        statistics of one sample, which is an error.
        """
        if not isinstance(self.model, Classifier):
            got = type(self.model).__name__
            raise LamettaError(f"model must be a lametta.torch.Classifier, got {got}")
        check_ready(self.model.net, x)
        if not known_finite.get():
            check_finite(x)
        turn = _turns.setdefault(self.model.net, threading.RLock())
        with turn, torch.inference_mode(False):  # autograd cannot be on in that mode
            return self._step(_recordable(x))

    def _step(self, x: Sized) -> Prediction:
        if self._started is None:
            self._started = _start(self, x)
        started, clock = self._started, Clock(next(self.model.net.parameters()).device)
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
        self, x: Sized, started: "_Started", clock: Clock
    ) -> tuple[Output, torch.Tensor | None]:
        optimizer = started.optimizer
        with started.updating(self.bn_momentum, alone=len(x) == 1):
            with clock.stage("forward_time"), torch.set_grad_enabled(optimizer is not None):
                output = self.model.forward(x)
            if optimizer is None:
                return output, None
            with clock.stage("optimization_time"), torch.enable_grad():
                loss = self.loss(output.logits.log_softmax(1))
                if loss is None:
                    return output, None
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad()
        return output, loss.detach()

    def reset(self) -> None:
        """Give the network back as it was before the first step."""
        if self._started is not None:
            self._started.restore()
            self._started = None


@dataclass
class _Started:
    """What an adapter has from its first step on: what adapts, and the source to go back to."""

    net: nn.Module
    modules: list[nn.Module]
    parameters: list[torch.Tensor]
    optimizer: torch.optim.Optimizer | None

    def __post_init__(self) -> None:
        self.state = self.net.state_dict()
        for name, value in self.state.items():  # a deep copy takes longer than a step of a GPU
            tensor = isinstance(value, torch.Tensor)
            self.state[name] = value.clone() if tensor else copy.deepcopy(value)
        self.every = list(self.net.parameters())
        self.source = [parameter.detach().clone() for parameter in self.parameters]
        self.length = _length(self.source)

    @contextmanager
    def updating(self, bn_momentum: float, *, alone: bool) -> Iterator[None]:
        """Let the chosen layers learn, and put everything back as it was afterwards."""
        chosen = set(self.parameters)
        switched = [p for p in self.every if p.requires_grad != (p in chosen)]
        for parameter in switched:
            parameter.requires_grad_(parameter in chosen)
        try:
            with batch_statistics(self.modules, bn_momentum, alone=alone):
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


# One update at a time on a network, whichever adapters it has.
_turns: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()

known_finite = ContextVar("known_finite", default=False)
"""Whether the caller of `step` has looked for NaN and infinity, so that `step` need not."""


def check_finite(x: object) -> None:
    """Raise where a batch has NaN or infinity; the host waits for the device."""
    tensor = first_tensor(x)
    if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point() or not len(tensor):
        return
    if bool(tensor.sum().isfinite()):  # one pass, in which NaN and infinity stay what they are
        return
    fine = tensor.flatten(1).isfinite().all(1)
    if not bool(fine.all()):  # or the sum alone is too large
        row = int((~fine).nonzero()[0])
        raise LamettaError(f"x must be finite, got NaN or infinity in sample {row} of the batch")


def _recordable(x: Any) -> Any:
    """The batch with tensors that autograd can record, which those of inference mode are not."""
    if isinstance(x, Inputs):
        kwargs = {name: _recordable(value) for name, value in x.kwargs.items()}
        return Inputs(tuple(map(_recordable, x.args)), kwargs)
    return x.clone() if isinstance(x, torch.Tensor) and x.is_inference() else x


def _length(tensors: list[torch.Tensor] | tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Euclidean length of all tensors together, in a handful of kernels."""
    # A network can hold parameters of several dtypes: hstack promotes them, stack does not.
    length: torch.Tensor = torch.linalg.vector_norm(torch.hstack(torch._foreach_norm(tensors)))
    return length


def _start(adapter: NetworkAdapter, x: object) -> _Started:
    net, choose = adapter.model.net, as_selector(adapter.layers)
    modules = [layer.module for layer in layers_of(net, x) if choose(layer)]
    parameters = _parameters(modules)
    optimizer = adapter.make_optimizer(parameters) if parameters else None
    if optimizer is None:
        modules = [module for module in modules if is_batch_norm(module)]
        parameters = _parameters(modules)
    if not parameters:
        named = f" in {adapter.layers!r}" if isinstance(adapter.layers, str) else ""
        raise LamettaError(f"layers must choose {adapter.adapts} of net to adapt, got none{named}")
    return _Started(net, modules, parameters, optimizer)


def _parameters(modules: Sequence[nn.Module]) -> list[torch.Tensor]:
    return [p for module in modules for p in module.parameters(recurse=False)]
