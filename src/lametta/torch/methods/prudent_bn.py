"""PrudentBN: HalfBN with Prudent on top, adaptation and correction by evidence alone."""

import warnings
from dataclasses import dataclass
from typing import ClassVar

from lametta.adapters import Corrected
from lametta.correctors import Prudent
from lametta.torch.methods.half_bn import HalfBN
from lametta.torch.model import Classifier
from lametta.torch.moments import has_statistics


@dataclass(init=False)
class PrudentBN(Corrected):
    """PrudentBN: batch-norm statistics that move where that is shown to help, and Prudent on top.

    For streams whose inputs may have changed, and whose order may say something: `HalfBN` undoes a
    shift of the inputs, and `lametta.Prudent` corrects what then comes out, each as far as the
    evidence goes. Without batch normalizations it is `lametta.Prudent`, and warns of it. Samples
    come one by one or in batches; the host waits for the device twice a batch.

    Parameters
    ----------
    model : Classifier
        The network, whose weights stay as they are.

    Notes
    -----
    ``info`` has Prudent's diagnostics, and those of `HalfBN` with ``base_`` before their names.
    Other correctors go on `HalfBN` instead (``half_bn+lame``), or on top (``prudent_bn+lame``).

    Examples
    --------
    >>> import torch
    >>> from lametta.torch import wrap
    >>> from lametta.torch.digits import digits_net
    >>> model = wrap(digits_net(), "prudent_bn")
    >>> model(torch.rand(24, 1, 8, 8)).shape, model.prediction.info["base_domain_changes"]
    (torch.Size([24, 10]), 0)
    """

    needs_network: ClassVar[bool] = True
    ordered: ClassVar[bool] = True
    stateful: ClassVar[bool] = True
    causal: ClassVar[bool] = False
    answers: ClassVar[str] = "after"
    passes: ClassVar[tuple[float, float] | None] = HalfBN.passes

    def __init__(self, model: Classifier) -> None:
        moves = model is None or any(map(has_statistics, model.net.modules()))
        if not moves:
            warnings.warn(
                "net has no batch normalizations, so that prudent_bn is prudent: nothing adapts",
                stacklevel=2,
            )
        super().__init__(HalfBN(model) if moves else model, Prudent())
