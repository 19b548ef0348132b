"""SHOT-IM: information maximization (Liang et al., ICML 2020)."""

from typing import ClassVar

from torch import Tensor

from lametta.torch.adapt import LossMethod
from lametta.torch.losses import marginal_entropy
from lametta.torch.network import Outputs


class SHOTIM(LossMethod):
    """SHOT-IM: maximize the mutual information of inputs and predictions. Options as for `TENT`.

    Examples
    --------
    >>> import torch
    >>> from lametta.torch import Classifier
    >>> from lametta.torch.digits import digits_net
    >>> SHOTIM(Classifier(digits_net()), lr=0.001).step(torch.rand(8, 1, 8, 8)).probs.shape
    torch.Size([8, 10])
    """

    needs: ClassVar[frozenset[str]] = frozenset({"gradients", "batch"})

    def loss(self, outputs: Outputs, /) -> Tensor:
        # In this order: autograd adds up gradients as the terms were made, to the last bit.
        diversity = marginal_entropy(outputs.log_probs)
        return outputs.entropy.mean() - diversity
