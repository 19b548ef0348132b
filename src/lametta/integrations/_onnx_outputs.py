"""Features and logits as matrices, from a graph's outputs."""

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from lametta.types import LamettaError

Floats: TypeAlias = npt.NDArray[np.float32]


def pooled(x: Floats, n: int, channels_first: bool | None) -> Floats:
    """Features [N, d], averaged over places or tokens."""
    if x.ndim == 1 and n == 1:
        x = x[None]
    if x.ndim < 2 or len(x) != n:
        raise LamettaError(f"features must have a row for each of {n} samples, got {x.shape}")
    return x.mean(axis=pooled_axes(x.ndim, channels_first)) if x.ndim > 2 else x


def pooled_axes(n_axes: int, channels_first: bool | None) -> tuple[int, ...]:
    """The axes of places or tokens; without more knowledge, three axes are tokens [N, T, d]."""
    first = 2 if (n_axes > 3 if channels_first is None else channels_first) else 1
    return tuple(range(first, first + n_axes - 2))


def matrix(logits: Floats, n: int, columns: int | None) -> Floats:
    """Logits [N, K] without the axes of length 1 that they may have."""
    columns = columns or logits.size // n
    if logits.size != n * columns or (n > 1 and len(logits) != n) or not columns:
        raise LamettaError(f"logits must be [{n}, {columns or 'K'}], got shape {logits.shape}")
    return logits.reshape(n, columns)


def check_kind(rows: Floats, probabilities: bool) -> None:
    """Raise if these are rows of probabilities and should be logits, or the other way round."""
    fit = bool((rows >= 0).all() and (abs(rows.sum(axis=1) - 1) < 1e-3).all())
    if fit != probabilities:
        wanted, got = ("probabilities", "others") if probabilities else ("logits", "rows of sum 1")
        raise LamettaError(
            f"logits must name a tensor of {wanted}, got {got}: name another, or say "
            f"probabilities={not probabilities}"
        )


def width(shape: Sequence[int | str | None]) -> int | None:
    """The number of features in a tensor of this shape; None where the shape leaves it open."""
    side = shape[2 if len(shape) == 3 else 1] if len(shape) > 1 else None
    return side if isinstance(side, int) and side > 0 else None


def columns(shape: Sequence[int | str | None], n_classes: int | None) -> int | None:
    """The number of classes, by the head's weights and the logits' shape; None if both are open."""
    sides = [side for side in shape[1:] if isinstance(side, int) and side > 0]
    known = math.prod(sides) if 0 < len(sides) == len(shape) - 1 else None
    if n_classes is not None and known not in (None, n_classes):
        raise LamettaError(
            f"logits must have {n_classes} columns, as the head's weights, got {known}"
        )
    return n_classes or known
