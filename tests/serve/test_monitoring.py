"""What a server exports and shows: counts that add up, labels and history that are bounded."""

import json
import threading

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from lametta import LAME, Prediction, Prudent
from lametta.serve.monitoring import Monitor
from lametta.serve.monitoring.alarms import ALARMS
from lametta.serve.monitoring.windows import ORDERS
from tests.conftest import make_batch


class Clock:
    """A clock that a test moves."""

    def __init__(self):
        self.now = 1_000_000.0

    def __call__(self):
        return self.now


def _samples(monitor):
    """All samples by name and labels."""
    families = text_string_to_metric_families(monitor.text().decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def _of(monitor, name, **labels):
    return _samples(monitor)[name, tuple(sorted(labels.items()))]


def _answer(monitor, source, corrected, stream="s", model="lame", seconds=0.001, **info):
    k = max(*source, *corrected) + 1
    q, p = (0.9 * np.eye(k)[labels] + 0.1 / k for labels in (source, corrected))
    monitor.record_answer(model, stream, q, Prediction(p, None, info), seconds)


def test_counts_add_up():
    monitor = Monitor(["lame", "prudent"])
    _answer(monitor, [0, 1, 2], [0, 2, 2], n_iter=7)
    _answer(monitor, [1], [1], n_iter=np.array(3))
    _answer(monitor, [1], [1], model="prudent")
    assert _of(monitor, "lametta_samples_total", model="lame") == 4
    assert _of(monitor, "lametta_changed_samples_total", model="lame") == 1
    assert _of(monitor, "lametta_iterations_total", model="lame") == 10
    assert _of(monitor, "lametta_samples_total", model="prudent") == 1
    assert _of(monitor, "lametta_correct_seconds_count", model="lame") == 2
    assert _of(monitor, "lametta_correct_seconds_sum", model="lame") == pytest.approx(0.002)


def test_requests_are_counted_by_model_and_code():
    monitor = Monitor(["lame"])
    for model, status in (("lame", 200), ("lame", 200), ("lame", 429), ("", 404), ("evil", 401)):
        monitor.record_request(model, status, 0.003)
    assert _of(monitor, "lametta_requests_total", model="lame", code="200") == 2
    assert _of(monitor, "lametta_requests_total", model="lame", code="429") == 1
    assert _of(monitor, "lametta_requests_total", model="", code="404") == 1
    assert _of(monitor, "lametta_requests_total", model="", code="401") == 1
    assert _of(monitor, "lametta_request_seconds_bucket", model="lame", le="0.002") == 0
    assert _of(monitor, "lametta_request_seconds_bucket", model="lame", le="0.005") == 3


def test_labels_are_bounded_whatever_comes():
    monitor = Monitor(["lame"])
    for i in range(500):
        monitor.record_request(f"model-{i}", i, 0.001)
        _answer(monitor, [0], [1], stream=f"stream-{i}", entropy=0.5, evidence=0.1)
    labels = {pair for _, found in _samples(monitor) for pair in found}
    assert {name for name, _ in labels} <= {"model", "code", "le", "alarm", "order"}
    assert {value for name, value in labels if name == "model"} == {"", "lame"}
    assert {value for name, value in labels if name == "alarm"} == set(ALARMS)
    assert "stream-" not in monitor.text().decode()


def test_names_follow_the_conventions():
    monitor = Monitor(["lame"], {name: lambda: 2 for name in ("queue", "streams", "evictions")})
    _answer(monitor, [0], [1], entropy=0.5, evidence=0.1, trust=0.3, novelty=1, n_iter=2)
    monitor.record_request("lame", 200, 0.1)
    for family in text_string_to_metric_families(monitor.text().decode()):
        assert family.name.startswith("lametta_")
        assert family.documentation.endswith(".")
        if family.type == "histogram":
            assert family.name.endswith("_seconds")
    assert _of(monitor, "lametta_stream_evictions_total") == 2
    assert _of(monitor, "lametta_queue_requests") == 2
    assert _of(monitor, "lametta_streams") == 2


def test_signals_are_means_over_the_last_samples():
    monitor = Monitor(["lame"])
    assert not [name for name, _ in _samples(monitor) if name == "lametta_evidence_nats"]
    for _ in range(40):
        _answer(monitor, [0] * 64, [1] * 64, evidence=-1.0, trust=0.5)
    assert _of(monitor, "lametta_evidence_nats", model="lame") == pytest.approx(-1)
    assert _of(monitor, "lametta_trust_ratio", model="lame") == pytest.approx(0.5)
    assert _of(monitor, "lametta_confidence_ratio", model="lame") == pytest.approx(0.95)
    assert _of(monitor, "lametta_diversity_nats", model="lame") == 0
    for _ in range(40):
        _answer(monitor, [0, 1, 2, 3] * 16, [0, 1, 2, 3] * 16, evidence=1.0)
    assert _of(monitor, "lametta_evidence_nats", model="lame") == pytest.approx(1, abs=0.01)
    assert _of(monitor, "lametta_diversity_nats", model="lame") == pytest.approx(np.log(4))
    assert _of(monitor, "lametta_source_diversity_nats", model="lame") == pytest.approx(np.log(4))


def test_what_is_not_a_number_is_left_out():
    monitor = Monitor(["lame"])
    _answer(monitor, [0], [1], evidence=np.nan, entropy=np.inf, trust=0.25)
    assert monitor.status()["models"][0]["signals"].keys() & {"evidence", "entropy"} == set()
    json.dumps(monitor.status(), allow_nan=False)


def test_status_says_what_happened():
    clock = Clock()
    monitor = Monitor(["lame"], {"queue": lambda: 5}, classes=["cat", "dog", "cow"], clock=clock)
    for i in range(10):
        clock.now += 1
        _answer(monitor, [0, 1], [1, 1], stream=f"camera-{i % 2}", evidence=0.5)
        monitor.record_request("lame", 200, 0.001 * (i + 1))
        monitor.record_request("lame", 429, 9.0)
    status = json.loads(json.dumps(monitor.status(), allow_nan=False))
    assert status["gauges"] == {"queue": 5}
    assert status["classes"] == ["cat", "dog", "cow"]
    (model,) = status["models"]
    assert model["name"] == "lame"
    assert model["samples"] == 20
    assert model["rate"] == pytest.approx(2, rel=0.25)
    assert model["latency"] == {"p50": pytest.approx(0.006), "p99": pytest.approx(0.01)}
    assert model["signals"]["changed"] == 0.5
    history = model["history"]
    assert sum(history["requests"]) == 20
    assert sum(history["failed"]) == 10
    assert sum(history["samples"]) == 20
    assert sum(history["changed"]) == 10
    assert history["classes"] == [1, 0]
    assert np.sum(history["source"], axis=0).tolist() == [10, 10, 0]
    assert np.sum(history["corrected"], axis=0).tolist() == [20, 0, 0]
    assert {len(column) for name, column in history.items() if name not in ("span", "classes")} == {
        len(history["time"])
    }
    streams = {stream["id"]: stream for stream in model["streams"]}
    assert streams.keys() == {"camera-0", "camera-1"}
    assert streams["camera-1"]["samples"] == 10
    assert streams["camera-1"]["source"] == [0, 1] * 5
    assert streams["camera-1"]["last"] == clock.now


@pytest.mark.slow
def test_history_and_streams_are_bounded():
    clock = Clock()
    monitor = Monitor(["lame"], clock=clock)
    rng = np.random.default_rng(0)
    for i in range(400):
        clock.now += 1
        labels = rng.integers(1000, size=50).tolist()
        _answer(monitor, labels, labels, stream=f"{i}" * 100)
        monitor.record_request("lame", 200, 0.1)
    (model,) = monitor.status()["models"]
    history = model["history"]
    assert len(history["time"]) == 150
    assert history["time"][-1] - history["time"][0] == 298
    assert len(history["classes"]) == 7
    assert {sum(row) for row in history["source"][:-1]} == {100}  # none is lost among the others
    assert len(model["streams"]) == 24
    assert max(len(stream["id"]) for stream in model["streams"]) == 121
    assert {len(stream["source"]) for stream in model["streams"]} == {50}
    assert len(json.dumps(monitor.status())) < 100_000


def test_requests_without_a_stream_are_counted_but_are_no_stream():
    monitor = Monitor(["lame"])
    _answer(monitor, [0], [1], stream=None)
    (model,) = monitor.status()["models"]
    assert model["samples"] == 1
    assert model["streams"] == []


def test_an_empty_batch_is_nothing():
    monitor = Monitor(["lame"])
    empty = np.zeros((0, 3))
    monitor.record_answer("lame", "s", empty, LAME().correct(np.zeros((0, 2)), empty), 0.001)
    assert monitor.status()["models"][0]["samples"] == 0


def test_alarms_are_exported_and_shown():
    monitor = Monitor(["prudent", "lame"])
    for _ in range(40):
        _answer(monitor, [0] * 64, [0] * 64, evidence=-1.0)
    assert _of(monitor, "lametta_alarm", model="lame", alarm="not_helping") == 1
    assert _of(monitor, "lametta_alarm", model="lame", alarm="network_collapse") == 0
    assert _of(monitor, "lametta_alarm", model="prudent", alarm="not_helping") == 0
    status = json.loads(json.dumps(monitor.status()))
    alarms = {model["name"]: model["alarms"] for model in status["models"]}
    assert alarms["prudent"] == []
    (alarm,) = alarms["lame"]
    assert alarm["name"] == "not_helping"
    assert alarm["numbers"]["evidence"] < -0.05


@pytest.mark.parametrize(
    ("given", "word"), [(1.0, "classes"), (-1.0, "domains"), (0.0, "none"), (None, "none")]
)
def test_what_makes_the_order_is_exported_and_shown(given, word):
    """As the corrector says; where it does not, by the monitor's own looks: here none yet."""
    monitor = Monitor(["prudent"])
    features, probs = make_batch(8, 5)
    info = {} if given is None else {"order": np.float32(given)}
    for stream in ("door", "yard"):
        answer = Prediction(probs, features, info)
        monitor.record_answer("prudent", stream, probs, answer, 0.001)
    for order in ORDERS:
        exported = _of(monitor, "lametta_watched_streams", model="prudent", order=order)
        assert exported == 2 * (order == word)
    (model,) = json.loads(json.dumps(monitor.status()))["models"]
    assert model["orders"] == {order: 2 * (order == word) for order in ORDERS}
    assert [stream["order"] for stream in model["streams"]] == [word, word]


@pytest.mark.parametrize("kind", ["classes", "domains", "none"])
def test_the_order_is_found_where_the_corrector_does_not_say(kind):
    """Runs of classes, runs of something that features show alone, and neither."""
    rng = np.random.default_rng(0)
    runs = np.repeat(rng.integers(4, size=16), 16)
    free = rng.integers(4, size=256)
    labels = runs if kind == "classes" else free
    shown = 3 * np.eye(8)[labels] + rng.normal(size=(256, 8))
    if kind == "domains":
        shown += 3 * np.eye(8)[4 + runs]
    probs = 0.8 * np.eye(4)[labels] + 0.05
    monitor = Monitor(["lame"])
    for i in range(0, 256, 8):
        x, q = shown[i : i + 8], probs[i : i + 8]
        monitor.record_answer("lame", "door", q, Prediction(q, x, {}), 0.001)
    (stream,) = monitor.status()["models"][0]["streams"]
    assert stream["order"] == kind


@pytest.mark.slow
def test_threads_lose_nothing():
    monitor = Monitor(["prudent"])
    features, probs = make_batch(8, 5)

    def work(name):
        prudent = Prudent()
        for _ in range(50):
            monitor.record_answer("prudent", name, probs, prudent.correct(features, probs), 0.001)
            monitor.record_request("prudent", 200, 0.001)
            monitor.status()

    threads = [threading.Thread(target=work, args=(f"s{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _of(monitor, "lametta_samples_total", model="prudent") == 8 * 50 * 8
    assert _of(monitor, "lametta_requests_total", model="prudent", code="200") == 400
    assert sum(monitor.status()["models"][0]["history"]["samples"]) == 8 * 50 * 8
