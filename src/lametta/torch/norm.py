"""Batch normalizations: which layers they are, and how they take in the statistics of a batch."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def is_batch_norm(module: nn.Module) -> bool:
    """Whether a layer keeps running statistics of its batches."""
    return isinstance(module, _BatchNorm)


@contextmanager
def batch_statistics(modules: Iterable[nn.Module], momentum: float) -> Iterator[None]:
    """Let the batch normalizations among the layers normalize by the statistics of each batch.

    Their running statistics move towards those of the batch by ``momentum``: with 0 they stay as
    they are, with 1 the batch's replace them.
    """
    norms = [module for module in modules if isinstance(module, _BatchNorm)]
    # Setting an attribute of a module takes a microsecond, which adds up over hundreds of them.
    others = [(norm, norm.momentum) for norm in norms if norm.momentum != momentum]
    for norm in norms:
        norm.training = True
    for norm, _ in others:
        norm.momentum = momentum
    try:
        yield
    finally:
        for norm in norms:
            norm.training = False
        for norm, own in others:
            norm.momentum = own
