"""Memory: a bounded store of samples that a method learns from later."""

from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lametta._checks import check_integer


@dataclass
class Item:
    """A sample in a memory: its input, the class that was predicted, and what else is known.

    Examples
    --------
    >>> Item(torch.zeros(3), label=1).age
    0
    """

    x: Tensor
    label: int
    uncertainty: float = 0.0
    age: int = 0


@dataclass
class Memory:
    """The last samples, first in, first out; derive from it to choose otherwise who leaves.

    Parameters
    ----------
    capacity : int
        The most samples that it holds.

    Examples
    --------
    >>> memory = Memory(2)
    >>> for number in range(3):
    ...     memory.add(Item(torch.tensor([float(number)]), label=number))
    >>> memory.inputs.flatten(), memory.counts
    (tensor([1., 2.]), {1: 1, 2: 1})
    """

    capacity: int
    items: list[Item] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        check_integer("capacity", self.capacity, 1)

    def __len__(self) -> int:
        return len(self.items)

    def add(self, item: Item) -> None:
        """Take a sample in, in the place of another one where the memory is full."""
        if len(self.items) < self.capacity:
            self.items.append(item)
        elif (leaves := self.victim(item)) is not None:
            del self.items[leaves]
            self.items.append(item)

    def victim(self, item: Item) -> int | None:
        """Which sample leaves a full memory for a new one; None where the new one is not taken."""
        return 0

    @property
    def inputs(self) -> Tensor:
        """The inputs of all samples [N, ...], for ``net.batch``."""
        return torch.stack([item.x for item in self.items])

    @property
    def counts(self) -> dict[int, int]:
        """How many samples there are of each class."""
        return dict(Counter(item.label for item in self.items))
