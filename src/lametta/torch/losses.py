"""Label-free losses of log-probabilities [N, K], one value a sample.

Give them what ``log_softmax`` returns, not the logarithm of a softmax: then they are finite for any
logits. Each is computed in float32 at least.
"""

import math

import torch
from torch import Tensor


def entropy(log_probs: Tensor) -> Tensor:
    """Entropy of each prediction [N] (TENT).

    Examples
    --------
    >>> entropy(torch.zeros(2, 2).log_softmax(1)).round(decimals=3)
    tensor([0.6930, 0.6930])
    """
    return -_p_log_p(widen(log_probs)).sum(1)


def cross_entropy(target_log_probs: Tensor, log_probs: Tensor) -> Tensor:
    """Cross-entropy of each prediction to a target distribution [N] (CoTTA, RoTTA).

    Examples
    --------
    >>> target = torch.tensor([[9.0, 0.0]]).log_softmax(1)
    >>> cross_entropy(target, torch.zeros(1, 2).log_softmax(1)).round(decimals=3)
    tensor([0.6930])
    """
    return -(target_log_probs.exp() * widen(log_probs).clamp(min=-1e4)).sum(1)


def pseudo_label(log_probs: Tensor) -> Tensor:
    """Cross-entropy of each prediction to its own class [N] (PseudoLabel).

    Examples
    --------
    >>> pseudo_label(torch.tensor([[9.0, 0.0], [0.0, 0.0]]).log_softmax(1)).round(decimals=3)
    tensor([0.0000, 0.6930])
    """
    return -widen(log_probs).amax(1)


def soft_likelihood_ratio(log_probs: Tensor) -> Tensor:
    """Minus the mean log-odds of each prediction [N], by its own probabilities (ROID).

    Unlike those of the entropy, its gradients do not vanish where a prediction is confident, up to
    the probability 0.99.

    Examples
    --------
    >>> soft_likelihood_ratio(torch.zeros(1, 4).log_softmax(1)).round(decimals=3)
    tensor([1.0990])
    """
    probs = widen(log_probs).exp().clamp(max=0.99)
    return -(probs * (probs / (1 - probs) + 1e-5).log()).sum(1)


def marginal_entropy(log_probs: Tensor) -> Tensor:
    """Entropy of the mean prediction, one number: high where predictions are diverse (SHOT-IM).

    Examples
    --------
    >>> log_probs = torch.tensor([[9.0, 0.0], [0.0, 9.0]]).log_softmax(1)
    >>> round(marginal_entropy(log_probs).item(), 3)
    0.693
    """
    log_probs = widen(log_probs)
    return -_p_log_p(log_probs.logsumexp(0) - math.log(len(log_probs))).sum()


def mean(values: Tensor, keep: Tensor | None = None) -> Tensor:
    """Mean of the values [N] that a mask keeps: 0, and gradients of 0, where it keeps none.

    Unlike ``values[keep].mean()`` it does not wait for the device.

    Examples
    --------
    >>> values = torch.tensor([1.0, 2.0, 6.0])
    >>> mean(values, values > 1), mean(values, values > 9)
    (tensor(4.), tensor(0.))
    """
    if keep is None:
        return values.mean()
    return torch.where(keep, values, 0).sum() / keep.sum().clamp(min=1)


def widen(log_probs: Tensor) -> Tensor:
    """The same in float32 at least."""
    return log_probs.to(torch.promote_types(log_probs.dtype, torch.float32))


def _p_log_p(log_probs: Tensor) -> Tensor:
    # A class of probability 0 has log-probability -inf, and -inf times 0 would be NaN.
    return log_probs.exp() * log_probs.clamp(min=-1e4)
