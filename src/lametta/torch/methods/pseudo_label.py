"""PseudoLabel: cross-entropy to confident predictions (Lee, 2013)."""

from dataclasses import dataclass

from torch import Tensor

from lametta._checks import check_number
from lametta.torch import losses
from lametta.torch.adapt import LossMethod
from lametta.torch.network import Outputs


@dataclass(kw_only=True)
class PseudoLabel(LossMethod):
    """PseudoLabel: learn from predictions above the threshold. Other options as for `TENT`.

    The host waits for the device once a step, to cut out the samples that are kept.

    Examples
    --------
    >>> import torch
    >>> from lametta.torch import Classifier
    >>> from lametta.torch.digits import digits_net
    >>> adapter = PseudoLabel(Classifier(digits_net()), threshold=0.8)
    >>> adapter.step(torch.rand(8, 1, 8, 8)).probs.shape
    torch.Size([8, 10])
    """

    threshold: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("threshold", self.threshold, 0, below=1)

    def loss(self, outputs: Outputs, /) -> Tensor | None:
        values = losses.pseudo_label(outputs.log_probs)
        # A mask as index would wait for the device once more, in the backward pass.
        kept = values[((-values).exp() > self.threshold).nonzero()[:, 0]]
        return kept.mean() if len(kept) else None
