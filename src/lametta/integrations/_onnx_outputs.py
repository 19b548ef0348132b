"""Features and logits as matrices, from what a graph gave."""

import math
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from lametta.types import LamettaError


def pooled(x: npt.NDArray[Any], n: int, channels_first: bool | None) -> npt.NDArray[Any]:
    """Features [N, d], averaged over places or tokens."""
    if x.ndim == 1 and n == 1:
        x = x[None]
    if x.ndim < 2 or len(x) != n:
        raise LamettaError(f"features must have a row for each of {n} samples, got {x.shape}")
    if channels_first is None:
        channels_first = x.ndim > 3  # three axes: tokens [N, T, d]
    first = 2 if channels_first else 1
    return x.mean(axis=tuple(range(first, first + x.ndim - 2))) if x.ndim > 2 else x


def matrix(logits: npt.NDArray[Any], n: int, columns: int | None) -> npt.NDArray[Any]:
    """Logits [N, K] without the axes of length 1 that they may have."""
    columns = columns or logits.size // n
    if logits.size != n * columns or (n > 1 and len(logits) != n) or not columns:
        raise LamettaError(f"logits must be [{n}, {columns or 'K'}], got shape {logits.shape}")
    return logits.reshape(n, columns)


def check_kind(rows: npt.NDArray[Any], probabilities: bool) -> None:
    """Raise if these are rows of probabilities and should be logits, or the other way round."""
    fit = bool((rows >= 0).all() and (abs(rows.sum(axis=1) - 1) < 1e-3).all())
    if fit != probabilities:
        expected, got = (
            ("probabilities", "others") if probabilities else ("logits", "rows of sum 1")
        )
        raise LamettaError(
            f"logits must name a tensor of {expected}, got {got}: name another, or say "
            f"probabilities={not probabilities}"
        )


def width(shape: Sequence[int | str | None]) -> int | None:
    """Columns of features of such a shape, where that is known."""
    side = shape[2 if len(shape) == 3 else 1] if len(shape) > 1 else None
    return side if isinstance(side, int) and side > 0 else None


def columns(shape: Sequence[int | str | None], n_classes: int | None) -> int | None:
    """Columns of logits of such a shape, where that is known, which the head's weights agree on."""
    sides = [side for side in shape[1:] if isinstance(side, int) and side > 0]
    known = math.prod(sides) if 0 < len(sides) == len(shape) - 1 else None
    if n_classes is not None and known not in (None, n_classes):
        raise LamettaError(
            f"logits must have {n_classes} columns, as the head's weights, got {known}"
        )
    return n_classes or known
