"""Folders of results: which rows belong together, and what cannot be read."""

import polars as pl
import pytest

from lametta import LamettaError
from lametta.bench.analysis.results import _read_rows, read_cell, read_cells, read_results
from lametta.bench.columns import names
from tests.bench.made_up import MODELS, STUDIES, TEST, invoke, part_of


@pytest.mark.slow
def test_parts_are_complete_and_in_the_order_of_the_file(results):
    for name, (_, models, scenarios, methods, n, sizes) in STUDIES.items():
        part = results.studies[name]
        assert part.total == len(part.rows)
        assert part.total == len(models) * len(scenarios) * len(methods) * n * len(sizes)
        assert part.missing == ""
        assert list(dict.fromkeys(part.rows["scenario"])) == scenarios
        assert list(dict.fromkeys(part.rows["method"])) == methods
        assert list(dict.fromkeys(part.rows["model"])) == [MODELS[model][0] for model in models]
    iid = dict(results.studies["main"].rows.select("scenario", "iid").iter_rows())
    assert iid == {name: letter in "AC" for name, letter in TEST.items()}


@pytest.mark.slow
def test_files_are_read_together_as_one_by_one(folder, tmp_path):
    files = sorted(folder.glob("cells/*.parquet"))[::20]
    together, one_by_one = _read_rows(files), pl.concat([read_cell(file) for file in files])
    assert together.equals(one_by_one)
    assert together.schema == one_by_one.schema
    row = pl.read_parquet(files[0])
    for column in (pl.col("batch_size").cast(float), pl.lit(None, pl.String).alias("fingerprint")):
        row.with_columns(column).write_parquet(tmp_path / "odd.parquet")
        with pytest.raises(LamettaError, match=r"results must have|as a Parquet file: "):
            _read_rows([files[1], tmp_path / "odd.parquet"])
        with pytest.raises(LamettaError, match=r"(results must have|cannot read) .*odd\.parquet"):
            read_cell(tmp_path / "odd.parquet")


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
        (lambda folder: folder.rmdir(), "no results in '"),
        (lambda folder: None, "no results in '"),
        (
            lambda folder: ((folder / "cells").mkdir(), (folder / "cells/a.parquet").touch()),
            "cannot read '",
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
        assert result.stderr.startswith(f"lametta: {message}")


@pytest.mark.slow
def test_results_without_their_experiment_end_with_2(folder, tmp_path):
    (tmp_path / "cells").symlink_to(folder / "cells")
    result = invoke("report", tmp_path)
    assert result.exit_code == 2
    assert "experiment.toml" in result.output


def one_changed(folder, results, target, **columns):
    """A copy of a small study in which one cell has these values."""
    cells = results.experiment.study_cells("rates", results.selected)
    few = {cell.id for cell in cells}
    small = part_of(folder, target, lambda file: file.stem in few)
    file = small / "cells" / f"{cells[0].id}.parquet"
    series = [pl.Series(name, [value]) for name, value in columns.items()]
    row = pl.read_parquet(file).with_columns(series)
    file.unlink()  # a link
    row.write_parquet(file)
    return small, file


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"dataset": ["x"]}, "RESULTS must have dataset as String, got List(String) in"),
        ({"batch_size": 64.0}, "RESULTS must have batch_size as Int64, got Float64 in"),
        ({"accuracy": "x"}, "RESULTS must have accuracy as Float64, got String in"),
        ({"step_n": 3.0}, "RESULTS must have step_n as List(Int64), got Float64 in"),
        ({"step_n": [1, 2, 3]}, "RESULTS must have series of one length, got several in"),
        ({"step_hits": None}, "RESULTS must have series of one length, got several in"),
        ({"ece": {"a": {"b": 1}}}, "RESULTS must have ece as Float64, got Struct({'a': Struct"),
        ({"method": "LAME"}, "is named by, got another"),
    ],
)
def test_rows_that_are_no_rows_of_their_cell(folder, results, tmp_path, columns, message):
    small, file = one_changed(folder, results, tmp_path / "part", **columns)
    result = invoke("report", small)
    assert result.exit_code == 2
    assert message in result.stderr
    assert str(file) in result.stderr


@pytest.mark.parametrize("content", ["{}", "[]", "{", "[" * 9999, '{"method": "a"}', None])
def test_notes_of_failures_that_cannot_be_read(folder, results, tmp_path, content):
    small, _ = one_changed(folder, results, tmp_path / "part")
    (small / "failed").mkdir()
    note = small / "failed" / "a.json"
    note.mkdir() if content is None else note.write_text(content)
    with pytest.raises(LamettaError, match="results must have"):
        read_results(small)


def test_results_from_before_passes_were_counted_can_be_read(folder, tmp_path):
    files = sorted((folder / "cells").iterdir())[:2]
    (tmp_path / "cells").mkdir()
    old, new = (pl.read_parquet(file) for file in files)
    old.drop(names("passes"), strict=False).write_parquet(tmp_path / "cells" / files[0].name)
    new.with_columns(forwards=2.0).write_parquet(tmp_path / "cells" / files[1].name)
    assert sorted(read_cells(tmp_path)["forwards"], key=str) == [2.0, None]
    (tmp_path / "cells" / files[1].name).unlink()
    assert "forwards" not in read_cells(tmp_path).columns
