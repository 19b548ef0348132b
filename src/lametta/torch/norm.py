"""Batch-normalization layers and their statistics: the source's, the batch's, or others."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Self

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from lametta.types import LamettaError


def is_batch_norm(module: nn.Module) -> bool:
    """Whether a layer keeps running statistics of its batches."""
    return isinstance(module, _BatchNorm)


class Norm(_BatchNorm):
    """A batch normalization by statistics of one's own: derive from it, define ``statistics``.

    It holds the parameters of the layer that it replaces, and copies of its statistics. In a pass
    with ``train=True`` it is in training mode, and ``momentum`` is the method's ``bn_momentum``.

    Examples
    --------
    >>> class Robust(Norm):
    ...     def statistics(self, x):
    ...         if self.training:  # move towards those of the batch, and use what came out
    ...             return self.move(*moments(x))
    ...         return self.running_mean, self.running_var
    >>> robust = Robust.of(nn.BatchNorm2d(3))
    >>> robust(torch.randn(4, 3, 2, 2)).shape
    torch.Size([4, 3, 2, 2])
    """

    running_mean: torch.Tensor
    running_var: torch.Tensor

    @classmethod
    def of(cls, norm: nn.Module, /, **attributes: Any) -> Self:
        """Make one in place of an ordinary batch normalization with running statistics.

        It has the attributes that are given: ``replace(net, partial(InstanceAwareNorm.of, k=3.0))``
        does so for all of a network.
        """
        # One with a forward of its own, as timm's with its activation, would lose what it does.
        plain = isinstance(norm, _BatchNorm) and type(norm).forward in _FORWARDS
        if not isinstance(norm, _BatchNorm) or not plain or norm.running_mean is None:
            raise LamettaError(
                "net must have batch normalizations of PyTorch's own with running statistics "
                f"where a method replaces them, got {type(norm).__name__}"
            )
        made = cls(norm.num_features, norm.eps, device=norm.running_mean.device)
        made.weight, made.bias = norm.weight, norm.bias
        made.affine = norm.affine
        for name, buffer in norm.named_buffers(recurse=False):
            setattr(made, name, buffer.clone())
        for name, value in attributes.items():
            setattr(made, name, value)
        return made.train(norm.training)

    def statistics(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and variance of each channel [C], or of each sample's channels [N, C]."""
        return self.running_mean, self.running_var

    def mix(self, mean: torch.Tensor, var: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mix the running statistics, which stay, with others by the momentum."""
        momentum = 0.0 if self.momentum is None else self.momentum
        mean = (1 - momentum) * self.running_mean + momentum * mean
        return mean, (1 - momentum) * self.running_var + momentum * var

    def move(self, mean: torch.Tensor, var: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Move the running statistics by the momentum, and give them with their gradients."""
        mean, var = self.mix(mean, var)
        self.running_mean.copy_(mean.detach())
        self.running_var.copy_(var.detach())
        return mean, var

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize, scale and shift."""
        mean, var = self.statistics(x)
        if mean.ndim == 1 and not (mean.requires_grad or var.requires_grad):
            # In one kernel, which gives no gradients to the statistics.
            return functional.batch_norm(x, mean, var, self.weight, self.bias, eps=self.eps)
        shape = (-1, x.shape[1]) + (1,) * (x.ndim - 2)
        x = (x - mean.reshape(shape)) / (var.reshape(shape) + self.eps).sqrt()
        if self.weight is None:
            return x
        return x * self.weight.reshape(shape) + self.bias.reshape(shape)


_FORWARDS = (_BatchNorm.forward, nn.SyncBatchNorm.forward)


def moments(x: torch.Tensor, *, correction: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance of each channel [C] of a batch [N, C, ...]; 1 corrects the variance's bias.

    Examples
    --------
    >>> moments(torch.tensor([[1.0], [3.0]]))
    (tensor([2.]), tensor([1.]))
    """
    over = [0, *range(2, x.ndim)]
    return x.mean(over), x.var(over, correction=correction)


class MixedNorm(Norm):
    """A normalization by a mix of source and batch: (1 - momentum) of one, momentum of the other.

    The running statistics stay. Gradients take the mix for a constant, and the batch's variance is
    the unbiased one, as in the published codes. In eval mode the source's normalize alone.

    Examples
    --------
    >>> layer = MixedNorm.of(nn.BatchNorm1d(1, eps=0, affine=False)).train()
    >>> layer.momentum = 0.5
    >>> layer(torch.tensor([[1.0], [3.0]]))  # by a mean of 1 and a variance of 1.5
    tensor([[0.0000],
            [1.6330]])
    """

    def statistics(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.training:
            return super().statistics(x)
        return self.mix(*moments(x.detach(), correction=1))


class RobustNorm(Norm):
    """A normalization by running statistics, which move in a pass with ``train=True`` (RoTTA).

    The moved ones normalize that very pass, with gradients through the batch's share.

    Examples
    --------
    >>> layer = RobustNorm.of(nn.BatchNorm1d(1, eps=0, affine=False)).train()
    >>> layer.momentum = 0.5
    >>> layer(torch.tensor([[1.0], [3.0]])), layer.running_mean
    (tensor([[0.],
            [2.]]), tensor([1.]))
    """

    def statistics(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.move(*moments(x)) if self.training else super().statistics(x)


class InstanceAwareNorm(Norm):
    """A normalization by each sample's own statistics where they are far from the others' (NOTE).

    With L positions in a map, a sample's mean may differ from that of the batch, in a pass with
    ``train=True``, or of the stream, by k standard errors sqrt(v / L), and its variance by k of
    v sqrt(2 / (L - 1)); what goes beyond that is the sample's own.

    Examples
    --------
    >>> layer = InstanceAwareNorm.of(nn.BatchNorm2d(1, affine=False), k=0.0)  # instance by instance
    >>> layer(torch.tensor([[[[1.0, 3.0]]]])).flatten().round(decimals=3)
    tensor([-0.7070,  0.7070])
    """

    k: float = 4.0

    def statistics(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, var = super().statistics(x)
        if self.training:
            mean, var = moments(x, correction=1)
            self.move(mean, var)
        size = x[0, 0].numel() if len(x) else 1
        if size < 2:
            return mean, var
        maps, wide = x.flatten(2), var + self.eps
        far = functional.softshrink  # takes no tensor of bounds, hence the division
        own_mean, own_var = maps.mean(2) - mean, maps.var(2) - var
        error, spread = (wide / size).sqrt(), wide * (2 / (size - 1)) ** 0.5
        mean = mean + far(own_mean / error, self.k) * error
        return mean, (var + far(own_var / spread, self.k) * spread).relu()


def replace(net: nn.Module, make: Callable[[nn.Module], nn.Module]) -> None:
    """Put ``make(norm)`` in place of each batch normalization, under all of its names.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    >>> replace(net, Norm.of)
    >>> type(net[1]).__name__
    'Norm'
    """
    made: dict[nn.Module, nn.Module] = {}
    for module in list(net.modules()):
        for name, inside in list(module._modules.items()):
            if inside is not None and is_batch_norm(inside):
                if inside not in made:
                    made[inside] = make(inside)
                module._modules[name] = made[inside]


@contextmanager
def contiguous_groups(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Give the group normalizations among the layers contiguous inputs while gradients are taken.

    On a CPU, PyTorch's backward pass through one of channels-last inputs ends the process
    (segmentation fault, 2.11 to 2.13) where only its scale and shift learn. Channels-last weights
    of a convolution before it are enough.
    """
    hooks = [m.register_forward_pre_hook(_contiguous, with_kwargs=True) for m in modules]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _contiguous(
    norm: nn.Module, args: tuple[torch.Tensor, ...], kwargs: dict[str, torch.Tensor]
) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    return tuple(x.contiguous() for x in args), {k: x.contiguous() for k, x in kwargs.items()}


class _NoVarianceError(LamettaError):
    """A batch that a layer cannot take the statistics of."""


@contextmanager
def batch_statistics(
    modules: Iterable[nn.Module], momentum: float, *, alone: bool = False
) -> Iterator[None]:
    """Let the batch normalizations among the layers normalize by the statistics of each batch.

    Their running statistics move towards those of the batch by ``momentum``: with 0 they stay as
    they are, with 1 the batch's replace them. ``alone`` is for a batch of one sample, whose
    statistics are those of its positions. A layer that sees a single position, 1 x 1, has none: it
    normalizes by its running statistics, and keeps them. Vectors have no positions: they are an
    error, which leaves all statistics as they were.
    """
    norms = [module for module in modules if isinstance(module, _BatchNorm)]
    own = [norm.momentum for norm in norms]
    # Not by setattr, which takes a module a microsecond: that adds up over hundreds of them.
    for norm in norms:
        vars(norm).update(training=True, momentum=momentum)
    try:
        with _of_one_sample(norms) if alone else nullcontext():
            yield
    finally:
        for norm, before in zip(norms, own, strict=True):
            vars(norm).update(training=False, momentum=before)


@contextmanager
def _of_one_sample(norms: Iterable[nn.Module]) -> Iterator[None]:
    """Let layers take the statistics of one sample's positions, or raise and change nothing."""
    hooks = [norm.register_forward_pre_hook(_prepare) for norm in norms]
    before = [(x, x.clone()) for norm in norms for x in norm.buffers()]
    try:
        yield
    except _NoVarianceError:
        for buffer, value in before:
            buffer.copy_(value)
        raise
    finally:
        for hook in hooks:
            hook.remove()


def _prepare(norm: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
    """Let a layer use the statistics of one sample where it sees several positions of it."""
    x = args[0]
    if x.ndim == 2 and len(x) == 1:
        raise _NoVarianceError(
            "x must hold 2 samples or more where a batch normalization sees vectors [N, d], "
            f"got 1 and [1, {x.shape[1]}]: one value a channel has no variance"
        )
    norm.training = x.numel() > x.shape[1]
