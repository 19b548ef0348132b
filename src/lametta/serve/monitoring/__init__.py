"""Monitor: Prometheus metrics, time series and alarms of each model, without labels.

Labels of metrics are bounded: the models that are served and the status codes of HTTP; never the
name of a stream. What is counted is a counter, so that rates and shares are a query's matter; what
is not (entropies, evidence) is a gauge, the mean over the last few hundred samples.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from lametta._arrays import Floats, to_numpy
from lametta.serve.monitoring.alarms import ALARMS, Alarms
from lametta.serve.monitoring.shadow import ShadowRecord
from lametta.serve.monitoring.timeseries import TimeSeries
from lametta.types import Prediction

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_TOGETHER = 16  # answers that are taken in together, which takes half as long for each
_MOST = 4 * _TOGETHER  # answers that wait for that
_LARGE = 2**14  # probabilities of an answer that does not wait for others
_INFO_KEYS = ("entropy", "evidence", "trust", "novelty")  # what is taken from a prediction's info
_GIVEN = {
    "queue": ("lametta_queue_requests", "Requests that wait."),
    "streams": ("lametta_streams", "Streams whose memory is held."),
    "evictions": ("lametta_stream_evictions", "Streams that were put away."),
    "damaged": ("lametta_damaged_streams", "Streams that a power cut, say, had damaged."),
}
"""The callables that the server gives, and what they are exported as."""

_GROWING = ("evictions", "damaged")

_SIGNALS = {
    "entropy": ("lametta_entropy_nats", "Mean entropy of corrected predictions."),
    "diversity": ("lametta_diversity_nats", "Entropy of the mix of the last corrected classes."),
    "source_diversity": (
        "lametta_source_diversity_nats",
        "Entropy of the mix of the network's own last classes.",
    ),
    "confidence": ("lametta_confidence_ratio", "Mean largest probability after correction."),
    "source_confidence": (
        "lametta_source_confidence_ratio",
        "Mean largest probability as the network gave it.",
    ),
    "evidence": ("lametta_evidence_nats", "Mean evidence of the corrector over the source."),
    "trust": ("lametta_trust_ratio", "Mean weight of all that is not the network's own answer."),
    "novelty": ("lametta_novelty_ratio", "Mean novelty of samples: near 0 for frames of a video."),
}


class Monitor:
    """Metrics, alarms and a short history of what models answered; safe in threads, bounded.

    Parameters
    ----------
    models : sequence of str
        The models that are served.
    gauges : mapping of str to callable, optional
        What the server knows: ``queue`` (requests that wait), ``streams`` (held in memory),
        ``evictions`` and ``damaged`` streams (so far), each a callable without arguments that gives
        a number.
    classes : sequence of str, optional
        The names of the classes, for the live page.
    shadow : bool
        Whether answers are the network's own: where corrections differ is recorded.
    clock : callable
        The time in seconds since 1970.

    Examples
    --------
    >>> import numpy as np
    >>> monitor = Monitor(["lame"], {"queue": lambda: 3})
    >>> source = np.array([[0.6, 0.4]])
    >>> monitor.record_answer("lame", "camera-1", source, Prediction(source[:, ::-1]), 0.001)
    >>> monitor.record_request("lame", 200, 0.002)
    >>> status = monitor.status()
    >>> status["gauges"], status["models"][0]["signals"]["changed"]
    ({'queue': 3.0}, 1.0)
    >>> [line for line in monitor.text().decode().splitlines() if "changed_samples_total{" in line]
    ['lametta_changed_samples_total{model="lame"} 1.0']
    """

    def __init__(
        self,
        models: Sequence[str],
        gauges: Mapping[str, Callable[[], float]] | None = None,
        *,
        classes: Sequence[str] | None = None,
        shadow: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.gauges = dict(gauges or {})
        self.classes = None if classes is None else list(classes)
        self.clock = clock
        self._started = clock()
        self._registry = CollectorRegistry()
        self._metrics = Metrics(self._registry)
        self._monitors = {
            name: ModelMonitor(name, clock, self._metrics, shadow=shadow) for name in models
        }
        self._registry.register(self)

    def record_answer(
        self,
        model: str,
        stream: str | None,
        source: Floats,
        prediction: Prediction,
        seconds: float,
    ) -> None:
        """Record one request that was corrected.

        Parameters
        ----------
        model : str
            One of the models.
        stream : str or None
            The stream's name, if it has one.
        source : array [N, K]
            Probabilities as the network gave them.
        prediction : Prediction
            What the corrector made of them.
        seconds : float
            How long the corrector took.
        """
        self._monitors[model].record_answer(stream, source, prediction, seconds)

    def record_failure(self, model: str) -> None:
        """Record a correction that could not be made in shadow mode, where nobody sees that."""
        self._monitors[model].record_failure()

    def record_request(self, model: str, status: int, seconds: float) -> None:
        """Record any request, also one that was refused.

        Parameters
        ----------
        model : str
            What it asked for; empty if unknown.
        status : int
            The status code of the reply.
        seconds : float
            From the first byte to the last.
        """
        monitor = self._monitors.get(model)
        counter, histogram = self._metrics.of_request(model if monitor else "", int(status))
        counter.inc()
        histogram.observe(seconds)
        if monitor:
            monitor.record_request(status, seconds)

    def text(self) -> bytes:
        """All metrics as Prometheus reads them."""
        for monitor in self._monitors.values():
            monitor.flush()
        return generate_latest(self._registry)

    def status(self) -> dict[str, object]:
        """All that the live page shows, as JSON has it."""
        now = self.clock()
        return {
            "time": now,
            "started": self._started,
            "classes": self.classes,
            "gauges": {name: float(gauge()) for name, gauge in self.gauges.items()},
            "models": [monitor.snapshot(now) for monitor in self._monitors.values()],
        }

    def collect(self) -> Iterator[Metric]:
        """Give the metrics that are read rather than counted; Prometheus's registry calls it."""
        for name, (metric, text) in _GIVEN.items():
            kind = CounterMetricFamily if name in _GROWING else GaugeMetricFamily
            if name in self.gauges:
                yield kind(metric, text, value=float(self.gauges[name]()))
        signals = {model: monitor.signals() for model, monitor in self._monitors.items()}
        for name, (metric, text) in _SIGNALS.items():
            known = (([model], one[name]) for model, one in signals.items() if name in one)
            yield _gauge(metric, text, ["model"], known)
        labels = ["model", "alarm"]
        alarms = self._by_model(_alarms_on)
        yield _gauge("lametta_alarm", "1 while an alarm is on.", labels, alarms)
        text, labels = "Streams that alarms watch, by what makes their order.", ["model", "order"]
        orders = self._by_model(ModelMonitor.count_orders)
        yield _gauge("lametta_watched_streams", text, labels, orders)

    def _by_model(
        self, values: Callable[["ModelMonitor"], Mapping[str, float]]
    ) -> Iterator[tuple[list[str], float]]:
        """Values of each model by their names, labeled with both."""
        for model, monitor in self._monitors.items():
            for name, value in values(monitor).items():
                yield [model, name], value


def _alarms_on(monitor: "ModelMonitor") -> dict[str, float]:
    """1 for each alarm that is on, 0 for the others."""
    on = monitor.alarm_names()
    return {name: float(name in on) for name in ALARMS}


def _gauge(
    name: str, text: str, labels: list[str], values: Iterable[tuple[Sequence[str], float]]
) -> GaugeMetricFamily:
    """A gauge with a value for each combination of its labels."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for given, value in values:
        family.add_metric(given, value)
    return family


class Metrics:
    """Prometheus counters and histograms, by model."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"lametta_{name}", text, ("model", *labels), registry=registry)

        def histogram(name: str, text: str) -> Histogram:
            name = f"lametta_{name}_seconds"
            return Histogram(name, text, ("model",), buckets=_SECONDS, registry=registry)

        self.requests = counter(
            "requests", "Requests; the model is empty where it is unknown.", "code"
        )
        self.samples = counter("samples", "Samples that were corrected.")
        self.changed = counter("changed_samples", "Samples whose class the corrector changed.")
        self.iterations = counter("iterations", "Iterations of correctors that iterate.")
        self.failures = counter(
            "shadow_failures", "Corrections that could not be made in shadow mode."
        )
        self.request_seconds = histogram("request", "Time of a request.")
        self.correct_seconds = histogram("correct", "Time of the corrector alone.")
        self._of_request: dict[tuple[str, int], tuple[Counter, Histogram]] = {}

    def of_request(self, model: str, status: int) -> tuple[Counter, Histogram]:
        """The counter and the histogram of such requests; finding takes longer than using them."""
        status = status if 100 <= status < 600 else 0
        key = model, status
        if key not in self._of_request:
            requests = self.requests.labels(model, str(status))
            self._of_request[key] = requests, self.request_seconds.labels(model)
        return self._of_request[key]


class _Answer(NamedTuple):
    """What is known of a request that was corrected."""

    time: float
    stream: str | None
    source: Floats
    prediction: Prediction
    seconds: float


class ModelMonitor:
    """Metrics, time series and alarms of one model; answers are taken in a few at a time."""

    def __init__(
        self, name: str, clock: Callable[[], float], metrics: Metrics, *, shadow: bool = False
    ) -> None:
        self.name, self.clock = name, clock
        self.shadow = ShadowRecord() if shadow else None
        self.lock = threading.Lock()
        self.series, self.alarms = TimeSeries(), Alarms()
        self.queue: deque[_Answer] = deque()  # taken in together, or when numbers are asked for
        self.samples = metrics.samples.labels(name)
        self.changed = metrics.changed.labels(name)
        self.iterations = metrics.iterations.labels(name)
        self.seconds = metrics.correct_seconds.labels(name)
        self.failures = metrics.failures.labels(name)

    def record_failure(self) -> None:
        self.failures.inc()
        if self.shadow is not None:
            with self.lock:
                self.shadow.failed += 1

    def record_answer(
        self, stream: str | None, source: Floats, prediction: Prediction, seconds: float
    ) -> None:
        self.queue.append(_Answer(self.clock(), stream, source, prediction, seconds))
        if len(self.queue) >= _MOST or source.size > _LARGE:
            self.flush()

    def flush(self) -> None:
        """Take in the queue; if another thread does so, wait for it: its numbers are read next."""
        with self.lock:
            while self.queue:
                self._observe(self.queue.popleft())

    def _observe(self, answer: _Answer) -> None:
        now, stream, source, prediction, seconds = answer
        probs, info = to_numpy(prediction.probs), prediction.info
        if not len(probs):
            return
        before, after = source.argmax(axis=1), probs.argmax(axis=1)
        signals = {name: float(info[name]) for name in _INFO_KEYS if name in info}
        signals = {name: value for name, value in signals.items() if math.isfinite(value)}
        signals["confidence"] = _mean_at(probs, after)
        signals["source_confidence"] = _mean_at(source, before)
        self.seconds.observe(seconds)
        self.samples.inc(len(probs))
        self.changed.inc(int(np.count_nonzero(before != after)))
        if "n_iter" in info:
            self.iterations.inc(float(info["n_iter"]))
        labels = before.tolist(), after.tolist()
        if self.shadow is not None:
            self.shadow.add(now, stream, source, probs)
        features = None if prediction.features is None else to_numpy(prediction.features)
        self.series.record_answer(now, stream, *labels, signals)
        evidence, order = signals.get("evidence", 0.0), info.get("order")
        order = None if order is None else float(order)
        self.alarms.observe(now, stream, features, source, probs, labels, evidence, order)

    def record_request(self, status: int, seconds: float) -> None:
        with self.lock:
            self.series.record_request(self.clock(), status, seconds)
        if len(self.queue) >= _TOGETHER:  # here, where the answer has left
            self.flush()

    def signals(self) -> dict[str, float]:
        self.flush()
        with self.lock:
            return self.series.known_signals()

    def snapshot(self, now: float) -> dict[str, object]:
        self.flush()
        with self.lock:
            alarms = [asdict(alarm) for alarm in self.alarms.current(now)]
            found = {"name": self.name, "alarms": alarms, "orders": self.alarms.count_orders()}
            shadow = None if self.shadow is None else self.shadow.snapshot()
            return {**found, "shadow": shadow, **self.series.snapshot(now, self.alarms.orders())}

    def alarm_names(self) -> set[str]:
        self.flush()
        with self.lock:
            return {alarm.name for alarm in self.alarms.current(self.clock())}

    def count_orders(self) -> dict[str, int]:
        self.flush()
        with self.lock:
            return self.alarms.count_orders()


def _mean_at(rows: Floats, columns: NDArray[np.intp]) -> float:
    """The mean of one entry a row."""
    if len(rows) == 1:
        return float(rows[0, columns[0]])
    return float(rows[np.arange(len(rows)), columns].mean())
