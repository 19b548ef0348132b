"""AETTA: accuracy without labels, from disagreement under dropout (Lee et al., CVPR 2024)."""

import math
from collections.abc import Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from lametta._checks import check_choice, check_flag, check_integer, check_number
from lametta._locks import FairLock
from lametta.adapters import Source
from lametta.correctors.base import Composite
from lametta.torch.adapt import NetworkMethod
from lametta.torch.losses import widen
from lametta.torch.model import Classifier
from lametta.torch.network import norms_of
from lametta.torch.norm import Norm, batch_statistics
from lametta.types import Adapter, LamettaError, Prediction

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_OLD = 0.6  # of the moving average
_LOW, _FALL, _SPAN = 0.2, 0.02, 5  # when a network has failed


def estimated_error(labels: Tensor, probs: Tensor, /) -> tuple[Tensor, Tensor]:
    """AETTA's estimate of the error of predictions: as they disagree with passes under dropout.

    With D the share of all passes and samples whose class is not the predicted one, and H the
    entropy of the mean of all their probabilities, which is low where a network has collapsed onto
    few classes,

        error = D / (H / ln K)^3,  from 0 to 1 - 1/K.

    Parameters
    ----------
    labels : tensor [N]
        The predicted classes.
    probs : tensor [M, N, K]
        The probabilities of M passes under dropout.

    Returns
    -------
    disagreement, error : tensor
        D and the estimate, on the device of the probabilities.

    Examples
    --------
    >>> sure = torch.eye(2).expand(10, 2, 2)  # both classes, in all of ten passes
    >>> estimated_error(torch.tensor([0, 1]), sure), estimated_error(torch.tensor([0, 0]), sure)
    ((tensor(0.), tensor(0.)), (tensor(0.5000), tensor(0.5000)))
    """
    k = probs.shape[2]
    disagreement = (probs.argmax(2) != labels).to(probs.dtype).mean()
    mean = probs.mean((0, 1))
    diversity = torch.special.entr(mean).sum() / math.log(k)
    error = disagreement / diversity.clamp(min=1e-6) ** 3
    return disagreement, error.clamp(max=1 - 1 / k)


@dataclass
class AETTA(Composite):
    """A network method whose accuracy is estimated without labels, and that is reset when it fails.

    After each step, passes under dropout over the same batch are compared with a plain one. 1 less
    a moving average of `estimated_error` is ``info["estimated_accuracy"]``. A method has failed
    where that is below 20 %, or where the mean of the last five is more than 2 points below that of
    the five before: then it is reset, and ``info["was_reset"]`` is True.

    Parameters
    ----------
    base : NetworkMethod or Source
        The method; `lametta.Source` for a frozen network, of which only the estimate counts. By
        name they are ``tent+aetta`` and ``source+aetta``, in `wrap` and in experiments.
    rate : float
        The share that is dropped: the published code takes 0.2 on ImageNet, 0.3 on CIFAR-100 and
        0.4 on CIFAR-10.
    inferences : int
        Passes under dropout for each batch. They make a step wait for the device.
    layers : sequence of str, optional
        The names of layers whose outputs are dropped from. By default the network's dropout layers,
        whatever their own rates, or else the head, whose inputs are. The published code has ResNets
        of its own, with dropout inside, so that a plain ResNet is not dropped from as there.
    resets : bool
        Whether a method that has failed is reset.
    seed : int
        Of the draws.

    Notes
    -----
    The passes under dropout, and the plain one, are in ``info["forwards"]`` with the method's own.
    They are of the network that learns: where a teacher answers, as in CoTTA, it is the student
    whose accuracy is estimated, and of MEMO, which begins anew with each image, that of the last.

    Passes go by the statistics of the batch where the method's ``bn_momentum`` is 0, since running
    ones are then the source's, and by running ones else, as in layers that a method has replaced;
    none are moved. The rule of failure is that of the published code. So is the moving average, of
    which 0.6 is old: it begins with the first disagreement as it is, and goes on over a reset of
    the method.

    References
    ----------
    T. Lee et al., "AETTA: label-free accuracy estimation for test-time adaptation", CVPR (2024).

    Examples
    --------
    >>> from lametta.torch import TENT, Classifier
    >>> from lametta.torch.digits import digits_net
    >>> adapter = AETTA(TENT(Classifier(digits_net())))
    >>> 0 <= adapter.step(torch.rand(8, 1, 8, 8)).info["estimated_accuracy"] <= 1
    True
    """

    base: NetworkMethod | Source
    rate: float = 0.2
    inferences: int = 10
    layers: Sequence[str] | None = None
    resets: bool = True
    seed: int = 0

    watches: ClassVar[bool] = True  # it goes on top of a method, and needs its network
    passes: ClassVar[tuple[float, float] | None] = (11, 0)  # beside those of the method

    _error: float | None = field(default=None, init=False, repr=False, compare=False)
    _recent: list[float] = field(default_factory=list, init=False, repr=False, compare=False)
    _steps: int = field(default=0, init=False, repr=False, compare=False)
    _lock: FairLock = field(default_factory=FairLock, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_number("rate", self.rate, above=0, below=1)
        check_integer("inferences", self.inferences, 1)
        check_flag("resets", self.resets)
        check_integer("seed", self.seed, 0)
        if not isinstance(self.base, NetworkMethod | Source | None):  # None to check options
            got = type(self.base).__name__
            raise LamettaError(f"base must be a network method or lametta.Source, got {got}")

    def _held(self) -> tuple[Adapter, ...]:
        return () if self.base is None else (self.base,)

    def step(self, x: Sized, /) -> Prediction:
        """Let the method step, estimate the accuracy of its network, and reset it if it failed."""
        with self._lock:
            prediction = self.base.step(x)
            if not len(x):
                return prediction
            accuracy = self._estimate(x)
            failed = self.resets and self._has_failed(accuracy)
            if failed:
                self.base.reset()
                self._recent.clear()
        n, own = len(x), self.inferences + 1
        counted = {"forwards": 1, "forward_samples": n, "backwards": 0, "backward_samples": 0}
        info = counted | dict(prediction.info)
        info |= {"estimated_accuracy": accuracy, "was_reset": failed}
        info |= {"forwards": info["forwards"] + own}
        info |= {"forward_samples": info["forward_samples"] + own * n}
        return replace(prediction, info=info)

    def reset(self) -> None:
        """Reset the method, and forget all estimates."""
        with self._lock:
            self.base.reset()
            self._error, self._steps = None, 0
            self._recent.clear()

    def _has_failed(self, accuracy: float) -> bool:
        self._recent = [*self._recent, accuracy][-2 * _SPAN :]
        before, last = self._recent[:-_SPAN], self._recent[-_SPAN:]
        fell = len(before) == _SPAN and sum(last) / _SPAN + _FALL < sum(before) / _SPAN
        return accuracy < _LOW or fell

    def _estimate(self, x: Sized) -> float:
        model = self.base.model
        if not isinstance(model, Classifier):
            got = type(model).__name__
            raise LamettaError(f"model must be a lametta.torch.Classifier, got {got}")
        by_batch = getattr(self.base, "bn_momentum", None) == 0
        every = norms_of(model.net).values() if by_batch else ()
        norms = [norm for norm in every if not isinstance(norm, Norm)]  # or its own rule would act
        self._steps += 1
        with torch.no_grad(), _kept(norms), batch_statistics(norms, 0.0, alone=len(x) == 1):
            labels = model.forward(x).logits.argmax(1)
            with dropout(model, self.rate, self.layers, (self.seed << 32) + self._steps):
                probs = [widen(model.forward(x).logits).softmax(1) for _ in range(self.inferences)]
        disagreement, error = map(float, estimated_error(labels, torch.stack(probs)))
        old = disagreement if self._error is None else self._error
        self._error = _OLD * old + (1 - _OLD) * error
        return 1 - self._error


@contextmanager
def _kept(norms: Sequence[nn.Module]) -> Iterator[None]:
    """Keep the buffers of layers: they count batches even where their statistics stay."""
    before = [(buffer, buffer.clone()) for norm in norms for buffer in norm.buffers()]
    try:
        yield
    finally:
        for buffer, value in before:
            buffer.copy_(value)


@contextmanager
def dropout(
    model: Classifier, rate: float, layers: Sequence[str] | None, seed: int
) -> Iterator[None]:
    """Drop from the outputs of layers, or from the inputs of the head, in passes of this block.

    Draws are of this seed alone, and the network's modes and rates stay as they are.
    """
    generator = torch.Generator(next(model.net.parameters()).device).manual_seed(seed)
    calls = 0

    def drop(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        kept = torch.empty_like(x).bernoulli_(1 - rate, generator=generator)
        return x * kept / (1 - rate)

    def after(module: nn.Module, args: object, output: Tensor) -> Tensor:
        return drop(output)

    def before(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (drop(args[0]), *args[1:]) if args else args

    chosen = _layers(model.net, layers)
    hooks = [module.register_forward_hook(after) for module in chosen]
    hooks = hooks or [model.head.register_forward_pre_hook(before)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    if not calls:
        raise LamettaError("layers must be called in a pass to be dropped from, got none that was")


def _layers(net: nn.Module, names: Sequence[str] | None) -> list[nn.Module]:
    if names is None:
        return [module for module in net.modules() if isinstance(module, _DROPOUTS)]
    found = dict(net.named_modules())
    for name in names:
        check_choice("layers", name, found)
    return [found[name] for name in names]
