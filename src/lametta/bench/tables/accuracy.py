"""How often methods are right, alone and compared with the source."""

from collections.abc import Mapping
from typing import Any

import polars as pl

from lametta.bench.columns import COLUMNS, STREAM, names
from lametta.bench.metrics import COVERED, gains, summary, worst_drop
from lametta.bench.tables.ahead import marked
from lametta.bench.tables.table import Entry, Table, gain_entries, percent


def accuracies(frame: pl.DataFrame, source: str = "Source", columns: str = "scenario") -> Table:
    """Mean accuracies with 95 % intervals: one row a method, one column a scenario.

    Parameters
    ----------
    frame : DataFrame
        One row a cell, in the order to be shown.
    source : str
        The baseline, over which gains are.
    columns : str
        The column of the frame that makes the columns: scenario, model or batch_size, say. Of the
        others, models and batch sizes have rows of their own, and scenarios are averaged.

    Examples
    --------
    >>> cells = {"config": "{}", "model": "net", "seed": 0, "batch_size": 64, "fingerprint": "5f1c"}
    >>> runs = [("Source", "a", 0.5), ("Source", "b", 0.6), ("LAME", "a", 0.4), ("LAME", "b", 0.9)]
    >>> rows = [cells | {"method": m, "scenario": s, "accuracy": a} for m, s, a in runs]
    >>> print(accuracies(pl.DataFrame(rows)).markdown())
    | method | a | b | mean |
    |---|---:|---:|---:|
    | Source | **50.0** | 60.0 | 55.0 |
    | LAME | 40.0 | **90.0** | **65.0** |
    """
    paired = gains(frame, source)
    varying = [
        name for name in ("model", "batch_size") if name != columns and frame[name].n_unique() > 1
    ]
    keys = [*varying, "method"]
    data = summary(paired, [*keys, columns]).with_columns(pl.col(columns).cast(str))
    if columns in ("scenario", "model") and data[columns].n_unique() > 1:
        mean = summary(paired, keys).with_columns(pl.lit("mean").alias(columns))
        data = pl.concat([data, mean], how="diagonal")
    best = data.with_columns(
        best=pl.col("accuracy") == pl.col("accuracy").max().over(*varying, columns)
    )
    entries = {
        tuple(row[name] for name in (*keys, columns)): _accuracy(row, row["method"] == source)
        for row in best.iter_rows(named=True)
    }
    labels = list(dict.fromkeys(data[columns]))
    named, footnote = marked(frame, source)
    rows = [
        [
            *(Entry(str(name)) for name in key[:-1]),
            named[key[-1]],
            *(entries.get((*key, x), Entry("")) for x in labels),
        ]
        for key in dict.fromkeys(data.select(keys).iter_rows())
    ]
    title = "Accuracy (%) by method and " + columns.replace("_", " ")
    header = [*(key.replace("_", " ") for key in keys), *labels]
    return Table("accuracies", title, header, rows, data, _notes(footnote, data))


def _accuracy(row: Mapping[str, Any], is_source: bool) -> Entry:
    text = percent(row["accuracy"], row["accuracy_ci"])
    if is_source:
        return Entry(text, best=row["best"])
    gain = percent(row["gain"], row["gain_ci"], signed=True)
    return Entry(text, 100 * row["gain"], gain, row["best"])


def ranking(frame: pl.DataFrame, source: str = "Source") -> Table:
    """What each method gains over the source on average and at worst, the best first.

    The numbers behind it also have ``behind``, by how much the accuracy of a method is below the
    first's, and ``behind_ci``, half the width of the 95 % interval of that.

    Examples
    --------
    >>> cells = {"config": "{}", "model": "net", "seed": 0, "batch_size": 64, "fingerprint": "5f1c"}
    >>> runs = [("Source", "a", 0.5), ("Source", "b", 0.6), ("LAME", "a", 0.4), ("LAME", "b", 0.9)]
    >>> rows = [cells | {"method": m, "scenario": s, "accuracy": a} for m, s, a in runs]
    >>> print(ranking(pl.DataFrame(rows)).markdown())
    | method | accuracy | gain | worst gain | in | scenarios above Source |
    |---|---:|---:|---:|---|---:|
    | LAME | **65.0** | +10.0 | -10.0 | a | 1 of 2 |
    | Source | 55.0 |  |  |  |  |
    """
    paired = gains(frame, source)
    counts = (
        summary(paired, ["method", "scenario"])
        .group_by("method")
        .agg(scenarios_above=(pl.col("gain") > 0).sum())
    )
    worst = worst_drop(paired).select("method", worst_gain="gain", worst_scenario="scenario")
    data = summary(paired).join(worst, on="method").join(counts, on="method")
    data = data.sort("accuracy", descending=True, maintain_order=True)
    data = data.join(_behind(frame, data["method"]), on="method", maintain_order="left")
    named, footnote = marked(frame, source)
    calibration = [COLUMNS[name] for name in ("nll", "ece") if name in data.columns]
    rows = []
    for row in data.with_columns(best=pl.col("accuracy") == data["accuracy"][0]).to_dicts():
        above = f"{row['scenarios_above']} of {row['scenarios']}"
        others = gain_entries(row, above, row["gain_ci"])
        shown = [Entry("")] * len(others) if row["method"] == source else others
        shown += [Entry(column.text(row[column.name])) for column in calibration]
        rows.append([named[row["method"]], _accuracy(row, True), *shown])
    header = ["method", "accuracy", "gain", "worst gain", "in", f"scenarios above {source}"]
    header += [column.title for column in calibration]
    return Table("ranking", "At a glance", header, rows, data, _notes(footnote, data))


def _notes(footnote: str, data: pl.DataFrame) -> str:
    """The footnote, and what intervals cover, if there are any."""
    intervals = f"±: 95 % interval {COVERED}." if data["accuracy_ci"].is_not_null().any() else ""
    return " ".join(filter(None, [footnote, intervals]))


def _behind(frame: pl.DataFrame, ranked: pl.Series) -> pl.DataFrame:
    """How far each method is behind the first, and how sure that is, on the streams of both.

    The interval is over seeds, and null where there is one; both are null where the first has
    several configurations.
    """
    first = frame.filter(method=ranked[0])
    rows = frame.join(first, on=STREAM, how="semi", maintain_order="left")
    if first.select(STREAM).is_duplicated().any():
        nothing = pl.lit(None, pl.Float64)
        return pl.DataFrame({"method": ranked}).with_columns(behind=nothing, behind_ci=nothing)
    return summary(gains(rows, ranked[0])).select(
        "method", behind=-pl.col("gain"), behind_ci="gain_ci"
    )


def details(frame: pl.DataFrame, scenario: str) -> Table:
    """Every metric of every method in one scenario, means over the runs.

    Examples
    --------
    >>> frame = pl.DataFrame({"method": "LAME", "scenario": "a", "accuracy": 0.5, "ece": 0.25})
    >>> print(details(frame, "a").markdown())
    | method | accuracy (%) | ECE (%) |
    |---|---:|---:|
    | LAME | 50.0 | 25.00 |
    """
    data = (
        frame.filter(scenario=scenario)
        .group_by("method", maintain_order=True)
        .agg(pl.col([name for name in names("metric", "signal") if name in frame.columns]).mean())
    )
    shown = [COLUMNS[name] for name in data.columns[1:] if data[name].is_not_null().any()]
    rows = [
        [Entry(row["method"]), *(Entry(column.text(row[column.name])) for column in shown)]
        for row in data.iter_rows(named=True)
    ]
    return Table("details", scenario, ["method", *(column.title for column in shown)], rows, data)
