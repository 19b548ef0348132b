"""The logits among what a network returns."""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias

import torch
from torch import nn

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


def with_logits(returned: Any, logits: torch.Tensor) -> object:
    """The same output of a network with other logits: for records that have them by name."""
    kind: Callable[..., object] = type(returned)
    return kind(**{**_parts(returned), "logits": logits})


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


def check_one_of_many(config: object) -> None:
    """Raise where a configuration as Hugging Face has it says that no single class is chosen."""
    if not hasattr(config, "problem_type"):
        return
    if config.problem_type == "multi_label_classification":
        raise LamettaError(
            "net must choose one class of several, since corrected rows sum to 1, got one that "
            "says yes or no to each: multi_label_classification, by its config"
        )
    if config.problem_type == "regression" or getattr(config, "num_labels", 2) < 2:
        raise LamettaError(
            "net must choose one class of several, got one for regression, or of a single class"
        )


def check_sigmoid(net: nn.Module, returned: torch.Tensor, probabilities: bool) -> None:
    """Raise where a network ends in a sigmoid: it says yes or no to each class, or gives no logit.

    Its last layer has to be one, and its outputs to be between 0 and 1: layers may be made in
    another order than they are called in.
    """
    leaves = [module for module in net.modules() if not any(True for _ in module.children())]
    if not isinstance(leaves[-1], nn.Sigmoid) or not bool(
        ((returned >= 0) & (returned <= 1)).all()
    ):
        return
    if returned.shape[1] > 1:
        raise LamettaError(
            "net must choose one class of several, since corrected rows sum to 1, got one that "
            "ends in a sigmoid, which says yes or no to each"
        )
    if not probabilities:
        raise LamettaError(
            "net must return a logit, got a probability, as after its sigmoid: say "
            "probabilities=True to take it as it is"
        )


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
