"""PeTTA: RoTTA that holds on to the source as far as it has diverged (Hoang et al., NeurIPS 2024).

T.-H. Hoang, D. M. Vo, M. N. Do, "Persistent test-time adaptation in recurring testing scenarios".
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, ClassVar

import torch
from torch import Tensor

from lametta._checks import check_flag, check_number
from lametta.torch import losses
from lametta.torch.adapt import own
from lametta.torch.features import find_features, moments_of_classes
from lametta.torch.memory import items_of
from lametta.torch.methods.rotta import RoTTA
from lametta.torch.network import Batch, Network, Outputs
from lametta.types import LamettaError


@dataclass(kw_only=True)
class PeTTA(RoTTA):
    """PeTTA: follow a teacher on a memory, nearer to the source the more the features diverge.

    With m moving means of the teacher's features of each class, mu and v those of the source:
    gamma = 1 - exp(-mean (m - mu)^2 / v) over the classes of a batch. The loss is the teacher's
    cross-entropy, ``anchor`` times the source's, and -``gamma`` ``regularization`` times the mean
    cosine of parameters to the source's; the teacher follows by (1 - gamma) (1 - decay). The source
    goes by robust statistics of the memory as well, as published. The host waits for the device
    once a batch, to see who enters the memory.

    Parameters
    ----------
    model : Classifier
        The network to adapt, with the ``preprocess`` that augmentations need.
    source : iterable, mapping or path, optional
        Where mu and v come from: a loader of unlabeled batches of the source, which is gone through
        before the first step; what `lametta.torch.measure_features` gives; or a .safetensors file
        of that. Without it gamma is 0.
    symmetric : bool
        Take the symmetric cross-entropy, of plain and augmented images, as for CIFAR.
    regularization, anchor : float
        Weights of the two terms that hold the network.
    feature_decay : float
        How much of itself a class's mean keeps in each batch that shows the class.
    capacity, decay, timeliness, uncertainty, bn_momentum, seed
        As for `RoTTA`; there is an update for every batch.
    lr, optimizer, momentum, weight_decay, layers
        As for `GradientMethod`.

    Examples
    --------
    >>> from torch import nn
    >>> from lametta.torch import Classifier, Preprocess
    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2))
    >>> model = Classifier(net.eval(), preprocess=Preprocess())
    >>> method = PeTTA(model, source=[torch.randn(16, 3, 8, 8)])
    >>> method.step(torch.randn(16, 3, 8, 8)).info["gamma"]  # of the source itself
    tensor(0.)
    """

    source: Iterable[Any] | Mapping[str, Tensor] | str | PathLike[str] | None = None
    symmetric: bool = False
    regularization: float = 10.0
    anchor: float = 1.0
    feature_decay: float = 0.95
    update_every: int = field(default=1, init=False, repr=False)  # of the batches, here
    means: Tensor | None = own()  # of features [K, d]
    # Of the source: no state, since a reset leaves it as it was.
    known: dict[str, Tensor] | None = field(default=None, init=False, repr=False, compare=False)

    needs: ClassVar[frozenset[str]] = frozenset(
        {"gradients", "source data", "augmentations", "teacher", "memory"}
    )
    passes: ClassVar[tuple[float, float] | None] = (5, 1)  # memory and batch of one size

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flag("symmetric", self.symmetric)
        check_number("regularization", self.regularization, 0)
        check_number("anchor", self.anchor, 0)
        check_number("feature_decay", self.feature_decay, 0, 1)
        if not isinstance(self.source, Iterable | PathLike | None):
            got = type(self.source).__name__
            raise LamettaError(f"source must be a loader, a mapping or a path, got {got}")
        self.passes = 5, 1 + self.symmetric  # type: ignore[misc]

    def start(self, net: Network, /) -> None:
        if self.source is not None and self.known is None:
            self.known = find_features(self.source, net)

    def adapt(self, batch: Batch, net: Network, /) -> Outputs:
        teacher = net.teacher()
        out = teacher(batch, train=False)
        gamma = self.diverged(out)
        memory = self.memory = self.memory or self.make_memory(out.classes)
        for item in items_of(batch, out):
            memory.add(item)
        held = net.batch(memory.inputs)
        target = teacher(held).log_probs
        with torch.set_grad_enabled(self.symmetric):
            plain = net(held).log_probs
        home = net.anchor()(held).log_probs
        found = net(held.augment(self.transform)).log_probs
        loss = losses.cross_entropy(target, found)
        if self.symmetric:
            loss = loss + losses.cross_entropy(target, plain)
            loss = (loss + sum(losses.cross_entropy(own, target) for own in (plain, found))) / 4
        loss = loss + self.anchor * losses.cross_entropy(home, found)
        loss = loss.mean() - gamma * self.regularization * _cosine(net)
        net.step(loss)
        teacher.follow(1 - (1 - gamma) * (1 - self.decay))
        batch.info |= {"loss": loss.detach(), "gamma": gamma}
        return out

    def diverged(self, out: Outputs, /) -> Tensor:
        """How far the classes of a batch are from the source, in [0, 1]; then the means move."""
        if self.known is None:
            return torch.zeros((), device=out.logits.device)
        mean, var = self.known["mean"], self.known["var"]
        now = mean if self.means is None else self.means
        count, seen, _ = moments_of_classes(out)
        if mean.shape != seen.shape:
            wanted, got = list(seen.shape), list(mean.shape)
            raise LamettaError(f"source must have mean and var of shape {wanted}, got {got}")
        shown = (count > 0) & mean.isfinite().all(1) & var.isfinite().all(1)
        gap = losses.mean(((now - mean) ** 2 / (var + 1e-6)).mean(1), shown)
        moved = self.feature_decay * now + (1 - self.feature_decay) * seen
        self.means = torch.where(shown[:, None], moved, now)
        return 1 - (-gap).exp()


def _cosine(net: Network) -> Tensor:
    """Mean cosine of the parameters to the source's."""
    pairs = ((p, net.source[name]) for name, p in net.parameters.items())
    wide = [[losses.widen(value.flatten()) for value in pair] for pair in pairs]
    return torch.stack([torch.cosine_similarity(p, q, dim=0) for p, q in wide]).mean()
