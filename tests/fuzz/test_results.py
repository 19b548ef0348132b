"""Folders of results with damaged files: a line that says what is wrong, or a report."""

import io
import json
import shutil
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lametta.bench.analysis.results import read_results
from lametta.bench.columns import SCHEMA
from lametta.bench.experiment import load
from lametta.bench.figures.style import RC
from tests.bench.tiny import tiny, write
from tests.fuzz.hostile import damaged, one_of
from tests.fuzz.outcomes import attempt, command

PLACE = Path()  # of this process, by the fixture
FAILURE = {"method": "LAME", "scenario": "iid", "seed": 0, "traceback": "Traceback:\n  no"}
TEXTS = [
    "[]",
    "{}",
    "null",
    "3",
    '{"packages": 3}',
    '{"packages": {"a": [1]}}',
    "[" * 10**5,
    "a = 1",
    "\x00",
    '[LAME]\nk = "a"',
    '{"traceback": 5}',
]


@pytest.fixture(autouse=True, scope="session")
def place(tmp_path_factory):
    global PLACE
    PLACE = tmp_path_factory.mktemp("results")
    make_results(PLACE / "whole")
    return PLACE


def make_results(folder):
    """A folder of results of a small experiment, with made-up numbers."""
    (folder / "cells").mkdir(parents=True)
    content = tiny(methods={"Source": {"kind": "source"}, "LAME": {"kind": "lame"}})
    content |= {"studies": {"main": content["studies"]["main"]}}
    del content["validation"]
    experiment = load(write(folder / "experiment.toml", content))
    for cell in experiment.test_cells({})[:6]:
        frame(cell).write_parquet(folder / "cells" / f"{cell.id}.parquet")
    (folder / "run.json").write_text(json.dumps({"lametta": "0.1.0", "packages": {"torch": "2"}}))
    (folder / "failed").mkdir()
    (folder / "failed" / "a.json").write_text(json.dumps(FAILURE))


def frame(cell):
    """The row that a cell might have."""
    values = {"String": "a", "Int64": 3, "Float64": 0.5, "Boolean": True}
    made_up = {name: values.get(str(kind), [1, 2]) for name, kind in SCHEMA.items()}
    names = ("method", "config", "model", "scenario", "seed", "batch_size")
    return pl.DataFrame([made_up | {name: getattr(cell, name) for name in names}], schema=SCHEMA)


@st.composite
def rows(draw, path):
    """The file of a cell whose row is not what it should be."""
    row, column = pl.read_parquet(path), pl.col(one_of(draw, [*SCHEMA]))
    others = [None, "x", 10**6, -1, float("nan"), float("inf"), [], ["x"], [None], b"x", {"a": 1}]
    how = one_of(draw, ["drop", "double", "none", "other", "other", "other"])
    if how == "drop":
        row = row.drop(column.meta.output_name())
    elif how == "double":
        row = pl.concat([row, row])
    elif how == "none":
        row = row.clear()
    else:
        value = one_of(draw, others)
        row = row.drop(name := column.meta.output_name()).with_columns(pl.Series(name, [value]))
    buffer = io.BytesIO()
    row.write_parquet(buffer)
    return buffer.getvalue()


@st.composite
def results(draw):
    """A copy of the results, of which one file or two are damaged."""
    folder = PLACE / "bad"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(PLACE / "whole", folder)
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    cells = [path for path in files if path.suffix == ".parquet"]
    for path in draw(
        st.lists(
            st.sampled_from(files) | st.sampled_from(cells), min_size=1, max_size=2, unique=True
        )
    ):
        how = one_of(draw, ["bytes", "empty", "gone", "folder", "loop", "text", "rows", "rows"])
        content = path.read_bytes()
        path.unlink()
        if how == "bytes":
            path.write_bytes(draw(damaged(content)))
        elif how in ("empty", "text"):
            path.write_text(one_of(draw, TEXTS) if how == "text" else "")
        elif how == "folder":
            path.mkdir()
        elif how == "loop":
            path.symlink_to(path)
        elif how == "rows" and path in cells:
            path.write_bytes(draw(rows(PLACE / "whole" / "cells" / path.name)))
    return folder


@pytest.mark.slow
@settings(max_examples=25)
@given(results())
def test_compare(folder):
    for pair in ((folder, PLACE / "whole"), (PLACE / "whole", folder)):
        command("compare", *pair, codes=(0, 1, 2), memory=None)
    attempt(read_results, folder)
    board = PLACE / "board"
    command("compare", PLACE / "whole", folder, "-o", board, codes=(0, 1, 2), memory=None)


@pytest.mark.slow
@settings(max_examples=10)
@given(results())
def test_report(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RC, "pdf.fonttype", 3)  # in which a font is quickly embedded
        command("report", folder, codes=(0, 1, 2), memory=None)
