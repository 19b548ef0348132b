"""The course of one model's traffic over the last minutes, in bounded memory."""

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field

import numpy as np

SPAN = 2.0  # seconds of a point
_POINTS = 150  # five minutes
_LATENCIES = 1024  # requests that quantiles are taken over
_LABELS = 1024  # samples that the current class mix is taken over
_STREAMS = 24  # streams that are shown, the most recent
_STRIP = 64  # last labels of a stream
_CLASSES = 7  # classes that are shown by their own names; the rest is one
_FADE = 256  # samples that the mean of a signal reaches back
_LONGEST = 120  # letters that are shown of the name of a stream


@dataclass
class _Point:
    """What happened in two seconds."""

    start: float
    requests: int = 0
    failed: int = 0
    samples: int = 0
    changed: int = 0
    source: Counter[int] = field(default_factory=Counter)
    corrected: Counter[int] = field(default_factory=Counter)
    signals: dict[str, float] = field(default_factory=dict)


@dataclass
class _Strip:
    """The last labels of a stream."""

    last: float = 0.0
    samples: int = 0
    source: deque[int] = field(default_factory=lambda: deque(maxlen=_STRIP))
    corrected: deque[int] = field(default_factory=lambda: deque(maxlen=_STRIP))


class Course:
    """What one model did lately: rates, latencies, signals, class mix and streams.

    Not thread-safe: `Watched` holds a lock.

    Examples
    --------
    >>> course = Course()
    >>> course.answered(0.0, "cam", [3], [5], {"confidence": 0.9})
    >>> course.finished(0.0, 200, 0.01)
    >>> course.known_signals()["changed"], course.report(1.0)["streams"][0]["corrected"]
    (1.0, [5])
    """

    def __init__(self) -> None:
        self.points: deque[_Point] = deque(maxlen=_POINTS)
        self.latencies: deque[float] = deque(maxlen=_LATENCIES)
        self.source: deque[int] = deque(maxlen=_LABELS)
        self.corrected: deque[int] = deque(maxlen=_LABELS)
        self.signals: dict[str, float] = {}
        self.strips: OrderedDict[str, _Strip] = OrderedDict()
        self.samples = 0

    def _point(self, now: float) -> _Point:
        if not self.points or now >= self.points[-1].start + SPAN:
            if self.points:
                self._close(self.points[-1])
            self.points.append(_Point(now // SPAN * SPAN))
        return self.points[-1]  # also where the clock went back

    def _close(self, point: _Point) -> None:
        """Keep only what is shown of a point."""
        point.signals = {**self.known_signals(), **self.quantiles()}
        for mix in (point.source, point.corrected):
            rare = mix.most_common()[2 * _CLASSES :]
            for label, count in rare:
                del mix[label]
                mix[-1] += count

    def answered(
        self,
        now: float,
        stream: str | None,
        source: list[int],
        corrected: list[int],
        signals: dict[str, float],
    ) -> None:
        """Count the labels of one answer, and its signals where they are known."""
        n = len(corrected)
        point = self._point(now)
        point.samples += n
        self.samples += n
        point.changed += sum(map(int.__ne__, source, corrected))
        for mix, recent, labels in (
            (point.source, self.source, source),
            (point.corrected, self.corrected, corrected),
        ):
            mix.update(labels)
            recent.extend(labels)
        part = n / (n + _FADE)
        for name, value in signals.items():
            before = self.signals.get(name, value)
            self.signals[name] = before + part * (value - before)
        if stream is not None:
            self._strip(now, stream, source, corrected)

    def _strip(self, now: float, stream: str, source: list[int], corrected: list[int]) -> None:
        known = self.strips.pop(stream, None)
        strip = self.strips[stream] = known or _Strip()  # moved to the end
        if len(self.strips) > _STREAMS:
            self.strips.popitem(last=False)
        strip.last = now
        strip.samples += len(corrected)
        strip.source.extend(source)
        strip.corrected.extend(corrected)

    def finished(self, now: float, status: int, seconds: float) -> None:
        """Count a request, answered or refused."""
        point = self._point(now)
        point.requests += 1
        if status >= 400:
            point.failed += 1
        else:
            self.latencies.append(seconds)

    def known_signals(self) -> dict[str, float]:
        """The current signals; none before the first sample.

        ``changed`` and the two diversities (entropies of the class mix, in nats) are over the last
        1024 samples, the others fade with the last 256.
        """
        if not self.source:
            return {}
        changed = sum(map(int.__ne__, self.source, self.corrected))
        return {
            **self.signals,
            "changed": changed / len(self.source),
            "diversity": _entropy(self.corrected),
            "source_diversity": _entropy(self.source),
        }

    def quantiles(self) -> dict[str, float]:
        """The median and the 99th percentile of the last latencies, in seconds."""
        if not self.latencies:
            return {}
        order = sorted(self.latencies)
        return {"p50": order[len(order) // 2], "p99": order[(99 * len(order)) // 100]}

    def report(self, now: float) -> dict[str, object]:
        """All that the page shows, as plain numbers."""
        points = list(self.points)
        if points:  # the last one is still open
            points[-1].signals = {**self.known_signals(), **self.quantiles()}
        total: Counter[int] = Counter()
        for point in points:
            total.update(point.source)
            total.update(point.corrected)
        del total[-1]
        shown = [label for label, _ in total.most_common(_CLASSES)]
        since = [point for point in points if point.start > now - 12]
        seconds = max(now - since[0].start, SPAN) if since else SPAN
        return {
            "rate": sum(point.requests for point in since) / seconds,
            "samples": self.samples,
            "latency": self.quantiles(),
            "signals": self.known_signals(),
            "history": {
                "span": SPAN,
                "time": [point.start for point in points],
                "classes": shown,
                **{
                    name: [getattr(point, name) for point in points]
                    for name in ("requests", "failed", "samples", "changed")
                },
                **{
                    name: [_mix(getattr(point, name), shown) for point in points]
                    for name in ("source", "corrected")
                },
                **{
                    name: [_rounded(point.signals.get(name)) for point in points]
                    for name in ("p50", "p99", "evidence", "confidence", "diversity")
                },
            },
            "streams": [
                {
                    "id": name if len(name) <= _LONGEST else name[:_LONGEST] + "…",
                    "last": strip.last,
                    "samples": strip.samples,
                    "source": list(strip.source),
                    "corrected": list(strip.corrected),
                }
                for name, strip in reversed(self.strips.items())
            ],
        }


def _mix(mix: Counter[int], shown: list[int]) -> list[int]:
    """Counts of the classes shown, and of all others at the end."""
    known = [mix[label] for label in shown]
    return [*known, mix.total() - sum(known)]


def _entropy(labels: deque[int]) -> float:
    counts = np.array(list(Counter(labels).values()))
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
