"""Results to hand out: all rows in one Parquet file, and a data card that says how to read it."""

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import polars as pl

from lametta._files import PathLike, atomic_write, write_text
from lametta.bench.analysis.results import Results, read_card
from lametta.bench.columns import COLUMNS
from lametta.bench.running.workspace import Workspace
from lametta.bench.tables import as_table

_BLOCK = 2**20

_MADE = {
    "by": "whose results these are",
    "id": "of the cell: a hash of the method, its parameters, the network, the data and the stream",
    "study": "whether the cell is of a study, rather than tried in the validation alone",
    "lametta": "the version that ran",
    "weights_sha256": "of the network's parameters and buffers",
    "data_fingerprint": "of the keys, labels and groups of the data set",
    "bank_sha256": "of the file of the network's outputs, where it is still there",
}
_WORDS = {  # of columns that tables do not show
    "experiment": "the name of the experiment",
    "method": "as the experiment calls it",
    "config": "its parameters, as JSON",
    "model": "the network, as the experiment calls it",
    "scenario": "the stream, as the experiment calls it",
    "dataset": "the data set, as the experiment calls it",
    "seed": "of the stream",
    "batch_size": "samples a batch",
    "fingerprint": "of the stream: equal where samples, order and batches are",
    "n": "samples of the stream",
    "causal": "whether it never looks at later samples of a batch",
    "needs": "what the method needs beside its network or outputs",
    "answers": "before or after its update",
    "step_n": "samples of each batch, of known classes",
    "step_hits": "how many of them were right",
    "step_entropy": "mean entropy of each batch's predictions",
    "step_diversity": "entropy of each batch's mean prediction",
}

READ = """\
import polars as pl

rows = pl.read_parquet("results.parquet").filter("study")
stream = ["by", "model", "scenario", "seed", "batch_size"]
source = rows.filter(pl.col("method").is_in(SOURCES)).select(*stream, source="accuracy")
rows = rows.join(source, on=stream).with_columns(gain=pl.col("accuracy") - pl.col("source"))
runs = rows.group_by("by", "model", "method", "scenario").agg(pl.col("accuracy", "gain").mean())
table = runs.group_by("by", "model", "method").agg(
    pl.col("gain").mean(), worst=pl.col("gain").min(), scenarios=pl.len()
)
print(table.sort("by", "model", "gain"))
"""
"""The ten lines that read the file; SOURCES stands for the names of the baselines."""


def handout(results: Mapping[str, Results]) -> pl.DataFrame:
    """All rows of several results, with where each comes from.

    Parameters
    ----------
    results : mapping of str to Results
        By whom they are.

    Returns
    -------
    DataFrame
        The columns of `lametta.bench.columns` and, before them, ``by``, ``id``, ``study``,
        ``lametta``, ``weights_sha256``, ``data_fingerprint`` and ``bank_sha256``.
    """
    frames = []
    for name, one in results.items():
        banks = pl.DataFrame(list(_banks(one)), _BANKS, orient="row")
        studied = [cell for study in one.studies.values() for cell in study.rows["id"]]
        rows = one.frame.with_columns(
            by=pl.lit(name),
            study=pl.col("id").is_in(studied),
            lametta=pl.lit(one.environment.get("lametta"), pl.String),
        )
        if "dataset" not in rows.columns:  # of results from before there was one
            rows = rows.with_columns(dataset=pl.lit(None, pl.String))
        frames.append(rows.join(banks, on=["model", "dataset"], how="left", maintain_order="left"))
    joined = pl.concat(frames, how="diagonal")
    return joined.select(*_MADE, *(name for name in COLUMNS if name in joined.columns))


_BANKS = {
    "model": pl.String(),
    "dataset": pl.String(),
    "weights_sha256": pl.String(),
    "data_fingerprint": pl.String(),
    "bank_sha256": pl.String(),
}


def _banks(results: Results) -> Iterator[tuple[str | None, ...]]:
    """The fingerprints of each network on each data set, as the card or the bank has them."""
    card, experiment = read_card(results.folder), results.experiment
    workspace = Workspace(experiment, results.folder)
    used = {(cell.model, cell.scenario) for cell in experiment.validation_cells()}
    for study in experiment.studies.values():
        used |= set(itertools.product(study.models, study.scenarios))
    pairs = {(model, experiment.scenarios[scenario].dataset) for model, scenario in used}
    for model, dataset in sorted(pairs):
        bank = workspace.bank_file(model, dataset)
        weights = card["models"].get(model, {}).get("weights_sha256")
        data = card["datasets"].get(dataset, {}).get("fingerprint")
        yield model, dataset, weights, data, _sha256(bank) if bank.is_file() else None


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while block := opened.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def write(results: Mapping[str, Results], folder: PathLike) -> Path:
    """Write ``results.parquet`` and its data card, ``README.md``.

    Parameters
    ----------
    results : mapping of str to Results
        By whom they are.
    folder : path
        Is made if need be.

    Returns
    -------
    Path
        The Parquet file.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rows, file = handout(results), folder / "results.parquet"
    with atomic_write(file) as temporary:
        rows.write_parquet(temporary)
    write_text(folder / "README.md", data_card(results, rows))
    return file


def data_card(results: Mapping[str, Results], rows: pl.DataFrame) -> str:
    """What a reader of the rows has to know, in Markdown.

    Parameters
    ----------
    results : mapping of str to Results
        By whom they are.
    rows : DataFrame
        As `handout` gives them.
    """
    parts = [f"# Results\n\n{len(rows):,} cells, each a method with its parameters on a stream."]
    for name, one in results.items():
        run, experiment = one.environment, one.experiment
        cited = f" Protocol: {experiment.citation}." if experiment.citation else ""
        known = ("lametta", "started", "device", "platform")
        where = "; ".join(f"{key} {run[key]}" for key in known if key in run)
        ours = rows.filter(by=name)
        parts.append(
            f"## {name}\n\n{experiment.title}: {len(ours):,} cells, {len(one.failures)} failed."
            f"{cited} The baseline is `{one.source}`.\n\n{where}"
        )
    sources = json.dumps(list(dict.fromkeys(one.source for one in results.values())))
    parts.append(f"## To read it\n\n```python\n{READ.replace('SOURCES', sources)}```")
    parts.append(
        "Accuracies, and all shares, run from 0 to 1; times are in seconds, memory in bytes. Two "
        "rows may be compared where the fingerprint of the stream, that of the weights and that of "
        "the bank are equal; without the last, the accuracy of the baseline has to be. Cells that "
        "are of no study were tried to choose parameters by: they are not results."
    )
    banks = rows.select("by", *_BANKS).unique(maintain_order=True)
    parts.append(f"## Networks and data\n\n{as_table('', '', banks).markdown()}")
    streams = rows.select("scenario", "seed", "batch_size", "n", "fingerprint")
    unique = streams.unique().sort(pl.all())
    parts.append(f"## Streams\n\n{as_table('', '', unique).markdown()}")
    shown = pl.DataFrame(
        [(name, str(dtype), _meaning(name)) for name, dtype in rows.schema.items()],
        ["column", "type", "what"],
        orient="row",
    )
    parts.append(f"## Columns\n\n{as_table('', '', shown).markdown()}")
    parts.append(
        "Images and weights are under licenses of their own, and are not in this file: it has "
        "what was counted and measured alone."
    )
    return "\n\n".join(parts) + "\n"


def _meaning(name: str) -> str:
    if (said := (_MADE | _WORDS).get(name)) is not None:
        return said
    column = COLUMNS[name]
    return f"{column.label}: {column.kind}"
