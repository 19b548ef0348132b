"""The logits among what a network returns."""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias

import torch

from lametta.types import LamettaError

Pick: TypeAlias = str | int | Callable[[Any], torch.Tensor] | None
"""Which part of what a network returns is the logits: a name, a place, or a function."""


def pick_logits(returned: object, output: Pick, n: int) -> torch.Tensor:
    """Find the logits [N, K] of n samples in what a network returned."""
    try:
        if callable(output):
            found: object = output(returned)
        elif isinstance(output, int):
            found = tuple(_parts(returned).values())[output]
        elif output is not None:
            found = _parts(returned)[output]
        else:
            found = _only_logits(returned)
    except (KeyError, IndexError):
        among = ", ".join(_parts(returned)) or type(returned).__name__
        raise LamettaError(f"output must be one of {among}, got {output!r}") from None
    if isinstance(found, torch.Tensor) and found.shape == (n,):
        found = found[:, None]  # one logit for each sample
    if not isinstance(found, torch.Tensor) or found.ndim != 2:
        got = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        raise LamettaError(f"net must return logits [N, K], or say which with output=, got {got}")
    return found


def _only_logits(returned: object) -> object:
    parts = _parts(returned)
    if "logits" in parts:
        return parts["logits"]
    if not parts:
        return returned
    matrices = {name: x for name, x in parts.items() if getattr(x, "ndim", 0) == 2}
    if len(matrices) != 1:
        found = ", ".join(f"{name} {tuple(getattr(x, 'shape', ()))}" for name, x in parts.items())
        raise LamettaError(f"output must say which of these are the logits, got none: {found}")
    return next(iter(matrices.values()))


def _parts(returned: object) -> dict[str, object]:
    """What a network returned, by name or place; nothing for a tensor."""
    if isinstance(returned, torch.Tensor):
        return {}
    if isinstance(returned, Mapping):
        return dict(returned)
    if isinstance(returned, tuple | list):
        names = getattr(returned, "_fields", range(len(returned)))
        return {str(name): part for name, part in zip(names, returned, strict=True)}
    if is_dataclass(returned):
        return {field.name: getattr(returned, field.name) for field in fields(returned)}
    return dict(vars(returned)) if hasattr(returned, "__dict__") else {}


def check_kind(returned: torch.Tensor, probabilities: bool) -> None:
    """Raise if these are rows of probabilities and should be logits, or the other way round."""
    values = returned.detach().float()
    fit = bool((values >= 0).all() & ((values.sum(1) - 1).abs() < 1e-3).all())
    if fit and not probabilities:
        raise LamettaError(
            "net must return logits, got rows that sum to 1, as after a softmax: say "
            "probabilities=True to take them as they are, or leave the softmax out"
        )
    if probabilities and not fit:
        raise LamettaError(
            "net must return rows of probabilities, as probabilities=True says, got others: leave "
            "that out if these are logits"
        )
