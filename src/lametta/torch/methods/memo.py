"""MEMO: one image, many augmentations, one confident answer (Zhang et al., NeurIPS 2022).

M. Zhang, S. Levine, C. Finn, "MEMO: test time robustness via adaptation and augmentation".
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from lametta._checks import check_integer
from lametta.torch.adapt import GradientMethod
from lametta.torch.augment import AugMix
from lametta.torch.losses import marginal_entropy
from lametta.torch.network import Batch, Network, Outputs
from lametta.torch.norm import MixedNorm, replace
from lametta.torch.select import Selector


@dataclass(kw_only=True)
class MEMO(GradientMethod):
    """MEMO: from the source, for each image, lower the entropy of the mean over augmented copies.

    Each image is answered by itself, after one step that the next image forgets. The defaults are
    those for ImageNet; for CIFAR-10 they are ``copies=32`` and ``lr=5e-3``.

    Parameters
    ----------
    model : Classifier
        The network to adapt, with the ``preprocess`` that augmentations need.
    copies : int
        How many augmentations of an image.
    bn_momentum : float
        The share of the image's own statistics in batch normalizations, against the source's: 1 /
        17, as of an image beside 16 of the source. A benchmark takes 0.1.
    seed : int
        Of the augmentations.
    lr, optimizer, momentum, weight_decay, layers
        As for `GradientMethod`; all layers learn, by SGD without momentum.

    Examples
    --------
    >>> from lametta.torch import Classifier, Preprocess
    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2))
    >>> method = MEMO(Classifier(net.eval(), preprocess=Preprocess()), copies=32)
    >>> method.step(torch.randn(2, 3, 8, 8)).info["forward_samples"]
    66
    """

    lr: float = 2.5e-4
    optimizer: str | Callable[..., torch.optim.Optimizer] = "sgd"
    momentum: float | None = 0.0
    weight_decay: float | None = 0.0
    layers: Selector | str = "all"
    bn_momentum: float = 1 / 17
    copies: int = 64
    seed: int = 0  # type: ignore[misc]

    needs: ClassVar[frozenset[str]] = frozenset({"gradients", "augmentations"})
    answers: ClassVar[str] = "after"
    passes: ClassVar[tuple[float, float] | None] = (65, 64)
    ordered: ClassVar[bool] = True  # draws go by place
    causal: ClassVar[bool] = True
    statistics: ClassVar[Literal["chosen", "all"]] = "all"
    transform: ClassVar[AugMix] = AugMix()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("copies", self.copies, 1)

    def prepare(self, net: nn.Module, /) -> None:
        replace(net, MixedNorm.of)

    def adapt(self, batch: Batch, net: Network, /) -> Outputs:
        answers, values = [], []
        for image in (batch[row : row + 1] for row in range(len(batch))):
            net.restore()
            loss = marginal_entropy(net(image.augment(self.views)).log_probs)
            net.step(loss)
            values.append(loss.detach())
            with torch.no_grad():
                answers.append(net(image))
        batch.info["loss"] = torch.stack(values).mean()
        return Outputs.cat(answers)

    def views(self, pixels: Tensor, generator: torch.Generator, /) -> Tensor:
        """Augmented copies of one image."""
        return self.transform(pixels.expand(self.copies, -1, -1, -1), generator)
