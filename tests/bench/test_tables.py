"""Tables: their numbers by hand, and their text in every format."""

import base64
import csv
import html
import io
import re
import statistics

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lametta.bench.analysis.results import read_results
from lametta.bench.report import make_report
from lametta.bench.report.page import write
from lametta.bench.tables import Entry, Table, as_table
from lametta.bench.tables import accuracy as tables
from lametta.bench.tables.cost import costs, traits
from tests.bench.made_up import SIX, TEST, mean_of_means, part_of

RADAR = ["RN-18", "RN-50", "RN-101", "EN-B4", "ViT-B"]


def test_results_agree_with_means_by_hand(main):
    table = tables.accuracies(main)
    assert list(table.header) == ["method", *TEST, "mean"]
    assert [row[0].text for row in table.rows] == SIX
    rows = main.to_dicts()
    for entries in table.rows:
        own = [row for row in rows if row["method"] == entries[0].text]
        for scenario, entry in zip(TEST, entries[1:], strict=False):
            here = [row for row in own if row["scenario"] == scenario]
            mean = 100 * statistics.mean(row["accuracy"] for row in here)
            assert entry.text.startswith(f"{mean:.1f} ± ")
        assert entries[-1].text.startswith(f"{100 * mean_of_means(own, 'accuracy'):.1f} ± ")


def test_intervals_are_those_of_student(main):
    here = main.filter(scenario="VID", method="LAME")["accuracy"].to_numpy()
    low, high = stats.t.interval(0.95, len(here) - 1, here.mean(), stats.sem(here))
    row = tables.accuracies(main).data.filter(scenario="VID", method="LAME")
    assert row["accuracy_ci"].item() == pytest.approx((high - low) / 2)


def test_gains_color_all_but_the_source_and_the_best_is_bold(main):
    table = tables.accuracies(main)
    for j in range(1, len(table.header)):
        column = [row[j] for row in table.rows]
        assert column[0].gain is None
        assert all(entry.gain is not None for entry in column[1:])
        best = max(float(entry.text.split()[0]) for entry in column)
        assert {float(entry.text.split()[0]) for entry in column if entry.best} == {best}


def test_models_have_rows_or_columns(results):
    rows = results.studies["architectures"].rows
    by_row = tables.accuracies(rows)
    assert list(by_row.header[:2]) == ["model", "method"]
    assert len(by_row.rows) == 5 * len(SIX)
    by_column = tables.accuracies(rows, columns="model")
    assert list(by_column.header) == ["method", *RADAR, "mean"]
    means = by_row.data.filter(scenario="mean", model="ViT-B", method="LAME")["accuracy"]
    same = by_column.data.filter(model="ViT-B", method="LAME")["accuracy"]
    assert means.item() == pytest.approx(same.item())
    overall = by_column.data.filter(model="mean", method="LAME")["accuracy"].item()
    each = [by_column.data.filter(model=name, method="LAME")["accuracy"].item() for name in RADAR]
    assert overall == pytest.approx(statistics.mean(each))


def test_ranking_has_the_best_first_and_the_worst_of_each(main):
    table = tables.ranking(main)
    accuracies = [float(row[1].text.split()[0]) for row in table.rows]
    assert accuracies == sorted(accuracies, reverse=True)
    source = {
        (row["scenario"], row["seed"]): row["accuracy"]
        for row in main.filter(method="Source").iter_rows(named=True)
    }
    for method, *_, low, where, above in table.data.select(
        "method", "worst_gain", "worst_scenario", "scenarios_above"
    ).iter_rows():
        gains = {}
        for row in main.filter(method=method).iter_rows(named=True):
            gain = row["accuracy"] - source[row["scenario"], row["seed"]]
            gains.setdefault(row["scenario"], []).append(gain)
        means = {scenario: statistics.mean(values) for scenario, values in gains.items()}
        assert low == pytest.approx(min(means.values()))
        assert means[where] == pytest.approx(low)
        assert above == sum(mean > 1e-12 for mean in means.values())


def test_ranking_tells_how_far_others_are_behind_the_first(main):
    data = tables.ranking(main).data
    first = data["method"][0]
    assert data["behind"][0] == 0
    other = data["method"][1]
    per_seed = [
        main.filter(method=first, seed=seed)["accuracy"].mean()
        - main.filter(method=other, seed=seed)["accuracy"].mean()
        for seed in range(5)
    ]
    low, high = stats.t.interval(0.95, 4, statistics.mean(per_seed), stats.sem(per_seed))
    assert data["behind"][1] == pytest.approx((low + high) / 2)
    assert data["behind_ci"][1] == pytest.approx((high - low) / 2)


def test_one_seed_does_not_tell_how_sure_that_is(main):
    data = tables.ranking(main.filter(seed=0)).data
    assert data["behind_ci"].null_count() == len(data)
    assert data["behind"].null_count() == 0


@pytest.mark.parametrize("make", [tables.accuracies, tables.ranking])
def test_tables_say_what_their_intervals_cover(main, make):
    covered = "±: 95 % interval over seeds: over orders and priors, not over other images."
    assert make(main).markdown().endswith(covered)
    assert "interval" not in make(main.filter(seed=0)).markdown()


def test_the_csv_holds_the_numbers(main):
    table = tables.accuracies(main)
    frame = pl.read_csv(io.StringIO(table.csv()))
    assert frame["accuracy"].to_list() == pytest.approx(table.data["accuracy"].to_list())
    assert len(frame) == len(SIX) * (len(TEST) + 1)


def test_costs_have_passes_where_they_were_counted():
    """Results from before passes were counted have no such columns."""
    cell = {"model": "net", "forward_time": 0.002, "step_time": 0.005}
    old = pl.DataFrame([cell | {"method": "TENT"}, cell | {"method": "LAME", "forward_time": None}])
    assert costs(old).header == ["method", "forward (ms)", "batch (ms)"]
    assert [[entry.text for entry in row] for row in costs(old).rows] == [
        ["TENT", "2.000", "5.000"]  # the other replayed stored outputs
    ]
    new = costs(old.with_columns(forwards=2.0, backwards=0.5))
    assert new.header[1:3] == ["forward passes (a batch)", "backward passes (a batch)"]
    assert [entry.text for entry in new.rows[0][1:3]] == ["2.0", "0.5"]
    said = costs(old.with_columns(needs=pl.lit("gradients"), answers=pl.lit("after")))
    assert said.header[:3] == ["method", "needs", "answers"]
    assert [entry.text for entry in said.rows[0][1:3]] == ["gradients", "after"]


def test_passes_are_means_over_samples_whatever_the_batches():
    cell = {"method": "ROID", "needs": "gradients, batch", "answers": "before", "causal": False}
    cells = [
        cell | {"n": 10, "step_n": [8, 2], "forward_samples": 7.5, "backward_samples": 5.0},
        cell | {"n": 8, "step_n": [8], "forward_samples": 12.0, "backward_samples": 8.0},
        cell
        | {"method": "LAME", "needs": "batch", "answers": "", "n": 8, "step_n": [8]}
        | {"forward_samples": None, "backward_samples": None},
    ]
    shown = [[entry.text for entry in row] for row in traits(pl.DataFrame(cells)).rows]
    assert shown == [
        ["ROID", "gradients, batch", "1.5 + 1", "before its update", "yes"],
        ["LAME", "batch", "0 + 0", "", "yes"],
    ]


@given(st.lists(st.text(alphabet="a|\\&%$#_{}~^±·…- 1", max_size=9), min_size=2, max_size=5))
def test_any_text_is_escaped(words):
    table = Table("t", "T", words, [[Entry(word, best=True) for word in words]])
    lines = table.markdown().splitlines()
    assert len(lines) == 3
    for line in lines:
        assert len(re.findall(r"(?<!\\)\|", line)) == len(words) + 1
    body = [line.removesuffix(r" \\") for line in table.latex().splitlines()[2:5:2]]
    for line in body:
        bare = re.sub(r"\\(textbackslash|textasciitilde|textasciicircum|dots)\{\}", "", line)
        bare = re.sub(r"\\textbf\{|\\[&%$#_{}]|\$\\(pm|cdot)\$|\$-\$", "", bare)
        assert not re.search(r"[\\%$#_{~^±·…]", bare)
        assert bare.count("&") == len(words) - 1


ATTACKS = ["=1+1", "+cmd", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "<script>x</script>", "a&lt;b"]


def test_names_do_nothing_in_a_spreadsheet_or_a_viewer():
    data = pl.DataFrame({"method": ATTACKS, "=gain": [-1.5] * len(ATTACKS)})
    table = as_table("t", "T", data.with_columns(number=pl.lit("-1.5e3")))
    head, *lines = csv.reader(io.StringIO(table.csv(), newline=""))
    assert head == ["method", "'=gain", "number"]
    for attack, (text, gain, number) in zip(ATTACKS, lines, strict=True):
        assert text == (attack if attack[0] in "<a" else f"'{attack}")
        assert (gain, number) == ("-1.5", "-1.5e3")
    shown = table.markdown()
    assert not re.search("[<>]", shown)
    assert html.unescape(shown).count("<script>") == 1
    assert "a&amp;lt;b" in shown


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_every_csv_of_a_report_is_defused(folder, results, tmp_path):
    few = {cell.id for cell in results.experiment.study_cells("rates", results.selected)}
    small = part_of(folder, tmp_path / "part", lambda file: file.stem in few)
    text = (small / "experiment.toml").read_text()
    text = text.replace('[scenarios."VID"]', '[scenarios."VID"]\nlabel = "=VID"')
    (small / "experiment.toml").write_text(text.replace('label = "RN-50"', 'label = "@RN"'))
    page = write(make_report(read_results(small)), tmp_path / "report")
    texts = [file.read_text(encoding="utf-8") for file in page.parent.glob("*/*.csv")]
    links = re.findall(r"base64,([\w+/=]+)", page.read_text(encoding="utf-8"))
    texts += [base64.b64decode(link).decode() for link in links]
    assert sum("'=VID" in text for text in texts) >= 4
    for text in texts:
        assert not re.search(r'(^|[,\n])"?[=@]', text)


def test_numbers_stand_right_and_words_left(main):
    assert tables.ranking(main).numeric == (*(False, True, True, True, False), *(True, True, True))
    assert Table("t", "T", ["a"], []).numeric == (True,)


def test_notebooks_show_a_table():
    table = Table("t", "A & B", ["method"], [[Entry("LAME")]])
    assert table._repr_markdown_() == "**A &amp; B**\n\n| method |\n|---|\n| LAME |"
    assert table._repr_latex_() == table.latex()
