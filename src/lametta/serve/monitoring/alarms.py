"""Alarms that need no labels: predictions collapse, or a corrector stops helping.

Three rules, each about something that healthy traffic does not do however one-sided it is. A video
of one object is rightly one class with high confidence, and so are photographs sorted by class; so
low diversity alone says nothing.

**network_collapse**: most samples get one class from the network itself, more than used to, with no
less confidence, and either samples of one class are as unlike each other as samples of *different*
classes used to be, or features are far longer than they used to be. The first is a head that no
longer looks at its features. The second is what minimizing entropy does when it goes wrong: all
features turn to one class, and grow.

**corrector_collapse** (by stream): the same unlikeness inside the corrector's classes, where it
overrode most of what the network was sure of, and the samples that followed do not support it.

**not_helping**: what the network was sure of is changed to classes that it finds less likely for
this sample than on average, and that it does not find more likely for the samples that follow.

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

_OF_STREAM, _OF_MODEL = 4, 16  # samples from one mark to the next: the last 64 samples, and 256
_SURE = 0.5  # the network is sure above this probability, or above its mean confidence if lower
_STREAMS = 512  # the most recent ones, which are watched: 5 kB each
_QUIET = 600.0  # seconds after which a stream's alarm is over
_NAMED = 5  # streams that an alarm names

_MOST = 0.5  # of pairs are in one class, as where seven samples of ten are
_UNLIKE = 0.7  # 0: as samples of one class used to be; 1: as those of different classes
_LONG = 1.5  # times the usual length of features; classes and videos differ by 1.25
_OVERRODE = 0.5  # of what the network was sure of
_OFTEN = 0.05  # of all samples: the network was sure, and they were changed
_ENOUGH, _FEW = 128, 32  # changes that the averages reach back, for the model and for a stream
_AGAINST = -1.0  # nats: the new class is that much less likely than on average
_AFTER = 1.0  # support by what follows: p / mean of the new class, less that of the old one
_PRICE = -0.05  # nats a sample, for correctors that report their evidence
_LOOSER = 0.7  # an alarm ends below this part of the limits that began it

WIDTH = 64  # numbers that are kept of a sample's features; distances are off by some percent
MARKS = 16  # samples that are remembered to compare with, of each stream and of the model
SLOW = 512  # marks that the past reaches back
_KNOWN = 8  # marks with pairs of different classes, from which the past is known
_FADE = 1 - 1 / MARKS  # what is left of sums over pairs with each mark

_HEARD = 4  # samples after a change that it is judged by
_TINY = 1e-6
_CAP = 20.0  # times the mean, at most: rare classes would drown the others
_SURE_REACH = 16  # sure samples that the share of changed ones among them reaches back
_REACH = 512  # samples that the share of changed ones among all reaches back


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
class _Switch:
    """Turns on at one limit and off at another, so that it does not flicker."""

    since: float | None = None
    numbers: dict[str, float] = field(default_factory=dict)

    def turn(self, now: float, begins: bool, lasts: bool, numbers: dict[str, float]) -> None:
        if begins and self.since is None:
            self.since = now
        elif not lasts:
            self.since = None
        self.numbers = numbers


class _Stream:
    def __init__(self, width: int) -> None:
        self.marks = Marks(width)
        self.changes = Changes(_FEW)
        self.switch = _Switch()
        self.pending = Pending()
        self.last = 0.0
        self.until = 1  # samples to the next mark


class Alarms:
    """The alarms of one model, fed with every answer; bounded, not thread-safe.

    A stream takes 5 kB, the 512 most recent ones are watched. The ``numbers`` of an alarm are

    - for a collapse: ``share`` (of pairs of samples that are of one class, limit 0.5), ``unlike``
      (0: as samples of one class used to be, 1: as those of different ones, limit 0.7),
      ``confidence`` and, for a network, ``length`` (of features, times the usual, limit 1.5), for a
      corrector ``overrode`` (the share of sure predictions, limit 0.5) and ``after``;
    - for a corrector that does not help: ``changed`` (the share of all samples that the network was
      sure of and that were changed, limit 0.05), ``own`` (nats by which the network finds their new
      classes more likely than on average, limit -1), ``after`` (how much more likely the samples
      that follow make the new class than the old one, each relative to its mean, limit 1) and
      ``evidence`` (as the corrector gives it, if it does; an alarm of its own below -0.05).

    Examples
    --------
    A corrector that is stuck, on samples of ten classes that the network is sure of:

    >>> rng = np.random.default_rng(0)
    >>> alarms, stuck = Alarms(), np.eye(10)[[3]]
    >>> for i, label in enumerate(rng.integers(10, size=1500)):
    ...     features = 3 * np.eye(16)[[label]] + rng.normal(size=(1, 16))
    ...     source = 0.9 * np.eye(10)[[label]] + 0.01
    ...     alarms.saw(float(i), "camera", features, source, source if i < 600 else stuck)
    >>> [(alarm.name, alarm.streams) for alarm in alarms.current(1500.0)]
    [('corrector_collapse', ('camera',)), ('not_helping', ('camera',))]
    """

    def __init__(self) -> None:
        self._streams: OrderedDict[str, _Stream] = OrderedDict()
        self._marks: Marks | None = None
        self._past = Past()
        self._changes = Changes(_ENOUGH)
        self._network, self._helping = _Switch(), _Switch()
        self._base: Floats | None = None  # the network's mean probabilities
        self._seen = self._count = 0  # samples that were learned from, and marks
        self._evidence = 0.0
        self._confidence = 1.0  # of the network, on average

    def saw(
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
        own = self._stream(stream or "", features)
        own.last = now
        if self._base is None or len(self._base) != source.shape[1]:
            self._base = np.full(source.shape[1], 1 / source.shape[1], np.float32)
        everyone = own.changes, self._changes
        own.pending.follow(source, before, after, self._base, self._sure, everyone)
        # At most as many marks as are kept, so that a large batch does not hold up others.
        step = max(_OF_STREAM, -(-n // MARKS))
        if places := range(own.until - 1, n, step):
            self._learn(source[places.start :: step])
            rows = None if features is None else sketch(features[places.start :: step])
            for i, row, length in zip(places, *rows, strict=True) if rows else ():
                tops = float(source[i, before[i]]), float(probs[i, after[i]])
                self._mark(now, own, row, length, (before[i], after[i]), tops)
        own.until = 1 + (own.until - 1 - n) % _OF_STREAM
        self._evidence += (evidence - self._evidence) * n / (n + SLOW)
        self._decide(now)

    @property
    def _sure(self) -> float:
        return min(_SURE, self._confidence)

    def _stream(self, name: str, features: Floats | None) -> _Stream:
        own = self._streams.pop(name, None)
        if own is None:
            own = _Stream(WIDTH if features is None else min(features.shape[1], WIDTH))
        self._streams[name] = own  # as the last
        if len(self._streams) > _STREAMS:
            self._streams.popitem(last=False)
        return own

    def _learn(self, rows: Floats) -> None:
        """Update the network's mean probabilities and confidence."""
        assert self._base is not None
        self._seen += len(rows)
        part = len(rows) / min(self._seen + 3, 4 * SLOW)
        one = len(rows) == 1
        moved = (rows[0] if one else rows.mean(axis=0)) - self._base
        moved *= part
        self._base += moved
        top = float(rows.max() if one else rows.max(axis=1).mean())
        self._confidence += (top - self._confidence) * part

    def _mark(
        self,
        now: float,
        own: _Stream,
        row: Floats,
        length: float,
        labels: tuple[int, int],
        tops: tuple[float, float],
    ) -> None:
        """Let a sample stand for those around it, by its classes and their probabilities."""
        marks, changes = own.marks, own.changes
        if len(row) == marks.rows.shape[1]:
            marks.add(row, *labels, tops[0] > self._sure)
            marks.confidence += (tops[1] - marks.confidence) / min(marks.count, MARKS)
            if changes.overrode > _OVERRODE * _LOOSER or own.switch.since is not None:
                self._judge(now, own)
        self._count += 1
        if self._count % (_OF_MODEL // _OF_STREAM) == 0:
            self._mark_model(now, row, labels, tops[0], length)

    def _judge(self, now: float, own: _Stream) -> None:
        marks, changes, past = own.marks, own.changes, self._past
        share, unlike = marks.share(1), past.unlike(marks.distance(1))
        overrode, after = changes.overrode, changes.after
        begins = share > _MOST and unlike > _UNLIKE and overrode > _OVERRODE and after < _AFTER
        begins = begins and past.is_known and changes.judged >= _FEW // 2
        begins = begins and marks.confidence > past.confidence
        lasts = share > _MOST * _LOOSER and unlike > _UNLIKE * _LOOSER
        lasts = lasts and overrode > _OVERRODE * _LOOSER
        numbers = {"share": share, "unlike": unlike, "overrode": overrode, "after": after}
        own.switch.turn(now, begins, lasts, numbers | {"confidence": marks.confidence})

    def _mark_model(
        self, now: float, row: Floats, labels: tuple[int, int], top: float, length: float
    ) -> None:
        if self._marks is None or self._marks.rows.shape[1] != len(row):
            self._marks, self._past = Marks(len(row)), Past()
        marks, past = self._marks, self._past
        near, far = marks.add(row, *labels, top > self._sure)
        part = 1 / min(marks.count, MARKS)
        marks.confidence += (top - marks.confidence) * part
        marks.length += (length - marks.length) * part
        share, unlike = marks.share(0), past.unlike(marks.distance(0))
        longer = marks.length / (past.length or marks.length or 1.0)
        begins = unlike > _UNLIKE or longer > _LONG
        begins = begins and past.is_known and share > max(_MOST, 2 * past.share)
        begins = begins and marks.confidence > past.confidence
        lasts = unlike > _UNLIKE * _LOOSER or longer > 1 + (_LONG - 1) * _LOOSER
        lasts = lasts and share > _MOST * _LOOSER
        numbers = {"share": share, "unlike": unlike, "length": longer}
        self._network.turn(now, begins, lasts, numbers | {"confidence": marks.confidence})
        if not (past.is_known and lasts):  # an anomaly must not become the past
            past.learn(near, far, share, top, length)

    def _decide(self, now: float) -> None:
        share, own, after = self._changes.share, self._changes.own, self._changes.after
        begins = own < _AGAINST and after < _AFTER and share > _OFTEN
        begins = begins and self._changes.judged >= _ENOUGH
        lasts = own < _AGAINST * _LOOSER and after < _AFTER / _LOOSER and share > _OFTEN * _LOOSER
        self._helping.turn(
            now,
            begins or self._evidence < _PRICE,
            lasts or self._evidence < _PRICE * _LOOSER,
            {"changed": share, "own": own, "after": after, "evidence": self._evidence},
        )

    def current(self, now: float) -> list[Alarm]:
        """The alarms that are on."""
        found = []
        if self._network.since is not None:
            found.append(Alarm(ALARMS[0], self._network.since, (), self._network.numbers))
        recent = [
            (name, own) for name, own in reversed(self._streams.items()) if now < own.last + _QUIET
        ]
        stuck = [(name, own.switch) for name, own in recent if own.switch.since is not None]
        if stuck:
            since = min(switch.since or now for _, switch in stuck)
            names = tuple(name for name, _ in stuck[:_NAMED])
            found.append(Alarm(ALARMS[1], since, names, stuck[0][1].numbers))
        if self._helping.since is not None:
            names = tuple(name for name, own in recent if own.changes.own < _AGAINST)[:_NAMED]
            found.append(Alarm(ALARMS[2], self._helping.since, names, self._helping.numbers))
        return found


class Marks:
    """Some of the last samples, and how alike those are that got the same class."""

    def __init__(self, width: int) -> None:
        self.rows = np.zeros((MARKS, width), np.float32)
        # Of each mark the network's class, the corrected one, and whether the network was sure;
        # a list, which for so few is faster than arrays.
        self.said: list[tuple[int, int, bool]] = []
        self.count = 0
        # Fading sums: of pairs; of pairs of one class, by source and corrected; of their distances.
        self.pairs = self.confidence = self.length = 0.0
        self.same = [0.0, 0.0]
        self.apart = [0.0, 0.0]

    def add(self, row: Floats, source: int, corrected: int, sure: bool) -> tuple[float, float]:
        """Compare a sample with the marks, then make it one.

        Gives two mean distances, if the network is sure of the sample, to marks that it is sure of
        too: to those of the same class, and to others; NaN where there are none.
        """
        n = len(self.said)
        with finite_products():
            cosines = (self.rows[:n] @ row).tolist()
        near: list[float] = []
        far: list[float] = []
        same, apart = [0.0, 0.0], [0.0, 0.0]
        for cosine, (other, other_corrected, other_sure) in zip(cosines, self.said, strict=True):
            distance = 1 - cosine
            if other == source:
                same[0] += 1
                apart[0] += distance
            if other_corrected == corrected:
                same[1] += 1
                apart[1] += distance
            if sure and other_sure:
                (near if other == source else far).append(distance)
        self.pairs = self.pairs * _FADE + n
        for which in (0, 1):
            self.same[which] = self.same[which] * _FADE + same[which]
            self.apart[which] = self.apart[which] * _FADE + apart[which]
        place = self.count % MARKS
        self.rows[place] = row
        self.said[place : place + 1] = [(source, corrected, sure)]
        self.count += 1
        return _mean(near), _mean(far)

    def share(self, which: int) -> float:
        """Of pairs, those of one class: by the network (0) or as corrected (1)."""
        return self.same[which] / self.pairs if self.count > MARKS // 2 else 0.0

    def distance(self, which: int) -> float:
        return self.apart[which] / max(self.same[which], 1e-9)


class Past:
    """How this model's samples used to be, from marks of all streams."""

    def __init__(self) -> None:
        self.far = self.near = self.share = self.confidence = self.length = 0.0
        self.n_far = self.n_near = self.n = 0

    def learn(self, near: float, far: float, share: float, top: float, length: float) -> None:
        if near == near:  # not NaN
            self.n_near += 1
            self.near += (near - self.near) / min(self.n_near, SLOW)
        if far == far:
            self.n_far += 1
            self.far += (far - self.far) / min(self.n_far, SLOW)
        self.n += 1
        part = 1 / min(self.n, SLOW)
        self.share += (share - self.share) * part
        self.confidence += (top - self.confidence) * part
        self.length += (length - self.length) * part

    @property
    def is_known(self) -> bool:
        return self.n_far >= _KNOWN and self.n >= 2 * MARKS

    def unlike(self, distance: float) -> float:
        """Where a distance lies: 0 as samples of one class were, 1 as those of different ones."""
        # Among many classes pairs of one are rare: assume half the distance until more are seen.
        near = (self.near * self.n_near + self.far / 2 * _KNOWN) / (self.n_near + _KNOWN)
        return (distance - near) / max(self.far - near, 1e-6)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def sketch(x: Floats) -> tuple[Floats, list[float]]:
    """Rows of unit length with about the cosines of features [N, d]; their lengths before that."""
    with np.errstate(over="ignore", invalid="ignore"):
        rows: Floats = count_sketch(x.astype(np.float32), WIDTH)
        lengths = np.sqrt(np.vecdot(rows, rows))
    known = lengths.tolist()
    if not all(0 < length < math.inf for length in known):
        fine = (lengths > 0) & (lengths < math.inf)
        rows[~fine], lengths[~fine] = 0, 1  # zero, or beyond what float32 holds: like nothing
        known = [length if ok else 0.0 for length, ok in zip(known, fine.tolist(), strict=True)]
    rows /= lengths[:, None]
    return rows, known


class Changes:
    """Whether changes of what the network was sure of were right, as far as it says so itself."""

    def __init__(self, reach: int) -> None:
        self.reach = reach  # changes
        self.judged = 0
        self.own = self.after = self.share = self.overrode = 0.0

    def saw(self, n: int, sure: int, changed: int) -> None:
        """Count samples, the sure ones, and those of them that were changed."""
        self.share += (changed / n - self.share) * n / (n + _REACH)
        if sure:
            self.overrode += (changed / sure - self.overrode) * sure / (sure + _SURE_REACH)

    def judge(self, own: float, after: float) -> None:
        """Count one change: what the network said of its sample, and of those after it."""
        self.judged += 1
        part = 1 / min(self.judged, self.reach)
        self.own += (own - self.own) * part
        self.after += (after - self.after) * part


@dataclass
class _Change:
    """A change that is being judged."""

    was: int
    became: int
    classes: int
    own: float
    after: float = 0.0
    heard: int = 0


class Pending:
    """The change of a stream that is being judged: one at a time, by the samples after it."""

    def __init__(self) -> None:
        self._change: _Change | None = None

    def follow(
        self,
        source: Floats,
        before: Sequence[int],
        after: Sequence[int],
        base: Floats,
        sure: float,
        judges: Sequence[Changes],
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
        sure : float
            The probability above which the network is sure.
        judges : sequence of Changes
            What the results are counted in.
        """
        n_sure = n_changed = 0
        for i, (old, new) in enumerate(zip(before, after, strict=True)):
            row = source[i]
            if self._change is not None:
                self._hear(self._change, row, base, judges)
            if row[old] > sure:
                n_sure += 1
                if old != new:
                    n_changed += 1
                    if self._change is None:
                        nats = math.log((row[new] + _TINY) / (base[new] + _TINY))
                        self._change = _Change(old, new, len(base), max(min(nats, 3.0), -3.0))
        for judge in judges:
            judge.saw(len(before), n_sure, n_changed)

    def _hear(self, change: _Change, row: Floats, base: Floats, judges: Sequence[Changes]) -> None:
        if change.classes != len(base):  # the stream began anew, with other classes
            self._change = None
            return
        change.after += min(float(row[change.became] / (base[change.became] + _TINY)), _CAP)
        change.after -= min(float(row[change.was] / (base[change.was] + _TINY)), _CAP)
        change.heard += 1
        if change.heard == _HEARD:
            for judge in judges:
                judge.judge(change.own, change.after / _HEARD)
            self._change = None
