"""Label-free alarms: corrections without support in features, and collapsed predictions.

Each stream has a window of its last 128 samples: sketches of their features, their outputs, and
their labels by the network and as corrected. Every 16 samples a look at it asks three questions.

*Do classes make the order of the stream?* By a count of `lametta.serve.monitoring.windows`: above 0
they do, below 0 something else does.

*Do the labels of neighbors in feature space agree?* By agreement beyond chance A = (a - h) /
(1 - h), where a is the share of neighbors with a sample's own label and h the share of all pairs
with one label; for the network's labels, and for the corrected ones.

*What does the network say of the changes?* How much more likely it finds the new label of a sample
than on average, in nats.

A corrector that changes a tenth of the labels where classes do not make the order, so that
neighbors agree less than by the network's own, or to labels that the network finds unlikely,
changes without a reason. The name of the alarm says what else is known:

- **domain_order**: something else than classes makes the order, as where one domain follows
  another; a memory of classes takes the bias of the domain for classes that persist;
- **corrector_collapse**: the answers have less than half as many classes as the network's;
- **not_helping**: neither; or the corrector's own evidence is negative.

A stream may begin with one long run of a class, so the last two need 512 samples of it.

**network_collapse** is about the network itself: most samples get one label, more than they used to
and with no less confidence, and either samples of one label are as unlike each other as those of
*different* labels used to be (a head that no longer looks at its features), or features are far
longer than they used to be (what minimizing entropy does when it goes wrong).

Not seen: a network that was broken from the start; answers that are wrong, plausible and steady, as
for a video that is mistaken from end to end; photographs sorted by likeness of their classes, each
of another one, which is order by classes to all that can be measured. A network below some 30 % may
show the order of its classes so little that a memory which helps is taken for one that does not.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lametta._arrays import Floats, finite_products
from lametta.serve.monitoring.windows import ORDERS, WINDOW, Window, fold, sketch

ALARMS = ("network_collapse", "corrector_collapse", "domain_order", "not_helping")

_STREAMS = 256  # that are watched: 35 kB each
_ROOM = 60.0  # seconds after which a silent stream makes room for another
_QUIET = 600.0  # seconds after which a stream's alarm is over
_NAMED = 5  # streams that an alarm names

_INTERVAL, _LEAST = 16, 48  # samples: between two looks, and for the first
_TOGETHER = 16  # answers that are taken in together
_AGAIN = 2  # looks in a row that say the same begin an alarm
_OVER = 8  # looks in a row that do not end it: a window

_NEIGHBORS = 5
_ENOUGH = 512  # samples of a stream from which no order found means that there is none
_CHANGED = 0.1  # of the labels; Prudent on i.i.d. streams changes .02 at most
_AGREEMENT = -0.1  # corrected, less the network's; helpful corrections -0.08 at worst
_OWN = -1.0  # nats of the network for new labels, over their mean
_FEWER = 2.0  # times: how many more classes the network's labels have than the answers
_EVIDENCE = -0.05  # nats a sample, for correctors that report their evidence
_EASIER = 0.7  # times a limit: where an alarm goes on, so that it does not flicker; what is odd

_ONE_LABEL = 0.5  # of pairs have one label, as where seven samples of ten do
_UNLIKE = 0.7  # 0: as samples of one label used to be; 1: as those of different ones
_LENGTH = 1.5  # times the usual length of features; classes and videos differ by 1.25
_USUAL, _KNOWN = 512, 24  # looks that the usual reaches back, and from which it is known
_REMEMBERED = 2048  # samples that the network's mean reaches back
_TINY = 1e-6


@dataclass(frozen=True)
class Alarm:
    """What is wrong, since when, and the numbers that say so.

    Attributes
    ----------
    name : str
        One of `ALARMS`.
    since : float
        When it began, in seconds since 1970.
    streams : tuple of str
        A few of the streams that it is about, the most recent first; none where it is about all.
    numbers : dict of str to float
        What was compared; `Alarms` names the limits.
    """

    name: str
    since: float
    streams: tuple[str, ...]
    numbers: dict[str, float]


@dataclass
class Switch:
    """An alarm that begins when looks in a row say so, and ends when a window of them does not."""

    name: str = ""
    since: float | None = None
    numbers: dict[str, float] = field(default_factory=dict)
    looks: int = 0  # in a row that say the opposite of what it is

    def update(self, now: float, name: str, numbers: dict[str, float]) -> None:
        """Take note of a look: the alarm that it speaks for, or an empty name."""
        on = self.since is not None
        if name:
            # While it is on, it may say more, and not less.
            self.name = min(self.name, name, key=ALARMS.index) if on else name
            self.numbers = numbers
        self.looks = self.looks + 1 if bool(name) is not on else 0
        if self.looks >= (_OVER if on else _AGAIN):
            self.since, self.looks = None if on else now, 0


class Alarms:
    """The alarms of one model, fed with every answer; bounded, not thread-safe.

    A stream takes 35 kB. The first 256 streams are watched, and others when one of these is silent
    for a minute. The ``numbers`` of an alarm are

    - about the corrector: ``changed`` (the share of labels, limit 0.1), ``agreement`` (of corrected
      labels with those of neighbors, beyond chance, less the network's; limit -0.1), ``own`` (nats
      by which the network finds new labels more likely than on average, limit -1), ``order`` (above
      0 by classes, below by something else), ``classes`` and ``source_classes`` (how many, by the
      pairs of one label; limit half) or ``evidence`` (limit -0.05);
    - about the network: ``share`` (of pairs with one label, limit 0.5), ``unlike`` (0: as samples
      of one label used to be, 1: as those of different ones, limit 0.7), ``length`` (of features,
      times the usual, limit 1.5) and ``confidence``.

    Examples
    --------
    A corrector that is stuck, on samples of ten classes that the network is confident of:

    >>> rng = np.random.default_rng(0)
    >>> alarms, stuck = Alarms(), np.eye(10)[[3]]
    >>> for i, label in enumerate(rng.integers(10, size=800)):
    ...     features = 3 * np.eye(16)[[label]] + rng.normal(size=(1, 16))
    ...     source = 0.9 * np.eye(10)[[label]] + 0.01
    ...     alarms.observe(float(i), "camera", features, source, source if i < 600 else stuck)
    >>> [(alarm.name, alarm.since, alarm.streams) for alarm in alarms.current(800.0)]
    [('corrector_collapse', 639.0, ('camera',))]
    """

    def __init__(self) -> None:
        self._streams: OrderedDict[str, _Stream] = OrderedDict()
        self._usual = Usual()
        self._mean = np.empty(0, np.float32)  # the network's mean probabilities
        self._seen = 0
        self._queue: list[_Answer] = []
        self._evidence = 0.0
        self._negative: float | None = None  # since when the evidence is

    def observe(
        self,
        now: float,
        stream: str | None,
        features: Floats | None,
        source: Floats,
        probs: Floats,
        labels: tuple[Sequence[int], Sequence[int]] | None = None,
        evidence: float = 0.0,
        order: float | None = None,
    ) -> None:
        """Take note of one answer.

        Parameters
        ----------
        now : float
            The time in seconds since 1970.
        stream : str or None
            Its name; all requests without one count as one stream.
        features : array [N, d] or None
            Without them only negative evidence can be detected.
        source, probs : array [N, K]
            The probabilities as the network gave them, and corrected.
        labels : pair of sequences, optional
            The classes of both, where they are known already.
        evidence : float
            Of the corrector, in nats a sample over the source.
        order : float, optional
            What the corrector finds that makes the order: 1 classes, -1 something else, 0 nothing.
            It is shown, not trusted: alarms go by the order that is found here.
        """
        n = len(probs)
        self._weigh(now, evidence, n)
        if features is None or not n or (state := self._watched(now, stream or "")) is None:
            return
        state.last, state.given = now, order
        before, after = labels or (source.argmax(axis=1), probs.argmax(axis=1))
        found = np.array([before, after], np.int32)[:, -WINDOW:]
        answer = _Answer(now, state, features[-WINDOW:], source[-WINDOW:], found)
        if self._queue and not answer.is_like(self._queue[0]):
            self._take_in()
        self._queue.append(answer)
        if len(self._queue) >= _TOGETHER or n >= _INTERVAL:
            self._take_in()

    def _weigh(self, now: float, evidence: float, n: int) -> None:
        """Take note of the evidence of n samples."""
        # A nat at most: one sample that took a corrector by surprise is no alarm.
        self._evidence += (max(evidence, -1.0) - self._evidence) * n / (n + _USUAL)
        limit = _EVIDENCE if self._negative is None else _EASIER * _EVIDENCE
        self._negative = (self._negative or now) if self._evidence < limit else None

    def _take_in(self) -> None:
        """Add the queue to the windows: sketches of a few answers take as long as of one."""
        if not self._queue:
            return
        answers, self._queue = self._queue, []
        features = np.concatenate([answer.features for answer in answers])
        source = np.concatenate([answer.source for answer in answers])
        labels = np.concatenate([answer.labels for answer in answers], axis=1)
        n, k = source.shape
        if len(self._mean) != k:
            self._mean, self._seen = np.zeros(k, np.float32), 0
        self._seen = min(self._seen + n, _REMEMBERED)
        self._mean += (source.mean(axis=0) - self._mean) * (n / self._seen)
        rows, lengths = sketch(features)
        tops, probs = source[np.arange(n), labels]
        nats = np.log((probs + _TINY) / (self._mean[labels[1]] + _TINY))
        numbers = np.stack([tops, lengths, np.clip(nats, -3, 3)])
        outputs, start = fold(source), 0
        for answer in answers:
            part = slice(start, start + len(answer.source))
            answer.state.add(rows[part], outputs[part], labels[:, part], numbers[:, part])
            if answer.state.new >= _INTERVAL and answer.state.count >= _LEAST:
                self._look(answer.now, answer.state)
            start = part.stop

    def _watched(self, now: float, name: str) -> "_Stream | None":
        """The state of a stream, if there is room for it."""
        state = self._streams.pop(name, None)
        if state is None:
            if len(self._streams) >= _STREAMS:
                if now < next(iter(self._streams.values())).last + _ROOM:
                    return None
                self._streams.popitem(last=False)
            state = _Stream()
        self._streams[name] = state  # as the last
        return state

    def _look(self, now: float, state: "_Stream") -> None:
        """Look at the window of a stream, and decide."""
        rows, outputs, labels, (tops, lengths, own) = state.in_order()
        with finite_products():
            cosines = rows @ rows.T
        state.look_at_order(cosines, outputs)
        pairs = [_pairs(one) for one in labels]
        state.network.update(now, *self._usual.compare(cosines, labels[0], pairs[0], tops, lengths))
        state.corrector.update(now, *_unsupported(state, cosines, labels, pairs, own))

    def current(self, now: float) -> list[Alarm]:
        """The alarms that are on."""
        self._take_in()
        found = []
        for name, switches in self._on(now).items():
            since = min(switch.since or now for switch in switches.values())
            numbers = next(iter(switches.values())).numbers
            found.append(Alarm(name, since, tuple(switches)[:_NAMED], numbers))
        if self._negative is not None and not any(alarm.name == ALARMS[-1] for alarm in found):
            found.append(Alarm(ALARMS[-1], self._negative, (), {"evidence": self._evidence}))
        return found

    def _on(self, now: float) -> dict[str, dict[str, Switch]]:
        """Alarms in the order of `ALARMS`, and the streams they are about, the latest first."""
        on: dict[str, dict[str, Switch]] = {name: {} for name in ALARMS}
        for stream, state in reversed(self._streams.items()):
            for switch in (state.network, state.corrector):
                if switch.since is not None and now < state.last + _QUIET:
                    on[switch.name][stream] = switch
        return {name: switches for name, switches in on.items() if switches}

    def orders(self) -> dict[str, str]:
        """What makes the order of each watched stream, one of `ORDERS`."""
        self._take_in()
        return {name: state.found for name, state in self._streams.items()}

    def count_orders(self) -> dict[str, int]:
        """How many of the watched streams have each order."""
        counts = Counter(self.orders().values())
        return {name: counts[name] for name in ORDERS}


class _Stream(Window):
    """What is watched of one stream."""

    def __init__(self) -> None:
        super().__init__()
        self.given: float | None = None  # what the corrector finds that makes the order
        self.last = 0.0
        self.network, self.corrector = Switch(), Switch()

    @property
    def found(self) -> str:
        """What makes the order: as the corrector says, or else by the last look."""
        if self.given is None:
            return super().found
        return ORDERS[0] if self.given > 0 else ORDERS[1] if self.given < 0 else ORDERS[2]


class _Answer(NamedTuple):
    """An answer that waits until a few can be taken in together."""

    now: float
    state: _Stream
    features: Floats
    source: Floats
    labels: NDArray[np.int32]

    def is_like(self, other: "_Answer") -> bool:
        """Whether both come from networks with as many features and classes."""
        own = self.features.shape[1], self.source.shape[1]
        return own == (other.features.shape[1], other.source.shape[1])


class Usual:
    """How this model's samples usually are, from looks at all streams."""

    def __init__(self) -> None:
        self.within = self.between = self.confidence = self.length = 0.0
        self.n_within = self.n_between = self.n = 0

    def compare(
        self,
        cosines: Floats,
        labels: NDArray[np.int32],
        share: float,
        tops: Floats,
        lengths: Floats,
    ) -> tuple[str, dict[str, float]]:
        """Whether the network has collapsed in a window, and by which numbers; learn from it."""
        same = labels[:, None] == labels
        others = ~same
        np.fill_diagonal(same, False)
        within, between = (1 - _mean(cosines, pairs) for pairs in (same, others))
        confidence, length = float(tops.mean()), float(lengths.mean())
        # Among many classes pairs of one are rare: assume half the distance until more are seen.
        assumed = (self.within * self.n_within + self.between * 4) / (self.n_within + 8)
        unlike = (within - assumed) / max(self.between - assumed, 1e-6) if within == within else 0.0
        longer = length / (self.length or length or 1.0)
        known = self.n_between >= _KNOWN // 2 and self.n >= _KNOWN
        odd = known and _is_collapsed(share, unlike, longer, _EASIER)
        collapsed = odd and _is_collapsed(share, unlike, longer) and confidence > self.confidence
        numbers = {"share": share, "unlike": unlike, "length": longer, "confidence": confidence}
        if not odd:  # an anomaly must not become usual
            self._learn(within, between, confidence, length)
        return ALARMS[0] if collapsed else "", numbers

    def _learn(self, within: float, between: float, confidence: float, length: float) -> None:
        self.n += 1
        self.confidence += (confidence - self.confidence) / min(self.n, _USUAL)
        self.length += (length - self.length) / min(self.n, _USUAL)
        if within == within:  # not NaN
            self.n_within += 1
            self.within += (within - self.within) / min(self.n_within, _USUAL)
        if between == between:
            self.n_between += 1
            self.between += (between - self.between) / min(self.n_between, _USUAL)


def _is_collapsed(share: float, unlike: float, longer: float, times: float = 1.0) -> bool:
    """Whether a window is beyond the limits of a network's collapse, or these times a number."""
    strange = unlike > times * _UNLIKE or longer > 1 + times * (_LENGTH - 1)
    return share > times * _ONE_LABEL and strange


def _unsupported(
    state: _Stream, cosines: Floats, labels: NDArray[np.int32], pairs: list[float], own: Floats
) -> tuple[str, dict[str, float]]:
    """The alarm for labels [2, n] that were changed without support in features, if they were.

    With the numbers that say so: pairs are the shares of pairs with one label, by the network and
    as corrected, and own is how likely the network finds the corrected labels.
    """
    differ = labels[0] != labels[1]
    changed = float(np.count_nonzero(differ)) / differ.size
    numbers = {"changed": changed, "order": state.order}
    # A stream may begin with a run of one class, which is no order yet.
    known = state.order < 0 or state.count >= _ENOUGH
    if changed < _CHANGED or state.order > 0 or not known:
        return "", numbers
    near = _neighbors(cosines)
    before, after = (
        _agreement(one, near, chance) for one, chance in zip(labels, pairs, strict=True)
    )
    classes, source_classes = (1 / max(share, 1e-6) for share in pairs[::-1])
    numbers |= {"agreement": after - before, "own": float(own[differ].mean())}
    numbers |= {"classes": classes, "source_classes": source_classes}
    name = ""
    if numbers["agreement"] < _AGREEMENT or numbers["own"] < _OWN:
        name = "corrector_collapse" if pairs[1] > _FEWER * pairs[0] else "not_helping"
        name = "domain_order" if state.order < 0 else name
    return name, numbers


def _mean(matrix: Floats, where: NDArray[np.bool_]) -> float:
    n = np.count_nonzero(where)
    return float(matrix.sum(where=where)) / n if n else math.nan


def _pairs(labels: NDArray[np.int32]) -> float:
    """The share of pairs of samples that have one label."""
    counts = np.unique(labels, return_counts=True)[1]
    return float((counts * (counts - 1)).sum()) / (len(labels) * (len(labels) - 1))


def _neighbors(cosines: Floats) -> NDArray[np.intp]:
    """Each sample's nearest others [n, 5]."""
    cosines = cosines.copy()
    np.fill_diagonal(cosines, -2)
    return np.argpartition(cosines, -_NEIGHBORS, axis=1)[:, -_NEIGHBORS:]


def _agreement(labels: NDArray[np.int32], near: NDArray[np.intp], chance: float) -> float:
    """How much more often than by chance neighbors have a sample's label, 1 at most."""
    same = float(np.count_nonzero(labels[near] == labels[:, None])) / near.size
    return (same - chance) / max(1 - chance, 0.1)
