"""Leaderboard: results of several people on the same streams, joined into one page."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import polars as pl

from lametta import methods
from lametta._files import PathLike, write_text
from lametta.bench.analysis import gains, means, risk
from lametta.bench.analysis.results import Results, read_card
from lametta.bench.columns import SCHEMA, STREAM
from lametta.bench.experiment.schema import source_data
from lametta.bench.report.page import template
from lametta.bench.tables import Entry, Table, percent
from lametta.bench.tables.experiment import card
from lametta.types import LamettaError

FAMILIES = {
    "outputs": "corrects outputs alone",
    "statistics": "adapts statistics of the network, without gradients",
    "gradients": "learns by gradients",
}
"""What methods are told apart by: what of the network they change."""

SOURCE_TOLERANCE = 0.005
"""How far accuracies of two sources may lie apart on one stream before their images are others."""

_ENTRY = ["by", "model", "method", "config"]  # what makes a row of the board
_SHOWN = ["scenario", "batch_size"]  # what makes a column of it
_entry, _column = itemgetter(*_ENTRY), itemgetter(*_SHOWN)


@dataclass(frozen=True, eq=False)
class Leaderboard:
    """Methods of several results side by side, each over the source on the very same streams.

    Attributes
    ----------
    entries : DataFrame
        One row for each method of each result and model: ``by`` and ``model``, ``family``,
        ``accuracy``, ``gain``, ``worst_gain`` and ``worst_scenario``, ``tail_accuracy``,
        ``passes`` forward and ``backward`` for each sample, and ``missing``, how many of the
        model's streams it was not run on. The best come first, after those that miss streams.
    cells : DataFrame
        One row for each of these in a scenario with a batch size: means over seeds.
    left_out : DataFrame
        The cells that cannot be compared, and ``why``.
    cards : mapping
        What the protocol card of each result says.
    """

    entries: pl.DataFrame
    cells: pl.DataFrame
    left_out: pl.DataFrame
    runs: pl.DataFrame = field(repr=False)
    cards: Mapping[str, Mapping[str, Any]] = field(repr=False)

    def table(self) -> Table:
        """The entries, as they are sorted."""
        rows = [
            [
                Entry(row["method"]),
                Entry(row["by"]),
                Entry(row["model"]),
                Entry(row["family"]),
                Entry(percent(row["accuracy"])),
                Entry(percent(row["gain"], signed=True), 100 * row["gain"]),
                Entry(percent(row["worst_gain"], signed=True), 100 * row["worst_gain"]),
                Entry(percent(row["tail_accuracy"])),
                Entry(passes_text(row)),
                Entry(str(row["missing"] or "")),
            ]
            for row in self.entries.iter_rows(named=True)
        ]
        header = ["method", "by", "network", "family", "accuracy", "gain", "worst stream"]
        header += ["tail", "passes", "streams missing"]
        return Table("leaderboard", "Leaderboard (%)", header, rows, self.entries)


def join(results: Mapping[str, Results]) -> Leaderboard:
    """Join results whose streams are the same, and say which cells are left out.

    A cell is compared where its stream has the fingerprint that most of the results have for that
    model, scenario, seed and batch size (the first's, where as many have another), where its
    network has the weights that most have, and where the source is right as often as the first's,
    to half a point: fingerprints do not know pixels.

    Parameters
    ----------
    results : mapping of str to Results
        By whom they are.

    Examples
    --------
    >>> join({})
    Traceback (most recent call last):
    lametta.types.LamettaError: results must be at least one, got none
    """
    if not results:
        raise LamettaError("results must be at least one, got none")
    cards = {name: read_card(one.folder) for name, one in results.items()}
    rows = pl.concat(
        (_rows(name, one, cards[name]) for name, one in results.items()), how="diagonal"
    )
    if rows.is_empty():
        raise LamettaError("results must have cells of studies beside the source's, got none")
    why = _reasons(rows)
    left_out = why.filter(pl.col("why") != "")
    kept = why.filter(pl.col("why") == "").drop("why")
    columns = ["by", "method", *STREAM, "fingerprint", "why"]
    if kept.is_empty():
        first = left_out.row(0, named=True)
        raise LamettaError(f"results must share a stream, got {first['why']} in {first['by']}")
    return Leaderboard(_entries(kept, results), _cells(kept), left_out.select(columns), kept, cards)


def _rows(name: str, results: Results, card: Mapping[str, Any]) -> pl.DataFrame:
    """The chosen configurations of one person, with their gains and what tells methods apart."""
    ids = {cell for study in results.studies.values() for cell in study.rows["id"]}
    ids = ids or {*results.headline_rows["id"]}
    rows = results.frame.filter(pl.col("id").is_in(list(ids)))
    if rows.is_empty():
        return rows
    known = card["models"]
    hashes = {model: known.get(model, {}).get("weights_sha256", "") for model in rows["model"]}
    kinds = {key: spec.kind for key, spec in results.experiment.methods.items()}
    source = pl.col("accuracy").filter(pl.col("method") == results.source).first().over(STREAM)
    families = {method: _family(kinds[method], one) for (method,), one in rows.group_by(["method"])}
    old = {name: pl.lit(None, SCHEMA[name]) for name in SCHEMA if name not in rows.columns}
    return gains(rows, results.source).with_columns(
        **old,  # results from before these were measured
        by=pl.lit(name),
        kind=pl.col("method").replace_strict(kinds),
        family=pl.col("method").replace_strict(families, return_dtype=pl.String),
        weights=pl.col("model").replace_strict(hashes, return_dtype=pl.String),
        source_accuracy=source,
        is_source=pl.col("method") == results.source,
    )


def _family(kind: str, rows: pl.DataFrame) -> str:
    """One of `FAMILIES`; of methods whose code is not ours, by what was counted."""
    if all(methods.is_builtin(part) for part in kind.split("+")):
        method = methods.find(kind)
        if not method.needs_network:
            return "outputs"
        return "gradients" if "gradients" in method.needs else "statistics"
    counted = {x: rows[x].max() for x in ("forwards", "backwards") if x in rows.columns}
    if counted.get("backwards"):
        return "gradients"
    return "statistics" if counted.get("forwards") else "outputs"


def _reasons(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows, and why each cannot be compared with the others; empty text where it can."""
    agreed = _most(rows, [*STREAM], "fingerprint")
    weights = _most(rows.filter(pl.col("weights") != ""), ["model"], "weights")
    rows = rows.join(agreed, on=STREAM, how="left", maintain_order="left")
    rows = rows.join(weights, on="model", how="left", maintain_order="left")
    stream = pl.col("fingerprint") != pl.col("fingerprint_agreed")
    other = (pl.col("weights") != "") & (pl.col("weights") != pl.col("weights_agreed"))
    same = ~(stream | other.fill_null(False))
    first = pl.col("source_accuracy").filter(same).first().over(STREAM)
    images = (pl.col("source_accuracy") - first).abs() > SOURCE_TOLERANCE
    why = (
        pl.when(stream)
        .then(pl.lit("another stream"))
        .when(other)
        .then(pl.lit("other weights"))
        .when(images.fill_null(False))
        .then(pl.lit("another accuracy of the source"))
        .otherwise(pl.lit(""))
    )
    return rows.with_columns(why=why).drop("fingerprint_agreed", "weights_agreed")


def _most(rows: pl.DataFrame, keys: Sequence[str], name: str) -> pl.DataFrame:
    """What most of the results have for these keys; of as many, what came first."""
    votes = rows.select(*keys, name, "by").unique(maintain_order=True)
    counted = votes.group_by([*keys, name], maintain_order=True).agg(pl.len().alias("votes"))
    first = counted.sort("votes", descending=True, maintain_order=True)
    agreed = first.group_by(keys, maintain_order=True).agg(pl.col(name).first())
    return agreed.rename({name: f"{name}_agreed"})


def _cells(kept: pl.DataFrame) -> pl.DataFrame:
    by = [*_ENTRY, *_SHOWN]
    found = means(kept, by, ["accuracy", "gain"])
    counts = kept.group_by(by, maintain_order=True).agg(pl.len().alias("seeds"))
    return found.join(counts, on=by, maintain_order="left")


def _entries(kept: pl.DataFrame, results: Mapping[str, Results]) -> pl.DataFrame:
    by = _ENTRY[1:]
    risks = pl.concat(
        risk(kept.filter(by=name), one.source, by).with_columns(by=pl.lit(name))
        for name, one in results.items()
        if name in kept["by"]
    )
    accuracy = means(means(kept, [*_ENTRY, *_SHOWN], ["accuracy"]), _ENTRY, ["accuracy"])
    per_sample = pl.col("step_n").list.len() / pl.col("n")
    traits = kept.group_by(_ENTRY, maintain_order=True).agg(
        pl.col("family", "is_source", "kind").first(),
        passes=(pl.col("forward_samples") * per_sample).mean(),
        backward=(pl.col("backward_samples") * per_sample).mean(),
        ms=1e3 * pl.col("step_time").mean(),
    )
    # What only corrects outputs takes the pass that made them.
    made = pl.when(pl.col("family") == "outputs").then(pl.lit(1.0))
    none = pl.when(pl.col("family") == "outputs").then(pl.lit(0.0))
    passes, backward = pl.col("passes").fill_null(made), pl.col("backward").fill_null(none)
    traits = traits.with_columns(passes=passes, backward=backward)
    found = risks.join(accuracy, on=_ENTRY).join(traits, on=_ENTRY)
    streams = kept.select(STREAM).unique().group_by("model").agg(pl.len().alias("_all"))
    found = found.join(streams, on="model").with_columns(missing=pl.col("_all") - pl.col("streams"))
    order = ["model", "_incomplete", "accuracy"]
    found = found.with_columns(_incomplete=pl.col("missing") > 0)
    found = found.sort(order, descending=[False, False, True], maintain_order=True)
    names = [*_ENTRY, "kind", "family", "is_source", "accuracy", "gain", "worst_gain"]
    names += ["worst_scenario", "tail_accuracy", "passes", "backward", "ms", "streams", "missing"]
    return found.select(names)


def passes_text(row: Mapping[str, Any]) -> str:
    """Passes forward and backward for each sample, as tables show them; empty if not counted.

    Examples
    --------
    >>> passes_text({"passes": 2.0, "backward": 0.5})
    '2 + 0.5'
    """
    if row["passes"] is None:
        return ""
    return f"{row['passes']:.3g} + {row['backward'] or 0:.3g}"


def write(board: Leaderboard, folder: PathLike) -> Path:
    """Write the page ``leaderboard.html``, and its numbers as ``leaderboard.md`` and ``.csv``."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    table = board.table()
    write_text(folder / "leaderboard.md", table.markdown() + "\n")
    write_text(folder / "leaderboard.csv", table.csv())
    lines, cells = _details(board)
    page = template("leaderboard.html.j2").render(
        boards=list(_boards(board, cells)),
        names=list(board.cards),
        families=FAMILIES,
        left_out=board.left_out,
        reasons=board.left_out["why"].value_counts(sort=True).rows(),
        details={"lines": lines, "cells": [text for _, text in cells.values()]},
        percent=percent,
        passes_text=passes_text,
        cost=_cost,
    )
    file = folder / "leaderboard.html"
    write_text(file, page)
    return file


def _cost(row: Mapping[str, Any]) -> float | None:
    """Passes forward, where one backward takes as long as two; None if they were not counted."""
    return None if row["passes"] is None else row["passes"] + 2 * (row["backward"] or 0)


def _boards(board: Leaderboard, cells: Mapping[Any, Any]) -> Iterator[dict[str, Any]]:
    """A table for each network: its columns, and rows of an entry and its cells."""
    for model in dict.fromkeys(board.entries["model"]):
        own = board.cells.filter(model=model)
        columns = list(dict.fromkeys(own.select(_SHOWN).iter_rows()))
        several = len({size for _, size in columns}) > 1
        shown = {_place(row): (cells[_place(row)][0], row) for row in own.iter_rows(named=True)}
        rows = [
            {"entry": entry, "cells": [shown.get((_entry(entry), column)) for column in columns]}
            for entry in board.entries.filter(model=model).iter_rows(named=True)
        ]
        names = [f"{name}, {size}" if several else name for name, size in columns]
        streams = own.select(*_SHOWN, "seeds").group_by(_SHOWN).agg(pl.col("seeds").max())
        yield {
            "model": model,
            "columns": names,
            "rows": rows,
            "streams": int(streams["seeds"].sum()),
        }


def _place(row: Mapping[str, Any]) -> tuple[Any, Any]:
    """The row and the column of a board that a cell is in."""
    return _entry(row), _column(row)


def _details(board: Leaderboard) -> tuple[list[tuple[str, str]], dict[Any, Any]]:
    """The lines that cards have, each once, and of each cell its number and what it shows."""
    lines: dict[tuple[str, str], int] = {}
    cells: dict[Any, Any] = {}
    by = [*_ENTRY, *_SHOWN]
    for _, rows in board.runs.group_by(by, maintain_order=True):
        first = rows.row(0, named=True)
        own = [lines.setdefault(line, len(lines)) for line in _card_lines(board, first)]
        runs = [
            [row["seed"], percent(row["accuracy"]), percent(row["gain"], signed=True),
             row["fingerprint"]]
            for row in rows.sort("seed").iter_rows(named=True)
        ]  # fmt: skip
        shown = {"title": f"{first['method']} in {first['scenario']}", "by": first["by"]}
        cells[_place(first)] = len(cells), shown | {"lines": own, "runs": runs}
    return list(lines), cells


def _card_lines(board: Leaderboard, row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The protocol card of one cell: the parts of a run's card that are about it."""
    content = board.cards[row["by"]]
    own: dict[str, Any] = {"citation": content.get("citation", "")}
    names = ("model", "dataset", "scenario", "method")
    for name in names:
        part = content[f"{name}s"]
        own[f"{name}s"] = {row[name]: part[row[name]]} if row[name] in part else {}
    for method in own["methods"].values():
        known = content["datasets"].keys() & source_data(method["params"]).values()
        own["datasets"] |= {name: content["datasets"][name] for name in sorted(known)}
    own |= {"batch_sizes": [row["batch_size"]]}
    own |= {name: content[name] for name in ("metric", "interval") if name in content}
    lines: list[tuple[str, str]] = list(card(own).data.iter_rows())
    if not content["methods"]:  # results from before there were cards
        lines.append(("method", f"{row['kind']}: {json.loads(row['config']) or 'as it is'}"))
        lines.append(("data set", row["dataset"]))
    return lines
