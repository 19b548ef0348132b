"""Probation: a network method that answers while evidence is for it, and bounded harm."""

import copy
import math
from collections.abc import Sized
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from lametta._checks import check_flag, check_integer
from lametta._locks import FairLock
from lametta.correctors.base import Composite
from lametta.signals import signals
from lametta.torch.adapt import GradientMethod, NetworkMethod
from lametta.torch.halfway import LEAST, WINDOW, Halfway
from lametta.torch.model import Classifier
from lametta.torch.moments import has_statistics
from lametta.torch.network import Outputs, check_finite
from lametta.torch.verdict import Pairs
from lametta.types import Adapter, LamettaError, Prediction

CLOSED, ON_PROBATION, OPEN = 0, 1, 2
FAR, FAR_LATER = 0.25, 0.15  # shifts of 16 and of 64 samples, as for `HalfBN`
WON = 3.0  # the verdicts' t
PAIRS, FEWEST, STRICT = 128, 32, 96  # samples that verdicts are on; after a drift, more
SAME = 0.6  # of answers, asked again: on shifted i.i.d. streams 0.7 to 0.97
FIRST, RECENT = 64, 128  # samples that may be asked again
ASKED, EXAMINED = 64, 24  # answers that a share is of
CHECK = 4  # batches, of which one is checked once 64 samples have been
GONE, VETO, LONGEST = 16, 256, 2048  # samples that it stays closed


@dataclass
class Probe:
    """Samples asked again, and how often the network says the same of them.

    *Company* is the share of the last 64 recent samples that get the answer that they were given,
    now in another batch: low where the statistics of batches decide. The *exam* is that of the
    first samples since the method began: low where a network drifts, or collapses.

    Examples
    --------
    >>> probe = Probe(exams=False)
    >>> probe.add(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]))
    >>> x, known = probe.draw(2, torch.Generator().manual_seed(0))
    >>> probe.mark(known, known)
    >>> probe.company, probe.exam
    (1.0, 1.0)
    """

    exams: bool
    x: Tensor | None = None
    labels: Tensor | None = None
    seen: int = 0
    asked: list[bool] = field(default_factory=list)
    examined: list[bool] = field(default_factory=list)
    drawn: int = 0  # of the last draw, how many are for the exam

    def add(self, x: Tensor, labels: Tensor) -> None:
        """Take in a batch and its answers; the first 64 samples stay, and the last 128."""
        held = self.x, self.labels
        if held[0] is not None and held[1] is not None:
            x, labels = torch.cat([held[0], x]), torch.cat([held[1], labels])
        self.seen += len(x) - (0 if held[0] is None else len(held[0]))
        first = FIRST if self.exams else 0
        if len(x) > first + RECENT:
            keep = torch.cat([torch.arange(first), torch.arange(len(x) - RECENT, len(x))])
            x, labels = x[keep.to(x.device)], labels[keep.to(x.device)]
        self.x, self.labels = x, labels

    def draw(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw samples, half of them first ones once there are others, and their known answers."""
        assert self.x is not None
        assert self.labels is not None
        size = len(self.x)
        self.drawn = n // 2 if self.exams and self.seen > FIRST else 0
        first = torch.randperm(min(FIRST, size), generator=generator)[: self.drawn]
        last = torch.randperm(min(RECENT, size), generator=generator)[: n - len(first)]
        self.drawn, at = len(first), torch.cat([first, size - 1 - last]).to(self.x.device)
        return self.x[at], self.labels[at]

    def mark(self, labels: Tensor, known: Tensor) -> None:
        """Note which of the samples drawn last got the same answer."""
        same = (labels == known).tolist()
        self.examined = (self.examined + same[: self.drawn])[-EXAMINED:]
        self.asked = (self.asked + same[self.drawn :])[-ASKED:]

    @property
    def company(self) -> float:
        """The share of recent samples with the same answer; 1 before any was asked again."""
        return _share(self.asked)

    @property
    def exam(self) -> float:
        """The share of first samples with the same answer; 1 before any was asked again."""
        return _share(self.examined)

    def allows(self, doubt: float) -> tuple[bool, bool]:
        """Whether company and exam are high enough, by so many standard errors of doubt."""
        return tuple(  # type: ignore[return-value]
            not same or _share(same) + doubt * _error(same) >= SAME
            for same in (self.asked, self.examined)
        )


@dataclass
class Probation(Composite):
    """A network method that answers only while label-free evidence is for it; resets bound harm.

    The source and the method run side by side until the method has won: feature neighbors predict
    its answers better than the source's (`lametta.torch.verdict`), recent samples get the same
    answers in other company, and early layers see a shift at all (in networks with batch
    normalization). It is checked on, at one batch of four, and reset where it loses, or where the
    first samples are answered otherwise by now. This is no guarantee: docs/hybrid.md has what is
    left of each method's harm and gain.

    Parameters
    ----------
    base : NetworkMethod
        The method: ``Probation(TENT(model))``, ``tent+probation`` by name.
    exam : bool, optional
        Whether the first samples are asked again. By default, where the method takes gradient
        steps on its own answers: statistics, and teachers that follow slowly, move for good.
    seed : int
        Of the draws of samples that are asked again.

    Notes
    -----
    It holds a copy of the network, and 192 inputs. ``info`` has the ``state`` (0 closed, 0.5 on
    probation, 1 open), the ``shift``, the verdicts' ``t`` and ``t_common``, ``company`` and
    ``exam`` (`Probe`), and how many ``resets`` there were; passes are those of all.

    Examples
    --------
    >>> from lametta.torch import TENT, Classifier
    >>> from lametta.torch.digits import digits_net
    >>> guarded = Probation(TENT(Classifier(digits_net()), bn_momentum=0))
    >>> guarded.step(9 * torch.rand(24, 1, 8, 8)).info["state"]
    0.5
    """

    base: NetworkMethod
    exam: bool | None = None
    seed: int = 0

    watches: ClassVar[bool] = True
    ordered: ClassVar[bool] = True
    passes: ClassVar[tuple[float, float] | None] = (2, 0)  # on probation, beside the method's

    _lock: FairLock = field(default_factory=FairLock, init=False, repr=False, compare=False)
    _state: int = field(default=CLOSED, init=False, repr=False, compare=False)
    _wait: int = field(default=0, init=False, repr=False, compare=False)
    _veto: int = field(default=VETO, init=False, repr=False, compare=False)
    _tried: int = field(default=0, init=False, repr=False, compare=False)  # samples of this try
    _opened: int = field(default=0, init=False, repr=False, compare=False)  # samples since then
    _batches: int = field(default=0, init=False, repr=False, compare=False)
    _strict: bool = field(default=False, init=False, repr=False, compare=False)
    _told: dict[str, float] = field(default_factory=dict, init=False, repr=False, compare=False)
    _source: "_Source | None" = field(default=None, init=False, repr=False, compare=False)
    _early: Halfway | None = field(default=None, init=False, repr=False, compare=False)
    _pairs: Pairs | None = field(default=None, init=False, repr=False, compare=False)
    _probe: Probe | None = field(default=None, init=False, repr=False, compare=False)
    _draws: torch.Generator | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_integer("seed", self.seed, 0)
        if self.exam is not None:
            check_flag("exam", self.exam)
        if not isinstance(self.base, NetworkMethod | None):  # None to check options
            got = type(self.base).__name__
            raise LamettaError(f"base must be a network method, got {got}")

    def _held(self) -> tuple[Adapter, ...]:
        return () if self.base is None else (self.base,)

    def step(self, x: Sized, /) -> Prediction:
        """Predict one batch, by the source or by the method, and check on the method."""
        with self._lock:
            if not len(x):
                return self.base.step(x)
            if not isinstance(x, Tensor):
                raise LamettaError(f"x must be a tensor to be asked again, got {type(x).__name__}")
            check_finite(x)  # before the source measures it, too
            if self._source is None:
                self._start()
            counted = {"forwards": 0, "forward_samples": 0, "backwards": 0, "backward_samples": 0}
            prediction = self._step(x, counted)
            info = {**prediction.info, **counted, "state": self._state / OPEN, **self._told}
            return replace(prediction, info=info)

    def reset(self) -> None:
        """Reset the method, and forget all evidence."""
        with self._lock:
            self.base.reset()
            self._source = self._early = self._pairs = self._probe = self._draws = None
            self._state, self._wait, self._veto, self._tried = CLOSED, 0, VETO, 0
            self._opened, self._batches, self._strict = 0, 0, False
            self._told.clear()

    def _start(self) -> None:
        if not isinstance(self.base.model, Classifier):
            got = type(self.base.model).__name__
            raise LamettaError(f"model must be a lametta.torch.Classifier, got {got}")
        self._source = _Source(copy.deepcopy(self.base.model))
        gated = any(map(has_statistics, self.base.model.net.modules()))
        self._early = Halfway() if gated else None
        self._draws = torch.Generator().manual_seed(self.seed)
        self._told = {"shift": 0.0, "t": 0.0, "t_common": 0.0, "company": 1.0, "exam": 1.0}
        self._told["resets"] = 0

    def _step(self, x: Tensor, counted: dict[str, int]) -> Prediction:
        if self._state == OPEN:
            self._opened, self._batches = self._opened + len(x), self._batches + 1
            answer = self._method(x, counted)
            if self._opened > FIRST and self._batches % CHECK:
                return answer
            source, near, _ = self._ask_source(x, counted)
            return answer if self._stays_open(x, source, answer, near, counted) else source
        source, near, later = self._ask_source(x, counted)
        self._look(len(x), near, later)
        if self._state == CLOSED:
            return source
        answer = self._method(x, counted)
        return answer if self._opens(x, source, answer, counted) else source

    def _look(self, n: int, near: float, later: float) -> None:
        """Begin a probation where there is a shift to see, and close where it is gone."""
        if self._state == CLOSED:
            self._wait = max(0, self._wait - n)
            far = self._early is None or near >= FAR or later >= FAR_LATER
            if far and not self._wait:
                self._begin()
        elif near < FAR_LATER:
            self._close(GONE)

    def _stays_open(
        self,
        x: Tensor,
        source: Prediction,
        answer: Prediction,
        near: float,
        counted: dict[str, int],
    ) -> bool:
        own, common = self._verdict(x, source, answer, counted)
        assert self._probe is not None
        company, exam = self._probe.allows(1)
        if not exam:  # drift: at once on probation again, from the source
            self._close(0)
            self._begin()
            self._strict = True
            return False
        if near < FAR_LATER:
            self._close(0)
        elif own < 0 or common < 0 or not company:
            self._close(VETO)
        return self._state == OPEN

    def _opens(
        self, x: Tensor, source: Prediction, answer: Prediction, counted: dict[str, int]
    ) -> bool:
        self._tried += len(x)
        own, common = self._verdict(x, source, answer, counted)
        assert self._probe is not None
        company, exam = self._probe.allows(-1)
        enough = self._tried >= (STRICT if self._strict else FEWEST)
        if enough and own > WON and common > WON and company and (exam or not self._strict):
            self._state, self._opened, self._batches, self._veto = OPEN, 0, 0, VETO
            return True
        if self._tried >= PAIRS:
            self._close(self._veto)
            self._veto = min(2 * self._veto, LONGEST)
        return False

    def _begin(self) -> None:
        """Let the method begin from the source, which goes on answering."""
        exams = isinstance(self.base, GradientMethod) and "teacher" not in self.base.needs
        self._probe = Probe(exams if self.exam is None else self.exam)
        self._state, self._tried, self._pairs = ON_PROBATION, 0, None

    def _close(self, wait: int) -> None:
        self.base.reset()
        self._state, self._wait = CLOSED, wait
        self._told["resets"] += 1

    def _ask_source(self, x: Tensor, counted: dict[str, int]) -> tuple[Prediction, float, float]:
        """The source's prediction, and how far the last samples and 64 are from it."""
        assert self._source is not None
        near = later = math.nan
        if self._early is None:
            out = self._source(x)
        else:
            out, recent = self._early.ask_source(x, self._source), max(LEAST, len(x))
            found = [self._early.shift(recent), self._early.shift(WINDOW)]
            near, later = torch.stack(found).tolist()
        _count(counted, len(x))
        self._told["shift"] = 0.0 if math.isnan(near) else near
        probs = out.logits.softmax(1)
        return Prediction(probs, out.features, signals(probs), returned=out.returned), near, later

    def _method(self, x: Tensor, counted: dict[str, int]) -> Prediction:
        answer = self.base.step(x)
        for name in counted:
            counted[name] += answer.info.get(name, 0)
        return answer

    def _verdict(
        self, x: Tensor, source: Prediction, answer: Prediction, counted: dict[str, int]
    ) -> tuple[float, float]:
        """Both t, after samples were asked again; 0 where there are too few pairs."""
        assert self._probe is not None
        assert self._draws is not None
        labels = answer.probs.argmax(1)
        self._probe.add(x.detach(), labels)
        again, known = self._probe.draw(len(x), self._draws)
        self._probe.mark(self.base.predict(again).labels, known)
        _count(counted, len(again))
        self._told |= {"company": self._probe.company, "exam": self._probe.exam}
        new = Pairs.of(_outputs(source), _outputs(answer))
        self._pairs = new.after(self._pairs, PAIRS)
        if len(self._pairs) < FEWEST:
            return 0.0, 0.0
        own, common = self._pairs.on_one_scale().both_t().tolist()
        self._told |= {"t": own, "t_common": common}
        return own, common


class _Source:
    """A copy of the network before the method, whose passes take no gradients."""

    def __init__(self, model: Classifier) -> None:
        self.model = model

    def __call__(self, x: Any, *, train: bool = False) -> Outputs:
        with torch.no_grad():
            out = self.model.forward(x)
        return Outputs(out.features, out.logits, out.returned)


def _outputs(prediction: Prediction) -> Outputs:
    """What a prediction was made of: logits are logarithms of its probabilities."""
    assert prediction.features is not None
    tiny = torch.finfo(prediction.probs.dtype).tiny
    return Outputs(prediction.features, prediction.probs.clamp(min=tiny).log())


def _count(counted: dict[str, int], n: int) -> None:
    counted["forwards"] += 1
    counted["forward_samples"] += n


def _share(same: list[bool]) -> float:
    return sum(same) / len(same) if same else 1.0


def _error(same: list[bool]) -> float:
    """The standard error of a share."""
    share = _share(same)
    return math.sqrt(share * (1 - share) / len(same))
