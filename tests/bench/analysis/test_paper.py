"""The paper's numbers, by themselves and with ours."""

import re

import polars as pl
import pytest

from lametta.bench import figures
from lametta.bench.analysis import paper
from tests.bench.made_up import mean_of_means
from tests.conftest import shared


def test_the_papers_numbers_agree_with_each_other():
    numbers = paper.published()
    values = {
        (study, of, method): value
        for study, _, of, method, value, _ in numbers.filter(quantity="accuracy (%)").iter_rows()
    }
    by_training = numbers.filter(study="radar_trainings")
    assert tuple(by_training["method"].unique(maintain_order=True)) == paper.METHODS
    for method in numbers.filter(study="radar_architectures")["method"].unique():
        value = values["radar_architectures", "RN-50", method]
        assert value == values["radar_trainings", "original", method]
        assert values["batch_size", "batches of 16", method] == pytest.approx(value, abs=0.45)
    for method in paper.METHODS:
        at_64 = values["batch_size", "batches of 64", method]
        assert values["boxes", "all scenarios", method] == at_64
    # What the text of the paper says of its tables.
    assert by_training.filter(method="TENT")["value"].mean() == pytest.approx(38.4, abs=0.05)
    assert by_training.filter(method="Source")["value"].mean() == pytest.approx(51.0, abs=0.05)
    non_iid = {method: values["boxes", "non-i.i.d. scenarios", method] for method in paper.METHODS}
    assert non_iid["LAME"] - non_iid["Source"] == pytest.approx(6.7)


LABELS = {
    "curves": "non_iid",
    "cross_shift": "cross_cases",
    "boxes": "test_boxes",
    "radar": "hparams_robustness",
    "runtime": "runtimes",
    "kernels": "kernel_comparison",
    "batch_size": "batch_size",
}


def test_figures_have_the_papers_numbers():
    numbers = {name: number for name, (number, _) in paper.FIGURES.items()}
    assert [*numbers.values()] == [1, 3, 4, 5, 6, 8, 9]  # 2 is an example's, 7 a causal graph
    for name, number in numbers.items():
        assert f"the paper's Figure {number}" in getattr(figures, name).__doc__


def test_figures_are_numbered_as_in_the_papers_source():
    source = shared("reference", "000_2a836ebc5f644498.txt").read_text()
    labels = re.findall(r"\\label\{fig:(\w+)\}", source)
    assert labels.index("causal_graph") + 1 == 7
    for name, label in LABELS.items():
        assert labels.index(label) + 1 == paper.FIGURES[name][0]


@pytest.mark.slow
def test_ours_beside_the_papers(results, drawn, shown):
    studies = results.experiment.studies
    rows = [(study.figure, results.studies[name].rows) for name, study in studies.items()]
    both = paper.join_published([*rows, ("cross_shift", drawn["cross_shift"].frame())])
    found = {
        (of, method): (ours, theirs)
        for quantity, of, method, ours, theirs in both.iter_rows()
        if quantity != "seconds a batch"
    }
    architectures = results.studies["architectures"].rows
    vit = architectures.filter(model="ViT-B", method="LAME").to_dicts()
    assert found["ViT-B", "LAME"] == (pytest.approx(100 * mean_of_means(vit, "accuracy")), 71.22)
    sizes = results.studies["batch_size"].rows.filter(batch_size=128, method="AdaBN").to_dicts()
    ours = pytest.approx(100 * mean_of_means(sizes, "accuracy"))
    assert found["batches of 128", "AdaBN"] == (ours, 50.9)
    matrix = drawn["cross_shift"].frame().filter(pl.col("tuned_on") != pl.col("scenario"))
    worst = matrix.filter(method="TENT")["gain"].min()
    assert found["where not tuned", "TENT"] == (pytest.approx(worst), -66)
    sorted_streams = results.studies["main"].rows.filter(~pl.col("iid"))
    gain = mean_of_means(sorted_streams.filter(method="LAME").to_dicts(), "accuracy")
    gain -= mean_of_means(sorted_streams.filter(method="Source").to_dicts(), "accuracy")
    expected = (pytest.approx(100 * gain), pytest.approx(6.7))
    assert found["non-i.i.d. scenarios", "LAME"] == expected
    assert ("RN-18", "AdaBN") not in found  # which the paper has not
    other = results.studies["batch_size"].rows.with_columns(architecture=pl.lit("digits"))
    assert paper.join_published([("batch_size", other)]).is_empty()
    assert "71.2" in shown.sections[-1].tables[0].markdown()
    assert "approximate" in shown.sections[-1].notes[0]
