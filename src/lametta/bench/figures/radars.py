"""Radar charts of accuracies: of methods and of LAME's kernels, over networks."""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lametta.bench.analysis.paper import differences
from lametta.bench.figures.figure import (
    MEANS,
    ROWS_ALONE,
    Figure,
    ReportContext,
    averages,
    line_styles,
    name_configurations,
)
from lametta.bench.figures.style import GRID, SeriesStyles
from lametta.types import LamettaError

if TYPE_CHECKING:
    from matplotlib.projections.polar import PolarAxes


def radar(
    frame: pl.DataFrame, context: ReportContext = ROWS_ALONE, spokes: str = "model"
) -> Figure:
    """The mean accuracy of each method, one spoke a model: the paper's Figure 5.

    Parameters
    ----------
    frame : DataFrame
        One row a cell.
    context : ReportContext
        The baseline, and how each method is drawn.
    spokes : str
        The column whose values are the spokes; what else varies is averaged over.

    Examples
    --------
    >>> cells = {"config": "{}", "scenario": "video", "seed": 0, "batch_size": 16}
    >>> cells |= {"fingerprint": "5f1c"}
    >>> runs = [("Source", 0.5), ("LAME", 0.75)]
    >>> rows = [cells | {"model": m, "method": x, "accuracy": a} for m in "abc" for x, a in runs]
    >>> figure = radar(pl.DataFrame(rows))
    >>> figure.frame()["accuracy"].to_list(), list(figure.legend)
    ([50.0, 75.0, 50.0, 75.0, 50.0, 75.0], ['Source 50.0', 'LAME 75.0'])
    """
    return _radar("radar", frame, context, spokes)


def _radar(kind: str, frame: pl.DataFrame, context: ReportContext, spokes: str) -> Figure:
    means = averages(frame, context.source, spokes, "method")
    if (n := means[spokes].n_unique()) < 3:
        raise LamettaError(f"frame must have at least 3 values of {spokes} for a radar, got {n}")
    data = means.select(pl.lit("accuracy (%)").alias("panel"), pl.col(spokes), *MEANS)
    data = data.rename({spokes: "spoke"})
    present = line_styles(data, "accuracy", context.style)
    over = "" if spokes == "scenario" else ", the mean over scenarios"
    overall = dict(data.group_by("method").agg(pl.col("accuracy").mean()).iter_rows())
    center = _ticks(data)[0]
    return Figure(
        kind,
        f"Accuracy by {spokes}",
        f"Accuracy in percent{over}; further out is better, and the center is {center:g}. The "
        f"numbers beside the names are the means over the spokes.{differences(kind, frame)}",
        data,
        partial(_draw_radar, style=present),
        {f"{name} {overall[name]:.1f}": mark for name, mark in present.items()},
        size=(3.9, 3.3),
        polar=True,
    )


def _ticks(rows: pl.DataFrame) -> NDArray[np.float64]:
    """The accuracies that rings are drawn at, from the center, which is not below 0."""
    from matplotlib.ticker import MaxNLocator

    accuracy = rows["accuracy"].to_numpy()
    low, high = accuracy.min(), accuracy.max()
    ticks = MaxNLocator(5).tick_values(max(0.0, low - 0.2 * max(high - low, 1.0)), high)
    return np.asarray(ticks)


def _draw_radar(axes: "PolarAxes", rows: pl.DataFrame, style: SeriesStyles) -> None:
    spokes = list(dict.fromkeys(rows["spoke"]))
    angles = np.linspace(0, 2 * np.pi, len(spokes), endpoint=False)
    for method, mark in style.items():
        values = dict(rows.filter(method=method).select("spoke", "accuracy").iter_rows())
        radii = np.array([values.get(spoke, np.nan) for spoke in spokes])
        closed = np.append(angles, angles[0]), np.append(radii, radii[0])
        axes.plot(*closed, color=mark.color, ls=mark.line, marker=mark.marker, ms=3.5)
    axes.set_theta_zero_location("N")
    axes.set_theta_direction(-1)
    axes.set_xticks(angles, spokes)
    for angle, label in zip(angles, axes.get_xticklabels(), strict=True):
        side = round(float(np.sin(angle)), 1)  # right of, above or left of the center
        label.set_horizontalalignment("left" if side > 0 else "right" if side < 0 else "center")
    ticks = _ticks(rows)
    axes.set_yticks(ticks[1:])
    axes.set_ylim(ticks[0], ticks[-1])
    axes.set_rlabel_position(180 / len(spokes))
    axes.spines["polar"].set_color(GRID)


def kernels(frame: pl.DataFrame, context: ReportContext = ROWS_ALONE) -> Figure:
    """The mean accuracy of each kernel, one spoke a model: the paper's Figure 8.

    With fewer than three models the spokes are the scenarios.

    Parameters
    ----------
    frame : DataFrame
        One row a cell. Kernels are methods of their own, or configurations of one method.
    context : ReportContext
        The baseline, and how each method is drawn.

    Examples
    --------
    >>> cells = {"scenario": "video", "seed": 0, "batch_size": 64, "fingerprint": "5f1c"}
    >>> runs = [("Source", "{}"), ("LAME", '{"affinity":"knn"}'), ("LAME", '{"affinity":"rbf"}')]
    >>> rows = [
    ...     cells | {"method": m, "config": c, "model": x, "accuracy": 0.5}
    ...     for m, c in runs
    ...     for x in "abc"
    ... ]
    >>> list(kernels(pl.DataFrame(rows)).legend)
    ['Source 50.0', 'LAME knn 50.0', 'LAME rbf 50.0']
    """
    few = frame["model"].n_unique() < 3
    spokes = "scenario" if few else "model"
    figure = _radar("kernels", name_configurations(frame), context, spokes)
    why = " Its spokes are the networks, which are too few here: these are the scenarios."
    return replace(figure, title="Kernels of LAME", caption=figure.caption + why * few)
