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
overrode most of what the network was sure of, and where what came next does not speak for it.

**not_helping**: what the network was sure of is changed to classes that it finds less likely for
the sample than it finds them on average, and does not find more likely for the samples after it.

They compare with the past of the same model. So they cannot see what was wrong from the start, what
comes more slowly than about 8,000 samples, a head that collapses while a camera looks at one scene
(until it looks elsewhere), or answers that are wrong, plausible and steady, as of a video that is
mistaken from end to end. Nor can they tell a stream that truly is one thing, of which the network
is sure in different ways, from a corrector that smooths too much: both override sure predictions.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float32]

ALARMS = ("network_collapse", "corrector_collapse", "not_helping")

_WIDTH = 64  # numbers that are kept of a sample's features; distances are off by some percent
_MARKS = 16  # samples that are remembered to compare with, of each stream and of the model
_OF_STREAM, _OF_MODEL = 4, 16  # samples from one mark to the next: the last 64 samples, and 256
_SLOW = 512  # marks that the past reaches back: 8,192 samples
_KNOWN = 8  # marks with pairs of different classes, from which the past is known
_FADE = 1 - 1 / _MARKS  # what is left of sums over pairs with each mark
_SURE = 0.5  # a network is sure of what it finds more likely than all else, or than it usually does
_STREAMS = 512  # streams that are watched, the most recent: 5 kB each
_QUIET = 600.0  # seconds after which a stream's alarm is over
_NAMED = 5  # streams that an alarm names

_MOST = 0.5  # of pairs, in one class: seven samples of ten
_UNLIKE = 0.7  # from 0, as samples of one class were, to 1, as those of different classes
_LONG = 1.5  # times the usual length of features; classes and videos differ by 1.25
_OVERRODE = 0.5  # of what the network was sure of
_OFTEN = 0.05  # of all samples: sure ones that were changed
_ENOUGH, _FEW = 128, 32  # changes that a judgment reaches back, in the model and in a stream
_HEARD = 4  # samples after a change that are heard about it
_AGAINST = -1.0  # nats: a changed class is that much less likely than on average
_AFTER = 1.0  # times the average by which what comes next speaks for a change, or does not
_CAP = 20.0  # times the average, at most: rare classes would drown the others
_PRICE = -0.05  # nats a sample, of correctors that know their evidence
_LOOSER = 0.7  # an alarm ends where its numbers are below this part of what began it


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
    """On from one limit, off at another, so that it does not flicker."""

    since: float | None = None
    numbers: dict[str, float] = field(default_factory=dict)

    def turn(self, now: float, begins: bool, lasts: bool, **numbers: float) -> None:
        if begins and self.since is None:
            self.since = now
        elif not lasts:
            self.since = None
        self.numbers = numbers


class _Marks:
    """Some of the last samples, and how alike those are that got the same class."""

    def __init__(self, width: int) -> None:
        self.rows = np.zeros((_MARKS, width), np.float32)
        # Of each mark the class as the network gave it, as corrected, and whether it was sure;
        # lists, which for so few are faster than arrays.
        self.said: list[tuple[int, int, bool]] = []
        self.count = 0
        # Fading sums: of pairs; of pairs of one class by source and corrector; of their distances.
        self.pairs = self.confidence = self.length = 0.0
        self.same = [0.0, 0.0]
        self.apart = [0.0, 0.0]

    def add(self, row: Floats, source: int, corrected: int, sure: bool) -> tuple[float, float]:
        """Compare a sample with the marks, then let it be one.

        Gives the mean distances to marks that the network is sure of, as it is of this one: to
        those that it gave the same class, and to others; NaN where there are none.
        """
        n = len(self.said)
        pairs = zip((self.rows[:n] @ row).tolist(), self.said, strict=True)
        near: list[float] = []
        far: list[float] = []
        same, apart = [0.0, 0.0], [0.0, 0.0]
        for cosine, (other, other_corrected, other_sure) in pairs:
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
        place = self.count % _MARKS
        self.rows[place] = row
        self.said[place : place + 1] = [(source, corrected, sure)]
        self.count += 1
        return _mean(near), _mean(far)

    def share(self, which: int) -> float:
        """Of pairs, those of one class: by the network (0) or as corrected (1)."""
        return self.same[which] / self.pairs if self.count > _MARKS // 2 else 0.0

    def distance(self, which: int) -> float:
        return self.apart[which] / max(self.same[which], 1e-9)


class _Past:
    """How this model's samples used to be, from marks of all streams."""

    def __init__(self) -> None:
        self.far = self.near = self.share = self.confidence = self.length = 0.0
        self.n_far = self.n_near = self.n = 0

    def learn(self, near: float, far: float, share: float, top: float, length: float) -> None:
        if near == near:  # not NaN
            self.n_near += 1
            self.near += (near - self.near) / min(self.n_near, _SLOW)
        if far == far:
            self.n_far += 1
            self.far += (far - self.far) / min(self.n_far, _SLOW)
        self.n += 1
        part = 1 / min(self.n, _SLOW)
        self.share += (share - self.share) * part
        self.confidence += (top - self.confidence) * part
        self.length += (length - self.length) * part

    @property
    def is_known(self) -> bool:
        return self.n_far >= _KNOWN and self.n >= 2 * _MARKS

    def unlike(self, distance: float) -> float:
        """Where a distance lies: 0 as samples of one class were, 1 as those of different ones."""
        # Of many classes hardly two samples were of one: half as far apart, until more is known.
        near = (self.near * self.n_near + self.far / 2 * _KNOWN) / (self.n_near + _KNOWN)
        return (distance - near) / max(self.far - near, 1e-6)


class _Changes:
    """Whether changes of what the network was sure of were right, as far as it says so itself."""

    def __init__(self, reach: int) -> None:
        self.reach = reach  # changes
        self.judged = 0
        self.own = self.after = self.share = self.overrode = 0.0

    def saw(self, n: int, sure: int, changed: int) -> None:
        """Count samples, the sure ones, and those of them that were changed."""
        self.share += (changed / n - self.share) * n / (n + _SLOW)
        if sure:
            self.overrode += (changed / sure - self.overrode) * sure / (sure + _MARKS)

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
    own: float
    after: float = 0.0
    heard: int = 0


class _Stream:
    def __init__(self, width: int) -> None:
        self.marks = _Marks(width)
        self.changes = _Changes(_FEW)
        self.switch = _Switch()
        self.change: _Change | None = None
        self.last = 0.0
        self.until = 1  # samples to the next mark


class Alarms:
    """The alarms of one model, fed with every answer; bounded, not safe in threads.

    A stream takes 5 kB, the 512 most recent ones are watched. ``numbers`` of an alarm are

    - of a collapse ``share`` (of pairs of samples that are of one class, limit 0.5), ``unlike``
      (0: as samples of one class used to be, 1: as those of different ones, limit 0.7),
      ``confidence`` and, of a network's, ``length`` (of features, times the usual, limit 1.5), of a
      corrector's ``overrode`` (the share of sure predictions, limit 0.5) and ``after``;
    - of a corrector that does not help ``changed`` (the share of all samples that the network was
      sure of and that were changed, limit 0.05), ``own`` (nats by which the network finds their new
      classes more likely than on average, limit -1), ``after`` (how much more the sample after
      speaks for the new class than for the old one, times the average, limit 1) and ``evidence``
      (as the corrector gives it, if it does; limit -0.05 by itself).

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
        self._marks: _Marks | None = None
        self._past = _Past()
        self._changes = _Changes(_ENOUGH)
        self._network, self._helping = _Switch(), _Switch()
        self._base: NDArray[Any] | None = None  # the network's mean probabilities
        self._seen = 0
        self._evidence = 0.0
        self._confidence = 1.0  # of the network, on average

    def saw(
        self,
        now: float,
        stream: str | None,
        features: NDArray[Any] | None,
        source: NDArray[Any],
        probs: NDArray[Any],
        labels: tuple[Sequence[int], Sequence[int]] | None = None,
        evidence: float = 0.0,
    ) -> None:
        """Take note of one answer.

        Parameters
        ----------
        now : float
            The time in seconds since 1970.
        stream : str or None
            Its name; requests without one are a stream together.
        features : array [N, d] or None
            Without them only ``not_helping`` can be seen.
        source, probs : array [N, K]
            As the network gave them, and corrected.
        labels : pair of sequences, optional
            Their classes, where they are known already.
        evidence : float
            Of the corrector, in nats a sample over the source.
        """
        n = len(probs)
        before, after = labels or (source.argmax(axis=1).tolist(), probs.argmax(axis=1).tolist())
        own = self._stream(stream or "", features)
        own.last = now
        if self._base is None or len(self._base) != source.shape[1]:
            self._base = np.full(source.shape[1], 1 / source.shape[1], np.float32)
        self._judge_changes(own, source, before, after)
        first = own.until - 1
        for i in range(first, n, _OF_STREAM):
            self._mark(now, own, features, source, probs, (before[i], after[i]), i)
        own.until = 1 + (first - n) % _OF_STREAM
        self._evidence += (evidence - self._evidence) * n / (n + _SLOW)
        self._decide(now)

    @property
    def _sure(self) -> float:
        return min(_SURE, self._confidence)

    def _stream(self, name: str, features: NDArray[Any] | None) -> _Stream:
        own = self._streams.get(name)
        if own is None:
            width = _WIDTH if features is None else min(features.shape[1], _WIDTH)
            own = self._streams[name] = _Stream(width)
            if len(self._streams) > _STREAMS:
                self._streams.popitem(last=False)
        else:
            self._streams.move_to_end(name)
        return own

    def _judge_changes(
        self, own: _Stream, source: NDArray[Any], before: Sequence[int], after: Sequence[int]
    ) -> None:
        """Hold changes of sure predictions against the base, and against the samples after."""
        assert self._base is not None
        base, n_sure, n_changed = self._base, 0, 0
        for i, (old, new) in enumerate(zip(before, after, strict=True)):
            row, change = source[i], own.change
            if change is not None:
                was, became = change.was, change.became
                change.after += min(float(row[became] / base[became]), _CAP)
                change.after -= min(float(row[was] / base[was]), _CAP)
                change.heard += 1
                if change.heard == _HEARD:
                    for changes in (own.changes, self._changes):
                        changes.judge(change.own, change.after / _HEARD)
                    own.change = None
            if row[old] > self._sure:
                n_sure += 1
                if old != new:
                    n_changed += 1
                    if own.change is None:
                        nats = math.log((row[new] + 1e-6) / (base[new] + 1e-6))
                        own.change = _Change(old, new, max(min(nats, 3.0), -3.0))
        for changes in (own.changes, self._changes):
            changes.saw(len(before), n_sure, n_changed)

    def _mark(
        self,
        now: float,
        own: _Stream,
        features: NDArray[Any] | None,
        source: NDArray[Any],
        probs: NDArray[Any],
        labels: tuple[int, int],
        i: int,
    ) -> None:
        """Let a sample stand for those around it."""
        assert self._base is not None
        self._seen += 1
        moved = source[i] - self._base
        moved *= 1 / min(self._seen + 3, 4 * _SLOW)
        self._base += moved
        if features is None:
            return
        row, length = _sketch(features[i])
        top = float(source[i][labels[0]])
        self._confidence += (top - self._confidence) / min(self._seen + 3, 4 * _SLOW)
        marks, changes, past = own.marks, own.changes, self._past
        if len(row) == marks.rows.shape[1]:
            marks.add(row, *labels, top > self._sure)
            confidence = float(probs[i][labels[1]])
            marks.confidence += (confidence - marks.confidence) / min(marks.count, _MARKS)
            unlike = past.unlike(marks.distance(1))
            share, enough = marks.share(1), changes.judged >= _FEW // 2
            own.switch.turn(
                now,
                past.is_known
                and enough
                and share > _MOST
                and unlike > _UNLIKE
                and changes.overrode > _OVERRODE
                and changes.after < _AFTER
                and marks.confidence > past.confidence,
                share > _MOST * _LOOSER
                and unlike > _UNLIKE * _LOOSER
                and changes.overrode > _OVERRODE * _LOOSER,
                share=share,
                unlike=unlike,
                overrode=changes.overrode,
                after=changes.after,
                confidence=marks.confidence,
            )
        if self._seen % (_OF_MODEL // _OF_STREAM) == 0:
            self._mark_model(now, row, labels, top, length)

    def _mark_model(
        self, now: float, row: Floats, labels: tuple[int, int], top: float, length: float
    ) -> None:
        if self._marks is None or self._marks.rows.shape[1] != len(row):
            self._marks, self._past = _Marks(len(row)), _Past()
        marks, past = self._marks, self._past
        near, far = marks.add(row, *labels, top > self._sure)
        part = 1 / min(marks.count, _MARKS)
        marks.confidence += (top - marks.confidence) * part
        marks.length += (length - marks.length) * part
        share, unlike = marks.share(0), past.unlike(marks.distance(0))
        longer = marks.length / (past.length or marks.length or 1.0)
        odd = unlike > _UNLIKE or longer > _LONG
        still = unlike > _UNLIKE * _LOOSER or longer > 1 + (_LONG - 1) * _LOOSER
        self._network.turn(
            now,
            past.is_known
            and share > max(_MOST, 2 * past.share)
            and odd
            and marks.confidence > past.confidence,
            share > _MOST * _LOOSER and still,
            share=share,
            unlike=unlike,
            length=longer,
            confidence=marks.confidence,
        )
        # What is odd does not become the past.
        if not (past.is_known and share > _MOST * _LOOSER and still):
            past.learn(near, far, share, top, length)

    def _decide(self, now: float) -> None:
        changes = self._changes
        enough = changes.judged >= _ENOUGH
        against = changes.own < _AGAINST and changes.after < _AFTER and changes.share > _OFTEN
        still = changes.own < _AGAINST * _LOOSER and changes.share > _OFTEN * _LOOSER
        still = still and changes.after < _AFTER / _LOOSER
        self._helping.turn(
            now,
            (enough and against) or self._evidence < _PRICE,
            still or self._evidence < _PRICE * _LOOSER,
            changed=changes.share,
            own=changes.own,
            after=changes.after,
            evidence=self._evidence,
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


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _sketch(x: NDArray[Any]) -> tuple[Floats, float]:
    """A row of length one whose cosines are about those of the features; about their length."""
    d = len(x)
    if d > _WIDTH:
        folded = np.zeros(-(-d // _WIDTH) * _WIDTH, np.float32)
        np.multiply(x, _signs(d), out=folded[:d], casting="unsafe")
        x = _ones(-(-d // _WIDTH)) @ folded.reshape(-1, _WIDTH)
    length = math.sqrt(float(x @ x))
    row: Floats = (x / (length or 1.0)).astype(np.float32, copy=False)
    return row, length


@lru_cache(maxsize=8)
def _ones(n: int) -> Floats:
    return np.ones(n, np.float32)


@lru_cache(maxsize=8)
def _signs(d: int) -> Floats:
    # Bits of a multiplicative hash, so that every process folds alike.
    bits = (np.arange(d, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)
    return (1 - 2 * (bits & np.uint64(1)).astype(np.float32)).astype(np.float32)
