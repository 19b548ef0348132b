"""Table of cost: what a method needs, and passes, time and memory of a batch."""

import polars as pl

from lametta.bench.columns import COLUMNS, names
from lametta.bench.tables import Entry, Table

_TRAITS = ("needs", "answers")
_SHOWN = ("forwards", "backwards", *names("stage", "time", "memory"))


def costs(frame: pl.DataFrame) -> Table:
    """What methods need, the passes of a batch as counted, its time by stage and its peak memory.

    ``answers`` says whether a method answers from before or after its update.

    Parameters
    ----------
    frame : DataFrame
        One row a cell. Cells that replayed stored outputs are left out. Results from before passes
        were counted have no such columns.

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
    several = data["model"].n_unique() > 1
    rows = [
        [
            Entry(f"{row['model']} · {row['method']}" if several else row["method"]),
            *(Entry(row[name] or "") for name in traits),
            *(Entry(column.text(row[column.name])) for column in shown),
        ]
        for row in data.iter_rows(named=True)
    ]
    header = ["method", *traits, *(column.title for column in shown)]
    return Table("cost", "Cost of a batch", header, rows, data)
