"""Files that are whole or not there."""

import os

import pytest

from lametta import _files
from lametta._files import delete_leftovers, renamed, write_text


def test_a_file_is_there_only_when_it_is_whole(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with renamed(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert temporary.parent == tmp_path
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["a.txt"]


def write_half(path):
    with renamed(path) as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt


def test_an_error_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        write_half(tmp_path / "a.txt")
    assert os.listdir(tmp_path) == []


def test_two_at_a_time_do_not_meet(tmp_path):
    path = tmp_path / "a.txt"
    with renamed(path) as one, renamed(path) as two:
        one.write_text("one")
        two.write_text("two")
        assert one != two
    assert path.read_text() == "one"  # which ended last


def test_the_longest_name_works(tmp_path):
    write_text(tmp_path / ("a" * 255), "text")
    assert (tmp_path / ("a" * 255)).read_text() == "text"


def test_the_temporary_file_may_lie_elsewhere(tmp_path):
    (tmp_path / "parts").mkdir()
    with renamed(tmp_path / "a.txt", tmp_path / "parts") as temporary:
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
    delete_leftovers(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".bashrc", "a.tmp", "lametta-0f.tmp"]
    delete_leftovers(tmp_path / "none")
