"""Shards: what is taken up, when they are written, and whose files they leave alone."""

import itertools
import os
import tracemalloc

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lametta import LamettaError
from lametta.data.bank import shards as module
from lametta.data.bank.safetensors import read_layout
from lametta.data.bank.shards import Shards
from tests.data.bank.conftest import make_data, run


@pytest.fixture
def shards(tmp_path):
    shards = Shards(tmp_path / "parts", {"model": "a", "failed": []})
    shards.resume()
    return shards


def rows(*values):
    return {"x": np.array(values, np.float32).reshape(-1, 1)}


def taken_up(shards):
    again = Shards(shards.folder, shards.header)
    again.resume()
    return again


def test_shards_are_safetensors_of_rows_and_their_places(shards):
    shards.add(2, np.array([1]), rows(10))
    shards.add(4, np.array([2, 3]), rows(20, 30))
    shards.close()
    assert os.listdir(shards.folder) == ["0-4.safetensors"]
    stored = load_file(shards.folder / "0-4.safetensors")
    assert {name: x.tolist() for name, x in stored.items()} == {
        "index": [1, 2, 3],
        "x": [[10], [20], [30]],
    }
    again = taken_up(shards)
    assert (again.done, again.failed.tolist()) == (4, [0])


def test_only_what_begins_where_the_last_ends_is_taken_up(shards, tmp_path):
    for stop in range(1, 6):
        shards.add(stop, np.array([stop - 1]), rows(stop))
        shards.close()
    (shards.folder / "2-3.safetensors").unlink()
    (shards.folder / "notes-1.txt").write_text("mine")
    again = taken_up(shards)
    assert again.done == 2
    again.add(5, np.array([2, 3, 4]), rows(3, 4, 5))
    again.close()
    assert taken_up(shards).done == 5
    again.merge(tmp_path / "bank", list("abcde"), {"labels": np.arange(5)})
    assert np.asarray(read_layout(tmp_path / "bank")[0]["x"]).ravel().tolist() == [1, 2, 3, 4, 5]
    again.delete()
    assert os.listdir(shards.folder) == ["notes-1.txt"]


def test_of_two_that_begin_alike_the_longer_counts(shards):
    shards.add(2, np.array([0, 1]), rows(1, 2))
    shards.close()
    other = Shards(shards.folder, shards.header)
    other.add(10, np.arange(10), rows(*range(10)))
    other.close()
    assert sorted(os.listdir(shards.folder)) == ["0-10.safetensors", "0-2.safetensors"]
    assert taken_up(shards).done == 10


def test_rows_may_be_overwritten_by_who_gave_them(shards, tmp_path):
    x = np.ones((2, 1), np.float32)
    shards.add(2, np.arange(2), {"x": x})
    x[:] = 5
    shards.close()
    assert load_file(shards.folder / "0-2.safetensors")["x"].tolist() == [[1], [1]]


def test_nothing_is_left_of_nothing(shards):
    shards.close()
    assert not shards.folder.exists()


def test_leftovers_of_a_kill_are_deleted(shards):
    (shards.folder / ".lametta-12.tmp").write_bytes(b"half a shard")
    taken_up(shards)
    assert os.listdir(shards.folder) == []


def test_memory_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_FLUSH_BYTES", 2**20)
    monkeypatch.setattr(module, "_FLUSH_SECONDS", 1e9)
    shards, block = Shards(tmp_path / "parts", {}), np.ones((64, 1024), np.float32)
    shards.resume()
    tracemalloc.start()
    for start in range(0, 4096, 64):
        shards.add(start + 64, np.arange(start, start + 64), {"x": block})
    shards.close()
    shards.merge(tmp_path / "bank", [str(i) for i in range(4096)], {})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 10 < len(os.listdir(shards.folder)) < 20
    assert read_layout(tmp_path / "bank")[0]["x"].nbytes == 16 * 2**20
    assert peak < 4 * 2**20


@pytest.mark.parametrize(("tick", "before_the_end"), [(0.0, 0), (0.2, 1), (2.0, 10)])
def test_shards_come_by_the_clock(model, tmp_path, monkeypatch, tick, before_the_end):
    synced, now = [], itertools.count()
    monkeypatch.setattr("lametta._files.os.fsync", synced.append)
    monkeypatch.setattr(module.time, "monotonic", lambda: tick * next(now))
    run(model, make_data(), tmp_path / "bank.safetensors", batch_size=1)
    assert len(synced) == before_the_end + 2  # the last shard, and the file


# The folder beside a bank


def test_a_foreign_partial_file_is_not_touched(model, tmp_path):
    partial = tmp_path / "bank.safetensors.partial"
    partial.write_text("my notes, which are not a bank")
    with pytest.raises(LamettaError, match="bank.safetensors.partial is in the way"):
        run(model, make_data(), tmp_path / "bank.safetensors")
    assert partial.read_text() == "my notes, which are not a bank"


def test_foreign_files_in_the_folder_are_not_touched(model, tmp_path):
    note = tmp_path / "bank.safetensors.partial" / "note.txt"
    note.parent.mkdir()
    note.write_text("mine")
    for _ in range(2):
        assert len(run(model, make_data(), tmp_path / "bank.safetensors", restart=True)) == 11
    assert os.listdir(note.parent) == ["note.txt"]


def test_a_shard_that_was_cut_is_refused(model, tmp_path):
    with pytest.raises(LamettaError):
        run(model, make_data(broken=(9,)), tmp_path / "bank.safetensors")
    (shard,) = (tmp_path / "bank.safetensors.partial").iterdir()
    os.truncate(shard, shard.stat().st_size - 1)
    said = "0-8.safetensors' as a .safetensors file: by"
    with pytest.raises(LamettaError, match=said):
        run(model, make_data(), tmp_path / "bank.safetensors")


def test_shards_of_something_else_are_refused(shards, tmp_path):
    save_file({"x": np.ones((1, 1), np.float32)}, shards.folder / "0-1.safetensors")
    with pytest.raises(LamettaError, match="parts was made with model None, not 'a'; delete it"):
        taken_up(shards)
