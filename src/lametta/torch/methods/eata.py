"""EATA: ETA with a Fisher regularizer against forgetting (Niu et al., ICML 2022)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, ClassVar

import torch
from torch import Tensor

from lametta._checks import check_number
from lametta.torch.fisher import find_fisher
from lametta.torch.methods.eta import ETA
from lametta.torch.network import Network
from lametta.types import LamettaError


@dataclass(kw_only=True)
class EATA(ETA):
    """EATA: ETA held near the source, in the directions that matter there. Options as for `ETA`.

    The loss has one more term, fisher_weight sum F (theta - theta_0)^2 over the parameters theta.

    Parameters
    ----------
    fisher : iterable, mapping or path, optional
        Where F comes from: a loader of unlabeled batches of the source, which is gone through
        before the first step (the paper: 2000 images in batches of 64); F by the names of the
        parameters, as `lametta.torch.measure_fisher` gives it; or a .safetensors file of that.
        Without it there is no such term: EATA is then ETA.
    fisher_weight : float
        2000 on ImageNet, 1 on CIFAR.
    model, margin, redundancy, keep_mean, lr, optimizer, momentum, weight_decay, layers, bn_momentum
        As for `ETA`.

    Examples
    --------
    >>> from lametta.torch import Classifier
    >>> from lametta.torch.digits import digits_net
    >>> source = [torch.rand(8, 1, 8, 8), torch.rand(8, 1, 8, 8)]
    >>> method = EATA(Classifier(digits_net()), fisher=source)
    >>> method.step(torch.rand(8, 1, 8, 8)).probs.shape
    torch.Size([8, 10])
    """

    fisher: Iterable[Any] | Mapping[str, Tensor] | str | PathLike[str] | None = None
    fisher_weight: float = 2000.0
    importance: dict[str, Tensor] | None = field(
        default=None, init=False, repr=False, compare=False
    )  # F: no state, since a reset leaves the source as it was

    needs: ClassVar[frozenset[str]] = frozenset({"gradients", "source data"})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("fisher_weight", self.fisher_weight, 0)
        if not isinstance(self.fisher, Iterable | PathLike | None):
            got = type(self.fisher).__name__
            raise LamettaError(f"fisher must be a loader, a mapping or a path, got {got}")

    def start(self, net: Network, /) -> None:
        if self.fisher is not None and self.importance is None:
            self.importance = find_fisher(self.fisher, net)

    def penalty(self, net: Network) -> Tensor | float:
        if self.importance is None:
            return 0.0
        names, held = list(net.parameters), self.importance
        terms = [(held[n] * (net.parameters[n] - net.source[n]) ** 2).sum() for n in names]
        return self.fisher_weight * torch.stack(terms).sum()
