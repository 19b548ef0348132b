"""What a method costs: the time of a batch in three stages, and memory."""

from typing import Any

import polars as pl

from lametta.bench.figures.figure import Figure
from lametta.bench.figures.style import Mark
from lametta.types import LamettaError

_STAGES = {
    "forward_time": "forward",
    "optimization_time": "optimization",
    "inference_time": "second forward",
    "peak_memory": "memory",
}
_MARKS = {
    "forward": Mark("#56b4e9", filled=True),
    "optimization": Mark("#d55e00", filled=True),
    "second forward": Mark("#009e73", filled=True),
}
_MEMORY = Mark("#808890", filled=True)


def runtime(frame: pl.DataFrame) -> Figure:
    """The time of a batch by stage, and the peak memory: the paper's Figure 6.

    Parameters
    ----------
    frame : DataFrame
        One row a cell. Cells that replayed stored outputs have no time of a forward pass, and are
        left out: beside the others they would look faster than they are.

    Examples
    --------
    >>> cell = {"method": "LAME", "config": "{}", "model": "net", "scenario": "video", "seed": 0}
    >>> cost = {"forward_time": 0.25, "optimization_time": 0.5, "peak_memory": 2.0**20}
    >>> rows = pl.DataFrame([cell | cost | {"batch_size": 64, "accuracy": 0.5}])
    >>> runtime(rows).frame().select("stage", "value").rows()
    [('forward', 250.0), ('optimization', 500.0), ('memory', 1.0)]
    """
    data = _bars(frame.filter(pl.col("forward_time").is_not_null()))
    if data.is_empty():
        raise LamettaError("frame must have rows with a forward_time, got none")
    measured = data.filter(stage="memory")["method"]
    rest = [method for method in dict.fromkeys(data["method"]) if method not in measured]
    unknown = f", which was not measured for {', '.join(rest)}" if rest else ""
    return Figure(
        "runtime",
        "Time and memory",
        f"The mean time of a batch after the first, by stage, and the most memory in use{unknown}.",
        data,
        _draw_bars,
        {stage: mark for stage, mark in _MARKS.items() if stage in data["stage"]},
        size=(3.9, 0.8 + 0.21 * data.select("model", "method").n_unique()),
    )


def _bars(timed: pl.DataFrame) -> pl.DataFrame:
    """One row for each stage of each method, and for its memory."""
    stages = [name for name in _STAGES if name in timed.columns]
    in_memory = pl.col("stage") == "memory"
    memory, time = pl.lit("peak memory (MiB)"), pl.lit("time a batch (ms)")
    panel = pl.when(in_memory).then(memory).otherwise(time).alias("panel")
    return (
        timed.group_by("model", "method", maintain_order=True)
        .agg(pl.col(stages).mean())
        .unpivot(stages, index=["model", "method"], variable_name="stage")
        .drop_nulls("value")
        .with_columns(pl.col("stage").replace(_STAGES))
        .with_columns(panel, pl.col("value") * pl.when(in_memory).then(2.0**-20).otherwise(1e3))
        .select("panel", "model", "method", "stage", "value")
    )


def _draw_bars(axes: Any, rows: pl.DataFrame) -> None:
    bars = rows.group_by("model", "method", maintain_order=True).agg("stage", "value")
    several = rows["model"].n_unique() > 1
    places, names = [], []
    for i, (model, method, stages, values) in enumerate(bars.iter_rows()):
        y = i + 0.5 * len(set(bars["model"][: i + 1]))  # models stand apart
        places.append(y)
        names.append(f"{model} · {method}" if several else method)
        left = 0.0
        for stage, value in zip(stages, values, strict=True):
            axes.barh(y, value, left=left, height=0.7, color=_MARKS.get(stage, _MEMORY).color)
            left += value
        where = {"textcoords": "offset points", "va": "center", "size": 7.5}
        axes.annotate(f"{left:.3g}", (left, y), (3, 0), **where)
    axes.set_yticks(places, names)
    axes.set_ylim(places[-1] + 0.6, places[0] - 0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.14)
    axes.set_xlabel(rows["panel"][0])
