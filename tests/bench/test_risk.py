"""Worst streams, tails, likelihood and calibration, by hand; and who looks ahead."""

import statistics

import numpy as np
import polars as pl
import pytest

from lametta.bench import figures
from lametta.bench.analysis import gains, risk
from lametta.bench.analysis.results import read_results
from lametta.bench.report import make_report
from lametta.bench.report.page import write
from lametta.bench.tables import accuracy as tables
from lametta.types import LamettaError
from tests.bench.made_up import invoke, part_of

SCENARIOS = {"photos": True, "video": False, "sorted": False}  # whether it is i.i.d.


def runs(methods=("Source", "LAME", "average"), n_seeds=12, **columns):
    """A row for each run, in which the methods differ on the same streams."""
    rng, rows = np.random.default_rng(5), []
    for scenario, iid in SCENARIOS.items():
        for seed in range(n_seeds):
            base = rng.uniform(0.4, 0.6)
            for method in methods:
                moved = 0 if method == "Source" else rng.normal(-0.01 if iid else 0.05, 0.03)
                row = {"method": method, "config": "{}", "model": "net", "scenario": scenario}
                row |= {"seed": seed, "batch_size": 64, "fingerprint": f"{scenario}/{seed}"}
                row |= {"accuracy": base + moved, "nll": 2 - base - moved, "ece": 0.1 - moved}
                rows.append(row | {"iid": iid, "causal": method != "LAME"} | columns)
    return pl.DataFrame(rows)


def by_hand(frame, method):
    """Everything that is said of a method, over plain lists."""
    rows = frame.to_dicts()
    source = {(r["scenario"], r["seed"]): r for r in rows if r["method"] == "Source"}
    own = [r for r in rows if r["method"] == method]
    tails, gains = [], {}
    for scenario in dict.fromkeys(r["scenario"] for r in own):
        accuracies = sorted(r["accuracy"] for r in own if r["scenario"] == scenario)
        tails.append(statistics.mean(accuracies[: -(-len(accuracies) // 10)]))
    for r in own:
        gains[r["scenario"], r["seed"]] = (
            r["accuracy"] - source[r["scenario"], r["seed"]]["accuracy"]
        )
    worst = min(gains, key=gains.get)
    changes = {
        f"{name}_change": statistics.mean(
            r[name] - source[r["scenario"], r["seed"]][name] for r in own
        )
        for name in ("nll", "ece")
    }
    return {
        "streams": len(own),
        "worst_gain": gains[worst],
        "worst_scenario": worst[0],
        "below": statistics.mean(gain < 0 for gain in gains.values()),
        "gain": statistics.mean(gains.values()),
        "tail_accuracy": statistics.mean(tails),
        **changes,
    }


@pytest.mark.parametrize("n_seeds", [1, 10, 12])
def test_risk_by_hand(n_seeds):
    frame = runs(n_seeds=n_seeds).sample(fraction=1, shuffle=True, seed=1)
    for row in risk(frame).iter_rows(named=True):
        expected = {"method": row["method"], **by_hand(frame, row["method"])}
        assert (
            row.pop("worst_scenario") == expected.pop("worst_scenario") or row["method"] == "Source"
        )
        assert row == pytest.approx(expected)


def test_the_tail_is_the_worst_tenth_of_a_scenario():
    """12 runs have a tail of two, and an easy scenario does not hide the tail of a hard one."""
    frame = runs().filter(method="Source")
    easy = frame["scenario"] == "photos"
    frame = frame.with_columns(accuracy=frame["accuracy"] + 0.4 * easy.cast(pl.Float64))
    tails = [np.sort(part["accuracy"])[:2].mean() for part in frame.partition_by("scenario")]
    assert risk(frame)["tail_accuracy"].item() == pytest.approx(np.mean(tails))


def test_kinds_of_streams_have_rows_of_their_own():
    frame = runs()
    table = tables.risk(frame)
    assert table.data["kind"].to_list() == ["all"] * 3 + ["i.i.d."] * 3 + ["correlated"] * 3
    for kind, part in {
        "i.i.d.": frame.filter("iid"),
        "correlated": frame.filter(~frame["iid"]),
    }.items():
        own = table.data.filter(kind=kind).drop("kind", "looks_ahead")
        assert own.equals(risk(part))
    one_kind = tables.risk(frame.filter("iid"))
    assert set(one_kind.data["kind"]) == {"all"}


def test_the_table_shows_what_was_measured():
    table = tables.risk(runs())
    assert list(table.header) == [
        *("streams", "method", "gain", "worst gain", "in", "below Source", "tail accuracy"),
        *("NLL", "ECE", "looks ahead"),
    ]
    source, lame = ([entry.text for entry in row] for row in table.rows[:2])
    assert [word for word in source if word] == ["all", "Source", source[6], "no"]
    row = table.data.row(1, named=True)
    assert lame[2] == f"{100 * row['gain']:+.1f}"
    assert lame[5] == f"{round(36 * row['below'])} of 36"
    assert lame[7] == f"{row['nll_change']:+.3f}"
    assert lame[8] == f"{100 * row['ece_change']:+.1f}"
    assert lame[9] == "yes"
    # Less is better there: the color says so.
    assert (table.rows[1][7].gain > 0) == (row["nll_change"] < 0)
    assert (table.rows[1][8].gain > 0) == (row["ece_change"] < 0)


def test_results_from_before_have_no_such_columns():
    table = tables.risk(runs().drop("causal", "nll", "ece", "iid"))
    assert list(table.header)[-1] == "tail accuracy"
    assert "NLL" not in table.footnote
    assert "looks ahead" not in tables.accuracies(runs().drop("causal")).markdown()
    mixed = pl.concat([runs().drop("causal").filter(seed=0), runs().filter(seed=1)], how="diagonal")
    assert tables.risk(mixed).rows[1][-1].text == "yes"
    with pytest.raises(LamettaError, match="one row of the source 'Source' for each stream"):
        risk(runs(methods=["LAME"]))


@pytest.mark.parametrize("make", [tables.accuracies, tables.ranking])
def test_marks_tell_those_apart_who_look_ahead(make):
    table = make(runs())
    names = {row[0].text for row in table.rows}
    assert names == {"Source", "LAME †", "average"}
    assert table.markdown().endswith("\n\n" + table.footnote)
    assert table.footnote.startswith("† looks ahead")
    assert r"LAME $\dagger$" in table.latex()
    # Where all do, or none does since batches hold one sample, there is nothing to tell apart.
    for same in (runs(methods=["Source", "LAME"]), runs(batch_size=1)):
        assert make(same).footnote.startswith("±")
        assert "†" not in make(same).markdown()
    assert {row[-1].text for row in tables.risk(runs(batch_size=1)).rows} == {"no"}


def test_ranking_has_likelihood_and_calibration_beside_accuracy():
    table = tables.ranking(runs())
    assert list(table.header)[-2:] == ["NLL (nats)", "ECE (%)"]
    for row, data in zip(table.rows, table.data.to_dicts(), strict=True):
        assert row[-2].text == f"{data['nll']:.3f}"
        assert row[-1].text == f"{100 * data['ece']:.2f}"


def test_the_figure_has_a_dot_for_each_run():
    frame = runs()
    figure = figures.spread(frame)
    drawn = figure.frame()
    assert set(drawn["panel"]) == {"i.i.d. streams", "correlated streams"}
    gained = {
        (row["method"], row["scenario"], row["seed"]): 100 * row["gain"]
        for row in gains(frame).iter_rows(named=True)
    }
    keys = drawn.select("method", "scenario", "seed").iter_rows()
    assert drawn["gain"].to_list() == pytest.approx([gained[key] for key in keys])
    assert len(drawn) == 2 * 36
    canvas = figure.plot()
    assert len({axes.get_xlim() for axes in canvas.axes}) == 1  # panels can be compared
    for axes in canvas.axes:
        low, high = axes.get_xlim()
        dots = np.concatenate([line.get_xdata() for line in axes.lines[1::2]])
        assert low < min(0, dots.min())
        assert max(0, dots.max()) < high
        assert [label.get_text() for label in axes.get_yticklabels()] == ["LAME", "average"]
    with pytest.raises(LamettaError, match="rows of a method other than 'Source', got none"):
        figures.spread(frame.filter(method="Source"))


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_the_page_says_who_looks_ahead(folder, results, tmp_path):
    cells = results.experiment.study_cells("main", results.selected)
    few = {cell.id for cell in cells if cell.scenario == "VID" and cell.seed < 2}
    small = part_of(folder, tmp_path / "part", lambda file: file.stem in few)
    plain = write(make_report(read_results(small)), tmp_path / "plain").read_text()
    assert '<section id="risk">' in plain
    assert "looks ahead" not in plain
    causal = pl.col("method") != "LAME"
    for file in (small / "cells").iterdir():
        row = pl.read_parquet(file).with_columns(causal=causal)
        file.unlink()
        row.write_parquet(file)
    text = write(make_report(read_results(small)), tmp_path / "marked").read_text()
    assert text.count("<p>looks ahead in the batch</p>") == 1
    assert "LAME †" in text
    assert (tmp_path / "marked" / "tables" / "risk.md").read_text().count("| yes |") == 1
    printed = invoke("report", small, "-o", tmp_path / "again")
    assert "† looks ahead" in printed.output


def test_the_list_of_methods_says_who_looks_ahead():
    lines = invoke("list", "methods").output.splitlines()
    (lame,) = (line for line in lines if line.startswith("lame "))
    (source,) = (line for line in lines if line.startswith("source "))
    assert "looks ahead" in lame
    assert "looks ahead" not in source
