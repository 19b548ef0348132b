"""One model as a server watches it: what is counted, its course and its alarms."""

import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter, Histogram

from lametta._arrays import Floats, to_numpy
from lametta.serve.alarms import Alarms
from lametta.serve.course import Course
from lametta.types import Prediction

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_TOGETHER = 16  # answers that are taken in together, which takes half as long for each
_LARGE = 2**14  # probabilities of an answer that does not wait for others
_SAID = ("entropy", "evidence", "trust", "novelty")  # what is taken from a prediction's info


class Counters:
    """What only grows, by model."""

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


class _Answered(NamedTuple):
    """What is known of a request that was corrected."""

    time: float
    stream: str | None
    source: Floats
    prediction: Prediction
    seconds: float


class Watched:
    """One model."""

    def __init__(self, name: str, clock: Callable[[], float], counters: Counters) -> None:
        self.name, self.clock = name, clock
        self.lock = threading.Lock()
        self.course, self.alarms = Course(), Alarms()
        self.waiting: deque[_Answered] = deque()  # taken in together, or when numbers are asked for
        self.samples = counters.samples.labels(name)
        self.changed = counters.changed.labels(name)
        self.iterations = counters.iterations.labels(name)
        self.seconds = counters.correct_seconds.labels(name)

    def answered(
        self, stream: str | None, source: Floats, prediction: Prediction, seconds: float
    ) -> None:
        self.waiting.append(_Answered(self.clock(), stream, source, prediction, seconds))
        if len(self.waiting) >= _TOGETHER or source.size > _LARGE:
            self.catch_up()

    def catch_up(self) -> None:
        """Take in what waits; if another thread does so, wait for it: its numbers are read next."""
        with self.lock:
            while self.waiting:
                self._see(self.waiting.popleft())

    def _see(self, answered: _Answered) -> None:
        now, stream, source, prediction, seconds = answered
        probs, info = to_numpy(prediction.probs), prediction.info
        if not len(probs):
            return
        before, after = source.argmax(axis=1), probs.argmax(axis=1)
        said = {name: float(info[name]) for name in _SAID if name in info}
        said = {name: value for name, value in said.items() if math.isfinite(value)}
        said["confidence"] = _mean_at(probs, after)
        said["source_confidence"] = _mean_at(source, before)
        self.seconds.observe(seconds)
        self.samples.inc(len(probs))
        self.changed.inc(int(np.count_nonzero(before != after)))
        if "n_iter" in info:
            self.iterations.inc(float(info["n_iter"]))
        labels = before.tolist(), after.tolist()
        features = None if prediction.features is None else to_numpy(prediction.features)
        self.course.answered(now, stream, *labels, said)
        self.alarms.saw(now, stream, features, source, probs, labels, said.get("evidence", 0.0))

    def finished(self, status: int, seconds: float) -> None:
        with self.lock:
            self.course.finished(self.clock(), status, seconds)

    def signals(self) -> dict[str, float]:
        self.catch_up()
        with self.lock:
            return self.course.known_signals()

    def report(self, now: float) -> dict[str, object]:
        self.catch_up()
        with self.lock:
            alarms = [asdict(alarm) for alarm in self.alarms.current(now)]
            return {"name": self.name, "alarms": alarms, **self.course.report(now)}

    def alarm_names(self) -> set[str]:
        self.catch_up()
        with self.lock:
            return {alarm.name for alarm in self.alarms.current(self.clock())}


def _mean_at(rows: Floats, columns: NDArray[np.intp]) -> float:
    """The mean of one entry a row."""
    if len(rows) == 1:
        return float(rows[0, columns[0]])
    return float(rows[np.arange(len(rows)), columns].mean())
