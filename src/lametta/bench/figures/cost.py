"""Cost figure: the time of a batch in three stages, and memory."""

from typing import TYPE_CHECKING

import polars as pl

from lametta.bench.analysis.paper import differences
from lametta.bench.columns import COLUMNS, names
from lametta.bench.figures.figure import ROWS_ALONE, Figure, ReportContext
from lametta.bench.figures.style import SeriesStyle, name_rows
from lametta.types import LamettaError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STAGES = [COLUMNS[name] for name in names("stage")]
_MEMORY = COLUMNS["peak_memory"]
_COLORS = ("#56b4e9", "#d55e00", "#009e73", "#e69f00", "#cc79a7")
_MARKS = {
    stage.label: SeriesStyle(color, filled=True)
    for stage, color in zip(_STAGES, _COLORS, strict=False)
}
_GRAY = SeriesStyle("#808890", filled=True)


def runtime(frame: pl.DataFrame, context: ReportContext = ROWS_ALONE) -> Figure:
    """The time of a batch by stage, and the peak memory: the paper's Figure 6.

    Parameters
    ----------
    frame : DataFrame
        One row a cell. Cells that replayed stored outputs have no time of a forward pass, and are
        left out: they would look faster than they are.
    context : ReportContext
        What every figure of a report is given; bars of times need nothing of it.

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
        f"The mean time of a batch after the first, by stage, and the most memory in use{unknown}. "
        "On a GPU that is the memory of all tensors; on a CPU, what the first two batches need "
        "above the loaded network, in a fresh process. The paper draws the times of LAME and TENT, "
        "and no memory; bars lie here, so that there is room for names."
        + differences("runtime", frame),
        data,
        _draw_bars,
        {stage: mark for stage, mark in _MARKS.items() if stage in data["stage"]},
        size=(3.9, 0.8 + 0.21 * data.select("model", "method").n_unique()),
    )


def _bars(timed: pl.DataFrame) -> pl.DataFrame:
    """One row for each stage of each method, and for its memory."""
    shown = [column for column in (*_STAGES, _MEMORY) if column.name in timed.columns]
    panels = {stage.name: f"time a batch ({stage.unit})" for stage in _STAGES}
    panels[_MEMORY.name] = f"peak {_MEMORY.title}"
    return (
        timed.group_by("model", "method", maintain_order=True)
        .agg(pl.col(column.name).mean() * column.scale for column in shown)
        .unpivot([column.name for column in shown], index=["model", "method"])
        .drop_nulls("value")
        .select(
            pl.col("variable").replace(panels).alias("panel"),
            "model",
            "method",
            pl.col("variable").replace({x.name: x.label for x in shown}).alias("stage"),
            "value",
        )
    )


def _draw_bars(axes: "Axes", rows: pl.DataFrame) -> None:
    bars = rows.group_by("model", "method", maintain_order=True).agg("stage", "value")
    several = rows["model"].n_unique() > 1
    places, names = [], []
    for i, (model, method, stages, values) in enumerate(bars.iter_rows()):
        y = i + 0.5 * len(set(bars["model"][: i + 1]))  # models stand apart
        places.append(y)
        names.append(f"{model} · {method}" if several else method)
        left = 0.0
        for stage, value in zip(stages, values, strict=True):
            axes.barh(y, value, left=left, height=0.7, color=_MARKS.get(stage, _GRAY).color)
            left += value
        beside = (3, 0)  # points to the right
        axes.annotate(
            f"{left:,.0f}" if left >= 1000 else f"{left:.3g}",
            (left, y),
            beside,
            textcoords="offset points",
            va="center",
            size=7.5,
        )
    name_rows(axes, places, names)
    axes.margins(x=0.14)
    axes.set_xlabel(rows["panel"][0])
