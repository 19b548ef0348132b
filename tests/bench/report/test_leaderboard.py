"""``lametta compare A B ...``: results of several people in one page, and the rows to hand out."""

import contextlib
import io
import json
import os
import re
from pathlib import Path

import polars as pl
import pytest

from lametta import LamettaError
from lametta.bench.analysis.results import read_cells, read_results
from lametta.bench.experiment import load
from lametta.bench.report import handout, leaderboard
from lametta.bench.running import run
from lametta.bench.running.workspace import Workspace
from tests.bench.made_up import invoke
from tests.bench.tiny import write

METHODS = {
    "ana": {"LAME": {"kind": "lame"}, "TENT": {"kind": "tent"}},
    "ben": {"LAME": {"kind": "lame"}, "AdaBN": {"kind": "adabn"}},
    "cem": {"NEO": {"kind": "neo"}},
}


def content(name):
    return {
        "name": "digits",
        "models": {"net": {"zoo": "embedded:digits"}},
        "datasets": {"digits": {"reader": "embedded:digits_c_test", "part": [0, 6]}},
        "scenarios": {
            "mixed": {"dataset": "digits"},
            # Another stream under the same name.
            "ordered": {"dataset": "digits", "order": "by_group" if name == "cem" else "by_class"},
        },
        "methods": {"Source": {"kind": "source"}} | METHODS[name],
        "studies": {
            "main": {"models": ["net"], "scenarios": ["mixed", "ordered"], "seeds": [0, 1]}
        },
    }


@pytest.fixture(scope="session")
def people(made_once):
    """The results of three people, one of whom has another stream."""

    def make(folder):
        for name in METHODS:
            file = write(folder / f"{name}.toml", content(name))
            (folder / name).mkdir()
            assert run(Workspace(load(file), folder / name), text=file.read_text()) == []

    return made_once("people", make)


@pytest.fixture(scope="session")
def results(people):
    return {name: read_results(people / name) for name in METHODS}


@pytest.fixture(scope="session")
def board(results):
    return leaderboard.join(results)


@pytest.mark.slow
def test_entries_are_means_over_the_streams_that_are_shared(board, people):
    rows = {(row["by"], row["method"]): row for row in board.entries.iter_rows(named=True)}
    assert set(rows) == {(name, m) for name in METHODS for m in ("Source", *METHODS[name])}
    for (name, method), row in rows.items():
        cells = read_cells(people / name)
        cells = cells.filter(pl.col("scenario") == "mixed") if name == "cem" else cells
        own = cells.filter(method=method)
        source = cells.filter(method="Source").select("scenario", "seed", source="accuracy")
        gain = own.join(source, on=["scenario", "seed"]).select(
            pl.col("accuracy") - pl.col("source")
        )
        assert row["accuracy"] == pytest.approx(own["accuracy"].mean())
        assert row["gain"] == pytest.approx(gain["accuracy"].mean())
        assert row["worst_gain"] == pytest.approx(gain["accuracy"].min())
        tail = own.group_by("scenario").agg(pl.col("accuracy").min())  # of two runs the worst one
        assert row["tail_accuracy"] == pytest.approx(tail["accuracy"].mean())
        assert row["missing"] == (2 if name == "cem" else 0)
    families = {method: row["family"] for (_, method), row in rows.items()}
    assert families["TENT"] == "gradients"
    assert families["AdaBN"] == "statistics"
    assert {families[x] for x in ("Source", "LAME", "NEO")} == {"outputs"}
    passes = {method: leaderboard.passes_text(row) for (_, method), row in rows.items()}
    assert (passes["LAME"], passes["AdaBN"], passes["TENT"]) == ("1 + 0", "2 + 0", "2 + 1")
    complete = board.entries.filter(pl.col("missing") == 0)
    assert board.entries["by"].to_list()[-2:] == ["cem", "cem"]
    assert complete["accuracy"].to_list() == sorted(complete["accuracy"], reverse=True)


@pytest.mark.slow
def test_what_is_left_out_and_why(board, results, people, tmp_path):
    left = board.left_out
    assert set(left["why"]) == {"another stream"}
    assert set(left["by"]) == {"cem"}
    assert sorted(left.select("method", "seed").rows()) == [
        *(("NEO", 0), ("NEO", 1), ("Source", 0), ("Source", 1))
    ]
    # The first of two is right where they disagree: nobody else says so.
    two = leaderboard.join({name: results[name] for name in ("cem", "ana")})
    assert set(two.left_out["by"]) == {"ana"}

    def damaged(name, **columns):
        for file in (people / "ben").rglob("*"):
            target = tmp_path / name / file.relative_to(people / "ben")
            if file.is_dir() or file.name.startswith("."):
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            if file.suffix == ".parquet" and columns:
                pl.read_parquet(file).with_columns(**columns).write_parquet(target)
            else:
                os.link(file, target)
        return tmp_path / name

    others = damaged("others", accuracy=pl.col("accuracy") - 0.01)
    found = leaderboard.join({"ana": results["ana"], "others": read_results(others)})
    assert set(found.left_out["why"]) == {"another accuracy of the source"}
    near = damaged("near", accuracy=pl.col("accuracy") - 0.004)
    found = leaderboard.join({"ana": results["ana"], "near": read_results(near)})
    assert found.left_out.is_empty()
    tuned = damaged("tuned")
    card = json.loads((tuned / "card.json").read_text())
    card["models"]["net"]["weights_sha256"] = "0" * 64
    (tuned / "card.json").unlink()
    (tuned / "card.json").write_text(json.dumps(card))
    found = leaderboard.join({"ana": results["ana"], "tuned": read_results(tuned)})
    assert set(found.left_out["why"]) == {"other weights"}
    assert set(found.left_out["by"]) == {"tuned"}


@pytest.fixture(scope="session")
def written(people, made_once):
    def make(folder):
        done = invoke("compare", *(people / name for name in METHODS), "-o", folder)
        assert done.exit_code == 1, done.output  # some cells are left out
        assert "left out: NEO by cem on net, ordered, seed 0, batches of 64: another" in (
            re.sub(r"\s+", " ", done.output)
        )

    return made_once("board", make)


@pytest.mark.slow
def test_the_command(people, written, tmp_path, monkeypatch):
    names = {file.name for file in written.iterdir()}
    assert names == {"leaderboard.html", "leaderboard.md", "leaderboard.csv", "README.md",
                     "results.parquet"}  # fmt: skip
    monkeypatch.chdir(tmp_path)
    two = [people / name for name in ("ana", "ben")]
    assert invoke("compare", *two).exit_code == 0  # cell by cell, as ever
    assert not Path("leaderboard").exists()
    assert invoke("compare", *two, "-o", "page").exit_code == 0
    assert Path("page/leaderboard.html").exists()
    assert invoke("compare", *(people / name for name in METHODS)).exit_code == 1
    assert Path("leaderboard/leaderboard.html").exists()
    for arguments, message in (
        ([people / "ana"], "must be two folders at least, got 1"),
        ([*two, people / "ana"], "must be different folders, got one twice"),
        ([*two, tmp_path / "none"], "not a folder"),
    ):
        done = invoke("compare", *arguments)
        assert done.exit_code == 2
        assert message in re.sub(r"\s+", " ", done.output)


def test_folders_of_one_name_are_told_apart(tmp_path):
    from lametta.cli.report import _named

    folders = [tmp_path / "a" / "run", tmp_path / "b" / "run"]
    assert list(_named(folders)) == ["a/run", "b/run"]
    assert list(_named([tmp_path / "a", tmp_path / "b"])) == ["a", "b"]


@pytest.mark.slow
def test_the_page_in_a_browser(written, browser):
    from tests.serve.chromium import chromium

    page = (written / "leaderboard.html").resolve().as_uri()
    text = "[...document.querySelector('.sortable').tBodies[0].rows]"
    with chromium(browser) as tab:
        tab.go(page)
        tab.wait("document.documentElement.dataset.ready")

        def column(at):
            return tab.evaluate(f"{text}.filter(r => !r.hidden).map(r => r.cells[{at}].innerText)")

        def press(at):
            tab.evaluate(f"document.querySelectorAll('.sortable th button')[{at}].click()")

        # By accuracy it was already; by tail it is now. What misses streams comes last.
        for at in (4, 6):
            press(at)
            shown = [float(x) for x in column(at)[:-2]]
            assert shown == sorted(shown, reverse=at == 6)
            assert column(1)[-2:] == ["cem", "cem"]
        press(7)
        assert [x[0] for x in column(7)[:-2]] == ["1", "1", "1", "1", "2", "2"]
        press(8)  # a scenario, which all have: here they are compared
        shown = [float(x) for x in column(8)]
        assert shown == sorted(shown, reverse=True)
        tab.evaluate("document.querySelector('.filters input').click()")
        assert sorted(x.strip() for x in column(0)) == ["AdaBN", "TENT"]
        tab.click("tr:not([hidden]) .cell")
        tab.wait("document.querySelector('dialog[open]')")
        card = tab.evaluate("document.querySelector('dialog[open]').innerText")
        for part in ("seed", "network net", "SHA-256", "reset: never", "tuned on"):
            assert part in card
        for width in (1280, 360):
            tab.resize(width)
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert tab.problems == []
        assert all(url.startswith("file:") for url in tab.urls)


@pytest.mark.slow
def test_the_ten_lines_read_the_rows(written, board, monkeypatch):
    card = (written / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    assert len([line for line in code.splitlines() if line]) == 10
    monkeypatch.chdir(written)
    names = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(code, names)
    table = {(row["by"], row["method"]): row for row in names["table"].iter_rows(named=True)}
    for row in board.entries.filter(pl.col("by") != "cem").iter_rows(named=True):
        assert table[row["by"], row["method"]]["gain"] == pytest.approx(row["gain"])


@pytest.mark.slow
def test_rows_have_all_that_is_known(people, written, results):
    rows = pl.read_parquet(written / "results.parquet")
    for name, one in results.items():
        ours, stored = rows.filter(by=name), read_cells(people / name)
        assert ours.sort("id").select(stored.columns).equals(stored.sort("id"))
        card = json.loads((people / name / "card.json").read_text())
        assert set(ours["weights_sha256"]) == {card["models"]["net"]["weights_sha256"]}
        assert set(ours["data_fingerprint"]) == {card["datasets"]["digits"]["fingerprint"]}
        assert set(ours["lametta"]) == {one.environment["lametta"]}
    assert rows["study"].all()
    assert rows["bank_sha256"].n_unique() == 1  # the same network on the same data
    assert rows["bank_sha256"].null_count() == 0
    readme = (written / "README.md").read_text()
    assert f"{len(rows):,} cells" in readme
    for column in rows.columns:
        assert f"| {column} |" in readme


@pytest.mark.slow
def test_rows_of_a_run_whose_bank_is_gone(folder):
    """Made-up results have neither a bank nor a card."""
    one = read_results(folder)
    rows = handout.handout({"us": one})
    assert rows["bank_sha256"].null_count() == rows["weights_sha256"].null_count() == len(rows)
    studied = {x for study in one.studies.values() for x in study.rows["id"]}
    assert set(rows.filter("study")["id"]) == studied
    found = leaderboard.join({"us": one})
    assert set(found.runs["id"]) == studied


def test_nothing_to_join():
    with pytest.raises(LamettaError, match="results must be at least one"):
        leaderboard.join({})
