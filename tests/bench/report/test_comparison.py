"""``lametta compare``: which differences are found."""

import math
import re
import shutil

import polars as pl
import pytest

from lametta import LamettaError
from lametta.bench.analysis.results import read_cells
from lametta.bench.report.comparison import compare
from tests.bench.made_up import invoke, part_of


@pytest.fixture(scope="module")
def two_studies(folder, results, tmp_path_factory):
    """The main study, and two cells more."""
    cells = [results.experiment.study_cells(name, results.selected) for name in ("main", "rates")]
    ids = {cell.id for study in cells for cell in study}
    return part_of(folder, tmp_path_factory.mktemp("two") / "part", lambda file: file.stem in ids)


@pytest.fixture(scope="module")
def changed(folder, results, tmp_path_factory):
    """The main study with one accuracy higher by 0.01, and one stream that is another."""
    cells = results.experiment.study_cells("main", results.selected)
    ids = {cell.id for cell in cells}
    copy = part_of(
        folder, tmp_path_factory.mktemp("changed") / "part", lambda file: file.stem in ids
    )
    for cell in cells:
        file = copy / "cells" / f"{cell.id}.parquet"
        if (cell.method, cell.scenario, cell.seed) == ("TENT", "VID", 1):
            change(file, pl.col("accuracy") + 0.01)
        if (cell.scenario, cell.seed) == ("TAO", 2):
            change(file, pl.lit("other").alias("fingerprint"))
    return copy


def change(file, column):
    row = pl.read_parquet(file).with_columns(column)
    file.unlink()  # a link
    row.write_parquet(file)


@pytest.mark.slow
def test_compare(two_studies, changed):
    same = invoke("compare", two_studies, two_studies)
    assert same.exit_code == 0, same.output
    assert "212 cells in both, 0 differ; only in A: 0, only in B: 0" in same.output
    other = invoke("compare", two_studies, changed)
    assert other.exit_code == 1
    assert "210 cells in both, 1 differ; only in A: 2, only in B: 0" in other.output
    assert re.search(r"TENT( +=)+ +\+1\s", other.output)
    assert re.search(
        "other stream: TAO, seed 2, batches of 64: [0-9a-f]{16} and other", other.output
    )


@pytest.mark.slow
def test_a_tolerance_makes_equal_but_not_streams(two_studies, changed):
    assert invoke("compare", two_studies, changed, "--tolerance", "0.02").exit_code == 1
    a, b = read_cells(two_studies), read_cells(changed)
    same_streams = b.drop("fingerprint").join(
        a.select("id", "fingerprint"), on="id", maintain_order="left"
    )
    assert not compare(a, same_streams, tolerance=0.009).equal
    assert compare(a, same_streams, tolerance=0.011).equal
    nan = same_streams.with_columns(accuracy=pl.lit(math.nan))
    assert not compare(a, nan).equal


def damaged(sound, target, damage):
    """A copy of the cells, the first of which is damaged, and its file."""
    shutil.copytree(sound / "cells", target / "cells")
    file = min((target / "cells").iterdir())
    row = damage(pl.read_parquet(file))
    if isinstance(row, pl.DataFrame):
        row.write_parquet(file)
    else:
        file.write_bytes(row)
    return target, file


@pytest.fixture(scope="module")
def few(folder, results, tmp_path_factory):
    """The cells of a small study."""
    ids = {cell.id for cell in results.experiment.study_cells("rates", results.selected)}
    return part_of(folder, tmp_path_factory.mktemp("few") / "part", lambda file: file.stem in ids)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda row: row.drop("accuracy"), "must have accuracy in each file, got none in"),
        (lambda row: row.drop("seed"), "must have seed in each file, got none in"),
        (lambda row: row.with_columns(fingerprint=None), "must have fingerprint in each file"),
        (lambda row: pl.concat([row, row]), "must have one row a file, got 2 in"),
        (lambda row: row.clear(), "must have one row a file, got 0 in"),
        (lambda row: b"", "as a Parquet file: "),
        (lambda row: b"PAR1 and no more", "as a Parquet file: "),
    ],
)
def test_damaged_cells_are_no_equal_cells(few, tmp_path, damage, message):
    folder, file = damaged(few, tmp_path, damage)
    for name, pair in (
        ("B", (few, folder)),
        ("A", (folder, few)),
        ("A", (folder, folder)),
    ):
        result = invoke("compare", *pair)
        assert result.exit_code == 2
        named = f"{name} {message}" if message.startswith("must") else message
        assert named in result.stderr
        assert str(file) in result.stderr


@pytest.mark.slow
def test_frames_are_checked_too(two_studies, tmp_path):
    a = read_cells(two_studies)
    first = pl.int_range(pl.len()) == 0
    for name in ("accuracy", "fingerprint"):
        lost = a.with_columns(pl.when(~first).then(pl.col(name)))
        assert not compare(a, lost).equal
        assert not compare(lost, a).equal
    with pytest.raises(LamettaError, match="each cell once; not so for 1"):
        compare(a, pl.concat([a, a.head(1)]))
    file = min((two_studies / "cells").iterdir())
    folder = tmp_path / "twice"
    shutil.copytree(two_studies / "cells", folder / "cells")
    shutil.copy(file, folder / "cells" / "copy.parquet")
    result = invoke("compare", two_studies, folder)
    assert result.exit_code == 2
    assert "lametta: B must have each cell once" in result.stderr


@pytest.mark.slow
def test_what_cannot_be_compared_ends_with_2(two_studies, changed, tmp_path):
    result = invoke("compare", two_studies, changed, "--tolerance", "-1")
    assert result.exit_code == 2
    assert "--tolerance must be >= 0, got -1" in result.stderr
    file = next((changed / "cells").iterdir())
    (tmp_path / "alone" / "cells").mkdir(parents=True)
    pl.read_parquet(file).with_columns(seed=pl.lit(77)).write_parquet(
        tmp_path / "alone" / "cells" / file.name
    )
    result = invoke("compare", two_studies, tmp_path / "alone")
    assert result.exit_code == 2
    assert "must have cells in common, got 212 and 1" in " ".join(result.output.split())
