"""DeYO: entropy minimization on samples whose shape decides the class (Lee et al., ICLR 2024)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from lametta._checks import check_choice, check_integer, check_number
from lametta.torch import losses
from lametta.torch.adapt import GradientMethod
from lametta.torch.network import Batch, Network, Outputs
from lametta.torch.select import Selector
from lametta.types import LamettaError


@dataclass(kw_only=True)
class DeYO(GradientMethod):
    """DeYO: learn from samples that are sure, and less so once their objects are destroyed.

    Of the entropies h, those below margin ln K are kept; those images are destroyed and classified
    again; of them are kept those whose class has lost more than ``min_drop`` of its probability.
    With d that loss, the loss is the mean of (exp(anchor ln K - h) + exp(d)) h, with no gradient
    through the weight. Where nothing is kept no step is made: the host waits for the device twice a
    batch, to cut out the samples that are kept and to see whether any are left.

    Parameters
    ----------
    model : Classifier
        The network to adapt, of images [N, C, H, W].
    margin, anchor : float
        The highest entropy to learn from, and that of weight 1, as shares of ln K.
    min_drop : float
        0.3 on ImageNet-C with batch normalization; 0.2 with group or layer normalization, in wild
        streams and in the common benchmark; 0.5 on Waterbirds and ColoredMNIST.
    destroy : {"patch", "pixel", "occlusion"}
        Shuffle a grid of patches, each image by itself; shuffle pixels; or cover the middle.
    patches : int
        A side of the grid.
    layers, lr, optimizer, momentum, weight_decay, bn_momentum
        As for `SAR`.
    seed : int
        Of the shuffles.

    Examples
    --------
    >>> from lametta.torch import Classifier
    >>> from lametta.torch.digits import digits_net
    >>> DeYO(Classifier(digits_net()), min_drop=0.2).step(torch.rand(8, 1, 8, 8)).probs.shape
    torch.Size([8, 10])
    """

    layers: Selector | str = "lower_norms"
    bn_momentum: float = 0.0
    lr: float = 2.5e-4
    optimizer: str | Callable[..., torch.optim.Optimizer] = "heavy_ball"
    margin: float = 0.5
    anchor: float = 0.4
    min_drop: float = 0.3
    destroy: str = "patch"
    patches: int = 4
    seed: int = 0  # type: ignore[misc]

    needs: ClassVar[frozenset[str]] = frozenset({"gradients", "augmentations"})
    answers: ClassVar[str] = "before"
    passes: ClassVar[tuple[float, float] | None] = (2, 1)
    ordered: ClassVar[bool] = True  # draws go by place
    statistics: ClassVar[Literal["chosen", "all"]] = "all"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("margin", self.margin, 0, 1)
        check_number("anchor", self.anchor, 0, 1)
        check_number("min_drop", self.min_drop, -1, 1)
        check_choice("destroy", self.destroy, ("patch", "pixel", "occlusion"))
        check_integer("patches", self.patches, 1)

    def adapt(self, batch: Batch, net: Network, /) -> Outputs:
        out, x = batch.outputs, batch.inputs
        if not isinstance(x, Tensor) or x.ndim != 4:
            raise LamettaError(f"x must be images [N, C, H, W], got {getattr(x, 'shape', type(x))}")
        entropy, probs, scale = out.entropy.detach(), out.probs.detach(), math.log(out.classes)
        kept = (entropy < self.margin * scale).nonzero()[:, 0]
        if not len(kept):
            return out
        with torch.no_grad():
            destroyed = net(self.destroyed(x[kept], net.generator))
        label = out.labels[kept][:, None]
        lost = (probs[kept].gather(1, label) - destroyed.probs.gather(1, label))[:, 0]
        keep = lost > self.min_drop
        if keep.any():
            weight = (self.anchor * scale - entropy[kept]).exp() + lost.exp()
            net.step(loss := losses.mean(weight * out.entropy[kept], keep))
            batch.info["loss"] = loss.detach()
        return out

    def destroyed(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Images whose objects are destroyed."""
        n, channels, height, width = x.shape
        if self.destroy == "occlusion":
            x = x.clone()
            y, z = height // 4, width // 4
            x[..., y : height - y, z : width - z] = x.mean((2, 3), keepdim=True)
            return x
        if self.destroy == "pixel":
            order = self.order((1, height * width), generator)[0].to(x.device, non_blocking=True)
            return x.flatten(2)[..., order].reshape(x.shape)
        side = self.patches
        if min(height, width) < side:
            raise LamettaError(f"x must be {side} pixels or more a side, got {list(x.shape)}")
        h, w = height // side, width // side
        tiles = _resized(x, (h * side, w * side)).reshape(n, channels, side, h, side, w)
        tiles = tiles.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)  # [N, side^2, C, h, w]
        order = self.order((n, side**2), generator).to(x.device, non_blocking=True)
        tiles = tiles[torch.arange(n, device=x.device)[:, None], order]
        tiles = tiles.reshape(n, side, side, channels, h, w).permute(0, 3, 1, 4, 2, 5)
        return _resized(tiles.reshape(n, channels, h * side, w * side), (height, width))

    def order(self, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
        """A random order in each row."""
        return torch.rand(shape, generator=generator).argsort(1)


def _resized(x: Tensor, size: tuple[int, int]) -> Tensor:
    same = tuple(x.shape[2:]) == size
    return x if same else interpolate(x, size, mode="bilinear", antialias=True)
