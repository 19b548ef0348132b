"""NOTE: instance-aware normalization and a balanced memory (Gong et al., NeurIPS 2022).

T. Gong et al., "NOTE: robust continual test-time adaptation against temporal correlation".
"""

from dataclasses import dataclass
from functools import partial
from random import Random
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from lametta._checks import check_flag, check_integer, check_number
from lametta.torch.adapt import GradientMethod, own
from lametta.torch.memory import PBRS, Memory, cut, items_of
from lametta.torch.network import Batch, Network, Outputs, norms_of
from lametta.torch.norm import InstanceAwareNorm, replace
from lametta.types import LamettaError


@dataclass(kw_only=True)
class NOTE(GradientMethod):
    """NOTE: answer each sample by itself, and learn from a memory that is balanced by class.

    Running statistics normalize each sample, corrected by its own where these are far away. After
    every ``update_every`` samples the entropy of the memory is minimized, and the statistics move
    towards the memory's. A batch is cut where updates fall, so that answers are those of samples
    that come one by one. The host waits for the device once a part, to see who enters the memory.

    Parameters
    ----------
    model : Classifier
        The network to adapt, trained with such normalizations: an ordinary one loses accuracy by
        them, unless ``k`` is None.
    k : float, optional
        From how many standard errors on a sample's own statistics count. None leaves the batch
        normalizations as they are.
    capacity : int
        How many samples the memory holds.
    update_every : int
        Of how many samples there is an update.
    balanced : bool
        Whether the memory is balanced by class; otherwise it holds the last samples. NOTE*, for
        streams of mixed classes, is ``balanced=False, bn_momentum=0, lr=1e-3``.
    released : bool
        As the published code: the mean of the entropy over classes, too, with log(p + 1e-6).
    seed : int
        Of the memory's draws.
    bn_momentum : float
        How far running statistics move in an update; 0 normalizes each part of a batch by itself.
    lr, optimizer, momentum, weight_decay, layers
        As for `GradientMethod`.

    Examples
    --------
    >>> from lametta.torch import Classifier
    >>> from lametta.torch.digits import digits_net
    >>> method = NOTE(Classifier(digits_net()), update_every=8)
    >>> method.step(torch.rand(16, 1, 8, 8)).info["backward_samples"]  # of 8, then of 16
    24
    """

    lr: float = 1e-4
    bn_momentum: float = 0.01
    k: float | None = 4.0
    capacity: int = 64
    update_every: int = 64
    balanced: bool = True
    released: bool = False
    seed: int = 0  # type: ignore[misc]
    memory: Memory | None = own()
    seen: int = own(0)  # samples of the stream

    needs: ClassVar[frozenset[str]] = frozenset({"gradients", "memory"})
    answers: ClassVar[str] = "before"
    passes: ClassVar[tuple[float, float] | None] = (2, 1)  # once the memory is full
    ordered: ClassVar[bool] = True  # samples enter the memory one by one
    statistics: ClassVar[Literal["chosen", "all"]] = "all"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k is not None:
            check_number("k", self.k, 0)
        check_integer("capacity", self.capacity, 1)
        check_integer("update_every", self.update_every, 1)
        check_flag("balanced", self.balanced)
        check_flag("released", self.released)

    @property
    def causal(self) -> bool:  # type: ignore[override]
        """Whether later samples of a batch change nothing."""
        return self.bn_momentum > 0

    def prepare(self, net: nn.Module, /) -> None:
        if not norms_of(net):
            raise LamettaError("net must have batch normalizations for NOTE, got none")
        if self.k is not None:
            replace(net, partial(InstanceAwareNorm.of, k=self.k))

    def adapt(self, batch: Batch, net: Network, /) -> Outputs:
        memory = self.memory = self.memory or self.make_memory()
        answers = []
        for part in cut(batch, self.seen, self.update_every):
            with torch.no_grad():
                answers.append(net(part, train=not self.bn_momentum))
            for item in items_of(part, answers[-1]):
                memory.add(item)
            self.seen += len(part)
            if self.seen % self.update_every == 0 and len(memory):
                batch.info["loss"] = self.learn(net.batch(memory.inputs), net)
        return answers[0] if len(answers) == 1 else Outputs.cat(answers)

    def make_memory(self) -> Memory:
        """An empty memory."""
        if not self.balanced:
            return Memory(self.capacity)
        return PBRS(self.capacity, draws=Random(self.seed))

    def learn(self, held: Batch, net: Network, /) -> Tensor:
        """Learn from the memory; the loss."""
        loss = held.outputs.entropy.mean()
        if self.released:
            p = held.outputs.probs
            loss = -(p * (p + 1e-6).log()).mean()
        net.step(loss)
        return loss.detach()
