"""Batch normalizations: which layers they are, and how they take in the statistics of a batch."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


def is_batch_norm(module: nn.Module) -> bool:
    """Whether a layer keeps running statistics of its batches."""
    return isinstance(module, nn.modules.batchnorm._BatchNorm)


@contextmanager
def batch_statistics(modules: Iterable[nn.Module], momentum: float) -> Iterator[None]:
    """Let the batch normalizations among the layers use, and move towards, a batch's statistics.

    ``momentum`` says how far: 0 leaves the running statistics as they are, 1 replaces them.
    """
    norms: list[Any] = [module for module in modules if is_batch_norm(module)]
    # To set an attribute of a module takes a microsecond, which counts with hundreds of them.
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
