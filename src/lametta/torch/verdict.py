"""The verdict between two networks on the same samples: whose answers neighbors predict."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from lametta.torch.network import Outputs
from lametta.types import LamettaError

NEIGHBORS = 5  # 3 or 8 give nearly the same
_POWER = 1 / 4  # of probabilities: the best of eight in telling harm from gain by few samples
_TINY = 1e-30


def information(features: Tensor, probs: Tensor, usual: Tensor | None = None) -> Tensor:
    """What feature neighbors say of each sample's answer beyond what all samples say [n], in nats.

    With q the probabilities to the power 1/4, scaled to sum to 1, N the five nearest neighbors of a
    sample i by cosine, and m = (sum of all q but i's, + their mean over N) / n,

        I_i = sum_k q_ik log[(sum over N of q_k + m_k) / (6 m_k)].

    It is 0 where all answers are alike, and where an error is shared with no neighbor: neither
    confidence nor diversity counts as such. ``usual`` [K] takes the place of m.

    Examples
    --------
    >>> probs = torch.eye(2).repeat_interleave(6, 0)
    >>> float(information(probs, probs).mean()) > 0.5  # neighbors agree, and others differ
    True
    >>> float(information(torch.eye(12), probs[:1].expand(12, 2)).abs().max()) < 1e-6
    True
    """
    n, k = len(features), min(NEIGHBORS, len(features) - 1)
    q = softened(probs)
    unit = functional.normalize(features, dim=1)
    near = (unit @ unit.T).fill_diagonal_(-math.inf).topk(k, dim=1).indices
    others = q[near].sum(1)
    mean = (q.sum(0) - q + others / k) / n if usual is None else usual
    mean = mean.clamp(min=_TINY)
    return (q * ((others + mean) / ((k + 1) * mean)).log()).sum(1)


def softened(probs: Tensor, power: Tensor | float = _POWER) -> Tensor:
    """Probabilities to a power, scaled to sum to 1 again; by default the q of `information`.

    Examples
    --------
    >>> softened(torch.tensor([[0.81, 0.01]]), 0.5)
    tensor([[0.9000, 0.1000]])
    """
    q = probs**power
    return q / q.sum(1, keepdim=True)


@dataclass(frozen=True)
class Pairs:
    """Answers of the source and of another network to the same last samples.

    Attributes
    ----------
    features, probs : tensor [n, d], [n, K]
        The source's.
    other_features, other_probs : tensor [n, d], [n, K]
        The other network's.

    Examples
    --------
    >>> out = Outputs(torch.eye(2), torch.eye(2))
    >>> len(Pairs.of(out, out).after(Pairs.of(out, out), 3))
    3
    """

    features: Tensor
    probs: Tensor
    other_features: Tensor
    other_probs: Tensor

    def __post_init__(self) -> None:
        sizes = [tuple(x.shape) for x in vars(self).values()]
        same = len({size[0] for size in sizes if size}) == 1 and sizes[1] == sizes[3]
        if not same or any(len(size) != 2 for size in sizes):
            raise LamettaError(f"pairs must have as many rows and classes each, got {sizes}")

    @classmethod
    def of(cls, source: Outputs, other: Outputs) -> "Pairs":
        """The answers of one batch."""
        parts = [part.detach() for o in (source, other) for part in (o.features, o.probs)]
        return cls(*(part.to(torch.promote_types(part.dtype, torch.float32)) for part in parts))

    def after(self, before: "Pairs | None", most: int) -> "Pairs":
        """The last ``most`` of earlier ones and these."""
        held = vars(self if before is None else before).values()
        pairs = zip(held, vars(self).values(), strict=True)
        kept = self if before is None else Pairs(*(torch.cat(pair) for pair in pairs))
        return Pairs(*(x[-most:].clone() for x in vars(kept).values()))

    def __len__(self) -> int:
        return len(self.probs)

    def t(self) -> Tensor:
        """Student's t of the difference of `information`, positive where the source's is less."""
        gain = information(self.other_features, self.other_probs)
        return _t(gain - information(self.features, self.probs))

    def both_t(self) -> Tensor:
        """`t`, and the same by what both networks say of all samples.

        Measured by its own mean, a network also gains by answers that are more diverse; by what
        both say, it does not, as where few classes come often and are rightly named.
        """
        usual = torch.cat([softened(self.probs), softened(self.other_probs)]).mean(0)
        gain = information(self.other_features, self.other_probs, usual)
        common = _t(gain - information(self.features, self.probs, usual))
        return torch.stack([self.t(), common])

    def on_one_scale(self) -> "Pairs":
        """The other's answers as sharp as the source's, where they are plainly on another scale.

        That is where their mean confidence is below half of the source's, as after a division by a
        prior: to the power at which the mean entropy of q is the source's.
        """
        sure = self.probs.amax(1).mean() > 2 * self.other_probs.amax(1).mean()
        wanted, low = _entropy(softened(self.probs)), torch.zeros_like(self.probs[0, 0])
        high = low + 64.0
        for _ in range(30):  # bisection, with no wait for the device
            power = (low + high) / 2
            flat = _entropy(softened(self.other_probs, power * _POWER)) > wanted
            low, high = torch.where(flat, power, low), torch.where(flat, high, power)
        sharp = softened(self.other_probs, torch.where(sure, low, torch.ones_like(low)))
        return replace(self, other_probs=sharp)


def _t(gain: Tensor) -> Tensor:
    spread: Tensor = gain.std() / len(gain) ** 0.5
    return gain.mean() / spread.clamp(min=_TINY)


def _entropy(q: Tensor) -> Tensor:
    found: Tensor = torch.special.entr(q).sum(1).mean()
    return found
