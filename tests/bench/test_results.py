"""Folders of results: which rows belong together, and what cannot be read."""

import pytest

from lametta.bench.results import read_results
from tests.bench.made_up import MODELS, STUDIES, TEST, invoke


def test_parts_are_complete_and_in_the_order_of_the_file(results):
    for name, (_, models, scenarios, methods, n, sizes) in STUDIES.items():
        part = results.studies[name]
        assert part.total == part.found == len(part.rows)
        assert part.total == len(models) * len(scenarios) * len(methods) * n * len(sizes)
        assert part.lack == ""
        assert list(dict.fromkeys(part.rows["scenario"])) == scenarios
        assert list(dict.fromkeys(part.rows["method"])) == methods
        assert list(dict.fromkeys(part.rows["model"])) == [MODELS[model][0] for model in models]
    iid = dict(results.studies["main"].rows.select("scenario", "iid").iter_rows())
    assert iid == {name: letter in "AC" for name, letter in TEST.items()}


@pytest.mark.slow
def test_equal_labels_are_told_apart(folder, tmp_path):
    text = (folder / "experiment.toml").read_text().replace('label = "ViT-B"', 'label = "EN-B4"')
    (tmp_path / "experiment.toml").write_text(text)
    (tmp_path / "cells").symlink_to(folder / "cells")
    (tmp_path / "selected.toml").symlink_to(folder / "selected.toml")
    models = set(read_results(tmp_path).studies["architectures"].rows["model"])
    assert {"EN-B4 (b4)", "EN-B4 (vit)", "RN-18"} < models


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda folder: folder.rmdir(), "results must be a folder, got"),
        (lambda folder: None, "results must have files cells/*.parquet, got none in"),
        (
            lambda folder: ((folder / "cells").mkdir(), (folder / "cells/a.parquet").touch()),
            "results must have Parquet files, got",
        ),
    ],
)
def test_bad_results_end_with_2(tmp_path, prepare, message):
    results = tmp_path / "results"
    results.mkdir()
    prepare(results)
    for arguments in (["report", results], ["compare", results, results]):
        result = invoke(*arguments)
        assert result.exit_code == 2
        assert message in result.output


@pytest.mark.slow
def test_results_without_their_experiment_end_with_2(folder, tmp_path):
    (tmp_path / "cells").symlink_to(folder / "cells")
    result = invoke("report", tmp_path)
    assert result.exit_code == 2
    assert "experiment.toml" in result.output
