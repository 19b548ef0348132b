"""What the network methods minimize: losses of log-probabilities [N, K], with no labels.

Give them what ``log_softmax`` returns, not the logarithm of a softmax: then they are finite for any
logits. Each is computed in float32 at least.
"""

import math

import torch
from torch import Tensor


def entropy(log_probs: Tensor) -> Tensor:
    """Mean entropy of the predictions (TENT).

    Examples
    --------
    >>> round(entropy(torch.zeros(3, 2).log_softmax(1)).item(), 3)
    0.693
    """
    log_probs = _wide(log_probs)
    return -_p_log_p(log_probs).sum(1).mean()


def information_maximization(log_probs: Tensor) -> Tensor:
    """Mean entropy less the entropy of the mean prediction: confident, but diverse (SHOT-IM).

    Examples
    --------
    >>> log_probs = torch.tensor([[9.0, 0.0], [0.0, 9.0]]).log_softmax(1)
    >>> round(information_maximization(log_probs).item(), 2)
    -0.69
    """
    log_probs = _wide(log_probs)
    log_mean = log_probs.logsumexp(0) - math.log(len(log_probs))
    return entropy(log_probs) + _p_log_p(log_mean).sum()


def pseudo_label(log_probs: Tensor, threshold: float = 0.9) -> Tensor:
    """Mean cross-entropy to the predicted class where its probability exceeds the threshold.

    NaN where no sample does: there is nothing to learn from.

    Examples
    --------
    >>> round(pseudo_label(torch.tensor([[9.0, 0.0], [0.0, 0.1]]).log_softmax(1)).item(), 5)
    0.00012
    """
    top = _wide(log_probs).amax(1)
    return -top[top.exp() > threshold].mean()


def _wide(log_probs: Tensor) -> Tensor:
    return log_probs.to(torch.promote_types(log_probs.dtype, torch.float32))


def _p_log_p(log_probs: Tensor) -> Tensor:
    # A class of probability 0 has log-probability -inf, and -inf times 0 would be NaN.
    return log_probs.exp() * log_probs.clamp(min=-1e4)
