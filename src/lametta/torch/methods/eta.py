"""ETA: entropy minimization on reliable, non-redundant samples (Niu et al., ICML 2022)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lametta._checks import check_flag, check_number
from lametta.torch import losses
from lametta.torch.adapt import GradientMethod, own
from lametta.torch.network import Batch, Network, Outputs


@dataclass(kw_only=True)
class ETA(GradientMethod):
    """ETA: minimize the entropy of samples that are sure, and unlike those learned from before.

    Of the entropies h, those below E = margin ln K are kept, then those whose probabilities have a
    cosine below ``redundancy`` to m, the moving average of what was kept; the loss is the mean of
    exp(E - h) h, with no gradient through the weight. Where nothing is kept no step is made, for
    which the host waits for the device once a batch.

    Parameters
    ----------
    model : Classifier
        The network to adapt.
    margin : float
        The highest entropy to learn from, as a share of ln K.
    redundancy : float
        The highest cosine: 0.05 on ImageNet, 0.4 on CIFAR-10, 0.1 on CIFAR-100.
    keep_mean : bool
        Whether a reset keeps the moving average, as the released code does.
    lr, optimizer, momentum, weight_decay, layers, bn_momentum
        As for `GradientMethod`; on CIFAR the field takes Adam with 1e-3.

    Examples
    --------
    >>> from lametta.torch import Classifier
    >>> from lametta.torch.digits import digits_net
    >>> ETA(Classifier(digits_net()), redundancy=0.4).step(torch.rand(8, 1, 8, 8)).probs.shape
    torch.Size([8, 10])
    """

    bn_momentum: float = 0.0
    lr: float = 2.5e-4
    optimizer: str | Callable[..., torch.optim.Optimizer] = "heavy_ball"
    margin: float = 0.4
    redundancy: float = 0.05
    keep_mean: bool = False
    mean: Tensor | None = own()  # of the probabilities that were learned from

    answers: ClassVar[str] = "before"
    passes: ClassVar[tuple[float, float] | None] = (1, 1)
    statistics: ClassVar[Literal["chosen", "all"]] = "all"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("margin", self.margin, 0, 1)
        check_number("redundancy", self.redundancy, 0, 1)
        check_flag("keep_mean", self.keep_mean)

    def adapt(self, batch: Batch, net: Network, /) -> Outputs:
        out, limit = batch.outputs, self.margin * math.log(batch.outputs.classes)
        entropy, probs = out.entropy.detach(), out.probs.detach()
        keep = entropy < limit
        if self.mean is not None:
            cosine = torch.cosine_similarity(self.mean[None], probs)
            keep = keep & (cosine.abs() < self.redundancy)
        if keep.any():
            kept = torch.where(keep[:, None], probs, 0).sum(0) / keep.sum()
            self.mean = kept if self.mean is None else 0.9 * self.mean + 0.1 * kept
            weight = (limit - entropy).exp()
            loss = losses.mean(weight * out.entropy, keep) + self.penalty(net)
            net.step(loss)
            batch.info["loss"] = loss.detach()
        return out

    def penalty(self, net: Network) -> Tensor | float:
        """What is added to the loss; nothing here."""
        return 0.0

    def forget(self) -> None:
        mean = self.mean if self.keep_mean else None
        super().forget()
        self.mean = mean
