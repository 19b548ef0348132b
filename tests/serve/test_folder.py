"""A folder of streams survives kills at any byte, damage and full disks."""

import os
import resource
import stat
import time
from contextlib import contextmanager, nullcontext

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lametta import LamettaError
from lametta import _files as files
from lametta.serve.protocol import StoreError, TooManyStreamsError
from lametta.serve.stores import EMPTY, StoredState, folder, open_store
from lametta.serve.stores.folder import FolderStore
from tests import processes
from tests.serve.test_stores import STREAM, put


@pytest.fixture
def in_folder(tmp_path):
    """Opens the store of a folder again and again, as after a kill."""
    stores = []

    def again(**options):
        for store in stores:
            store.close()
        stores[:] = [FolderStore(tmp_path / "store", **options)]
        return stores[0]

    yield again
    for store in stores:
        store.close()


def only_file(tmp_path):
    (file,) = (tmp_path / "store").glob("*.stream")
    return file


def test_half_a_record_is_cut_off(in_folder, tmp_path):
    store = in_folder()
    put(store, b"one", b"two", snapshot=b"state")
    file = only_file(tmp_path)
    before, n_whole = store.load(STREAM), file.stat().st_size
    put(store, b"the last request")
    whole = file.read_bytes()
    for end in range(n_whole, len(whole)):
        file.write_bytes(whole[:end])
        store = in_folder()
        assert store.load(STREAM) == before
        assert store.commit(STREAM, before.version, b"another") == before.version + 1
        assert in_folder().load(STREAM) == StoredState(3, b"state", [b"two", b"another"])
    for junk in (bytes(40), b"\xff" * 40, whole, whole[n_whole:]):
        file.write_bytes(whole + junk)
        assert in_folder().load(STREAM) == StoredState(3, b"state", [b"two", b"the last request"])
        assert file.read_bytes() == whole


@pytest.mark.slow
def test_flipped_bits_never_give_another_state(in_folder, tmp_path, logged):
    store = in_folder()
    put(store, b"one", b"two", snapshot=b"state")
    put(store, b"three")
    store = in_folder()  # all of it is on the disk
    file, log = only_file(tmp_path), [b"two", b"three"]
    whole = file.read_bytes()
    states = [EMPTY, *(StoredState(1 + n, b"state", log[:n]) for n in range(3))]
    for place in range(len(whole)):
        for bit in (0, 3, 7):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            file.write_bytes(damaged)
            logged.truncate(logged.seek(0))
            stored = store.load(STREAM)
            assert stored in states[:-1]
            assert "bytes of no use" in logged.getvalue()
            assert store.commit(STREAM, stored.version, b"next") == stored.version + 1


@contextmanager
def full_disk(length):
    """Let no file become longer, as on a disk that is full: what fits is written."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (length, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("room", [0, 1, 20, 100])
def test_a_full_disk_loses_nothing(in_folder, tmp_path, room, logged):
    store = in_folder()
    version = put(store, b"one", b"two")
    length = only_file(tmp_path).stat().st_size
    for snapshot in (None, b"x" * 1000):
        with full_disk(length + room), pytest.raises(StoreError, match=r"^[^/]*$") as error:
            store.commit(STREAM, version, b"y" * 1000, snapshot)
        assert error.value.status == 503
        assert store.load(STREAM) == StoredState(version, b"", [b"one", b"two"])
        assert only_file(tmp_path).stat().st_size == length
    assert "File too large" in logged.getvalue() or "disk is full" in logged.getvalue()
    with full_disk(10), pytest.raises(StoreError):
        store.commit("new", 0, b"y" * 1000)
    assert store.load("new") == EMPTY
    assert store.commit(STREAM, version, b"three") == version + 1
    names = {path.name for path in (tmp_path / "store").iterdir()}
    assert names == {".lock", only_file(tmp_path).name}


def test_what_was_half_written_before_a_failure_is_not_built_upon(in_folder, tmp_path, monkeypatch):
    store = in_folder()
    version = put(store, b"one")
    written = os.write

    def half(descriptor, content):
        written(descriptor, content[: len(content) // 2])
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(StoreError):
        store.commit(STREAM, version, b"two")
    monkeypatch.undo()
    assert store.commit(STREAM, version, b"two again") == version + 1  # not loaded in between
    assert in_folder().load(STREAM).log == [b"one", b"two again"]


def test_a_folder_has_one_user(in_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "_LOCK_WAIT", 0.2)
    store = in_folder()
    begun = time.monotonic()
    with pytest.raises(LamettaError, match=f"is locked by process {os.getpid()} on .*; waited"):
        FolderStore(tmp_path / "store")
    assert time.monotonic() - begun < 2
    store.close()
    FolderStore(tmp_path / "store").close()


@pytest.mark.slow(2)
def test_another_process_is_told_who_has_the_folder(in_folder, tmp_path):
    put(in_folder(), b"one")
    code = "from lametta.serve.stores import folder; folder._LOCK_WAIT = 0.2;"
    code += f"folder.FolderStore(folder.Path({str(tmp_path / 'store')!r}))"
    done = processes.run("-c", code)
    assert done.returncode == 1
    assert f"is locked by process {os.getpid()} on " in done.stderr
    assert "; waited 0.2 s" in done.stderr


def test_leftovers_are_deleted_and_nothing_else(in_folder, tmp_path):
    put(in_folder(), b"one")
    (tmp_path / "store" / ".lametta-0123.tmp").write_bytes(b"half a snapshot")
    (tmp_path / "store" / "notes.txt").write_text("mine")
    store = in_folder(most=1)
    names = {path.name for path in (tmp_path / "store").iterdir()}
    assert names == {".lock", "notes.txt", only_file(tmp_path).name}
    assert store.load(STREAM).log == [b"one"]


def test_a_file_that_was_deleted_begins_anew(in_folder, tmp_path):
    store = in_folder(most=1)
    version = put(store, b"one")
    only_file(tmp_path).unlink()
    with pytest.raises(StoreError):
        store.commit(STREAM, version, b"two")
    assert store.load(STREAM) == EMPTY
    put(store, b"one again")


def test_old_files_are_forgotten_at_the_start(in_folder, tmp_path):
    put(in_folder(), b"one")
    os.utime(only_file(tmp_path), (0, 0))
    assert in_folder(idle=1e10).load(STREAM).log == [b"one"]
    assert in_folder().load(STREAM) == EMPTY
    assert not list((tmp_path / "store").glob("*.stream"))


class Kills(RuleBasedStateMachine):
    """A folder's store against a dictionary, with kills in the middle of writes."""

    streams = st.sampled_from(["a", "b", "c"])
    contents = st.binary(max_size=40)

    @initialize()
    def begin(self):
        self.folder = self.tmp_path_factory.mktemp("kills")
        self.model = {}
        self.store = FolderStore(self.folder)

    @rule(stream=streams, entry=contents, snapshot=st.none() | contents)
    def commit(self, stream, entry, snapshot):
        stored = self.model.get(stream, EMPTY)
        assert self.store.commit(stream, stored.version, entry, snapshot) == stored.version + 1
        log = [*stored.log, entry] if snapshot is None else [entry]
        begun = stored.snapshot if snapshot is None else snapshot
        self.model[stream] = StoredState(stored.version + 1, begun, log)

    @rule(stream=streams, entry=contents, ahead=st.integers(-3, 3).filter(bool))
    def commit_another_version(self, stream, entry, ahead):
        version = self.model.get(stream, EMPTY).version + ahead
        assert self.store.commit(stream, version, entry) is None

    @rule(stream=streams)
    def load(self, stream):
        assert self.store.load(stream) == self.model.get(stream, EMPTY)

    @rule(stream=streams, entry=contents, share=st.floats(0, 1, exclude_max=True))
    def die_while_writing(self, stream, entry, share):
        self.store.close()
        if stream in self.model:
            record = folder._record(self.model[stream].version + 1, entry)
            with (self.folder / folder._name(stream)).open("ab") as file:
                file.write(record[: int(share * len(record))])
        (self.folder / ".lametta-1.tmp").write_bytes(entry)
        self.store = FolderStore(self.folder)

    @invariant()
    def nothing_is_left_over(self):
        assert not list(self.folder.glob(".lametta-*"))
        assert len(list(self.folder.glob("*.stream"))) == len(self.model)

    def teardown(self):
        for stream, stored in self.model.items():
            assert self.store.load(stream) == stored
        self.store.close()


@pytest.mark.slow(2)
def test_a_folder_is_a_dictionary_that_survives(tmp_path_factory):
    Kills.tmp_path_factory = tmp_path_factory
    case = Kills.TestCase
    case.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
    case().runTest()


DAY = 24 * 3600.0


def test_a_clock_that_is_set_forward_deletes_no_stream(in_folder, tmp_path, monkeypatch):
    """While the server runs, and before it is started again."""
    store = in_folder(idle=DAY)
    version = put(store, b"one")
    monkeypatch.setattr(folder.time, "time", lambda real=time.time: real() + 400 * DAY)
    version = store.commit(STREAM, version, b"two")
    store._follow_clock()  # which runs every second
    assert only_file(tmp_path).stat().st_mtime > time.time() - 10  # by the clock as it was set
    assert in_folder(idle=DAY).load(STREAM) == StoredState(version, b"", [b"one", b"two"])


def test_streams_are_as_old_as_they_are_beside_each_other(in_folder, tmp_path):
    """A clock set forward while no server runs is files that were changed long before it."""
    store = in_folder(idle=DAY)
    put(store, b"old", stream="old")
    old = only_file(tmp_path)
    put(store, b"new")
    store.close()
    for path, age in (
        (old, 2 * DAY),
        *((x, 0) for x in (tmp_path / "store").iterdir() if x != old),
    ):
        os.utime(path, (1e9 - age, 1e9 - age))
    os.utime(tmp_path / "store", (1e9, 1e9))
    store = in_folder(idle=DAY)
    assert store.load(STREAM).log == [b"new"]
    assert store.load("old") == EMPTY
    store._follow_clock()  # so that all files are of one clock
    assert only_file(tmp_path).stat().st_mtime > time.time() - 10


@pytest.mark.slow
def test_a_hundred_thousand_streams_stop_nobody(tmp_path):
    """They are looked at once, at the start; then a request has to forget a few at most."""
    place = tmp_path / "store"
    place.mkdir()
    for i in range(100_000):
        (place / f"{i:064x}.stream").touch()
    store = FolderStore(place, most=200_000, idle=DAY)
    version, took, used = 0, [], []
    for i in range(2000):
        begun, before = time.perf_counter(), time.thread_time()
        version = store.commit(STREAM, version, b"entry")
        took.append(time.perf_counter() - begun)
        used.append(time.thread_time() - before)
        if i == 1000:  # all of them are too old at once
            for known in store._files.values():
                known.used -= 2 * DAY
    assert len(store._files) < 100_000
    store.close()
    assert sorted(took)[-20] < 0.02
    assert max(used) < 0.1  # whatever else the machine does


def test_a_second_server_is_refused_without_the_lock_file(in_folder, tmp_path, monkeypatch):
    """As where a cleaner deleted it, or where it is another user's and cannot be read."""
    monkeypatch.setattr(folder, "_LOCK_WAIT", 0.2)
    store = in_folder()
    (tmp_path / "store" / ".lock").unlink()
    with pytest.raises(LamettaError, match="store is locked by another process; waited 0.2 s"):
        FolderStore(tmp_path / "store")
    monkeypatch.setattr(files, "_open_lock_file", lambda _: None)
    with pytest.raises(LamettaError, match="store is locked by another process; waited 0.2 s"):
        FolderStore(tmp_path / "store")
    store.close()
    FolderStore(tmp_path / "store").close()


def test_a_folder_that_cannot_be_locked_is_refused(tmp_path, monkeypatch):
    def fail(_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(files, "_lock", fail)
    with pytest.raises(LamettaError, match="cannot be locked, so that others might write"):
        FolderStore(tmp_path / "store")


def test_versions_are_those_of_the_file(tmp_path, monkeypatch):
    """If a second server does write to the folder, neither answers from what it remembers."""
    monkeypatch.setattr(folder, "folder_lock", lambda *_: nullcontext())
    one, two = FolderStore(tmp_path), FolderStore(tmp_path)
    first = put(one, b"one")
    second = two.commit(STREAM, first, b"two")
    assert second == first + 1
    assert one.commit(STREAM, first, b"late") is None
    third = one.commit(STREAM, second, b"three", b"state")
    assert two.commit(STREAM, second, b"late", b"other") is None
    assert two.commit(STREAM, third, b"four") == third + 1
    assert one.load(STREAM) == two.load(STREAM) == StoredState(4, b"state", [b"three", b"four"])
    assert one.commit("new", 0, b"one") == 1
    assert two.commit("new", 0, b"late") is None
    one.close()
    two.close()


def test_ended_streams_leave_their_place_also_after_a_start(in_folder, tmp_path):
    store = in_folder(most=2)
    for name in "ab":
        store.commit(name, 0, b"only", end=True)
    store = in_folder(most=2)
    assert store.load("b") == StoredState(1, b"", [b"only"])
    put(store, b"one", stream="c")
    assert store.load("a") == EMPTY
    assert store.commit("b", 1, b"goes on", b"") == 2
    with pytest.raises(TooManyStreamsError):
        store.commit("d", 0, b"one")
    assert in_folder(most=2).load("b") == StoredState(2, b"", [b"goes on"])
    assert not list((tmp_path / "store").glob("*.ended"))


def test_ended_streams_are_soon_forgotten(in_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "ENDED", 0.05)
    store = in_folder()
    store.commit(STREAM, 0, b"only", end=True)
    assert store.load(STREAM).log == [b"only"]  # its answer may have been lost
    time.sleep(0.1)
    assert store.load(STREAM) == EMPTY
    assert not list((tmp_path / "store").glob("*.ended"))


def cut_power(place, synced):
    """Leave of a folder what was forced to the disk; files that were not are there, and empty."""
    for path in place.iterdir():
        if path.suffix in (".stream", ".before", ".ended"):
            path.write_bytes(synced.get(path.stat().st_ino, b""))


@pytest.fixture
def synced(monkeypatch):
    """What was forced to the disk, by the number of the file."""
    found = {}

    def sync(descriptor, real=os.fsync):
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            with open(f"/proc/self/fd/{descriptor}", "rb") as file:
                found[status.st_ino] = file.read()

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "fdatasync", sync)
    return found


def test_always_is_on_the_disk_before_the_answer(in_folder, tmp_path, synced):
    store, version = in_folder(durable="always"), 0
    assert store.blocking
    for i in range(6):
        version = store.commit(STREAM, version, b"%d" % i, b"state" if i == 3 else None)
        before = store.load(STREAM)
        cut_power(tmp_path / "store", synced)
        store = in_folder(durable="always")
        assert store.load(STREAM) == before
        assert not store.damaged


def test_interval_loses_the_last_second_at_most(in_folder, tmp_path, synced, monkeypatch, logged):
    """Also where a snapshot replaced the file, which ext4 may leave empty (noauto_da_alloc)."""
    monkeypatch.setattr(folder, "_INTERVAL", 1e6)  # when the test says so
    store = in_folder(durable="interval")
    put(store, b"one", b"two")
    store._sync()
    before = store.load(STREAM)
    put(store, b"three", snapshot=b"state")
    put(store, b"four", snapshot=b"another")
    monkeypatch.setattr(FolderStore, "_sync", lambda _: None)  # a cut, not an end
    store.close()
    cut_power(tmp_path / "store", synced)
    store = in_folder(durable="interval")
    assert store.load(STREAM) == before
    assert store.damaged == 1
    assert "lost in a power cut" in logged.getvalue()
    assert store.commit(STREAM, before.version, b"three again") == before.version + 1
    monkeypatch.undo()
    store._sync()
    assert not list((tmp_path / "store").glob("*.before"))


@pytest.mark.parametrize("durable", ["always", "interval", "never"])
def test_a_kill_loses_nothing(in_folder, tmp_path, durable, monkeypatch):
    monkeypatch.setattr(FolderStore, "_sync", lambda _: None)
    store = in_folder(durable=durable)
    put(store, b"one", b"two", snapshot=b"state")
    expected = store.load(STREAM)
    store = in_folder(durable=durable)
    assert store.load(STREAM) == expected
    assert store.damaged == 0
    assert (store.warnings() == []) == (durable != "never")


@pytest.mark.parametrize("content", [b"", b"torn"])
def test_an_empty_or_torn_file_is_logged_and_counted(in_folder, tmp_path, content, logged):
    put(in_folder(), b"one")
    in_folder().close()
    only_file(tmp_path).write_bytes(content)
    store = in_folder()
    assert store.load(STREAM) == EMPTY
    assert store.damaged == 1
    assert ("is empty" if not content else "bytes of no use") in logged.getvalue()
    put(store, b"one again")
    assert store.damaged == 1


def test_a_disk_that_cannot_be_synced_is_not_ready(in_folder, monkeypatch, logged):
    monkeypatch.setattr(folder, "_INTERVAL", 0.01)
    store = in_folder()

    def fail(_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as context:
        context.setattr(os, "fsync", fail)
        version = put(store, b"one")
        until(lambda: store._failure)
        with pytest.raises(StoreError, match="cannot be forced to the disk"):
            store.check()
    assert "cannot be synced" in logged.getvalue()
    until(lambda: not store._failure)
    store.check()
    assert store.commit(STREAM, version, b"two")
    with pytest.raises(LamettaError, match="durable must be one of 'always', .* got 'allways'"):
        open_store("here", durable="allways")


def until(holds):
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)
