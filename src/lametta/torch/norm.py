"""Batch normalizations: which layers they are, and how they take in the statistics of a batch."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from lametta.types import LamettaError


def is_batch_norm(module: nn.Module) -> bool:
    """Whether a layer keeps running statistics of its batches."""
    return isinstance(module, _BatchNorm)


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
    # Setting an attribute of a module takes a microsecond, which adds up over hundreds of them.
    others = [(norm, norm.momentum) for norm in norms if norm.momentum != momentum]
    for norm in norms:
        norm.training = True
    for norm, _ in others:
        norm.momentum = momentum
    hooks = [norm.register_forward_pre_hook(_prepare) for norm in norms] if alone else []
    before = [(x, x.clone()) for norm in norms for x in norm.buffers()] if alone else []
    try:
        yield
    except _NoVarianceError:
        for buffer, value in before:
            buffer.copy_(value)
        raise
    finally:
        for hook in hooks:
            hook.remove()
        for norm in norms:
            norm.training = False
        for norm, own in others:
            norm.momentum = own


def _prepare(norm: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
    """Let a layer use the statistics of one sample where it sees several positions of it."""
    x = args[0]
    if x.ndim == 2 and len(x) == 1:
        raise _NoVarianceError(
            "x must hold 2 samples or more where a batch normalization sees vectors [N, d], "
            f"got 1 and [1, {x.shape[1]}]: one value a channel has no variance"
        )
    norm.training = x.numel() > x.shape[1]
