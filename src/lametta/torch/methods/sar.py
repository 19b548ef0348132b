"""SAR: sharpness-aware and reliable entropy minimization (Niu et al., ICLR 2023)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from lametta._checks import check_flag, check_number
from lametta.torch import losses
from lametta.torch.adapt import GradientMethod, own
from lametta.torch.network import Batch, Network, Outputs, length
from lametta.torch.select import Selector


@dataclass(kw_only=True)
class SAR(GradientMethod):
    """SAR: take the entropy's gradient where it is highest nearby, and begin anew on a collapse.

    Of the entropies h, those below E = margin ln K are kept; with g the gradient of their mean, the
    parameters climb to theta + ``rho g / |g|``, where those whose entropy is still below E give the
    gradient of the step, which is taken from theta. Where a moving average of that loss falls below
    ``reset_below``, the network goes back to the source. The host waits for the device once a
    batch, to see what is kept and whether to begin anew.

    Parameters
    ----------
    model : Classifier
        The network to adapt.
    margin : float
        The highest entropy to learn from, as a share of ln K.
    rho : float
        How far it climbs.
    reset_below : float
        The moving average of the loss at which the network has collapsed.
    released : bool
        As both published codes: the momentum goes on where no sample is kept, and through a return
        to the source. If False, no step is made, and the optimizer begins anew, too.
    keep_average : bool
        Whether the moving average outlives a return, as in the authors' code, which then returns
        after each batch until the average has climbed again.
    layers : Selector or str
        By default normalizations but those of the top, as in the paper; `select` says which.
    lr, optimizer, momentum, weight_decay, bn_momentum
        As for `GradientMethod`. The paper takes 2.5e-4 for ResNet-50 and 1e-3 for ViT-B in batches
        of 64, and a rate in proportion to smaller batches, doubled for a batch of one.

    Examples
    --------
    >>> from lametta.torch import Classifier
    >>> from lametta.torch.digits import digits_net
    >>> SAR(Classifier(digits_net()), rho=0.1).step(torch.rand(8, 1, 8, 8)).probs.shape
    torch.Size([8, 10])
    """

    layers: Selector | str = "lower_norms"
    bn_momentum: float = 0.0
    lr: float = 2.5e-4
    optimizer: str | Callable[..., torch.optim.Optimizer] = "heavy_ball"
    margin: float = 0.4
    rho: float = 0.05
    reset_below: float = 0.2
    released: bool = False
    keep_average: bool = False
    average: float | None = own()  # of the loss

    answers: ClassVar[str] = "before"
    passes: ClassVar[tuple[float, float] | None] = (2, 2)
    statistics: ClassVar[Literal["chosen", "all"]] = "all"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("margin", self.margin, 0, 1)
        check_number("rho", self.rho, 0)
        check_number("reset_below", self.reset_below, 0)
        check_flag("released", self.released)
        check_flag("keep_average", self.keep_average)

    def adapt(self, batch: Batch, net: Network, /) -> Outputs:
        out, limit = batch.outputs, self.margin * math.log(batch.outputs.classes)
        keep = out.entropy.detach() < limit
        climb = net.gradients(losses.mean(out.entropy, keep))
        with net.moved(climb, scale=self.rho / (length(climb) + 1e-12)):
            high = net(batch)
            keep = keep & (high.entropy.detach() < limit)
            gradients = net.gradients(loss := losses.mean(high.entropy, keep))
        now, kept = torch.stack([loss.detach(), keep.any().to(loss)]).tolist()
        net.apply(gradients, when=self.released or bool(kept))
        if kept:
            batch.info["loss"] = now
            self.average = now if self.average is None else 0.9 * self.average + 0.1 * now
        if self.average is not None and self.average < self.reset_below:
            net.restore(optimizer=not self.released)
            if not self.keep_average:
                self.forget()
        return out
