"""What all commands print by: lines, tables and errors, whatever is in them."""

import itertools

import pytest
import typer
from rich.markup import escape
from rich.table import Column
from rich.text import Text
from typer.testing import CliRunner

from lametta import LamettaError
from lametta.cli import app
from lametta.cli._console import (
    check_device,
    print_line,
    progress_bar,
    require,
    show_table,
    user_errors,
)

ODD = "[bold]a[/] [red] :smile: 1.5"  # would be markup, an emoji and a highlighted number


def test_lines_are_printed_as_they_are(capsys):
    print_line(ODD + " word" * 40)
    assert capsys.readouterr().out == ODD + " word" * 40 + "\n"


def test_tables_show_text_as_it_is(capsys):
    show_table("name", Column("n", justify="right"), rows=[(ODD, "1"), (Text("b", "bold"), "20")])
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0].split() == ["name", "n"]
    assert lines[1] == f"{ODD}   1"
    assert lines[2].split() == ["b", "20"]
    show_table(rows=[("samples", "3")])
    assert capsys.readouterr().out.split() == ["samples", "3"]


@pytest.mark.parametrize("error", [LamettaError(ODD), OSError(ODD)])
def test_bad_input_ends_in_one_line(capsys, error):
    with pytest.raises(typer.Exit) as ended, user_errors():
        raise error
    assert ended.value.exit_code == 2
    assert capsys.readouterr().err == f"lametta: {ODD}\n"


def test_what_an_extra_brings_is_named():
    require("torch", "torch")
    with pytest.raises(LamettaError, match=r"needs absent_a, absent_b: pip install '\.\[bench\]'"):
        require("bench", "absent_a", "numpy", "absent_b")


def test_progress_without_a_terminal_is_a_line_now_and_then(capsys):
    with progress_bar() as bar:
        clock = itertools.count(bar.get_time(), 4)  # seconds, a few of them at each look
        bar.get_time = lambda: next(clock)
        task = bar.add_task(escape(ODD), total=50)
        for _ in range(50):
            bar.advance(task)
    lines = capsys.readouterr().err.splitlines()
    assert 3 <= len(lines) < 40
    assert all(line.startswith(ODD) for line in lines)
    assert lines[-1] == f"{ODD} 50/50"


def test_short_work_says_nothing_of_itself(capsys):
    with progress_bar() as bar:
        bar.advance(bar.add_task("correcting", total=1))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("device", ["foo", "cuda:99", "meta", ""])
def test_a_device_is_tried_before_the_work(device):
    check_device("cpu")
    with pytest.raises(LamettaError, match="--device must be one that works, got"):
        check_device(device)


def test_progress_goes_to_the_error_stream(capsys):
    with progress_bar(transient=False) as bar:
        task = bar.add_task("extracting", total=4)
        bar.advance(task, 4)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "extracting" in printed.err
    assert "4/4" in printed.err


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", [command.name for command in app.registered_commands])
def test_help_is_broken_where_the_terminal_ends(monkeypatch, name, width):
    """A line of a paragraph is full: the next word would not have fit."""
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", width)
    shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": str(width)}).output
    words, _, _ = shown.partition("\u256d")  # the first box
    lines = [line.strip() for line in words.splitlines()]
    for line, following in itertools.pairwise(lines[2:]):
        if line and following:
            assert len(line) + 1 + len(following.split()[0]) > width - 2, (line, following)
