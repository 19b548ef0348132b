"""RoTTA: a balanced memory, robust statistics and a teacher (Yuan et al., CVPR 2023).

L. Yuan, B. Xie, S. Li, "Robust test-time adaptation in dynamic scenarios".
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import nn

from lametta._checks import check_integer, check_number
from lametta.torch import losses
from lametta.torch.adapt import GradientMethod, own
from lametta.torch.augment import Views
from lametta.torch.memory import CSTU, items_of
from lametta.torch.network import Batch, Copy, Network, Outputs
from lametta.torch.norm import RobustNorm, replace


@dataclass(kw_only=True)
class RoTTA(GradientMethod):
    """RoTTA: learn from a memory of recent, certain samples of all classes, as a teacher answers.

    The teacher answers each batch by running statistics, before any update. After every
    ``update_every`` samples of the stream it labels the memory, and the network learns these labels
    from augmented images, each with the weight exp(-a) / (1 + exp(-a)) of its age
    a = age / capacity. The host waits for the device once a batch, to see who enters the memory.

    Parameters
    ----------
    model : Classifier
        The network to adapt, with the ``preprocess`` that augmentations need. Its batch
        normalizations are replaced; in a network without any, group or layer normalizations learn.
    capacity : int
        How many images the memory holds.
    update_every : int
        Of how many samples there is an update.
    decay : float
        How much of itself the teacher keeps when it follows the network.
    timeliness, uncertainty : float
        How much age and entropy count when a sample has to leave the memory.
    bn_momentum : float
        How far the statistics move towards those of the memory in an update.
    seed : int
        Of the augmentations.
    lr, optimizer, momentum, weight_decay, layers
        As for `GradientMethod`.

    Examples
    --------
    >>> from lametta.torch import Classifier, Preprocess
    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2))
    >>> method = RoTTA(Classifier(net.eval(), preprocess=Preprocess()), update_every=8)
    >>> method.step(torch.randn(16, 3, 8, 8)).info["backwards"]
    2
    """

    bn_momentum: float = 0.05
    capacity: int = 64
    update_every: int = 64
    decay: float = 0.999
    timeliness: float = 1.0
    uncertainty: float = 1.0
    seed: int = 0  # type: ignore[misc]
    memory: CSTU | None = own()
    seen: int = own(0)  # samples of the stream

    needs: ClassVar[frozenset[str]] = frozenset({"gradients", "augmentations", "teacher", "memory"})
    answers: ClassVar[str] = "before"
    passes: ClassVar[tuple[float, float] | None] = (3, 1)  # once the memory is full
    ordered: ClassVar[bool] = True  # samples enter the memory one by one
    statistics: ClassVar[Literal["chosen", "all"]] = "all"
    transform: ClassVar[Views] = Views()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("capacity", self.capacity, 1)
        check_integer("update_every", self.update_every, 1)
        check_number("decay", self.decay, 0, 1)
        check_number("timeliness", self.timeliness, 0)
        check_number("uncertainty", self.uncertainty, 0)

    def prepare(self, net: nn.Module, /) -> None:
        replace(net, RobustNorm.of)

    def adapt(self, batch: Batch, net: Network, /) -> Outputs:
        teacher = net.teacher()
        out = teacher(batch, train=False)
        memory = self.memory = self.memory or self.make_memory(out.classes)
        for item in items_of(batch, out):
            memory.add(item)
            self.seen += 1
            if self.seen % self.update_every == 0:
                batch.info["loss"] = self.learn(memory, teacher, net)
        return out

    def make_memory(self, classes: int, /) -> CSTU:
        """An empty memory."""
        old, unsure = self.timeliness, self.uncertainty
        return CSTU(self.capacity, classes=classes, timeliness=old, uncertainty=unsure)

    def learn(self, memory: CSTU, teacher: Copy, net: Network, /) -> torch.Tensor:
        """Learn what the teacher says of the memory; the loss."""
        held = net.batch(memory.inputs)
        age = [-item.age / memory.capacity for item in memory.items]
        target, found = teacher(held).log_probs, net(held.augment(self.transform)).log_probs
        weight = torch.tensor(age, dtype=found.dtype).to(found.device, non_blocking=True).sigmoid()
        loss = (weight * losses.cross_entropy(target, found)).mean()
        net.step(loss)
        teacher.follow(self.decay)
        return loss.detach()
