"""A folder of streams survives kills at any byte, damage and full disks."""

import os
import resource
import time
from contextlib import contextmanager

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lametta import LamettaError
from lametta.serve.protocol import StoreError
from lametta.serve.stores import EMPTY, StoredState, folder
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
