"""Rows made ready to be drawn: averaged, and named."""

import json
from collections.abc import Iterator, Sequence

import polars as pl

from lametta.bench.metrics import gains, summary

MEANS = ("method", "accuracy", "gain", "gain_ci")
"""What is drawn of the columns that `averages` gives."""


def averages(frame: pl.DataFrame, source: str, *by: str) -> pl.DataFrame:
    """Means by these columns, in percent, and gains over the source, in points."""
    means = summary(gains(frame, source), by)
    return means.with_columns(pl.col("accuracy", "accuracy_ci", "gain", "gain_ci") * 100)


def heights(frame: pl.DataFrame, column: str) -> Iterator[dict[str, list[float]]]:
    """The values of each method in the order of the rows, panel by panel."""
    for rows in frame.partition_by("panel", maintain_order=True):
        yield dict(rows.group_by("method", maintain_order=True).agg(column).iter_rows())


def place(frame: pl.DataFrame, what: str | pl.Expr = "scenario") -> pl.Expr:
    """The scenario, after the model and the batch size where there are several of them."""
    varying = [name for name in ("model", "batch_size") if frame[name].n_unique() > 1]
    return pl.concat_str(*varying, what, separator=" · ")


def ends(values: Sequence[float]) -> tuple[float, float]:
    """The ends of an axis that holds them all, with some room."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    room = 0.04 * (high - low) or 1.0
    return low - room, high + room


def variants(frame: pl.DataFrame) -> pl.DataFrame:
    """Add to a method's name what tells its configurations apart."""
    pairs = frame.select("method", "config")
    parsed = {pair: json.loads(pair[1]) for pair in pairs.unique(maintain_order=True).iter_rows()}
    names = {}
    for (method, config), params in parsed.items():
        rivals = [other for (name, _), other in parsed.items() if name == method]
        differing = [
            key for key in params if any(other.get(key) != params[key] for other in rivals)
        ]
        words = [_words(key, params[key]) for key in differing]
        names[method, config] = " ".join([method, ", ".join(words)]).strip()
    new = [names[pair] for pair in pairs.iter_rows()]
    return frame.with_columns(method=pl.Series(new, dtype=pl.String))


def _words(key: str, value: object) -> str:
    return value if isinstance(value, str) else f"{key} {value}"
