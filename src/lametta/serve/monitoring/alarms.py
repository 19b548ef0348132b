"""Label-free alarms: collapse of predictions, and corrections that do not help.

Three rules, each about something that healthy traffic does not do however one-sided it is. A video
of one object is rightly one class with high confidence, and so are photographs sorted by class; so
low diversity alone says nothing.

**network_collapse**: most samples get one class from the network itself, more than used to, with no
less confidence, and either samples of one class are as unlike each other as samples of *different*
classes used to be, or features are far longer than they used to be. The first is a head that no
longer looks at its features. The second is what minimizing entropy does when it goes wrong: all
features turn to one class, and grow.

**corrector_collapse** (by stream): the same unlikeness inside the corrector's classes, where it
overrode most of what the network was confident of, and the samples that followed do not support it.

**not_helping**: what the network was confident of is changed to classes that it finds less likely
for this sample than on average, and that it does not find more likely for the samples that follow.

They compare with the past of the same model, 512 samples at least. So they cannot see what was
wrong from the start, what changes over more than about 8,000 samples, a head that collapses while a
camera looks at one scene (until it looks elsewhere), or answers that are wrong, plausible and
steady, as for a video that is mistaken from end to end. Nor can they tell a corrector that smooths
too much from a stream that shows one thing, which the network confidently takes for several.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from lametta._arrays import Floats, count_sketch, finite_products

ALARMS = ("network_collapse", "corrector_collapse", "not_helping")

_OF_STREAM, _OF_MODEL = 4, 16  # samples between two references: the last 64 samples, and 256
_CONFIDENT = 0.5  # the network is confident above this probability, or above its mean if lower
_STREAMS = 512  # the most recent ones, which are watched: 5 kB each
_QUIET = 600.0  # seconds after which a stream's alarm is over
_NAMED = 5  # streams that an alarm names

_SAME_CLASS_RATE = 0.5  # of pairs are in one class, as where seven samples of ten are
_DISSIMILARITY = 0.7  # 0: as samples of one class used to be; 1: as those of different classes
_LENGTH = 1.5  # times the usual length of features; classes and videos differ by 1.25
_OVERRIDE_RATE = 0.5  # of what the network was confident of
_CHANGED_RATE = 0.05  # of all samples: the network was confident, and they were changed
_ENOUGH, _FEW = 128, 32  # changes that the averages reach back, for the model and for a stream
_LOG_RATIO = -1.0  # nats: the new class is that much less likely than on average
_SUPPORT = 1.0  # by what follows: p / mean of the new class, less that of the old one
_EVIDENCE = -0.05  # nats a sample, for correctors that report their evidence
_RELEASE = 0.7  # an alarm ends below this part of the limits that began it

_WIDTH = 64  # numbers that are kept of a sample's features; distances are off by some percent
_REFERENCES = 16  # samples that are remembered to compare with, of each stream and of the model
_BASELINE = 512  # references that the baseline reaches back
_KNOWN = 8  # references with pairs of different classes, from which the baseline is known
_FADE = 1 - 1 / _REFERENCES  # what is left of sums over pairs with each reference

_FOLLOW_UP = 4  # samples after a change that it is judged by
_TINY = 1e-6
_CAP = 20.0  # times the mean, at most: rare classes would drown the others
_CONFIDENT_REACH = 16  # confident samples that the rate of overridden ones reaches back
_REACH = 512  # samples that the rate of changed ones among all reaches back


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
class Hysteresis:
    """Switch that turns on at one limit and off at another, so that it does not flicker."""

    since: float | None = None
    numbers: dict[str, float] = field(default_factory=dict)

    def update(self, now: float, triggered: bool, holds: bool, numbers: dict[str, float]) -> None:
        if triggered and self.since is None:
            self.since = now
        elif not holds:
            self.since = None
        self.numbers = numbers


class _Stream:
    """What is watched of one stream."""

    def __init__(self, width: int) -> None:
        self.references = ReferenceSamples(width)
        self.outcomes = ChangeOutcomes(_FEW)
        self.hysteresis = Hysteresis()
        self.follow_up = FollowUp()
        self.last = 0.0
        self.until = 1  # samples to the next reference


class Alarms:
    """The alarms of one model, fed with every answer; bounded, not thread-safe.

    A stream takes 5 kB, the 512 most recent ones are watched. The ``numbers`` of an alarm are

    - for a collapse: ``share`` (of pairs of samples that are of one class, limit 0.5), ``unlike``
      (0: as samples of one class used to be, 1: as those of different ones, limit 0.7),
      ``confidence`` and, for a network, ``length`` (of features, times the usual, limit 1.5), for a
      corrector ``overrode`` (the share of confident predictions, limit 0.5) and ``after``;
    - for a corrector that does not help: ``changed`` (the share of all samples that the network was
      confident of and that were changed, limit 0.05), ``own`` (nats by which the network finds
      their new classes more likely than on average, limit -1), ``after`` (how much more likely the
      samples that follow make the new class than the old one, each relative to its mean, limit 1)
      and ``evidence`` (as the corrector gives it, if it does; an alarm of its own below -0.05).

    Examples
    --------
    A corrector that is stuck, on samples of ten classes that the network is confident of:

    >>> rng = np.random.default_rng(0)
    >>> alarms, stuck = Alarms(), np.eye(10)[[3]]
    >>> for i, label in enumerate(rng.integers(10, size=1500)):
    ...     features = 3 * np.eye(16)[[label]] + rng.normal(size=(1, 16))
    ...     source = 0.9 * np.eye(10)[[label]] + 0.01
    ...     alarms.observe(float(i), "camera", features, source, source if i < 600 else stuck)
    >>> [(alarm.name, alarm.streams) for alarm in alarms.current(1500.0)]
    [('corrector_collapse', ('camera',)), ('not_helping', ('camera',))]
    """

    def __init__(self) -> None:
        self._streams: OrderedDict[str, _Stream] = OrderedDict()
        self._references: ReferenceSamples | None = None
        self._baseline = Baseline()
        self._outcomes = ChangeOutcomes(_ENOUGH)
        self._network, self._helping = Hysteresis(), Hysteresis()
        self._base: Floats | None = None  # the network's mean probabilities
        self._seen = self._count = 0  # samples that were learned from, and references
        self._evidence = 0.0
        self._confidence = 1.0  # of the network, on average

    def observe(
        self,
        now: float,
        stream: str | None,
        features: Floats | None,
        source: Floats,
        probs: Floats,
        labels: tuple[Sequence[int], Sequence[int]] | None = None,
        evidence: float = 0.0,
    ) -> None:
        """Take note of one answer.

        Parameters
        ----------
        now : float
            The time in seconds since 1970.
        stream : str or None
            Its name; all requests without one count as one stream.
        features : array [N, d] or None
            Without them only ``not_helping`` can be detected.
        source, probs : array [N, K]
            The probabilities as the network gave them, and corrected.
        labels : pair of sequences, optional
            The classes of both, where they are known already.
        evidence : float
            Of the corrector, in nats a sample over the source.
        """
        n = len(probs)
        before, after = labels or (source.argmax(axis=1).tolist(), probs.argmax(axis=1).tolist())
        state = self._stream(stream or "", features)
        state.last = now
        if self._base is None or len(self._base) != source.shape[1]:
            self._base = np.full(source.shape[1], 1 / source.shape[1], np.float32)
        everyone = state.outcomes, self._outcomes
        state.follow_up.follow(source, before, after, self._base, self._confident, everyone)
        # At most as many references as are kept, so that a large batch does not hold up others.
        step = max(_OF_STREAM, -(-n // _REFERENCES))
        if places := range(state.until - 1, n, step):
            self._learn(source[places.start :: step])
            rows = None if features is None else sketch(features[places.start :: step])
            for i, row, length in zip(places, *rows, strict=True) if rows else ():
                tops = float(source[i, before[i]]), float(probs[i, after[i]])
                self._add_reference(now, state, row, length, (before[i], after[i]), tops)
        state.until = 1 + (state.until - 1 - n) % _OF_STREAM
        self._evidence += (evidence - self._evidence) * n / (n + _BASELINE)
        self._decide(now)

    @property
    def _confident(self) -> float:
        return min(_CONFIDENT, self._confidence)

    def _stream(self, name: str, features: Floats | None) -> _Stream:
        state = self._streams.pop(name, None)
        if state is None:
            state = _Stream(_WIDTH if features is None else min(features.shape[1], _WIDTH))
        self._streams[name] = state  # as the last
        if len(self._streams) > _STREAMS:
            self._streams.popitem(last=False)
        return state

    def _learn(self, rows: Floats) -> None:
        """Update the network's mean probabilities and confidence."""
        assert self._base is not None
        self._seen += len(rows)
        part = len(rows) / min(self._seen + 3, 4 * _BASELINE)
        one = len(rows) == 1
        moved = (rows[0] if one else rows.mean(axis=0)) - self._base
        moved *= part
        self._base += moved
        top = float(rows.max() if one else rows.max(axis=1).mean())
        self._confidence += (top - self._confidence) * part

    def _add_reference(
        self,
        now: float,
        state: _Stream,
        row: Floats,
        length: float,
        labels: tuple[int, int],
        tops: tuple[float, float],
    ) -> None:
        """Let a sample stand for those around it, by its classes and their probabilities."""
        references = state.references
        if len(row) == references.rows.shape[1]:
            references.add(row, *labels, tops[0] > self._confident)
            change = (tops[1] - references.confidence) / min(references.count, _REFERENCES)
            references.confidence += change
            overrides = state.outcomes.override_rate > _OVERRIDE_RATE * _RELEASE
            if overrides or state.hysteresis.since is not None:
                self._judge(now, state)
        self._count += 1
        if self._count % (_OF_MODEL // _OF_STREAM) == 0:
            self._add_model_reference(now, row, labels, tops[0], length)

    def _judge(self, now: float, state: _Stream) -> None:
        """Decide whether the corrector has collapsed on a stream."""
        references, outcomes, baseline = state.references, state.outcomes, self._baseline
        rate = references.same_class_rate(1)
        dissimilarity = baseline.dissimilarity(references.distance(1))
        overrides, support = outcomes.override_rate, outcomes.support
        triggered = rate > _SAME_CLASS_RATE and dissimilarity > _DISSIMILARITY
        triggered = triggered and overrides > _OVERRIDE_RATE and support < _SUPPORT
        triggered = triggered and baseline.is_known and outcomes.judged >= _FEW // 2
        triggered = triggered and references.confidence > baseline.confidence
        holds = rate > _SAME_CLASS_RATE * _RELEASE and dissimilarity > _DISSIMILARITY * _RELEASE
        holds = holds and overrides > _OVERRIDE_RATE * _RELEASE
        numbers = {
            "share": rate,
            "unlike": dissimilarity,
            "overrode": overrides,
            "after": support,
            "confidence": references.confidence,
        }
        state.hysteresis.update(now, triggered, holds, numbers)

    def _add_model_reference(
        self, now: float, row: Floats, labels: tuple[int, int], top: float, length: float
    ) -> None:
        """The same for all streams together, and decide whether the network has collapsed."""
        if self._references is None or self._references.rows.shape[1] != len(row):
            self._references, self._baseline = ReferenceSamples(len(row)), Baseline()
        references, baseline = self._references, self._baseline
        within, between = references.add(row, *labels, top > self._confident)
        part = 1 / min(references.count, _REFERENCES)
        references.confidence += (top - references.confidence) * part
        references.length += (length - references.length) * part
        rate = references.same_class_rate(0)
        dissimilarity = baseline.dissimilarity(references.distance(0))
        longer = references.length / (baseline.length or references.length or 1.0)
        triggered = dissimilarity > _DISSIMILARITY or longer > _LENGTH
        triggered = triggered and rate > max(_SAME_CLASS_RATE, 2 * baseline.same_class_rate)
        triggered = triggered and baseline.is_known and references.confidence > baseline.confidence
        holds = dissimilarity > _DISSIMILARITY * _RELEASE or longer > 1 + (_LENGTH - 1) * _RELEASE
        holds = holds and rate > _SAME_CLASS_RATE * _RELEASE
        numbers = {"share": rate, "unlike": dissimilarity, "length": longer}
        self._network.update(now, triggered, holds, numbers | {"confidence": references.confidence})
        if not (baseline.is_known and holds):  # an anomaly must not become the baseline
            baseline.learn(within, between, rate, top, length)

    def _decide(self, now: float) -> None:
        """Decide whether the corrector does not help."""
        outcomes, evidence = self._outcomes, self._evidence
        changed, log_ratio, support = outcomes.changed_rate, outcomes.log_ratio, outcomes.support
        triggered = log_ratio < _LOG_RATIO and support < _SUPPORT and changed > _CHANGED_RATE
        triggered = triggered and outcomes.judged >= _ENOUGH
        holds = log_ratio < _LOG_RATIO * _RELEASE and support < _SUPPORT / _RELEASE
        holds = holds and changed > _CHANGED_RATE * _RELEASE
        self._helping.update(
            now,
            triggered or evidence < _EVIDENCE,
            holds or evidence < _EVIDENCE * _RELEASE,
            {"changed": changed, "own": log_ratio, "after": support, "evidence": evidence},
        )

    def current(self, now: float) -> list[Alarm]:
        """The alarms that are on."""
        found = []
        if self._network.since is not None:
            found.append(Alarm(ALARMS[0], self._network.since, (), self._network.numbers))
        recent = [
            (name, state)
            for name, state in reversed(self._streams.items())
            if now < state.last + _QUIET
        ]
        stuck = {
            name: state.hysteresis for name, state in recent if state.hysteresis.since is not None
        }
        if stuck:
            since = min(hysteresis.since or now for hysteresis in stuck.values())
            numbers = next(iter(stuck.values())).numbers
            found.append(Alarm(ALARMS[1], since, tuple(stuck)[:_NAMED], numbers))
        if self._helping.since is not None:
            names = tuple(name for name, state in recent if state.outcomes.log_ratio < _LOG_RATIO)
            numbers = self._helping.numbers
            found.append(Alarm(ALARMS[2], self._helping.since, names[:_NAMED], numbers))
        return found


class ReferenceSamples:
    """A few of the last samples, and how alike those are that got the same class.

    Each new one is compared with those before it; fading sums over such pairs are kept.
    """

    def __init__(self, width: int) -> None:
        self.rows = np.zeros((_REFERENCES, width), np.float32)
        # Of each the network's class, the corrected one, and whether the network was confident;
        # a list, which for so few is faster than arrays.
        self.labels: list[tuple[int, int, bool]] = []
        self.count = 0
        # Fading sums: of pairs; of pairs of one class, by source and corrected; of their distances.
        self.pairs = self.confidence = self.length = 0.0
        self.same = [0.0, 0.0]
        self.distances = [0.0, 0.0]

    def add(self, row: Floats, source: int, corrected: int, confident: bool) -> tuple[float, float]:
        """Compare a sample with the references, then make it one.

        Gives two mean distances, if the network is confident of the sample, to references that it
        is confident of too: within the class, and between classes; NaN where there are none.
        """
        n = len(self.labels)
        with finite_products():
            cosines = (self.rows[:n] @ row).tolist()
        within: list[float] = []
        between: list[float] = []
        same, distances = [0.0, 0.0], [0.0, 0.0]
        for cosine, (other, other_corrected, other_confident) in zip(
            cosines, self.labels, strict=True
        ):
            distance = 1 - cosine
            if other == source:
                same[0] += 1
                distances[0] += distance
            if other_corrected == corrected:
                same[1] += 1
                distances[1] += distance
            if confident and other_confident:
                (within if other == source else between).append(distance)
        self.pairs = self.pairs * _FADE + n
        for which in (0, 1):
            self.same[which] = self.same[which] * _FADE + same[which]
            self.distances[which] = self.distances[which] * _FADE + distances[which]
        index = self.count % _REFERENCES
        self.rows[index] = row
        self.labels[index : index + 1] = [(source, corrected, confident)]
        self.count += 1
        return _mean(within), _mean(between)

    def same_class_rate(self, which: int) -> float:
        """Of pairs, those of one class: by the network (0) or as corrected (1)."""
        return self.same[which] / self.pairs if self.count > _REFERENCES // 2 else 0.0

    def distance(self, which: int) -> float:
        """The mean distance of pairs of one class: by the network (0) or as corrected (1)."""
        return self.distances[which] / max(self.same[which], 1e-9)


class Baseline:
    """How this model's samples used to be, from references of all streams."""

    def __init__(self) -> None:
        self.within = self.between = self.same_class_rate = self.confidence = self.length = 0.0
        self.n_within = self.n_between = self.n = 0

    def learn(self, within: float, between: float, rate: float, top: float, length: float) -> None:
        """Update the running means with one reference sample."""
        if within == within:  # not NaN
            self.n_within += 1
            self.within += (within - self.within) / min(self.n_within, _BASELINE)
        if between == between:
            self.n_between += 1
            self.between += (between - self.between) / min(self.n_between, _BASELINE)
        self.n += 1
        part = 1 / min(self.n, _BASELINE)
        self.same_class_rate += (rate - self.same_class_rate) * part
        self.confidence += (top - self.confidence) * part
        self.length += (length - self.length) * part

    @property
    def is_known(self) -> bool:
        """Whether enough samples were seen to compare with."""
        return self.n_between >= _KNOWN and self.n >= 2 * _REFERENCES

    def dissimilarity(self, distance: float) -> float:
        """Where a distance lies: 0 as samples of one class were, 1 as those of different ones."""
        # Among many classes pairs of one are rare: assume half the distance until more are seen.
        assumed = self.between / 2 * _KNOWN
        within = (self.within * self.n_within + assumed) / (self.n_within + _KNOWN)
        return (distance - within) / max(self.between - within, 1e-6)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def sketch(x: Floats) -> tuple[Floats, list[float]]:
    """Rows of unit length with about the cosines of features [N, d]; their lengths before that."""
    with np.errstate(over="ignore", invalid="ignore"):
        rows: Floats = count_sketch(x.astype(np.float32), _WIDTH)
        lengths = np.sqrt(np.vecdot(rows, rows))
    known = lengths.tolist()
    if not all(0 < length < math.inf for length in known):
        fine = (lengths > 0) & (lengths < math.inf)
        rows[~fine], lengths[~fine] = 0, 1  # zero, or beyond what float32 holds: like nothing
        known = [length if ok else 0.0 for length, ok in zip(known, fine.tolist(), strict=True)]
    rows /= lengths[:, None]
    return rows, known


class ChangeOutcomes:
    """Whether changes of what the network was confident of were right, as far as it says itself.

    Attributes
    ----------
    judged : int
        Changes so far.
    log_ratio : float
        Nats by which the network finds the new class of a changed sample more likely than on
        average.
    support : float
        How much more likely the samples that follow make the new class than the old one.
    changed_rate : float
        Of all samples, those that were changed although the network was confident.
    override_rate : float
        Of those that the network was confident of, the changed ones.
    """

    def __init__(self, reach: int) -> None:
        self.reach = reach  # changes
        self.judged = 0
        self.log_ratio = self.support = self.changed_rate = self.override_rate = 0.0

    def observe(self, n: int, confident: int, changed: int) -> None:
        """Count samples, the confident ones, and those of them that were changed."""
        self.changed_rate += (changed / n - self.changed_rate) * n / (n + _REACH)
        if confident:
            change = (changed / confident - self.override_rate) * confident
            self.override_rate += change / (confident + _CONFIDENT_REACH)

    def judge(self, log_ratio: float, support: float) -> None:
        """Count one change: what the network said of its sample, and of those after it."""
        self.judged += 1
        part = 1 / min(self.judged, self.reach)
        self.log_ratio += (log_ratio - self.log_ratio) * part
        self.support += (support - self.support) * part


@dataclass
class _Change:
    """A change that is being judged."""

    was: int
    became: int
    classes: int
    log_ratio: float
    support: float = 0.0
    observed: int = 0


class FollowUp:
    """The change of a stream that is being judged: one at a time, by the samples after it."""

    def __init__(self) -> None:
        self._change: _Change | None = None

    def follow(
        self,
        source: Floats,
        before: Sequence[int],
        after: Sequence[int],
        base: Floats,
        confident: float,
        outcomes: Sequence[ChangeOutcomes],
    ) -> None:
        """Compare changes with the network's mean, at their own samples and at the next ones.

        Parameters
        ----------
        source : array [N, K]
            The network's probabilities.
        before, after : sequence of int
            The classes of the network and of the corrector.
        base : array [K]
            The network's mean probabilities.
        confident : float
            The probability above which the network is confident.
        outcomes : sequence of ChangeOutcomes
            What the results are counted in.
        """
        n_confident = n_changed = 0
        for i, (old, new) in enumerate(zip(before, after, strict=True)):
            row = source[i]
            if self._change is not None:
                self._observe(self._change, row, base, outcomes)
            if row[old] > confident:
                n_confident += 1
                if old != new:
                    n_changed += 1
                    if self._change is None:
                        nats = math.log((row[new] + _TINY) / (base[new] + _TINY))
                        self._change = _Change(old, new, len(base), max(min(nats, 3.0), -3.0))
        for one in outcomes:
            one.observe(len(before), n_confident, n_changed)

    def _observe(
        self, change: _Change, row: Floats, base: Floats, outcomes: Sequence[ChangeOutcomes]
    ) -> None:
        if change.classes != len(base):  # the stream began anew, with other classes
            self._change = None
            return
        change.support += min(float(row[change.became] / (base[change.became] + _TINY)), _CAP)
        change.support -= min(float(row[change.was] / (base[change.was] + _TINY)), _CAP)
        change.observed += 1
        if change.observed == _FOLLOW_UP:
            for one in outcomes:
                one.judge(change.log_ratio, change.support / _FOLLOW_UP)
            self._change = None
