"""All stores keep streams alike, and Redis survives its own kills."""

import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from starlette.testclient import TestClient

from lametta import LamettaError
from lametta.serve.config import ServerConfig
from lametta.serve.middleware import ServerLimits
from lametta.serve.protocol import StoreError, TooLargeError, TooManyStreamsError
from lametta.serve.stores import EMPTY, StoredState, open_store, redis
from lametta.serve.stores.memory import MemoryStore
from tests.serve.redis_server import RedisServer, free_port

ODD = ["", " ", "a", "A", "a/b", "../a", "/etc/passwd", "a\0b", "a\nb", "ü", "🎄", "x" * 256, "{a}"]
STREAM = "camera"


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory):
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(params=["memory", "folder", "redis"])
def opened(request, tmp_path):
    """Opens a store of each kind; all that it opens in a test are the same one."""
    if request.param == "memory":
        store = None

        def one(**options):
            nonlocal store
            store = store or open_store("memory", **options)
            return store

        yield one
        return
    url = str(tmp_path / "store")
    if request.param == "redis":
        server = request.getfixturevalue("redis_server")
        url = server.url
        with server.client() as client:
            client.flushall()
    stores = []

    def another(**options):
        if request.param == "folder":
            for store in stores:
                store.close()
        stores.append(open_store(url, **options))
        return stores[-1]

    yield another
    for store in stores:
        store.close()


def put(store, *entries, stream=STREAM, snapshot=None):
    """Commit entries, and give the version that they made."""
    version = store.load(stream).version
    for entry in entries:
        made = store.commit(stream, version, entry, snapshot)
        assert made is not None
        assert made > version
        version = made
    return version


def test_a_stream_is_what_was_committed(opened):
    store = opened()
    assert store.load(STREAM) == EMPTY
    version = put(store, b"one", b"", bytes(range(256)))
    assert store.load(STREAM) == StoredState(version, b"", [b"one", b"", bytes(range(256))])
    assert store.load("other") == EMPTY
    store.check()


def test_a_snapshot_begins_the_log_anew(opened):
    store = opened()
    version = put(store, b"one", b"two")
    third = store.commit(STREAM, version, b"three", b"state")
    assert store.load(STREAM) == StoredState(third, b"state", [b"three"])
    last = put(store, b"four")
    assert store.load(STREAM) == StoredState(last, b"state", [b"three", b"four"])
    last = put(store, b"five", snapshot=b"")
    assert store.load(STREAM) == StoredState(last, b"", [b"five"])
    last = put(store, b"snapshot of nothing", stream="new", snapshot=b"state")
    assert store.load("new") == StoredState(last, b"state", [b"snapshot of nothing"])


def test_what_is_loaded_is_not_what_is_kept(opened):
    store = opened()
    put(store, b"one")
    store.load(STREAM).log.append(b"two")
    assert store.load(STREAM).log == [b"one"]


def test_only_the_version_that_is_there_is_advanced(opened):
    store = opened()
    assert store.commit(STREAM, 1, b"early") is None
    first = put(store, b"one")
    version = put(store, b"two")
    for other in (0, first, version + 1, -1):
        assert store.commit(STREAM, other, b"late") is None
        assert store.commit(STREAM, other, b"late", b"snapshot") is None
    assert store.load(STREAM) == StoredState(version, b"", [b"one", b"two"])


def test_one_of_those_who_commit_at_once_wins(opened, request):
    n, rounds = 4, 30
    many = "redis" in request.node.name  # replicas, each with a store of its own
    first = opened()
    stores = [first, *(opened() if many else first for _ in range(n - 1))]
    barrier, versions = threading.Barrier(n), [0] * rounds

    def race(me):
        won = []
        for i in range(rounds):
            barrier.wait()
            made = stores[me].commit(STREAM, versions[i - 1] if i else 0, b"%d" % me)
            won.append(made is not None)
            if made is not None:
                versions[i] = made
            barrier.wait()
        return won

    with ThreadPoolExecutor(n) as pool:
        won = list(zip(*pool.map(race, range(n)), strict=True))
    assert [sum(each) for each in won] == [1] * rounds
    assert first.load(STREAM).log == [b"%d" % each.index(True) for each in won]


def test_ids_may_be_odd(opened):
    store = opened()
    for stream in ODD:
        put(store, stream.encode(), stream=stream)
    for stream in ODD:
        assert store.load(stream).log == [stream.encode()]


def test_too_many_streams_are_refused(opened):
    store = opened(most=2)
    put(store, b"one", stream="a")
    put(store, b"one", stream="b")
    with pytest.raises(TooManyStreamsError, match="there are 2 streams"):
        store.commit("c", 0, b"one")
    assert store.load("c") == EMPTY
    put(store, b"two", stream="a")


def test_ended_streams_leave_their_place(opened):
    """`--most 5`: a sixth is taken if five have ended, and the last of them can be sent again."""
    store = opened(most=5)
    for i in range(5):
        assert store.commit(f"{i}", 0, b"only", end=True)
    assert store.load("4").log == [b"only"]
    for i in range(5, 10):
        put(store, b"one", stream=f"{i}")
    assert all(store.load(f"{i}") == EMPTY for i in range(5))
    with pytest.raises(TooManyStreamsError):
        store.commit("10", 0, b"one")
    version = store.load("5").version
    ended = store.commit("5", version, b"last", end=True)
    assert store.commit("5", ended, b"anew", b"") is not None
    with pytest.raises(TooManyStreamsError):
        store.commit("10", 0, b"one")


def test_memory_bounds_a_store_in_memory(logged):
    store = MemoryStore(memory=100_000)
    for i in range(100):
        for j in range(4):
            put(store, b"x" * 5000, stream=f"{i}", snapshot=b"" if j == 0 else None)
        assert store.nbytes <= 100_000
    assert store.load("99").log == 4 * [b"x" * 5000]
    assert store.load("0") == EMPTY
    assert store.evicted == 96
    assert logged.getvalue().count("the memory of the store is full") == 1
    with pytest.raises(TooLargeError):
        store.commit("99", store.load("99").version, b"x" * 100_000)
    assert store.load("99").log == 4 * [b"x" * 5000]
    for i in range(96, 100):
        store.commit(f"{i}", store.load(f"{i}").version, b"last", b"", end=True)
    evicted = store.evicted
    put(store, b"x" * 98_000, stream="large", snapshot=b"")  # those that have ended go first
    assert store.evicted == evicted


def test_unused_streams_are_forgotten(opened):
    store = opened(most=1, idle=0.05)
    version = put(store, b"one")
    time.sleep(0.1)
    assert store.commit(STREAM, version, b"two") is None
    assert store.load(STREAM) == EMPTY
    put(store, b"one", stream="there is room again")


def test_used_streams_are_not_forgotten():
    clock = [0.0]
    store = MemoryStore(idle=10, clock=lambda: clock[-1])
    put(store, b"one", stream="a")
    put(store, b"one", stream="b")
    for now in (8.0, 16.0, 24.0):
        clock.append(now)
        put(store, b"next", stream="a")
    assert len(store.load("a").log) == 4
    assert store.load("b") == EMPTY


@pytest.mark.parametrize("opened", ["folder", "redis"], indirect=True)
def test_a_store_goes_on_where_it_was_left(opened):
    first = opened()
    put(first, b"one", b"two", snapshot=b"state")
    version = put(first, b"three")
    stored = first.load(STREAM)
    first.close()
    again = opened()
    assert again.commit(STREAM, 0, b"anew") is None  # without a look at what there is
    assert again.load(STREAM) == stored == StoredState(version, b"state", [b"two", b"three"])
    again = opened()
    assert again.commit(STREAM, version, b"four") is not None  # with a look before the kill
    again = opened(most=1)
    with pytest.raises(TooManyStreamsError):
        again.commit("another", 0, b"one")
    assert again.load(STREAM).log == [b"two", b"three", b"four"]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "store must be memory, a folder or redis://HOST, got nothing"),
        ("mysql://here", "store must be memory, a folder or redis://HOST, got 'mysql://here'"),
        ("redis://here:port", "store must be redis://HOST:PORT/DB, got 'redis://here:port'"),
        (__file__, "could not write to the store in .*: File exists"),
        ("/proc/none", "could not write to the store in /proc/none"),
    ],
)
def test_what_is_no_store_is_refused(url, message):
    with pytest.raises(LamettaError, match=message):
        open_store(url)


def test_an_absent_redis_is_an_error_at_once(logged):
    begun = time.monotonic()
    store = open_store(f"redis://127.0.0.1:{free_port()}/0")
    for call in (lambda: store.load("a"), lambda: store.commit("a", 0, b"one"), store.check):
        with pytest.raises(StoreError, match="cannot be reached$") as error:
            call()
        assert (error.value.status, error.value.retry_after) == (503, 1)
    assert time.monotonic() - begun < 2
    assert "Connection refused" in logged.getvalue()


@pytest.mark.slow
def test_a_redis_that_is_silent_is_not_waited_for(monkeypatch):
    """Once, then others need not wait as well, for a moment."""
    assert redis._TIMEOUT + redis._PAUSE <= 3
    monkeypatch.setattr(redis, "_TIMEOUT", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = open_store(f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
        calls = (lambda: store.load("a"), lambda: store.commit("a", 0, b"one"), store.check)
        for _ in range(2):
            took = []
            for call in calls:
                begun = time.monotonic()
                with pytest.raises(StoreError, match="cannot be reached"):
                    call()
                took.append(time.monotonic() - begun)
            assert 0.3 <= took[0] < 2
            assert max(took[1:]) < 0.3
            time.sleep(redis._PAUSE)
        store.close()


@pytest.fixture
def in_redis(redis_server):
    with redis_server.client() as client:
        client.flushall()
    store = open_store(redis_server.url)
    yield store
    store.close()


def test_redis_may_be_killed(in_redis, redis_server):
    put(in_redis, b"one", b"two", snapshot=b"state")
    version = put(in_redis, b"three")
    stored = in_redis.load(STREAM)
    redis_server.kill()
    with pytest.raises(StoreError):
        in_redis.commit(STREAM, version, b"four")
    with pytest.raises(StoreError):
        in_redis.load(STREAM)
    redis_server.start()
    assert in_redis.load(STREAM) == stored == StoredState(version, b"state", [b"two", b"three"])
    assert in_redis.commit(STREAM, version, b"four") is not None


def test_no_life_of_a_stream_is_taken_for_another(in_redis, redis_server):
    replica = open_store(redis_server.url)
    version = put(replica, b"one", b"two")
    with redis_server.client() as client:
        client.flushall()  # as if it had been forgotten
    put(in_redis, b"anew", b"and on")
    assert replica.commit(STREAM, version, b"three") is None
    assert replica.load(STREAM).log == [b"anew", b"and on"]
    replica.close()


def test_streams_expire_as_a_whole(redis_server):
    store = open_store(redis_server.url, idle=1000)
    put(store, b"one", b"two")
    with redis_server.client() as client:
        (key,) = client.scan_iter(f"*{STREAM}*")
        assert 990_000 < client.pttl(key) <= 1_000_000
    store.close()


def test_a_redis_without_room_does_nothing_by_halves(in_redis, redis_server):
    version = put(in_redis, b"one")
    stored = in_redis.load(STREAM)
    with redis_server.client() as client:
        client.config_set("maxmemory", "1")
        try:
            for snapshot in (None, b"state"):
                with pytest.raises(StoreError):
                    in_redis.commit(STREAM, version, b"two", snapshot)
        finally:
            client.config_set("maxmemory", "0")
    assert in_redis.load(STREAM) == stored
    assert in_redis.commit(STREAM, version, b"two") is not None


def test_a_redis_that_forgets_is_warned_of(redis_server, logged):
    open_store(redis_server.url).close()
    assert not logged.getvalue()
    with redis_server.client() as client:
        client.config_set("appendonly", "no")
        try:
            open_store(redis_server.url).close()
        finally:
            client.config_set("appendonly", "yes")
    assert "streams may be lost when it is killed" in logged.getvalue()


@pytest.mark.parametrize(
    ("setting", "value", "usual", "message"),
    [
        ("appendfsync", "everysec", "always", r"appendfsync everysec, not always"),
        ("maxmemory-policy", "allkeys-lru", "noeviction", r"maxmemory-policy allkeys-lru"),
        ("appendonly", "no", "yes", "streams may be lost when it is killed"),
    ],
)
def test_a_redis_that_may_lose_states_says_so(redis_server, logged, setting, value, usual, message):
    store = open_store(redis_server.url)
    assert store.warnings() == []
    with redis_server.client() as client:
        client.config_set(setting, value)
        try:
            (warning,) = store.warnings()
            assert re.search(message, warning)
            open_store(redis_server.url).close()
        finally:
            client.config_set(setting, usual)
    assert re.search(message, logged.getvalue())
    store.close()


@pytest.mark.parametrize(
    "damage",
    [
        {"version": "seven"},
        {"version": "-1"},
        {"no number": "x"},
        {"5": "a request of another time"},
        {"version": str(2**60)},
    ],
)
def test_damaged_fields_are_no_internal_error(in_redis, redis_server, damage, logged):
    put(in_redis, b"one", b"two")
    with redis_server.client() as client:
        (key,) = client.scan_iter(f"*:stream:{STREAM}")
        client.hset(key, mapping=damage)
    with pytest.raises(StoreError, match="the state of a stream cannot be read or written"):
        in_redis.load(STREAM)
    assert in_redis.damaged == 1
    assert f"the state of '{STREAM}' is damaged" in logged.getvalue()
    with redis_server.client() as client:
        client.delete(key)
        client.set(key, "no hash at all")
    for call in (lambda: in_redis.load(STREAM), lambda: in_redis.commit(STREAM, 0, b"one")):
        with pytest.raises(StoreError):
            call()


def test_the_password_of_redis_is_not_printed(redis_server, logged):
    secret = "a-secret-of-redis"
    with pytest.raises(LamettaError) as error:
        open_store(f"redis://me:{secret}@here:port")
    assert secret not in f"{error.value}{error.value.__cause__}"
    with redis_server.client() as client:
        client.config_set("requirepass", secret)
        try:
            wrong = open_store(redis_server.url, password="wrong")
            with pytest.raises(StoreError):
                wrong.check()
            wrong.close()
            store = open_store(redis_server.url, password=secret)
            store.check()
            store.close()
        finally:
            with open_store(redis_server.url, password=secret)._redis as admin:
                admin.config_set("requirepass", "")
    assert secret not in logged.getvalue()
    config = ServerConfig({"a": "average"}, store=redis_server.url, password=secret)
    assert secret not in repr(config)
    with pytest.raises(LamettaError, match="password must be for redis://HOST"):
        open_store("memory", password=secret)


def test_health_has_the_warnings(redis_server):
    """They are for operators, and need a token where there are some; probes do not."""
    limits = ServerLimits(tokens=("a-token-of-an-operator",))
    app = ServerConfig({"a": "average"}, store=redis_server.url, limits=limits).app()
    token = {"Authorization": "Bearer a-token-of-an-operator"}
    with TestClient(app) as client, redis_server.client() as redis:
        told = {"live": True, "ready": True, "warnings": [], "damaged_streams": 0}
        assert client.get("/v2/health", headers=token).json() == told
        redis.config_set("maxmemory-policy", "volatile-lru")
        try:
            (warning,) = client.get("/v2/health", headers=token).json()["warnings"]
        finally:
            redis.config_set("maxmemory-policy", "noeviction")
        assert "may evict streams" in warning
        assert client.get("/v2/health").status_code == 401
        assert client.get("/v2/health/ready").status_code == 200
