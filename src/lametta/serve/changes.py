"""Whether a corrector's changes were right, as far as the network itself says so."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lametta._arrays import Floats

_HEARD = 4  # samples after a change that it is judged by
_TINY = 1e-6
_CAP = 20.0  # times the mean, at most: rare classes would drown the others
_SURE_REACH = 16  # sure samples that the share of changed ones among them reaches back
_REACH = 512  # samples that the share of changed ones among all reaches back


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
