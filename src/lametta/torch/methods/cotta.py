"""CoTTA: a teacher's answers over augmentations, and weights that return (Wang et al., CVPR 2022).

Q. Wang, O. Fink, L. Van Gool, D. Dai, "Continual test-time domain adaptation".
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lametta._checks import check_flag, check_integer, check_number
from lametta.torch import losses
from lametta.torch.adapt import GradientMethod
from lametta.torch.augment import Views, generator_on
from lametta.torch.network import Batch, Network, Outputs
from lametta.torch.select import Selector


@dataclass(kw_only=True)
class CoTTA(GradientMethod):
    """CoTTA: follow a teacher, which sees many views where the source is unsure of a batch.

    The defaults are those for ImageNet-C. For CIFAR-10-C take ``optimizer="adam"``, ``lr=1e-3``,
    ``restore=0.01`` and ``unsure_below=0.92`` (CIFAR-100-C: 0.72).

    Parameters
    ----------
    model : Classifier
        The network to adapt, with the ``preprocess`` that augmentations need.
    views : int
        How many augmentations the teacher's answer is the mean of.
    decay : float
        How much of itself the teacher keeps when it follows the network.
    restore : float
        The probability with which each weight returns to the source's after a step.
    unsure_below : float
        The mean confidence of the source below which the teacher sees views. To look at it, the
        host waits for the device once a batch.
    symmetric : bool
        Take half of the cross-entropy in each direction, as the released code does for ImageNet.
    seed : int
        Of the augmentations and of the weights that return.
    lr, optimizer, momentum, weight_decay, layers, bn_momentum
        As for `GradientMethod`; all layers learn.

    Examples
    --------
    >>> from torch import nn
    >>> from lametta.torch import Classifier, Preprocess
    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2))
    >>> model = Classifier(net.eval(), preprocess=Preprocess())
    >>> CoTTA(model, unsure_below=1).step(torch.randn(8, 3, 8, 8)).info["forwards"]
    34
    """

    lr: float = 0.01
    optimizer: str | Callable[..., torch.optim.Optimizer] = "sgd"
    weight_decay: float | None = 0.0
    layers: Selector | str = "all"
    bn_momentum: float = 0.0
    views: int = 32
    decay: float = 0.999
    restore: float = 0.001
    unsure_below: float = 0.1
    symmetric: bool = False
    seed: int = 0  # type: ignore[misc]

    needs: ClassVar[frozenset[str]] = frozenset({"gradients", "augmentations", "teacher", "batch"})
    answers: ClassVar[str] = "before"
    passes: ClassVar[tuple[float, float] | None] = (3, 1)  # 34 forward where it takes views
    ordered: ClassVar[bool] = True  # draws go by place
    statistics: ClassVar[Literal["chosen", "all"]] = "all"
    transform: ClassVar[Views] = Views()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("views", self.views, 1)
        for name in ("decay", "restore", "unsure_below"):
            check_number(name, getattr(self, name), 0, 1)
        check_flag("symmetric", self.symmetric)

    def adapt(self, batch: Batch, net: Network, /) -> Outputs:
        student, teacher = batch.outputs, net.teacher()
        unsure = net.anchor()(batch).probs.amax(1).mean() < self.unsure_below
        views = (batch.augment(self.transform) for _ in range(self.views)) if unsure else [batch]
        seen = [teacher(view) for view in views]
        features, logits = (
            torch.stack([getattr(one, part) for one in seen]).mean(0)
            for part in ("features", "logits")
        )
        target = Outputs(features, logits)
        loss = losses.cross_entropy(target.log_probs, student.log_probs)
        if self.symmetric:
            loss = 0.5 * loss + 0.5 * losses.cross_entropy(student.log_probs, target.log_probs)
        net.step(loss.mean())
        teacher.follow(self.decay)
        net.blend(net.source, self.masks(net))
        batch.info |= {"loss": loss.detach().mean(), "views": len(seen)}
        return target

    def masks(self, net: Network, /) -> dict[str, Tensor]:
        """Draw which weights return to the source's."""
        draws = generator_on(next(iter(net.parameters.values())).device, net.generator)
        return {
            name: torch.empty_like(p).bernoulli_(self.restore, generator=draws).bool()
            for name, p in net.parameters.items()
        }
