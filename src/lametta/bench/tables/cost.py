"""Table of cost: what a method needs, and passes, time and memory of a batch."""

import polars as pl

from lametta.bench.analysis import at_stream_speed
from lametta.bench.columns import COLUMNS, names
from lametta.bench.tables import Entry, Table, percent

_TRAITS = ("needs", "answers")
_SHOWN = ("forwards", "backwards", *names("stage", "time", "memory"))

_AT_SPEED = {"speed_accuracy": "accuracy at stream speed (%)", "misses": "missed batches (%)"}


def costs(frame: pl.DataFrame, source: str | None = None) -> Table:
    """What methods need, the passes of a batch as counted, its time by stage and its peak memory.

    ``answers`` says whether a method answers from before or after its update. Where the source was
    timed too, ``at stream speed`` is the accuracy where batches come as fast as the source answers
    them, by `lametta.bench.analysis.at_stream_speed`.

    Parameters
    ----------
    frame : DataFrame
        One row a cell. Cells that replayed stored outputs are left out. Results from before passes
        were counted have no such columns.
    source : str, optional
        The baseline.

    Examples
    --------
    >>> cell = {"method": "TENT", "model": "net", "forwards": 2.0, "backwards": 1.0}
    >>> cost = {"forward_time": 0.25, "optimization_time": 0.5, "inference_time": 0.25}
    >>> print(costs(pl.DataFrame([cell | cost])).markdown().splitlines()[2])
    | TENT | 2.0 | 1.0 | 250.000 | 500.000 | 250.000 |
    """
    timed = frame.filter(pl.col("forward_time").is_not_null())
    shown = [
        COLUMNS[name]
        for name in _SHOWN
        if name in frame.columns and timed[name].null_count() < len(timed)
    ]
    traits = [name for name in _TRAITS if name in frame.columns and any(timed[name])]
    data = timed.group_by("model", "method", maintain_order=True).agg(
        *(pl.col(name).first() for name in traits),
        *(pl.col(column.name).mean() for column in shown),
    )
    fast = _at_speed(timed, source)
    if fast is not None:
        data = data.join(fast, on=["model", "method"], how="left", maintain_order="left")
    several = data["model"].n_unique() > 1
    rows = [
        [
            Entry(f"{row['model']} · {row['method']}" if several else row["method"]),
            *(Entry(row[name] or "") for name in traits),
            *(Entry(column.text(row[column.name])) for column in shown),
            *(Entry(_percent(row[name])) for name in _AT_SPEED if fast is not None),
        ]
        for row in data.iter_rows(named=True)
    ]
    header = ["method", *traits, *(column.title for column in shown)]
    header += _AT_SPEED.values() if fast is not None else ()
    return Table("cost", "Cost of a batch", header, rows, data)


def _at_speed(timed: pl.DataFrame, source: str | None) -> pl.DataFrame | None:
    """The means of each model and method; None where the source was not timed."""
    if source is None or not {"step_time", "step_hits", "step_n"} <= set(timed.columns):
        return None
    found = at_stream_speed(timed, source)
    if found.is_empty():
        return None
    return found.group_by("model", "method", maintain_order=True).agg(pl.col(*_AT_SPEED).mean())


def _percent(value: float | None) -> str:
    return "" if value is None else percent(value)
