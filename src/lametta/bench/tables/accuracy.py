"""Tables of accuracy, ranking, details and risk."""

from collections.abc import Mapping
from typing import Any

import polars as pl

from lametta.bench import analysis
from lametta.bench.analysis import COVERED, gains, summary, worst_drop
from lametta.bench.columns import COLUMNS, STREAM, names
from lametta.bench.tables import Entry, Table, gain_entries, percent

_AHEAD = {True: "yes", False: "no", None: ""}
_FOOTNOTE = "† looks ahead: what it says of a sample may depend on later samples of the batch."


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
    data = _with_means(paired, keys, columns)
    best = pl.col("accuracy") == pl.col("accuracy").max().over(*varying, columns)
    entries = {
        tuple(row[name] for name in (*keys, columns)): _accuracy(row, row["method"] == source)
        for row in data.with_columns(best=best).iter_rows(named=True)
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


def _with_means(paired: pl.DataFrame, keys: list[str], columns: str) -> pl.DataFrame:
    """Summaries by keys and columns, and where there are several that are alike, their means."""
    data = summary(paired, [*keys, columns]).with_columns(pl.col(columns).cast(str))
    if columns not in ("scenario", "model") or data[columns].n_unique() < 2:
        return data
    mean = summary(paired, keys).with_columns(pl.lit("mean").alias(columns))
    return pl.concat([data, mean], how="diagonal")


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
    there = [name for name in names("metric", "open", "signal") if name in frame.columns]
    rows_of = frame.filter(scenario=scenario).group_by("method", maintain_order=True)
    data = rows_of.agg(pl.col(there).mean())
    shown = [COLUMNS[name] for name in data.columns[1:] if data[name].is_not_null().any()]
    rows = [
        [Entry(row["method"]), *(Entry(column.text(row[column.name])) for column in shown)]
        for row in data.iter_rows(named=True)
    ]
    return Table("details", scenario, ["method", *(column.title for column in shown)], rows, data)


def risk(frame: pl.DataFrame, source: str = "Source") -> Table:
    """What each method gains on average, and what it costs where it is wrong.

    Parameters
    ----------
    frame : DataFrame
        One row a cell, in the order to be shown. With a column ``iid``, streams that are i.i.d. and
        those that are not also have rows of their own.
    source : str
        The baseline; changes of NLL and ECE are over it, on the same stream.

    Examples
    --------
    >>> cells = {"config": "{}", "model": "net", "seed": 0, "batch_size": 64, "fingerprint": "5f1c"}
    >>> runs = [("Source", "a", 0.5), ("Source", "b", 0.6), ("LAME", "a", 0.4), ("LAME", "b", 0.9)]
    >>> rows = [cells | {"method": m, "scenario": s, "accuracy": a} for m, s, a in runs]
    >>> print(risk(pl.DataFrame(rows)).markdown())
    | streams | method | gain | worst gain | in | below Source | tail accuracy |
    |---|---|---:|---:|---|---:|---:|
    | all | Source |  |  |  |  | 55.0 |
    | all | LAME | +10.0 | -10.0 | a | 1 of 2 | 65.0 |
    <BLANKLINE>
    Worst and below: single streams. Tail: the worst tenth of the runs of a scenario.
    """
    data = pl.concat(
        analysis.risk(part, source).select(pl.lit(kind).alias("kind"), pl.all())
        for kind, part in _kinds_of_streams(frame).items()
    )
    ahead = non_causal(frame)
    data = data.with_columns(
        looks_ahead=pl.col("method").replace_strict(ahead, default=None, return_dtype=pl.Boolean)
    )
    header = ["streams", "method", "gain", "worst gain", "in", f"below {source}", "tail accuracy"]
    optional = {"nll_change": "NLL", "ece_change": "ECE"}
    shown = [name for name in optional if name in data.columns]
    header += [optional[name] for name in shown]
    header += ["looks ahead"] if ahead else []
    rows = []
    for row in data.iter_rows(named=True):
        below = f"{round(row['below'] * row['streams'])} of {row['streams']}"
        gained, changed = gain_entries(row, below), [_change(name, row[name]) for name in shown]
        if row["method"] == source:
            gained, changed = [Entry("")] * len(gained), [Entry("")] * len(changed)
        tail = Entry(percent(row["tail_accuracy"]))
        entries = [Entry(row["kind"]), Entry(row["method"]), *gained, tail, *changed]
        rows.append(entries + [Entry(_AHEAD[row["looks_ahead"]])] * bool(ahead))
    return Table("risk", "Gains and risks (%)", header, rows, data, _footnote(source, shown))


def _kinds_of_streams(frame: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """The cells of all streams and, where there are both, of i.i.d. and of correlated ones."""
    if "iid" not in frame.columns or frame["iid"].n_unique() != 2:
        return {"all": frame}
    iid, correlated = frame.filter("iid"), frame.filter(~pl.col("iid"))
    return {"all": frame, "i.i.d.": iid, "correlated": correlated}


def _footnote(source: str, shown: list[str]) -> str:
    words = "Worst and below: single streams. Tail: the worst tenth of the runs of a scenario."
    changes = f" NLL (nats) and ECE (points): changes over {source}, where less is better."
    return words + (changes if shown else "")


def _change(name: str, change: float | None) -> Entry:
    """A change over the source: less is better."""
    if change is None:
        return Entry("")
    if name == "ece_change":
        return Entry(percent(change, signed=True), -100 * change)
    return Entry(f"{round(change, 3) + 0.0:+.3f}", -20 * change)


def non_causal(frame: pl.DataFrame) -> dict[str, bool]:
    """Whether each method looks ahead, where that is known: older results do not say it.

    In batches of one sample there is nothing ahead.

    Examples
    --------
    >>> runs = {"method": ["Source", "LAME"], "causal": [True, False], "batch_size": 64}
    >>> non_causal(pl.DataFrame(runs))
    {'Source': False, 'LAME': True}
    """
    if "causal" not in frame.columns:
        return {}
    ahead = (~pl.col("causal") & (pl.col("batch_size") > 1)).any()
    known = frame.filter(pl.col("causal").is_not_null())
    return dict(known.group_by("method", maintain_order=True).agg(ahead.alias("ahead")).iter_rows())


def marked(frame: pl.DataFrame, source: str) -> tuple[Mapping[str, Entry], str]:
    """The entry that names each method, and the footnote that explains the marks in them.

    Methods that look ahead have a mark where there are others, besides the source, that do not.

    Examples
    --------
    >>> runs = {"method": ["Source", "LAME", "average"], "causal": [True, False, True]}
    >>> entries, footnote = marked(pl.DataFrame(runs).with_columns(batch_size=64), "Source")
    >>> [entry.text for entry in entries.values()], footnote[:13]
    (['Source', 'LAME †', 'average'], '† looks ahead')
    """
    ahead = non_causal(frame)
    tells_apart = len({x for name, x in ahead.items() if name != source}) == 2
    names = dict.fromkeys(frame["method"])
    shown = {name for name in names if tells_apart and ahead.get(name)}
    entries = {name: Entry(f"{name} †" if name in shown else name) for name in names}
    return entries, _FOOTNOTE if shown else ""
