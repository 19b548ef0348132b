"""Table of cost: passes through the network, time and memory of a batch."""

import polars as pl

from lametta.bench.columns import COLUMNS, names
from lametta.bench.tables import Entry, Table

_SHOWN = ("forwards", "backwards", *names("stage", "time", "memory"))


def costs(frame: pl.DataFrame) -> Table:
    """The passes of a batch as they were counted, its time by stage and its peak memory.

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
    data = timed.group_by("model", "method", maintain_order=True).agg(
        pl.col(column.name).mean() for column in shown
    )
    several = data["model"].n_unique() > 1
    rows = [
        [
            Entry(f"{row['model']} · {row['method']}" if several else row["method"]),
            *(Entry(column.text(row[column.name])) for column in shown),
        ]
        for row in data.iter_rows(named=True)
    ]
    header = ["method", *(column.title for column in shown)]
    return Table("cost", "Cost of a batch", header, rows, data)
