"""What a server can watch without labels: Prometheus metrics, alarms, and the live page's numbers.

Labels of metrics are bounded: the models that are served and the status codes of HTTP; never the
name of a stream. What is counted is a counter, so that rates and shares are a query's matter; what
is not (entropies, evidence) is a gauge, the mean over the last few hundred samples.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from lametta._arrays import Floats
from lametta.serve.alarms import ALARMS
from lametta.serve.watched import Counters, Watched
from lametta.types import Prediction

_GIVEN = {
    "queue": ("lametta_queue_requests", "Requests that wait."),
    "streams": ("lametta_streams", "Streams whose memory is held."),
    "evictions": ("lametta_stream_evictions", "Streams that were put away."),
}
"""The callables that the server gives, and what they are exported as; evictions only grow."""

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
        What the server knows: ``queue`` (requests that wait), ``streams`` (held in memory) and
        ``evictions`` (so far), each a callable without arguments that gives a number.
    classes : sequence of str, optional
        The names of the classes, for the live page.
    clock : callable
        The time in seconds since 1970.

    Examples
    --------
    >>> import numpy as np
    >>> monitor = Monitor(["lame"], {"queue": lambda: 3})
    >>> source = np.array([[0.6, 0.4]])
    >>> monitor.answered("lame", "camera-1", source, Prediction(source[:, ::-1]), 0.001)
    >>> monitor.finished("lame", 200, 0.002)
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
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.gauges = dict(gauges or {})
        self.classes = None if classes is None else list(classes)
        self.clock = clock
        self._started = clock()
        self._registry = CollectorRegistry()
        self._counters = Counters(self._registry)
        self._watched = {name: Watched(name, clock, self._counters) for name in models}
        self._registry.register(self)

    def answered(
        self,
        model: str,
        stream: str | None,
        source: Floats,
        prediction: Prediction,
        seconds: float,
    ) -> None:
        """Take note of one request that was corrected.

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
        self._watched[model].answered(stream, source, prediction, seconds)

    def finished(self, model: str, status: int, seconds: float) -> None:
        """Take note of any request, also of one that was refused.

        Parameters
        ----------
        model : str
            What it asked for; empty if unknown.
        status : int
            The status code of the reply.
        seconds : float
            From the first byte to the last.
        """
        watched = self._watched.get(model)
        counter, histogram = self._counters.of_request(model if watched else "", int(status))
        counter.inc()
        histogram.observe(seconds)
        if watched:
            watched.finished(status, seconds)

    def text(self) -> bytes:
        """All metrics as Prometheus reads them."""
        for watched in self._watched.values():
            watched.catch_up()
        return generate_latest(self._registry)

    def status(self) -> dict[str, object]:
        """All that the live page shows, as JSON has it."""
        now = self.clock()
        return {
            "time": now,
            "started": self._started,
            "classes": self.classes,
            "gauges": {name: float(gauge()) for name, gauge in self.gauges.items()},
            "models": [watched.report(now) for watched in self._watched.values()],
        }

    def collect(self) -> Iterator[Metric]:
        """Give the metrics that are read rather than counted; Prometheus's registry calls it."""
        for name, (metric, text) in _GIVEN.items():
            kind = CounterMetricFamily if name == "evictions" else GaugeMetricFamily
            if name in self.gauges:
                yield kind(metric, text, value=float(self.gauges[name]()))
        signals = {name: watched.signals() for name, watched in self._watched.items()}
        for name, (metric, text) in _SIGNALS.items():
            family = GaugeMetricFamily(metric, text, labels=["model"])
            for model, known in signals.items():
                if name in known:
                    family.add_metric([model], known[name])
            yield family
        alarm = GaugeMetricFamily(
            "lametta_alarm", "1 while an alarm is on.", labels=["model", "alarm"]
        )
        for model, watched in self._watched.items():
            on = watched.alarm_names()
            for name in ALARMS:
                alarm.add_metric([model, name], float(name in on))
        yield alarm
