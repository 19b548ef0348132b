"""The first line of every module says what it is, and a script prints them all."""

from pathlib import Path

import pytest

from scripts import rooms

MODULES = sorted(path.relative_to(rooms.PACKAGE) for path in rooms.PACKAGE.rglob("*.py"))


@pytest.fixture(scope="module")
def first_lines():
    return {path.relative_to(rooms.PACKAGE): line for path, line in rooms.rooms()}


@pytest.mark.parametrize("path", MODULES, ids=Path.as_posix)
def test_every_module_has_a_first_line(path, first_lines):
    line = first_lines[path]
    assert line, f"{path} needs a docstring"
    assert line.endswith(".")  # all of it in one line


def test_the_modules_are_printed_folder_by_folder(capsys):
    rooms.main()
    printed = capsys.readouterr().out
    modules = sorted(path.name for path in rooms.PACKAGE.rglob("*.py"))
    assert sorted(line.split()[0] for line in printed.splitlines() if line[:2] == "  ") == modules
    folders = [line for line in printed.splitlines() if line.endswith("/")]
    assert folders[0] == "lametta/"
    assert len(folders) == len(set(folders))
    rooms.main("data/bank")
    said = capsys.readouterr().out
    assert said.split()[0] == "lametta/data/bank/"
    assert said in printed
