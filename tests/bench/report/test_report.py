"""What a report shows of results that are not complete, and what it says."""

import json
import re

import polars as pl
import pytest

from lametta.bench.analysis.results import read_results
from lametta.bench.report import headline, make_report, sections
from lametta.bench.report.page import write
from lametta.bench.tables.accuracy import ranking
from tests.bench.made_up import experiment_file, invoke, part_of
from tests.bench.report.test_page import Page


@pytest.mark.parametrize(
    ("gain", "half_width", "expected"),
    [
        (0.04, 0.01, "LAME is best: right in 50.0 % on average over 7 scenarios, +4.0 ± 1.0 "),
        (0.004, 0.01, "+0.4 ± 1.0 points over Source, which may be chance."),
        (-0.02, None, "No method is better than Source on average over 7 scenarios; closest is "),
        (0.04, None, "+4.0 points over Source, from runs that are not complete."),
    ],
)
def test_the_headline_is_true(gain, half_width, expected):
    ranking = ranking_of(("LAME", gain, half_width, 0.0), ("Source", 0.0, None, None))
    assert expected in headline(ranking, "Source")
    assert headline(ranking.filter(method="Source"), "Source") == "Only Source was run."


def ranking_of(*rows, runs=5):
    """Methods with their gains, how sure these are, and how sure their distance to the first is."""
    first = rows[0][1]
    return pl.DataFrame(
        [
            (name, 0.5 - first + gain, gain, ci, first - gain, sure, 7, runs)
            for name, gain, ci, sure in rows
        ],
        schema={"method": str, "accuracy": float, "gain": float, "gain_ci": float}
        | {"behind": float, "behind_ci": float, "scenarios": int, "runs": int},
        orient="row",
    )


@pytest.mark.parametrize(
    ("sure", "expected"),
    [
        (0.02, "LAME and AdaBN lead: LAME is right in 50.0 % on average over 7 scenarios, +4.0 ± "),
        (0.02, "; the difference between them is not significant."),
        (0.005, "LAME is best: right in 50.0 % on average over 7 scenarios, +4.0 ± 1.0 points "),
    ],
)
def test_the_headline_claims_no_lead_that_is_noise(sure, expected):
    best = ("LAME", 0.04, 0.01, 0.0)
    ranking = ranking_of(best, ("AdaBN", 0.03, 0.01, sure), ("Source", 0.0, None, sure))
    assert expected in headline(ranking, "Source")
    three = ranking_of(best, ("AdaBN", 0.03, 0.01, 1.0), ("TENT", 0.02, 0.01, 1.0))
    assert "LAME, AdaBN and TENT lead: LAME" in headline(three, "Source")
    assert "; the differences are not significant." in headline(three, "Source")


def test_nobody_leads_who_may_be_no_better_than_the_source():
    """As in the demo, where AdaBN's wide interval holds both the best and the source."""
    best, adabn = ("LAME", 0.022, 0.008, 0.0), ("AdaBN", 0.003, 0.026, 0.03)
    below = ("TENT", -0.002, 0.03, 0.04), ("PseudoLabel", 0.0, 0.03, 0.04)
    said = headline(ranking_of(best, adabn, ("Source", 0.0, None, 0.01), *below), "Source")
    assert said == (
        "LAME gains most: right in 50.0 % on average over 7 scenarios, +2.2 ± 0.8 points over "
        "Source; AdaBN may gain as much, or nothing."
    )
    assert headline(ranking_of(best, *below), "Source").startswith("LAME is best: ")
    both = ranking_of(best, ("SHOT-IM", 0.02, 0.01, 0.03), adabn)
    assert "LAME and SHOT-IM lead: LAME is right" in headline(both, "Source")


@pytest.mark.parametrize(("runs", "few"), [(1, "one run, which tells nothing"), (2, "two runs")])
def test_few_seeds_make_no_noise(runs, few):
    best = ("Prudent", 0.138, None if runs == 1 else 0.2, None)
    rows = ranking_of(best, ("LAME", 0.056, None, 0.5), ("TENT", -0.04, None, 0.9), runs=runs)
    said = headline(rows, "Source")
    assert said.startswith("Prudent is best: right in 50.0 % ")
    assert f"+13.8 points over Source, from {few}" in said
    assert "lead" not in said


def test_one_seed_in_two_scenarios_has_no_leaders():
    """In scenarios that differ, three methods once led together, one of them below the source."""
    accuracies = {
        "Source": (0.7, 0.748),
        "Prudent": (0.74, 0.984),
        "LAME": (0.66, 0.9),
        "TENT": (0.66, 0.708),
    }
    cell = {"config": "{}", "model": "net", "seed": 0, "batch_size": 64, "fingerprint": "5f1c"}
    rows = [
        cell | {"method": method, "scenario": scenario, "accuracy": accuracy}
        for method, pair in accuracies.items()
        for scenario, accuracy in zip(("shuffled", "sorted"), pair, strict=True)
    ]
    said = headline(ranking(pl.DataFrame(rows), "Source").data, "Source")
    assert said == (
        "Prudent is best: right in 86.2 % on average over 2 scenarios, +13.8 points over Source, "
        "from one run, which tells nothing of chance."
    )


@pytest.mark.slow
def test_what_was_not_run_is_said(folder, results, tmp_path):
    tao = set(results.frame.filter(scenario="TAO", method="LAME")["id"])
    no_source = set(results.frame.filter(scenario="V2", method="Source")["id"])
    timed = set(results.frame.filter(scenario="timed")["id"])
    left = part_of(folder, tmp_path / "part", lambda file: file.stem not in tao | no_source | timed)
    partial = read_results(left)
    shown = {section.name: section for section in sections(partial)}
    assert shown["main"].notes == (
        "10 of 210 cells were not run; 25 more are left out, since their stream has no source",
    )
    assert "V2" not in partial.studies["main"].rows["scenario"]
    assert {figure.name for figure in shown["main"].figures} == {"main", "main_curves"}
    assert shown["cost"].notes == ("9 of 9 cells were not run",)
    assert shown["cost"].figures == shown["cost"].tables == ()
    assert shown["validation"].notes == ()


@pytest.mark.slow
def test_a_validation_with_holes_draws_no_matrix(folder, results, tmp_path):
    one = results.frame.filter(scenario="Val-A", method="TENT")["id"][0]
    partial = read_results(part_of(folder, tmp_path / "part", lambda file: file.stem != one))
    section = next(part for part in sections(partial) if part.name == "validation")
    assert section.figures == ()
    assert section.notes[0] == "1 of 208 cells were not run"
    assert "every configuration on every stream" in section.notes[1]


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_before_the_selection_there_is_a_report_too(folder, results, tmp_path):
    cells = results.experiment.validation_cells()
    ids = {cell.id for cell in cells if cell.scenario in ("Val-A", "Val-B")}
    early = part_of(folder, tmp_path / "early", lambda file: file.stem in ids)
    (early / "selected.toml").unlink()
    (early / "run.json").unlink()
    page = write(make_report(read_results(early)), tmp_path / "report")
    text = page.read_text(encoding="utf-8")
    assert "Only Source was run." in text
    assert "selected must have LAME, which has 3 configurations, got none" in text
    Page(text)


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_files_stay_where_they_belong(folder, results, tmp_path):
    few = {cell.id for cell in results.experiment.study_cells("rates", results.selected)}
    small = part_of(folder, tmp_path / "part", lambda file: file.stem in few)
    text = (small / "experiment.toml").read_text()
    (small / "experiment.toml").write_text(text.replace("studies.rates", 'studies."../../a b"'))
    write(make_report(read_results(small)), tmp_path / "report" / "deep")
    assert (tmp_path / "report" / "deep" / "figures" / "-a-b.svg").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"part", "report"}


@pytest.mark.slow
def test_studies_whose_names_differ_have_files_that_differ(folder, results, tmp_path):
    """Also from the report's own tables, and where a disk does not tell capitals apart."""
    names = ["a b", "a-b", "a/b", "A b", "ranking", "selected", "a-b_curves"]
    text = (folder / "experiment.toml").read_text()
    main = re.search(r"\[studies\.main\]\n(.*?)(?=\[studies)", text, flags=re.DOTALL)
    text = text[: text.index("[studies")]
    (tmp_path / "experiment.toml").write_text(
        text + "".join(f'[studies."{name}"]\n{main[1]}' for name in names)
    )
    for name in ("cells", "selected.toml"):
        (tmp_path / name).symlink_to(folder / name)
    shown = make_report(read_results(tmp_path))
    tables = [table.name for part in shown.sections for table in part.tables]
    tables += [shown.ranking.name, "streams"]
    figures = [figure.name for part in shown.sections for figure in part.figures]
    addresses = [part.name for part in shown.sections]
    for found in (tables, figures, addresses):
        assert len({name.casefold() for name in found}) == len(found)
    assert addresses[:3] == ["a-b", "a-b-2", "a-b-3"]


@pytest.mark.slow
def test_learning_rates_are_drawn_from_the_validation(folder, tmp_path):
    whole = part_of(folder, tmp_path / "part", lambda _: True)
    text = (whole / "experiment.toml").read_text()
    (whole / "experiment.toml").write_text(text.replace('figure = "curves"', 'figure = "boxes"'))
    section = next(part for part in sections(read_results(whole)) if part.name == "validation")
    rates = section.figures[1]
    assert rates.name == "rates-2"  # a study is called rates
    assert list(rates.legend) == ["Source", "TENT lr 0.001", "TENT lr 0.01", "TENT lr 0.1"]
    assert rates.frame()["scenario"].n_unique() == 1


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_failures_are_shown_and_end_with_1(folder, results, tmp_path):
    few = {cell.id for cell in results.experiment.study_cells("rates", results.selected)}
    failing = part_of(folder, tmp_path / "part", lambda file: file.stem in few)
    (failing / "failed").mkdir()
    note = {"method": "TENT", "scenario": "V2", "seed": 3, "traceback": "Traceback\n<oh> & no\n"}
    (failing / "failed" / "0123.json").write_text(json.dumps(note))
    result = invoke("report", failing, "-o", tmp_path / "out")
    assert result.exit_code == 1, result.output
    text = (tmp_path / "out" / "report.html").read_text()
    assert "TENT in V2, seed 3: &lt;oh&gt; &amp; no" in text


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_report_prints_the_table(folder, results, tmp_path):
    few = {cell.id for cell in results.experiment.study_cells("rates", results.selected)}
    small = part_of(folder, tmp_path / "part", lambda file: file.stem in few)
    result = invoke("report", small)
    assert result.exit_code == 0, result.output
    assert (small / "report" / "report.html").exists()
    assert re.search(r"method +VID\nSource +64\.8 ±\d", result.output)
    assert "Beside the paper" not in (small / "report" / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_an_experiment_called_paper_has_them_without_asking(folder, results, tmp_path):
    few = {cell.id for cell in results.experiment.validation_cells() if cell.scenario == "Val-A"}
    small = part_of(folder, tmp_path / "part", lambda file: file.stem in few)
    (small / "experiment.toml").write_text(experiment_file("paper"))
    page = small / "report" / "report.html"
    assert invoke("report", small).exit_code == 0
    assert "Nothing that was run has a number in the paper." in page.read_text()
    assert invoke("report", small, "--no-paper").exit_code == 0
    assert "Beside the paper" not in page.read_text()
