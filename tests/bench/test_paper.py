"""The paper's numbers, by themselves and with ours."""

import statistics

import polars as pl
import pytest

from lametta.bench import paper
from tests.bench.made_up import mean_of_means


def test_the_papers_numbers_agree_with_each_other():
    original, rn50 = paper.TRAININGS.index("original"), paper.ARCHITECTURES.index("RN-50")
    for method, values in paper.BY_ARCHITECTURE.items():
        assert values[rn50] == paper.BY_TRAINING[method][original]
        for size, value in zip(paper.BATCH_SIZES, paper.BY_BATCH_SIZE[method], strict=True):
            if size == 16:
                assert value == pytest.approx(values[rn50], abs=0.45)
    # What the text of the paper says of its tables.
    assert statistics.mean(paper.BY_TRAINING["TENT"]) == pytest.approx(38.4, abs=0.05)
    assert statistics.mean(paper.BY_TRAINING["Source"]) == pytest.approx(51.0, abs=0.05)
    assert paper.NON_IID["LAME"] - paper.NON_IID["Source"] == pytest.approx(6.7)


@pytest.mark.slow
def test_ours_beside_the_papers(results, drawn, shown):
    studies = results.experiment.studies
    rows = [(study.figure, results.studies[name].rows) for name, study in studies.items()]
    both = paper.with_ours([*rows, ("cross_shift", drawn["cross_shift"].frame())])
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
    assert paper.with_ours([("batch_size", other)]).is_empty()
    assert "71.2" in shown.sections[-1].tables[0].markdown()
