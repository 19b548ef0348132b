"""Results folder: rows of cells, and which belong to each study."""

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from lametta._files import PathLike
from lametta.bench.analysis.selection import read_selection
from lametta.bench.columns import CELL, NEEDED, SCHEMA, STREAM, names
from lametta.bench.experiment import Cell, Experiment, canonical, load
from lametta.bench.experiment.schema import ModelSpec, ScenarioSpec
from lametta.stream import as_is, iid
from lametta.types import LamettaError

_FILE = "file of a row"  # a column that no file has
_UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)


@dataclass(frozen=True, eq=False)
class StudyRows:
    """The cells of the validation or of a study.

    Attributes
    ----------
    rows : DataFrame
        One row a cell that is there, in the order of the experiment file and with its labels.
        Streams on which the source was not run are left out, since there are no gains over it.
    total : int
        How many cells there should be.
    missing : str
        What was not run, or why that is not known, in words; empty if nothing.
    """

    rows: pl.DataFrame
    total: int = 0
    missing: str = ""


@dataclass(frozen=True, eq=False)
class Results:
    """A folder of results: the experiment, the rows of its cells, and where it was run.

    Attributes
    ----------
    experiment : Experiment
        What was run.
    frame : DataFrame
        One row a cell, with the ``id`` that names its file.
    selected : mapping
        The parameters that were chosen for each method.
    environment : mapping
        Where it was run.
    failures : tuple of mapping
        The cells that failed, each with its traceback.
    """

    folder: Path
    experiment: Experiment
    frame: pl.DataFrame = field(repr=False)
    selected: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    environment: Mapping[str, object] = field(default_factory=dict)
    failures: tuple[Mapping[str, object], ...] = ()

    def _repr_html_(self) -> str:  # notebooks show it
        means = self.headline_rows.group_by("method", "scenario", maintain_order=True).agg(
            pl.col("accuracy").mean().mul(100).round(1)
        )
        table = means.pivot("scenario", index="method", values="accuracy")
        return f"<p>{html.escape(str(self.folder))}, accuracy in %</p>{table._repr_html_()}"

    @property
    def source(self) -> str:
        """The name of the baseline."""
        return self.experiment.source

    @cached_property
    def validation(self) -> StudyRows:
        """The cells that configurations are chosen by."""
        return self._part(self.experiment.validation_cells())

    @cached_property
    def studies(self) -> dict[str, StudyRows]:
        """The cells of each study."""
        return {name: self._study(name) for name in self.experiment.studies}

    @cached_property
    def headline_rows(self) -> pl.DataFrame:
        """The rows that the headline is about: those of the first study with any, boxes first.

        Without one, those of the validation with the chosen configurations.
        """
        studies = self.experiment.studies
        for name in sorted(studies, key=lambda name: studies[name].figure != "boxes"):
            if not (rows := self.studies[name].rows).is_empty():
                return rows
        single = pl.col("config").n_unique().over("method") == 1
        chosen = {name: canonical(params) for name, params in self.selected.items()}
        is_chosen = pl.col("config") == pl.col("method").replace(chosen)
        return self.validation.rows.filter(single | is_chosen)

    def _study(self, name: str) -> StudyRows:
        try:
            cells = self.experiment.study_cells(name, self.selected)
        except LamettaError as error:  # nothing is selected yet
            return StudyRows(self.frame.clear(), missing=str(error))
        return self._part(cells)

    def _part(self, cells: Sequence[Cell]) -> StudyRows:
        schema = {"id": pl.String(), **{name: SCHEMA[name] for name in CELL}}
        wanted = pl.DataFrame(
            [[getattr(cell, name) for name in schema] for cell in cells], schema, orient="row"
        )
        rows = wanted.select("id").join(self.frame, on="id", maintain_order="left")
        strange = rows.join(wanted, on=list(schema), how="anti")
        if not strange.is_empty():
            file = self.folder / "cells" / f"{strange['id'][0]}.parquet"
            raise LamettaError(f"results must have the cell that {file} is named by, got another")
        sources = rows.filter(method=self.source)
        paired = rows.join(sources, on=STREAM, how="semi", maintain_order="left")
        missing = ""
        if len(rows) < len(cells):
            missing = f"{len(cells) - len(rows)} of {len(cells)} cells were not run"
            if unpaired := len(rows) - len(paired):
                missing += f"; {unpaired} more are left out, since their stream has no source"
        return StudyRows(self._labeled(paired), len(cells), missing)

    def _labeled(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Put labels in the place of names, and add what is known of models and scenarios."""
        models, scenarios = self.experiment.models, self.experiment.scenarios
        architectures = {name: spec.architecture or spec.label for name, spec in models.items()}
        trainings = {name: spec.training or spec.label for name, spec in models.items()}
        arriving = {name: spec.scenario(1, 0) for name, spec in scenarios.items()}
        shuffled = [name for name, x in arriving.items() if isinstance(x.order, iid)]
        shifted = [name for name, x in arriving.items() if not isinstance(x.prior, as_is)]
        return rows.with_columns(
            pl.col("model").replace(_labels(models)),
            pl.col("scenario").replace(_labels(scenarios)),
            architecture=pl.col("model").replace(architectures),
            training=pl.col("model").replace(trainings),
            iid=pl.col("scenario").is_in(shuffled),
            prior_shift=pl.col("scenario").is_in(shifted),
        )


def read_results(folder: PathLike) -> Results:
    """Read a folder that ``lametta run`` wrote.

    Examples
    --------
    >>> read_results("no/such/folder")
    Traceback (most recent call last):
    lametta.types.LamettaError: no results in 'no/such/folder': not a folder
    """
    folder = Path(folder)
    frame = read_cells(folder)
    run, selected = folder / "run.json", folder / "selected.toml"
    return Results(
        folder,
        load(folder / "experiment.toml", check="none"),
        frame,
        read_selection(selected) if selected.exists() else {},
        read_json(run) if run.exists() else {},
        tuple(_failure(path) for path in sorted(folder.glob("failed/*.json"))),
    )


def read_cells(folder: PathLike, cells: Iterable[Cell] | None = None) -> pl.DataFrame:
    """Read the rows of all cells in a folder, or of those given.

    Returns
    -------
    DataFrame
        The columns of `lametta.bench.columns`, and the ``id`` that names the file of each cell,
        sorted by method, configuration and stream.

    Examples
    --------
    >>> read_cells(".")
    Traceback (most recent call last):
    lametta.types.LamettaError: no results in '.': no files cells/*.parquet
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise LamettaError(f"no results in '{folder}': not a folder")
    if cells is None:
        files = sorted(folder.glob("cells/*.parquet"))
    else:
        files = [cell_file(folder, cell) for cell in cells]
    if not files:
        raise LamettaError(f"no results in '{folder}': no files cells/*.parquet")
    try:
        found = _read_rows(files)
    except LamettaError:  # one by one: columns may differ, and an error names the file
        found = pl.concat([read_cell(file) for file in files], how="diagonal")
    return found.sort(CELL)


def cell_file(folder: Path, cell: Cell) -> Path:
    """The file with the row of a cell."""
    return folder / "cells" / f"{cell.id}.parquet"


def read_cell(path: Path) -> pl.DataFrame:
    """The row in the file of a cell, and its ``id``; an error if the file is damaged."""
    return _read_rows([path])


def _read_rows(files: Sequence[Path]) -> pl.DataFrame:
    """The rows of files that have one each, read at once; an error names the first file."""
    where, found = files[0], _read_parquet(files)
    if found[_FILE].to_list() != [str(file) for file in files]:
        raise LamettaError(f"results must have one row a file, got {len(found)} in {where}")
    if fault := _missing(found) or _mistyped(found):
        raise LamettaError(f"results must have {fault} in {where}")
    types = {name: SCHEMA[name] for name in found.columns if name in SCHEMA}
    rows = found.select(pl.col(name).cast(dtype, strict=False) for name, dtype in types.items())
    if not _has_even_series(rows):
        raise LamettaError(f"results must have series of one length, got several in {where}")
    return rows.with_columns(id=pl.Series([file.stem for file in files]))


def _read_parquet(files: Sequence[Path]) -> pl.DataFrame:
    if absent := [file for file in files if not file.is_file()]:
        raise LamettaError(f"no such file: '{absent[0]}'")
    try:
        return pl.read_parquet(list(files), glob=False, include_file_paths=_FILE)
    except _UNREADABLE as error:
        raise LamettaError(f"cannot read '{files[0]}' as a Parquet file: {error}") from None


def _has_even_series(rows: pl.DataFrame) -> bool:
    """Whether the series of each row are of one length, or all absent."""
    none = pl.Series([None] * len(rows), dtype=pl.UInt32())
    lengths = [rows[name].list.len() if name in rows.columns else none for name in names("series")]
    return all(length.eq_missing(lengths[0]).all() for length in lengths)


def _missing(rows: pl.DataFrame) -> str:
    """What rows must have and do not; empty if nothing."""
    absent = [name for name in NEEDED if name not in rows.columns or rows[name].has_nulls()]
    return f"{', '.join(absent)} in each file, got none" if absent else ""


def _mistyped(rows: pl.DataFrame) -> str:
    """The first column that is of a type which is not that of its numbers; empty if none is."""
    for name, got in rows.schema.items():
        expected = SCHEMA.get(name, got)
        if got not in (expected, pl.Null) and not (got.is_integer() and expected.is_integer()):
            return f"{name} as {expected}, got {got}"
    return ""


def _failure(path: Path) -> dict[str, object]:
    """What is known of a cell that failed."""
    content = read_json(path)
    needed = {"method", "scenario", "seed", "traceback"}
    if not content.keys() >= needed or not str(content["traceback"]).strip():
        raise LamettaError(f"results must have a cell and its traceback in {path}, got {content}")
    return content | {"traceback": str(content["traceback"])}


def read_json(path: Path) -> dict[str, object]:
    """The object in a file of JSON; an error if there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise LamettaError(f"results must have JSON files, got {path}: {error}") from None
    if not isinstance(content, dict):
        raise LamettaError(f"results must have a JSON object in {path}, got {content!r}")
    return content


def read_card(folder: Path) -> dict[str, Any]:
    """The protocol card of a run, whose tables are empty where there is none.

    An error if it is not as `lametta.bench.running.card.protocol_card` gives it.
    """
    file = folder / "card.json"
    content: dict[str, Any] = read_json(file) if file.exists() else {}
    for name, needed in _CARD.items():
        table = content.setdefault(name, {})
        parts = table.values() if isinstance(table, dict) else [None]
        if not all(isinstance(part, dict) and part.keys() >= needed for part in parts):
            wanted = ", ".join(sorted(needed))
            raise LamettaError(f"results must have {name} with {wanted} in {file}")
    return content


_CARD = {
    "models": {"network", "weights", "weights_sha256", "preprocessing"},
    "datasets": {"reader", "domains", "images_a_domain", "fingerprint"},
    "scenarios": {"dataset", "order", "samples", "resets"},
    "methods": {"kind", "params", "answers", "tuned_on"},
}


def _labels(specs: Mapping[str, ModelSpec] | Mapping[str, ScenarioSpec]) -> dict[str, str]:
    """What to show for each name: its label, with the name where several share that."""
    labels = [spec.label for spec in specs.values()]
    return {
        name: spec.label if labels.count(spec.label) == 1 else f"{spec.label} ({name})"
        for name, spec in specs.items()
    }
