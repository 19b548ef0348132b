"""HalfBN: half of the batch normalizations, half-way to the stream's statistics, on probation."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch

from lametta.torch.adapt import NetworkMethod, own
from lametta.torch.halfway import LEAST, WINDOW, Halfway
from lametta.torch.network import Batch, Network, Outputs
from lametta.torch.stored import Stored
from lametta.torch.verdict import Pairs
from lametta.types import LamettaError

CLOSED, PROBATION, OPEN = 0, 1, 2
FAR, FAR_LATER = 0.25, 0.15  # shifts of 16 and of 64 samples; clean ones reach 0.01 to 0.2
WON = 3.0  # both verdicts' t; the first alone cost a VGG 12 points where few classes come often
PAIRS, FEWEST = 128, 32  # samples that the verdict is on
VETO = 256  # samples: a stream that is vetoed costs a third of a pass
CHANGED, CHECK = 2.0, 4  # inside a domain 1.5 at most; batches, of which one is the source's too


@dataclass(kw_only=True)
class HalfBN(Stored, NetworkMethod):
    """HalfBN: move half of the batch norms half-way to the stream, where that is shown to help.

    The first half of the layers moves half-way to the statistics of the last 64 samples. It is
    *closed* where the source answers; *on probation* where the first layers see a shift: both
    networks run, and the source answers; *open* where the moved network answers, since feature
    neighbors predict its answers better than the source's, by two verdicts with t > 3
    (`lametta.torch.verdict`). It closes where the shift is gone or the source is better; a new
    domain is a new probation. The host waits for the device twice a batch, once where it is closed.

    Parameters
    ----------
    model : Classifier
        A network with batch normalizations of any kind, which stays as it is between steps.

    Notes
    -----
    ``info`` has the ``state`` (0 closed, 0.5 on probation, 1 open), the ``shift`` of the last
    samples (0 at the source), the smaller ``t`` of the last verdicts (0 before the first), and the
    ``domain_changes``. With ``step(x, stream=ids)`` each stream has its own state and passes.

    Examples
    --------
    >>> from lametta.torch import Classifier
    >>> from lametta.torch.digits import digits_net
    >>> HalfBN(Classifier(digits_net())).step(9 * torch.rand(24, 1, 8, 8)).info["state"]
    0.5
    """

    layers: str = field(default="norms", init=False, repr=False)
    bn_momentum: float = field(default=0.0, init=False, repr=False)
    state: int = own(CLOSED)
    wait: int = own(0)  # samples until there may be a probation
    batches: int = own(0)  # since it opened
    domain_changes: int = own(0)
    shift: float = own(0.0)
    t: float = own(0.0)
    halfway: Halfway = own(factory=Halfway)
    pairs: Pairs | None = own()

    ordered: ClassVar[bool] = True  # it goes by the last samples
    passes: ClassVar[tuple[float, float] | None] = (2, 0)  # on probation; closed 1, open 1.25
    statistics: ClassVar[Literal["own"]] = "own"
    records: ClassVar[dict[str, type]] = {"halfway": Halfway, "pairs": Pairs}

    def adapt(self, batch: Batch, net: Network, /) -> Outputs:
        answer = self.stay_open(batch, net) if self.state == OPEN else None
        if answer is None:  # closed, or on probation until the batch that opens it
            answer = self.halfway.ask_source(batch, net)
            self.look(len(batch))
            if self.state == PROBATION:
                moved = self.halfway.ask_moved(batch, net)
                if self.halfway.is_full:
                    self.judge(answer, moved)
                answer = moved if self.state == OPEN else answer
        batch.info |= {"state": self.state / OPEN, "domain_changes": self.domain_changes}
        batch.info |= {"shift": self.shift, "t": self.t}
        return answer

    def stay_open(self, batch: Batch, net: Network, /) -> Outputs | None:
        """The moved network's answer while it is open; None where the domain has changed."""
        self.batches, recent = self.batches + 1, max(LEAST, len(batch))
        moved = self.halfway.ask_moved(batch, net)
        if float(self.halfway.change(recent, moved=True)) > CHANGED:
            self.domain_changes += 1
            self.halfway.keep(0)
            self.begin()
            return None
        if self.batches % CHECK:
            return moved
        source = self.halfway.ask_source(batch, net)
        pairs = self.pairs = Pairs.of(source, moved).after(self.pairs, PAIRS)
        near, self.t = torch.stack([self.halfway.shift(recent), pairs.both_t().min()]).tolist()
        self.shift = 0.0 if math.isnan(near) else near
        if near < FAR_LATER or self.t < 0:
            self.state = CLOSED
        return moved if self.state == OPEN else source

    def look(self, n: int, /) -> None:
        """Begin a probation where the last n samples show a shift, and close where it is gone."""
        half, recent = self.halfway, max(LEAST, n)
        found = half.shift(recent), half.shift(WINDOW), half.change(recent)
        near, later, apart = torch.stack(found).tolist()  # NaN, which is not above anything
        self.shift = 0.0 if math.isnan(near) else near
        if apart > CHANGED:
            self.domain_changes, self.wait = self.domain_changes + 1, 0
            half.keep(recent)
        if self.state == CLOSED:
            self.wait = max(0, self.wait - n)
            if not self.wait and (near >= FAR or later >= FAR_LATER):
                self.begin()
        elif near < FAR_LATER:
            self.state = CLOSED
        elif apart > CHANGED:
            self.begin()

    def judge(self, source: Outputs, moved: Outputs, /) -> None:
        """Open where both verdicts are for the moved network; close where 128 pairs were not."""
        pairs = self.pairs = Pairs.of(source, moved).after(self.pairs, PAIRS)
        if len(pairs) < FEWEST:
            return
        self.t = float(pairs.both_t().min())
        if self.t > WON:
            self.state, self.batches = OPEN, 0
        elif len(pairs) >= PAIRS:
            self.state, self.wait = CLOSED, VETO

    def begin(self) -> None:
        """Put it on probation, with nothing known of the domain."""
        self.state, self.pairs = PROBATION, None
        self.halfway.begin()

    def check_state(self, values: Mapping[str, Any], /) -> None:
        if values and values["state"] not in (CLOSED, PROBATION, OPEN):
            raise LamettaError(f"state must be 0, 1 or 2, got {values['state']}")
