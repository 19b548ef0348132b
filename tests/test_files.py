"""Files that are whole or not there."""

import os
import subprocess
import sys
import threading
import time

import pytest

from lametta import LamettaError, _files
from lametta._files import atomic_write, file_lock, remove_temporary_files, write_text


def test_a_file_is_there_only_when_it_is_whole(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with atomic_write(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert temporary.parent == tmp_path
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["a.txt"]


def write_half(path):
    with atomic_write(path) as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt


def test_an_error_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        write_half(tmp_path / "a.txt")
    assert os.listdir(tmp_path) == []


def test_two_at_a_time_do_not_meet(tmp_path):
    path = tmp_path / "a.txt"
    with atomic_write(path) as one, atomic_write(path) as two:
        one.write_text("one")
        two.write_text("two")
        assert one != two
    assert path.read_text() == "one"  # which ended last


def test_the_longest_name_works(tmp_path):
    write_text(tmp_path / ("a" * 255), "text")
    assert (tmp_path / ("a" * 255)).read_text() == "text"


def test_the_temporary_file_may_lie_elsewhere(tmp_path):
    (tmp_path / "parts").mkdir()
    with atomic_write(tmp_path / "a.txt", tmp_path / "parts") as temporary:
        temporary.write_text("text")
        assert temporary.parent == tmp_path / "parts"
    assert (tmp_path / "a.txt").read_text() == "text"


def test_content_is_on_disk_before_the_name(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        _files.os, "fsync", lambda number: seen.append((os.fstat(number).st_size, path.exists()))
    )
    path = tmp_path / "a.txt"
    write_text(path, "12345")
    assert seen == [(5, False)]


def test_leftovers_are_told_from_other_files(tmp_path):
    for name in (".lametta-0f.tmp", ".bashrc", "lametta-0f.tmp", "a.tmp"):
        (tmp_path / name).touch()
    remove_temporary_files(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".bashrc", "a.tmp", "lametta-0f.tmp"]
    remove_temporary_files(tmp_path / "none")


@pytest.mark.slow
def test_a_full_disk_is_named_and_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    code = (
        "import resource, pathlib\n"
        "from lametta import LamettaError\n"
        "from lametta._files import write_text\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n"
        f"    write_text(pathlib.Path({str(path)!r}), 'x' * 5000)\n"
        "except LamettaError as error:\n"
        "    print(error)\n"
    )
    pytest.importorskip("resource")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == f"could not write {path}: File too large"
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


# Locks


def test_a_lock_is_held_by_one(tmp_path, logged):
    held, order = threading.Event(), []

    def hold():
        with file_lock(tmp_path / "lock"):
            held.set()
            time.sleep(0.2)
            order.append("first")

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    with file_lock(tmp_path / "lock"):
        order.append("second")
    thread.join()
    assert order == ["first", "second"]
    assert f"waiting for process {os.getpid()} on " in logged.getvalue()
    assert os.listdir(tmp_path) == []


def test_who_holds_a_lock_for_too_long_is_named(tmp_path):
    message = f"lock is locked by process {os.getpid()} on .*; waited 0.1 s"
    held, late = (file_lock(tmp_path / "lock", wait=wait) for wait in (0, 0.1))
    with held, pytest.raises(LamettaError, match=message), late:
        pass
    with file_lock(tmp_path / "lock", wait=0):
        pass


def test_a_killed_holder_blocks_no_one(tmp_path):
    code = (
        "import os, pathlib, signal\n"
        "from lametta._files import file_lock\n"
        f"with file_lock(pathlib.Path({str(tmp_path / 'lock')!r})):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    if sys.platform == "win32":
        pytest.skip("no SIGKILL")
    subprocess.run([sys.executable, "-c", code], timeout=60, check=False)
    assert os.listdir(tmp_path) == ["lock"]
    with file_lock(tmp_path / "lock", wait=0):
        pass
    assert os.listdir(tmp_path) == []


def test_many_take_turns(tmp_path, monkeypatch):
    monkeypatch.setattr(_files, "_POLL", 0.0005)
    inside, most = [], []

    def turn():
        for _ in range(30):
            with file_lock(tmp_path / "lock"):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=turn) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 120
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere"
)
def test_nothing_is_locked_where_nothing_can_be_written(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with file_lock(tmp_path / "lock"):
            assert os.listdir(tmp_path) == []
    finally:
        tmp_path.chmod(0o700)
