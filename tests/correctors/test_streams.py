import copy
import os
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from safetensors.numpy import load, save

from lametta import LAME, LamettaError, Memory, Prediction, Prudent, Streams, Windowed
from lametta.correctors import Average
from tests import processes


def _stream(seed, n=12, d=8, k=5):
    rng = np.random.default_rng(seed)
    logits = 3 * rng.normal(size=(n, k))
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return rng.normal(size=(n, d)).astype(np.float32), probs.astype(np.float32)


def _alone(corrector, features, probs):
    return np.concatenate(
        [corrector.correct(features[i : i + 1], probs[i : i + 1]).probs for i in range(len(probs))]
    )


def test_a_stream_by_its_id_is_a_copy():
    """What it would do next is what the stream does, and asking it changes nothing."""
    features, probs = _stream(0)
    streams = Streams(Prudent())
    streams.correct(features[:8], probs[:8], "a")
    own = streams["a"]
    ahead = own.correct(features[8:], probs[8:]).probs
    assert np.array_equal(streams.correct(features[8:], probs[8:], "a").probs, ahead)
    assert own is not streams["a"]
    with pytest.raises(LamettaError, match="must be one that is remembered, got 'b'"):
        streams["b"]
    assert streams.ids == ["a"]


@pytest.mark.filterwarnings("ignore:LAME gets one sample")
@pytest.mark.parametrize("corrector", [Prudent(), Memory("track"), Windowed(size=4), LAME()])
def test_interleaved_streams_are_each_as_alone(corrector):
    data = {name: _stream(seed) for seed, name in enumerate(["a", "b", 3])}
    streams = Streams(corrector)
    found = {name: [] for name in data}
    for i in range(12):
        for name, (features, probs) in data.items():
            answer = streams.correct(features[i : i + 1], probs[i : i + 1], name)
            found[name].append(answer.probs)
    for name, (features, probs) in data.items():
        expected = _alone(replace(corrector), features, probs)
        np.testing.assert_array_equal(np.concatenate(found[name]), expected)


def test_one_id_a_row_is_each_stream_by_itself():
    data = [_stream(seed) for seed in range(3)]
    ids = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], 12))
    at = [np.cumsum(ids == one) - 1 for one in range(3)]
    features, probs = (
        np.stack([data[one][part][at[one][i]] for i, one in enumerate(ids)]) for part in (0, 1)
    )
    streams, expected = Streams(Prudent()), [Prudent() for _ in data]
    for rows in np.array_split(np.arange(36), 5):
        answer = streams.correct(features[rows], probs[rows], ids[rows])
        assert answer.info["streams"] == len(set(ids[rows]))
        assert 0 <= answer.info["trust"] <= 1
        for one in set(ids[rows]):
            mine = rows[ids[rows] == one]
            alone = expected[one].correct(features[mine], probs[mine]).probs
            np.testing.assert_array_equal(answer.probs[ids[rows] == one], alone)
    assert streams.correct(features[:0], probs[:0], []).probs.shape == (0, 5)


def test_arrays_of_other_libraries_come_back_as_they_came():
    features, probs = _stream(0)
    ids = ["a", "b"] * 6
    answer = Streams(Memory()).correct(torch.tensor(features), torch.tensor(probs), ids)
    expected = Streams(Memory()).correct(features, probs, ids)
    assert isinstance(answer.probs, torch.Tensor)
    np.testing.assert_array_equal(answer.probs.numpy(), expected.probs)


def test_the_corrector_given_is_left_alone():
    features, probs = _stream(0)
    own = Average()
    own.correct(features, probs)
    state = own.state_dict()
    answer = Streams(own).correct(features[:1], probs[:1], "a")
    np.testing.assert_allclose(answer.probs, probs[:1], rtol=1e-6)  # nothing was remembered before
    assert all((own.state_dict()[name] == array).all() for name, array in state.items())


def test_the_least_recently_used_are_forgotten():
    features, probs = _stream(0)
    streams = Streams(Average(), most=2)
    for one in "a", "b", "a", "c":
        streams.correct(features[:1], probs[:1], one)
    assert streams.ids == ["a", "c"]
    assert streams.evicted == 1
    assert "b" not in streams
    assert len(streams) == 2
    streams.forget("a")
    assert streams.ids == ["c"]
    streams.reset()
    assert len(streams) == streams.nbytes == 0


def test_memory_is_bounded():
    features, probs = _stream(0)
    streams = Streams(Prudent())
    streams.correct(features[:1], probs[:1], "a")
    one = streams.nbytes
    assert one == sum(array.nbytes for array in streams.state_dict().values())
    streams = Streams(Prudent(), memory=3.5 * one)
    for i in range(10):
        streams.correct(features[:1], probs[:1], i)
    assert streams.nbytes == 3 * one
    assert streams.ids == [7, 8, 9]
    # A single stream stays, however much it takes.
    streams = Streams(Prudent(), memory=1)
    for i in range(3):
        streams.correct(features[i : i + 1], probs[i : i + 1], "a")
    np.testing.assert_array_equal(
        streams.correct(features[3:4], probs[3:4], "a").probs,
        _alone(Prudent(), features[:4], probs[:4])[3:],
    )


@pytest.mark.slow
def test_threads_share_streams_safely():
    data = [_stream(seed, n=40) for seed in range(6)]
    streams = Streams(Prudent())
    alone = [_alone(Prudent(), *stream) for stream in data]
    start = threading.Barrier(6)

    def play(one):
        start.wait()
        features, probs = data[one]
        rows = [streams.correct(features[i : i + 1], probs[i : i + 1], one) for i in range(40)]
        return np.concatenate([row.probs for row in rows])

    with ThreadPoolExecutor(6) as pool:
        for found, expected in zip(pool.map(play, range(6)), alone, strict=True):
            np.testing.assert_array_equal(found, expected)


@dataclass
class Counting:
    """A third party's corrector that would lose counts if two threads were in it."""

    stateful = True
    count: int = 0

    def correct(self, features, probs, /):
        before = self.count
        time.sleep(1e-5)
        self.count = before + len(probs)
        return Prediction(probs, features)

    def reset(self):
        self.count = 0

    def state_dict(self):
        return {"count": np.array(self.count)}

    def load_state_dict(self, state, /):
        self.count = int(state["count"])


def test_one_stream_has_one_user_at_a_time():
    features, probs = _stream(0, n=1)
    streams = Streams(Counting())

    def add(_):
        for _ in range(50):
            streams.correct(features, probs, "a")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(8)))
    assert streams.state_dict() == {'"a"/count': 400}


def test_state_goes_through_safetensors():
    data = {name: _stream(seed) for seed, name in enumerate(["a/b", 'c"', 3, "3"])}
    streams, again = Streams(Prudent()), Streams(Prudent())
    for name, (features, probs) in data.items():
        streams.correct(features[:6], probs[:6], name)
    again.correct(*data[3], "other")
    again.load_state_dict(load(save(streams.state_dict())))
    assert sorted(again.ids, key=repr) == sorted(data, key=repr)
    for name, (features, probs) in data.items():
        expected = streams.correct(features[6:], probs[6:], name).probs
        np.testing.assert_array_equal(again.correct(features[6:], probs[6:], name).probs, expected)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ([], "state must be arrays by name, got list"),
        ({"a": np.zeros(1)}, "state must have names id/name, the id in JSON, got 'a'"),
        ({"[1]/x": np.zeros(1)}, r"state must have names id/name, the id in JSON, got '\[1\]/x'"),
        ({'"a"/x': np.zeros(1)}, "state of stream 'a': state"),
    ],
)
def test_states_that_are_none(state, message):
    streams = Streams(Average())
    features, probs = _stream(0)
    streams.correct(features, probs, "b")
    with pytest.raises(LamettaError, match=message):
        streams.load_state_dict(state)
    assert streams.ids == ["b"]
    with pytest.raises(LamettaError, match="state must be empty for LAME"):
        Streams(LAME()).load_state_dict({'"a"/x': np.zeros(1)})


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (None, "stream must be a text or an integer"),
        (True, "stream must be a text or an integer"),
        (1.5, "stream must be a text or an integer"),
        (["a", None], "stream must be a text or an integer"),
        (["a"], "stream must have an id for each of 2 rows, got 1"),
    ],
)
def test_ids_that_are_none(stream, message):
    features, probs = _stream(0, n=2)
    with pytest.raises(LamettaError, match=message):
        Streams(Average()).correct(features, probs, stream)


def test_columns_that_do_not_fit_move_no_stream():
    features, probs = _stream(0)
    streams = Streams(Prudent())
    streams.correct(features, probs, "b")
    before = streams.state_dict()
    other = _stream(1, d=7)
    with pytest.raises(LamettaError, match="features must have 8 columns as before in stream 'b'"):
        streams.correct(other[0][:2], other[1][:2], ["a", "b"])
    assert streams.ids == ["b"]
    for name, array in streams.state_dict().items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize("corrector", [Prudent(), LAME(), Windowed(size=4)])
@pytest.mark.parametrize("spoiled", ["features", "probs"])
@pytest.mark.parametrize("convert", [np.asarray, torch.tensor])
def test_nan_costs_its_own_stream_alone(corrector, spoiled, convert):
    features, probs = _stream(0)
    ids = ["a", "b", "c"] * 4
    others = np.array(ids) != "b"
    streams, expected = Streams(corrector), Streams(corrector)
    streams.correct(convert(features), convert(probs), ids)
    expected.correct(convert(features), convert(probs), ids)
    before = streams.state_dict()
    bad = {"features": features.copy(), "probs": probs.copy()}
    bad[spoiled][4, 1] = np.nan  # one number of a row of "b"
    told = f"stream 'b' is left out of this batch: {spoiled} must be finite, got NaN"
    with pytest.warns(UserWarning, match=told):
        answer = streams.correct(convert(bad["features"]), convert(bad["probs"]), ids)
    rest = expected.correct(
        convert(features[others]), convert(probs[others]), list(np.array(ids)[others])
    )
    found = np.asarray(answer.probs)
    np.testing.assert_array_equal(found[others], np.asarray(rest.probs))
    assert np.isnan(found[~others]).all()
    assert list(answer.errors) == ["b"]
    assert (answer.info["refused"], answer.info["streams"]) == (4, 3)
    assert all(np.isfinite(value) for value in answer.info.values())
    after, beside = streams.state_dict(), expected.state_dict()
    for name, array in after.items():
        same = before if name.startswith('"b"') else beside
        np.testing.assert_array_equal(array, same[name])
    assert not expected.correct(features, probs, ids).errors


def test_where_nobody_can_be_answered_the_error_is_raised():
    features, probs = _stream(0)
    streams = Streams(Prudent())
    with pytest.raises(LamettaError, match="features must be finite, got NaN"):
        streams.correct(features * np.nan, probs, ["a", "b"] * 6)
    assert not streams.ids


@pytest.mark.parametrize(
    "twin", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_copies_continue_all_streams(twin):
    features, probs = _stream(0)
    streams = Streams(Prudent(), most=7)
    streams.correct(features, probs, ["a", "b", "c"] * 4)
    other = twin(streams)
    assert (other.most, other.ids) == (7, streams.ids)
    expected, found = (one.correct(features, probs, "a").probs for one in (streams, other))
    np.testing.assert_array_equal(found, expected)


def test_what_cannot_be_pickled_says_why():
    streams = Streams(LAME(affinity=lambda features: features @ features.T))
    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
        pickle.dumps(streams)


_FORKED = """
import os, sys, threading, time, warnings
import numpy as np
from lametta import Prediction, Streams
from lametta.correctors import Average

class Waiting(Average):
    def correct(self, features, probs):
        with self._lock:
            prediction = super().correct(features, probs)
            if features[0, 0] == 7:
                inside.set()
                time.sleep(3)
            return prediction

warnings.simplefilter("ignore")  # of a fork beside threads
inside, row = threading.Event(), np.array([[0.5, 0.5]])
streams = Streams(Waiting(), most=3)
streams.correct(row, row, "quiet")
streams.correct(row, row, "busy")
threading.Thread(target=streams.correct, args=(np.full((1, 2), 7.0), row, "busy")).start()
inside.wait()
with streams._cache._lock:  # as where another thread holds it at that moment
    child = os.fork()
if child == 0:
    states = [streams.state_dict()['"quiet"/total'].sum()]
    for one in ("quiet", "busy", "new", "newer"):
        streams.correct(row, row, one)
    ids = streams.ids
    os.write(1, f"{states} {ids} {len(streams.state_dict())}".encode())
    os._exit(0)
for _ in range(1000):
    pid, _ = os.waitpid(child, os.WNOHANG)
    if pid:
        sys.exit(0)
    time.sleep(0.01)
os.kill(child, 9)
sys.exit("the forked process hangs")
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_streams_survive_a_fork():
    """What another thread was at is begun anew, and nobody waits for threads that are not there."""
    done = processes.run("-c", _FORKED)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[np.float64(1.0)] ['busy', 'new', 'newer'] 6"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"corrector": Average},
            r"must have correct and reset, got the class Average: write Average\(\)",
        ),
        ({"most": 0}, "most must be an integer >= 1, got 0"),
        ({"idle": 0}, "idle must be a finite number > 0, got 0"),
        ({"memory": "1GB"}, "memory must be a finite number > 0, got '1GB'"),
    ],
)
def test_options_that_are_none(options, message):
    with pytest.raises(LamettaError, match=message):
        Streams(**{"corrector": Average(), **options})
