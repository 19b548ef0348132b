"""Sessions answer what each stream gives alone, whatever is evicted, loaded or sent again."""

import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from lametta import LAME, LamettaError, Prediction, Prudent, Windowed
from lametta.correctors import Average, Memory
from lametta.correctors.base import state_nbytes
from lametta.correctors.chain import Chain
from lametta.serve import sessions as module
from lametta.serve.config import CorrectorSpec
from lametta.serve.protocol import (
    Deadline,
    DeadlineError,
    StoreError,
    TooLargeError,
    TooManyRequestsError,
)
from lametta.serve.sessions import Samples, SessionManager
from lametta.serve.stores.memory import MemoryStore
from tests.conftest import make_batch

pytestmark = pytest.mark.filterwarnings("ignore:LAME gets one sample")

METHODS = {
    "prudent": ("prudent", {}),
    "memory": ("memory", {}),
    "average": ("average", {}),
    "windowed": ("python:lametta:Windowed", {"size": 4}),
    "slow windowed": ("python:tests.serve.test_sessions:Slow", {"size": 4}),
    "chain": ("memory+lame", {}),
    "long chain": ("average+prudent+lame", {}),
    "lame": ("lame", {}),
}


ONE = state_nbytes(Prudent(), 6, 4)  # bytes of a stream


class Slow(Windowed):
    """One that calls its corrector with each window."""

    _updates_neighbors = False


class Counting(MemoryStore):
    """A store that knows what it was given, and may be out of reach."""

    def __init__(self):
        super().__init__()
        self.entries, self.snapshots, self.n_loads = [], [], 0
        self.fails = []  # "before" or "after" a commit, one after the other

    def load(self, stream):
        self.n_loads += 1
        return super().load(stream)

    def commit(self, stream, version, entry, snapshot=None, *, end=False):
        when = self.fails.pop(0) if self.fails else None
        if when == "before":
            raise StoreError("gone")
        made = super().commit(stream, version, entry, snapshot, end=end)
        if when == "after":
            raise StoreError("gone")
        self.entries.append(len(entry))
        self.snapshots.append(len(snapshot or b""))
        return made


def batches(n, dtype="float32", seed=0, rows=(1, 3, 1, 1, 2), d=6, k=4):
    """The requests of a stream; a frame is often followed by its copy, as in a video."""
    features, probs = make_batch(sum(rows) * n, k, d, seed)
    ends = np.cumsum([0, *rows * n])[: n + 1]
    cut = [(features[a:b].astype(dtype), probs[a:b].astype(dtype)) for a, b in pairwise(ends)]
    return [cut[i - i % 3 // 2] for i in range(n)]


def alone(corrector, requests):
    """What a stream gives by itself; copies, so that no later sample changes them."""
    corrector.reset()
    answers = (corrector.correct(*request) for request in requests)
    return [replace(answer, probs=answer.probs.copy()) for answer in answers]


def same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.probs.dtype == other.probs.dtype
        np.testing.assert_array_equal(one.probs, other.probs, strict=True)
        assert dict(one.info) == dict(other.info)


@pytest.fixture
def keep():
    """Makes session managers of one store, as replicas are."""
    store = Counting()
    return lambda corrector=None, **options: SessionManager(
        corrector or Prudent(), "it", store, **options
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("method", METHODS)
def test_each_stream_is_as_alone(method, dtype):
    corrector = CorrectorSpec(*METHODS[method]).make()
    manager = SessionManager(corrector, method, MemoryStore())
    streams = {name: batches(12, dtype, seed) for seed, name in enumerate("abc")}
    found = {name: [] for name in streams}
    for i in range(12):
        for name, requests in streams.items():
            found[name].append(manager.correct(Samples(*requests[i]), name))
    for name, requests in streams.items():
        same(found[name], alone(corrector, requests))
    assert len(manager) == (0 if method == "lame" else 3)


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name in METHODS if name != "lame"])
def test_what_is_evicted_goes_on_to_the_same_bits(method, keep):
    corrector = CorrectorSpec(*METHODS[method]).make()
    memory = state_nbytes(corrector, 5000, 4)  # of one stream
    manager = keep(corrector, memory=memory)
    dtypes = np.random.default_rng(0).choice(["float16", "float32", "float64"], size=16)
    requests = [
        tuple(part.astype(dtype) for part in request)
        for dtype, request in zip(dtypes, batches(16, d=5000), strict=True)
    ]
    found = []
    for i, request in enumerate(requests):
        found.append(manager.correct(Samples(*request), "a"))
        manager.correct(Samples(*request), "b")  # which takes the memory that there is
        if i == 7:  # the server is started again
            manager = keep(corrector, memory=memory)
    same(found, alone(corrector, requests))
    assert manager.evicted == 15
    assert manager.store.n_loads == 32
    assert len([size for size in manager.store.snapshots if size]) >= 4


def test_arrays_in_another_order_are_replayed_to_the_same_bits(keep):
    requests = [
        (np.asfortranarray(features), np.asfortranarray(probs))
        for features, probs in batches(5, "float32", rows=(40,), d=50, k=30)
    ]
    manager = keep()
    first = [manager.correct(Samples(*request), "a") for request in requests]
    again = [keep().correct(Samples(*request), "b") for request in requests]
    same(again, first)


def test_without_a_stream_a_batch_stands_alone(keep):
    manager = keep()
    for request in batches(4):
        same([manager.correct(Samples(*request))], alone(Prudent(), [request]))
    assert len(manager) == manager.store.n_loads == 0


def test_models_have_streams_of_their_own():
    store, (request, *_) = MemoryStore(), batches(1)
    for name, corrector in (("a", Average()), ("b", Average()), ("a", Prudent())):
        manager = SessionManager(corrector, name, store)
        same([manager.correct(Samples(*request), "s")], alone(corrector, [request]))
    for size in (2, 3):  # of one name, with other options
        manager = SessionManager(Windowed(size=size), "w", store)
        assert manager.correct(Samples(*request), "s").info["window"] == 1


def test_a_request_that_comes_again_counts_once(keep):
    requests = batches(9)
    expected = alone(Prudent(), requests)
    found, manager = [], keep()
    for i, request in enumerate(requests):
        samples = Samples(*request, id=f"request {i}", start=i == 0, end=i == 8)
        found.append(manager.correct(samples, "s"))
        for other in (
            manager,
            keep(),
            keep(memory=ONE),
        ):  # here, at another replica, from the store
            same([other.correct(samples, "s")], found[-1:])
    same(found, expected)
    assert len(manager.store.entries) == 9


def test_only_the_same_request_is_the_same(keep):
    one, two = batches(2)
    given = [
        Samples(*one, id="1"),
        Samples(*two, id="1"),  # an id that is used again
        Samples(*two, id="2"),
        Samples(*two, id="2", end=True),
        Samples(*two, id="2", start=True, end=True),
        Samples(*two, id="2", start=True),
        Samples(*two),
        Samples(*two),  # without an id there is no telling
        Samples(two[0].astype("float64"), two[1], id="2"),
        Samples(*one, id="1"),  # long ago
    ]
    manager, corrector, expected, ended = keep(), Prudent(), [], False
    for samples in given:
        if samples.start or ended:
            corrector.reset()
        ended = samples.end
        expected.append(corrector.correct(samples.features, samples.probs))
    same([manager.correct(samples, "s") for samples in given], expected)
    assert len(manager.store.entries) == len(given)


@pytest.mark.parametrize("fresh", [False, True])
def test_streams_begin_and_end(keep, fresh):
    requests, manager = batches(12), keep()
    found = []
    for i, request in enumerate(requests):
        if fresh:
            manager = keep()
        found.append(manager.correct(Samples(*request, start=i == 3, end=i == 6), "s"))
    expected = [
        answer
        for part in (requests[:3], requests[3:7], requests[7:])
        for answer in alone(Prudent(), part)
    ]
    same(found, expected)


def test_a_stream_that_begins_anew_may_be_of_other_sizes(keep):
    manager, small, large = keep(), batches(5), batches(5, d=9, k=7)
    for begin in (Samples(*large[0], start=True), Samples(*large[0])):
        for request in small[:-1]:
            manager.correct(Samples(*request), "s")
        manager.correct(Samples(*small[-1], end=not begin.start), "s")
        found = [manager.correct(begin, "s")]
        found += [keep().correct(Samples(*request), "s") for request in large[1:]]
        same(found, alone(Prudent(), large))
        manager = keep()
        manager.correct(Samples(*large[0], end=True), "s")


BAD = {
    "nan": (np.full((1, 6), np.nan), np.full((1, 4), 0.25)),
    "columns": (np.zeros((1, 7)), np.full((1, 4), 0.25)),
    "classes": (np.zeros((1, 6)), np.full((1, 5), 0.2)),
    "rows": (np.zeros((2, 6)), np.full((1, 4), 0.25)),
    "sum": (np.zeros((1, 6)), np.full((1, 4), 3.0)),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("start", [False, True])
def test_what_is_refused_changes_nothing(keep, bad, start):
    requests, manager, found = batches(8), keep(), []
    for i, request in enumerate(requests):
        if i:
            # Another number of columns is fine where a stream begins.
            features, probs = BAD["nan" if start and bad in ("columns", "classes") else bad]
            with pytest.raises(LamettaError):
                manager.correct(Samples(features, probs, "id", start=start), "s")
        found.append(manager.correct(Samples(*request), "s"))
    same(found, alone(Prudent(), requests))


class Late(Average):
    """One that takes a batch into its memory before it refuses it, as a chain may."""

    def correct(self, features, probs):
        prediction = super().correct(features, probs)
        if len(probs) == 2:
            raise LamettaError("two are too many")
        return prediction


def test_who_refuses_too_late_is_asked_anew(keep):
    for corrector in (Late(), Chain((Memory(), Late()))):
        requests, manager, found = batches(8, rows=(1,)), keep(corrector), []
        for request in requests:
            with pytest.raises(LamettaError):
                manager.correct(Samples(*(np.vstack([part, part]) for part in request)), "s")
            found.append(manager.correct(Samples(*request), "s"))
        same(found, alone(corrector, requests))


class Forgetful:
    """One that remembers and cannot say what."""

    stateful = True

    def correct(self, features, probs):
        return Prediction(probs, features)

    def reset(self): ...


def test_memory_that_cannot_be_kept_is_refused(keep):
    for make in (lambda: keep(Forgetful()), lambda: Chain((LAME(), Forgetful()))):
        with pytest.raises(LamettaError, match="must have state_dict .* got Forgetful"):
            make()


def test_where_an_object_lies_is_no_option():
    class Strange(Average):
        __repr__ = object.__repr__

    one, other = Strange(), Strange()
    assert repr(one) != repr(other)
    store, requests = MemoryStore(), batches(4)
    found = [
        SessionManager(one, "s", store).correct(Samples(*request), "s") for request in requests[:2]
    ]
    found += [
        SessionManager(other, "s", store).correct(Samples(*request), "s")
        for request in requests[2:]
    ]
    same(found, alone(Average(), requests))


@pytest.mark.parametrize("snapshot", [b"", b"no state at all", b"\0" * 100])
def test_a_state_of_another_version_begins_anew(keep, snapshot, logged):
    requests, manager = batches(5), keep()
    manager.store.commit(manager._prefix + "s", 0, b"no request", snapshot)
    same(
        [manager.correct(Samples(*request), "s") for request in requests],
        alone(Prudent(), requests),
    )
    assert "is of no use" in logged.getvalue()
    same([keep().correct(Samples(*requests[0], start=True), "s")], alone(Prudent(), requests[:1]))


def test_a_state_that_does_not_fit_into_memory_is_not_given_up(keep, monkeypatch):
    requests, manager = batches(4), keep()
    found = [manager.correct(Samples(*request), "s") for request in requests[:2]]

    def fail(*_):
        raise MemoryError

    other = keep()
    with monkeypatch.context() as context:
        context.setattr(Prudent, "correct", fail)
        with pytest.raises(MemoryError):
            other.correct(Samples(*requests[2]), "s")
    found += [other.correct(Samples(*request), "s") for request in requests[2:]]
    same(found, alone(Prudent(), requests))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_store_that_fails_is_asked_what_it_has(keep, when):
    requests, manager, found = batches(20), keep(), []
    for i, request in enumerate(requests):
        samples = Samples(*request, id=str(i))
        manager.store.fails = [when] * (i % 3)
        for _ in range(i % 3 if when == "before" else min(i % 3, 1)):
            with pytest.raises(StoreError):
                manager.correct(samples, "s")
        manager.store.fails = []
        found.append(manager.correct(samples, "s"))
    same(found, alone(Prudent(), requests))


def test_threads_on_one_stream_take_turns(keep):
    requests, manager = batches(40), keep(Average())
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda request: manager.correct(Samples(*request), "s"), requests))
    assert manager.store.load(manager._prefix + "s").version == 40
    # A mean does not depend on the order, but for the last bits.
    last = manager.correct(Samples(*requests[0]), "s")
    expected = alone(Average(), [*requests, requests[0]])[-1]
    np.testing.assert_allclose(last.probs, expected.probs, rtol=1e-5)


@pytest.mark.slow
def test_threads_on_many_streams_are_as_alone(keep):
    streams = {f"{i}": batches(8, seed=i) for i in range(16)}
    manager = keep(memory=20_000)  # evictions all the time

    def run(name):
        return [manager.correct(Samples(*request), name) for request in streams[name]]

    with ThreadPoolExecutor(8) as pool:
        found = dict(zip(streams, pool.map(run, streams), strict=True))
    for name, requests in streams.items():
        same(found[name], alone(Prudent(), requests))
    assert manager.evicted > 16
    assert manager._cache.size < 200_000


@pytest.mark.slow
def test_replicas_in_turn_are_as_one(keep):
    replicas, requests = [keep(), keep(), keep(memory=ONE)], batches(40)
    turns = np.random.default_rng(0).integers(3, size=40)
    found = [
        replicas[turn].correct(Samples(*request), "s")
        for turn, request in zip(turns, requests, strict=True)
    ]
    same(found, alone(Prudent(), requests))


def test_a_replica_takes_no_request_for_the_last_that_is_not(keep):
    """A still camera whose requests all have one id: another replica has seen what came between."""
    first, second = keep(), keep()
    one, two = batches(2)
    requests = [one, two, one, two, two]
    turns = [first, second, first, second, first]  # the last is sent again, to the other
    found = [
        manager.correct(Samples(*request, id="frame"), "s")
        for manager, request in zip(turns, requests, strict=True)
    ]
    expected = alone(Prudent(), requests[:4])
    same(found, [*expected, expected[-1]])


def test_replicas_at_once_count_each_request_once(keep):
    """Both advance one stream as fast as they can; the log says in which order."""
    replicas, requests = [keep(), keep()], batches(60)
    answers = {}

    def run(me):
        for i in range(me, 60, 2):
            answers[i] = replicas[me].correct(Samples(*requests[i], id=str(i)), "s")

    threads = [threading.Thread(target=run, args=(me,)) for me in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store, stream = replicas[0].store, replicas[0]._prefix + "s"
    assert store.load(stream).version == 60
    assert len(answers) == 60
    # Whoever follows the log from its snapshot comes to the answers that were given.
    stored, corrector = store.load(stream), Prudent()
    if stored.snapshot:
        corrector.load_state_dict(module.load(stored.snapshot))
    for entry in stored.log:
        samples = Samples.unpack(entry)
        answer = corrector.correct(samples.features, samples.probs)
        same([answers[int(samples.id)]], [answer])


def test_who_is_always_late_gives_up(keep, monkeypatch):
    manager = keep()
    monkeypatch.setattr(manager.store, "commit", lambda *_, end: None)
    with pytest.raises(TooManyRequestsError, match="advanced by too many others"):
        manager.correct(Samples(*batches(1)[0]), "s")


def test_no_answer_comes_after_the_deadline(keep):
    requests, manager = batches(3), keep()
    found = [manager.correct(Samples(*requests[0]), "s", Deadline(60))]
    with pytest.raises(DeadlineError):
        manager.correct(Samples(*requests[1]), "s", Deadline(0))
    with manager._cache.lease("s"):  # someone is at work on it
        begun = time.monotonic()
        with pytest.raises(DeadlineError, match="busy"):
            manager.correct(Samples(*requests[1]), "s", Deadline(0.1))
        assert time.monotonic() - begun < 5
    found += [manager.correct(Samples(*request), "s") for request in requests[1:]]
    same(found, alone(Prudent(), requests))


def test_a_frame_costs_its_own_bytes_twice(keep):
    manager, n, d, k = keep(), 100, 1280, 1000
    features, probs = make_batch(n, k, d)
    features, probs = features.astype("float32"), probs.astype("float32")
    for i in range(n):
        samples = Samples(features[i : i + 1], probs[i : i + 1], id=f"{i:032}")
        manager.correct(samples, "s")
    own, store = 4 * (d + k), manager.store
    assert max(store.entries) < own + 100
    assert sum(store.entries + store.snapshots) / n < 2 * own
    assert max(store.snapshots) < 262_000
    assert store.n_loads == 1
    stored = store.load(manager._prefix + "s")
    assert len(stored.snapshot) + sum(map(len, stored.log)) < 2 * 260_000 + own


class Hoarder:
    """One that remembers much, and cannot say how much before."""

    stateful = True

    def __init__(self):
        self.kept = np.zeros(0)

    def correct(self, features, probs):
        self.kept = np.zeros(10**6)
        return Prediction(probs, features)

    def reset(self):
        self.kept = np.zeros(0)

    def state_dict(self):
        return {"kept": self.kept}

    def load_state_dict(self, state):
        self.kept = state["kept"]


@pytest.mark.parametrize("stream", ["s", None])
def test_a_state_that_cannot_fit_is_refused_when_it_is_first_asked(keep, stream):
    """The K x K numbers of `oatta`: a gigabyte at 16,384 classes, of which nothing is made."""
    manager = keep(CorrectorSpec("oatta").make(), memory=2**26)
    many = Samples(np.ones((1, 2)), np.full((1, 16_384), 1 / 16_384))
    tracemalloc.start()
    with pytest.raises(TooLargeError, match="it with 2 features and 16384 classes .* 1024 MiB"):
        manager.correct(many, stream)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**23
    assert manager.store.load(manager._prefix + "s").version == 0
    manager.correct(Samples(*batches(1)[0]), stream)
    assert TooLargeError.status == 413


def test_who_cannot_say_how_much_it_remembers_is_measured(keep):
    manager = keep(Hoarder(), memory=10**6)
    with pytest.raises(TooLargeError, match="a state of 8 MiB"):
        manager.correct(Samples(*batches(1)[0]), "s")
    assert manager.store.load(manager._prefix + "s").version == 0


def test_memory_bounds_sessions_and_a_store_in_memory():
    """`--store memory` with 64M took 1.7 GiB; here a thousandth of it."""
    memory = 10 * ONE
    store = MemoryStore(memory=memory)
    manager = SessionManager(Prudent(), "it", store, memory=memory)
    requests = batches(100)
    for i, request in enumerate(requests):
        for _ in range(3):
            manager.correct(Samples(*request), f"stream {i}")
        assert store.nbytes <= memory
        assert manager._cache.size <= memory + ONE + 10_000
    last = [manager.correct(Samples(*requests[-1]), "stream 99")]
    same(last, alone(Prudent(), 4 * [requests[-1]])[-1:])


def test_a_sixth_sequence_is_served_where_five_have_ended():
    store, (request, *_) = MemoryStore(most=5), batches(1)
    manager = SessionManager(Prudent(), "it", store)
    for i in range(12):
        last = Samples(*request, id="last", end=True)
        first = manager.correct(last, f"{i}")
        same([manager.correct(last, f"{i}")], [first])  # its answer was lost
