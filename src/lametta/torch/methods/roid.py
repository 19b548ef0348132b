"""ROID: certain and diverse samples, weights near the source, a prior (Marsden et al., WACV 2024).

R. A. Marsden, M. Döbler, B. Yang, "Universal test-time adaptation through weight ensembling,
diversity weighting, and prior correction".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lametta._checks import check_choice, check_integer, check_number
from lametta.torch import losses
from lametta.torch.adapt import GradientMethod, own
from lametta.torch.augment import Views
from lametta.torch.network import Batch, Network, Outputs


@dataclass(kw_only=True)
class ROID(GradientMethod):
    """ROID: learn from certain, diverse samples, stay near the source, and correct by a prior.

    The defaults are those for ImageNet-C; for CIFAR they are ``optimizer="adam"`` and ``lr=1e-3``.
    The host waits for the device once a batch, for which samples to augment.

    Parameters
    ----------
    model : Classifier
        The network to adapt, with the ``preprocess`` that augmentations need.
    temperature : float
        Of the weights of samples: the lower, the more the certain and diverse ones count.
    decay : float
        How much of the mean prediction so far each batch keeps.
    ensemble : float
        How far the parameters return to the source's after each step.
    correction : {"logits", "probs", "none"}
        What the estimated prior multiplies: logits, as published, or probabilities, as Bayes' rule
        has it, which does not depend on an offset of the logits.
    batch_size : int, optional
        What the losses are divided by, as the published code does where the last batch is smaller;
        if not given, the size of each batch.
    seed : int
        Of the augmentations.
    lr, optimizer, momentum, weight_decay, layers, bn_momentum
        As for `GradientMethod`.

    Examples
    --------
    >>> from torch import nn
    >>> from lametta.torch import Classifier, Preprocess
    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2))
    >>> model = Classifier(net.eval(), preprocess=Preprocess())
    >>> ROID(model).step(torch.randn(8, 3, 8, 8)).info["backwards"]  # of both passes
    2
    """

    lr: float = 2.5e-4
    optimizer: str | Callable[..., torch.optim.Optimizer] = "sgd"
    weight_decay: float | None = 0.0
    bn_momentum: float = 0.0
    temperature: float = 1 / 3
    decay: float = 0.9
    ensemble: float = 0.01
    correction: Literal["logits", "probs", "none"] = "logits"
    batch_size: int | None = None
    seed: int = 0  # type: ignore[misc]
    mean: Tensor | None = own()  # prediction so far [K]

    needs: ClassVar[frozenset[str]] = frozenset({"gradients", "augmentations", "batch"})
    answers: ClassVar[str] = "before"
    passes: ClassVar[tuple[float, float] | None] = (1.5, 1.5)  # about half of a batch goes twice
    statistics: ClassVar[Literal["chosen", "all"]] = "all"
    transform: ClassVar[Views] = Views(padding="reflect", blur=False, noise=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("temperature", self.temperature, above=0)
        for name in ("decay", "ensemble"):
            check_number(name, getattr(self, name), 0, 1)
        check_choice("correction", self.correction, ("logits", "probs", "none"))
        if self.batch_size is not None:
            check_integer("batch_size", self.batch_size, 1)

    def adapt(self, batch: Batch, net: Network, /) -> Outputs:
        out, weight = batch.outputs, self.weigh(batch.outputs)
        kept = weight.nonzero()[:, 0]
        plain, other = out.log_probs[kept], net(batch[kept].augment(self.transform)).log_probs
        agree = losses.cross_entropy(plain, other) + losses.cross_entropy(other, plain)
        values = losses.soft_likelihood_ratio(plain) + 0.5 * agree
        loss = (weight[kept] * values).sum() / (self.batch_size or len(batch))
        net.step(loss)
        net.blend(self.home(net), self.ensemble)
        batch.info |= {"loss": loss.detach(), "learned_from": len(kept)}
        return Outputs(out.features, self.by_prior(out).to(out.logits.dtype))

    def weigh(self, out: Outputs, /) -> Tensor:
        """Weights of the samples [N], 0 of those that are too much like the mean prediction."""
        probs, certainty = out.probs.detach(), -out.entropy.detach()
        mean = torch.full_like(probs[0], 1 / out.classes) if self.mean is None else self.mean
        diverse = _unit_range(1 - torch.cosine_similarity(mean[None], probs))
        weight = torch.exp(diverse * _unit_range(certainty) / self.temperature)
        self.mean = self.decay * mean + (1 - self.decay) * probs.mean(0)
        return torch.where(diverse < diverse.mean(), 0, weight)

    def home(self, net: Network, /) -> Mapping[str, Tensor]:
        """Where the parameters return to."""
        return net.source

    def by_prior(self, out: Outputs, /) -> Tensor:
        """Logits [N, K], corrected by the prior that the batch shows, smoothed."""
        logits: Tensor = out.logits
        prior = out.probs.detach().mean(0)
        smooth = max(1 / len(out), 1 / out.classes) / prior.max()
        prior = (prior + smooth) / (1 + smooth * out.classes)
        if self.correction == "probs":
            return logits + prior.log()
        return logits * prior if self.correction == "logits" else logits


def _unit_range(values: Tensor) -> Tensor:
    """Scale to [0, 1]; values that are all alike become 0."""
    low, high = values.aminmax()
    return (values - low) / (high - low).clamp(min=torch.finfo(values.dtype).tiny)
