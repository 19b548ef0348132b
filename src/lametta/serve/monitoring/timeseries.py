"""Time series of the last five minutes, in bounded memory."""

from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

SPAN = 2.0  # seconds of a bucket
_BUCKETS = 150  # five minutes
_LATENCIES = 1024  # requests that quantiles are taken over
_LABELS = 1024  # samples that the current class counts are taken over
_STREAMS = 24  # streams that are shown, the most recent
_RECENT = 64  # last labels of a stream
_CLASSES = 7  # classes that are shown by their own names; the rest is one
_FADE = 256  # samples that the mean of a signal reaches back
_LONGEST = 120  # letters that are shown of the name of a stream


@dataclass
class _Bucket:
    """Counts of two seconds."""

    start: float
    requests: int = 0
    failed: int = 0
    samples: int = 0
    changed: int = 0
    source: Counter[int] = field(default_factory=Counter)
    corrected: Counter[int] = field(default_factory=Counter)
    signals: dict[str, float] = field(default_factory=dict)


@dataclass
class _RecentLabels:
    """The last labels of a stream."""

    last: float = 0.0
    samples: int = 0
    source: deque[int] = field(default_factory=lambda: deque(maxlen=_RECENT))
    corrected: deque[int] = field(default_factory=lambda: deque(maxlen=_RECENT))


class TimeSeries:
    """Time series of one model: rates, latencies, signals, class counts and streams.

    Not thread-safe: `ModelMonitor` holds a lock.

    Examples
    --------
    >>> series = TimeSeries()
    >>> series.record_answer(0.0, "cam", [3], [5], {"confidence": 0.9})
    >>> series.record_request(0.0, 200, 0.01)
    >>> series.known_signals()["changed"], series.snapshot(1.0)["streams"][0]["corrected"]
    (1.0, [5])
    """

    def __init__(self) -> None:
        self.buckets: deque[_Bucket] = deque(maxlen=_BUCKETS)
        self.latencies: deque[float] = deque(maxlen=_LATENCIES)
        self.source: deque[int] = deque(maxlen=_LABELS)
        self.corrected: deque[int] = deque(maxlen=_LABELS)
        self.signals: dict[str, float] = {}
        self.recent: OrderedDict[str, _RecentLabels] = OrderedDict()
        self.samples = 0

    def _bucket(self, now: float) -> _Bucket:
        if not self.buckets or now >= self.buckets[-1].start + SPAN:
            if self.buckets:
                self._close(self.buckets[-1])
            self.buckets.append(_Bucket(now // SPAN * SPAN))
        return self.buckets[-1]  # also where the clock went back

    def _close(self, bucket: _Bucket) -> None:
        """Keep only what is shown of a bucket."""
        bucket.signals = {**self.known_signals(), **self.quantiles()}
        for counts in (bucket.source, bucket.corrected):
            rare = counts.most_common()[2 * _CLASSES :]
            for label, count in rare:
                del counts[label]
                counts[-1] += count

    def record_answer(
        self,
        now: float,
        stream: str | None,
        source: list[int],
        corrected: list[int],
        signals: dict[str, float],
    ) -> None:
        """Count the labels of one answer, and its signals where they are known."""
        n = len(corrected)
        bucket = self._bucket(now)
        bucket.samples += n
        self.samples += n
        bucket.changed += sum(map(int.__ne__, source, corrected))
        for counts, recent, labels in (
            (bucket.source, self.source, source),
            (bucket.corrected, self.corrected, corrected),
        ):
            counts.update(labels)
            recent.extend(labels)
        part = n / (n + _FADE)
        for name, value in signals.items():
            before = self.signals.get(name, value)
            self.signals[name] = before + part * (value - before)
        if stream is not None:
            self._record_labels(now, stream, source, corrected)

    def _record_labels(
        self, now: float, stream: str, source: list[int], corrected: list[int]
    ) -> None:
        known = self.recent.pop(stream, None)
        recent = self.recent[stream] = known or _RecentLabels()  # moved to the end
        if len(self.recent) > _STREAMS:
            self.recent.popitem(last=False)
        recent.last = now
        recent.samples += len(corrected)
        recent.source.extend(source)
        recent.corrected.extend(corrected)

    def record_request(self, now: float, status: int, seconds: float) -> None:
        """Count a request, answered or refused."""
        bucket = self._bucket(now)
        bucket.requests += 1
        if status >= 400:
            bucket.failed += 1
        else:
            self.latencies.append(seconds)

    def known_signals(self) -> dict[str, float]:
        """The current signals; none before the first sample.

        ``changed`` and the two diversities (entropies of class counts, in nats) are over the last
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

    def snapshot(
        self, now: float, orders: Mapping[str, str] = MappingProxyType({})
    ) -> dict[str, object]:
        """All that the page shows, as plain numbers; ``orders`` has what makes that of streams."""
        if self.buckets:  # the last one is still open
            self.buckets[-1].signals = {**self.known_signals(), **self.quantiles()}
        since = [bucket for bucket in self.buckets if bucket.start > now - 12]
        seconds = max(now - since[0].start, SPAN) if since else SPAN
        return {
            "rate": sum(bucket.requests for bucket in since) / seconds,
            "samples": self.samples,
            "latency": self.quantiles(),
            "signals": self.known_signals(),
            "history": self._history(),
            "streams": [
                {
                    "id": name if len(name) <= _LONGEST else name[:_LONGEST] + "…",
                    "last": recent.last,
                    "samples": recent.samples,
                    "order": orders.get(name),
                    "source": list(recent.source),
                    "corrected": list(recent.corrected),
                }
                for name, recent in reversed(self.recent.items())
            ],
        }

    def _history(self) -> dict[str, object]:
        """The buckets, a list for each number."""
        total: Counter[int] = Counter()
        for bucket in self.buckets:
            total.update(bucket.source)
            total.update(bucket.corrected)
        del total[-1]
        shown = [label for label, _ in total.most_common(_CLASSES)]
        history: dict[str, object] = {
            "span": SPAN,
            "time": [bucket.start for bucket in self.buckets],
            "classes": shown,
        }
        for name in ("requests", "failed", "samples", "changed"):
            history[name] = [getattr(bucket, name) for bucket in self.buckets]
        for name in ("source", "corrected"):
            history[name] = [_counts(getattr(bucket, name), shown) for bucket in self.buckets]
        for name in ("p50", "p99", "evidence", "confidence", "diversity"):
            history[name] = [_rounded(bucket.signals.get(name)) for bucket in self.buckets]
        return history


def _counts(counts: Counter[int], shown: list[int]) -> list[int]:
    """Counts of the classes shown, and of all others at the end."""
    known = [counts[label] for label in shown]
    return [*known, counts.total() - sum(known)]


def _entropy(labels: deque[int]) -> float:
    counts = np.array(list(Counter(labels).values()))
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
