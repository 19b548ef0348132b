"""What a method may cost: the worst streams, the tail, likelihood and calibration."""

import polars as pl

from lametta.bench import metrics
from lametta.bench.tables.ahead import looks_ahead
from lametta.bench.tables.table import Entry, Table, gain_entries, percent

_AHEAD = {True: "yes", False: "no", None: ""}


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
    kinds = {"all": frame}
    if "iid" in frame.columns and frame["iid"].n_unique() == 2:
        kinds |= {"i.i.d.": frame.filter("iid"), "correlated": frame.filter(~pl.col("iid"))}
    data = pl.concat(
        metrics.risk(part, source).select(pl.lit(kind).alias("kind"), pl.all())
        for kind, part in kinds.items()
    )
    ahead = looks_ahead(frame)
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
