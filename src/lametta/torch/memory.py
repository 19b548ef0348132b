"""Memory: a bounded store of samples that a method learns from later."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import torch
from torch import Tensor

from lametta._checks import check_integer
from lametta.torch.network import Batch, Outputs
from lametta.types import LamettaError


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
    confidence: float = 1.0
    age: int = 0


def items_of(batch: Batch, outputs: Outputs) -> list[Item]:
    """The samples of a batch with their predictions, for which the host waits for the device once.

    The uncertainty is the entropy, with log(p + 1e-6) as in the codes of RoTTA and NOTE.

    Examples
    --------
    >>> from lametta.torch import Classifier, NetworkMethod
    >>> from lametta.torch.digits import digits_net
    >>> class Keep(NetworkMethod):
    ...     def adapt(self, batch, net):
    ...         print(items_of(batch, batch.outputs)[0].x.shape)
    >>> _ = Keep(Classifier(digits_net())).step(torch.rand(8, 1, 8, 8))
    torch.Size([1, 8, 8])
    """
    if not isinstance(batch.inputs, Tensor):
        got = type(batch.inputs).__name__
        raise LamettaError(f"x must be a tensor to be kept in a memory, got {got}")
    p = outputs.probs.detach()
    entropy = -(p * (p + 1e-6).log()).sum(1)
    rows = torch.stack([outputs.labels.to(p), entropy, p.amax(1)], 1).tolist()
    known = zip(batch.inputs.detach(), rows, strict=True)
    return [Item(x, int(label), u, confidence) for x, (label, u, confidence) in known]


def cut(batch: Batch, seen: int, every: int) -> Iterator[Batch]:
    """Parts of a batch that end where each ``every``-th sample of a stream does, ``seen`` before.

    Examples
    --------
    >>> [len(part) for part in cut(Batch(torch.zeros(7, 2), None), 2, 4)]
    [2, 4, 1]
    """
    ends = [*range(every - seen % every, len(batch), every), len(batch)]
    for start, end in zip([0, *ends], ends, strict=False):
        yield batch[start:end]


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

    def __bool__(self) -> bool:
        return True  # an empty one is one, too

    def add(self, item: Item) -> None:
        """Take a sample in, in the place of another one where there is no room."""
        if self.items and item.x.shape != self.items[0].x.shape:
            wanted, got = list(self.items[0].x.shape), list(item.x.shape)
            raise LamettaError(f"x must be of one shape for a memory, {wanted}, got {got}")
        if not self.has_room(item):
            if (leaves := self.victim(item)) is None:
                return
            del self.items[leaves]
        item.x = item.x.clone()  # a row of a batch would keep all of it
        self.items.append(item)

    def has_room(self, item: Item) -> bool:
        """Whether a sample can be taken in without another one leaving."""
        return len(self.items) < self.capacity

    def victim(self, item: Item) -> int | None:
        """Which sample leaves for a new one; None where the new one is not taken."""
        return 0

    @property
    def inputs(self) -> Tensor:
        """The inputs of all samples [N, ...], for ``net.batch``."""
        return torch.stack([item.x for item in self.items])

    @property
    def counts(self) -> dict[int, int]:
        """How many samples there are of each class."""
        return dict(Counter(item.label for item in self.items))

    def places(self, *labels: int) -> list[int]:
        """Where the samples of these classes are."""
        return [place for place, item in enumerate(self.items) if item.label in labels]

    @property
    def largest(self) -> list[int]:
        """The classes with most samples."""
        counts = self.counts
        most = max(counts.values())
        return sorted(label for label, count in counts.items() if count == most)


@dataclass(kw_only=True)
class CSTU(Memory):
    """RoTTA's memory: classes alike, and of each the samples that are certain and recent.

    The sample with the highest timeliness / (1 + exp(-age / capacity)) + uncertainty u / ln K
    leaves, out of the largest classes or, once a class has its share, out of that class; unless the
    new one's is as high.

    Parameters
    ----------
    capacity : int
        The most samples that it holds.
    classes : int
        The number of classes K.
    timeliness, uncertainty : float
        How much each counts.

    Examples
    --------
    >>> memory = CSTU(2, classes=2)
    >>> for u in (0.6, 0.1):  # both of one class, which has room for one
    ...     memory.add(Item(torch.zeros(1), label=0, uncertainty=u))
    >>> [item.uncertainty for item in memory.items]
    [0.1]
    """

    classes: int
    timeliness: float = 1.0
    uncertainty: float = 1.0

    def add(self, item: Item) -> None:
        super().add(item)
        for one in self.items:
            one.age += 1

    def has_room(self, item: Item) -> bool:
        return super().has_room(item) and self._has_share(item)

    def victim(self, item: Item) -> int | None:
        labels = self.largest if self._has_share(item) else [item.label]
        place = max(self.places(*labels), key=self._rank)
        return place if self._score(self.items[place]) > self._score(item) else None

    def _has_share(self, item: Item) -> bool:
        return len(self.places(item.label)) < self.capacity / self.classes

    def _rank(self, place: int) -> tuple[float, int, int]:
        item = self.items[place]
        return self._score(item), item.label, place  # of equals the last, class by class

    def _score(self, item: Item) -> float:
        old = self.timeliness / (1 + math.exp(-item.age / self.capacity))
        return old + self.uncertainty * item.uncertainty / math.log(max(self.classes, 2))


@dataclass(kw_only=True)
class PBRS(Memory):
    """NOTE's memory, by prediction-balanced reservoir sampling: classes alike, all times alike.

    A new sample takes the place of a random one of a largest class; where it is of a largest class
    itself, of its own, with the probability held / seen of that class.

    Parameters
    ----------
    capacity : int
        The most samples that it holds.
    draws : random.Random
        What it draws from.

    Examples
    --------
    >>> memory = PBRS(4)
    >>> for label in [0] * 9 + [1, 2]:
    ...     memory.add(Item(torch.zeros(1), label))
    >>> memory.counts, memory.seen
    ({0: 2, 1: 1, 2: 1}, {0: 9, 1: 1, 2: 1})
    """

    draws: Random = field(default_factory=lambda: Random(0), repr=False)
    seen: dict[int, int] = field(default_factory=dict, repr=False)

    def add(self, item: Item) -> None:
        self.seen[item.label] = self.seen.get(item.label, 0) + 1
        super().add(item)

    def victim(self, item: Item) -> int | None:
        label, largest = item.label, self.largest
        if label not in largest:
            label = self.draws.choice(largest)
        elif not self.takes(item):
            return None
        places = self.places(label)
        return places[self.draws.randrange(len(places))]

    def takes(self, item: Item) -> bool:
        """Whether a sample of a largest class is taken in, by a draw."""
        held = len(self.places(item.label))
        return self.draws.random() <= held / self.seen[item.label]


@dataclass(kw_only=True)
class HUS(PBRS):
    """SoTTA's memory: classes alike, the latest samples of each, and confident ones alone.

    Parameters
    ----------
    threshold : float
        The lowest confidence of a sample that is taken in.
    capacity, draws
        As for `PBRS`.

    Examples
    --------
    >>> memory = HUS(4, threshold=0.9)
    >>> for confidence in (0.5, 0.95):
    ...     memory.add(Item(torch.zeros(1), label=0, confidence=confidence))
    >>> len(memory)
    1
    """

    threshold: float = 0.0

    def add(self, item: Item) -> None:
        if item.confidence >= self.threshold:
            super().add(item)

    def takes(self, item: Item) -> bool:
        return True
