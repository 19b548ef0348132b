"""Box plots of runs, accuracy by batch size, gain of every run."""

import textwrap
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from lametta.bench.analysis import COVERED, gains
from lametta.bench.analysis.paper import differences
from lametta.bench.figures.figure import (
    MEANS,
    ROWS_ALONE,
    Figure,
    ReportContext,
    averages,
    axis_limits,
    line_styles,
    panel_label,
)
from lametta.bench.figures.style import (
    INK,
    SeriesStyle,
    SeriesStyles,
    name_rows,
    styles_for,
)
from lametta.types import LamettaError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def boxes(frame: pl.DataFrame, context: ReportContext = ROWS_ALONE) -> Figure:
    """The accuracy of each run, one panel a kind of scenario: the paper's Figure 4.

    Parameters
    ----------
    frame : DataFrame
        One row a cell. Scenarios and methods are drawn in the order in which they come. Where it
        has the columns ``iid`` and ``prior_shift``, scenarios of a kind share a panel.
    context : ReportContext
        The baseline, whose mean is a line through the methods of a scenario, and how each method
        is drawn.

    Examples
    --------
    >>> cells = {"model": "net", "scenario": "video", "batch_size": 64}
    >>> rows = [cells | {"method": "LAME", "seed": s, "accuracy": 0.5 + s / 8} for s in range(2)]
    >>> boxes(pl.DataFrame(rows)).frame().select("accuracy", "average").rows()
    [(50.0, 56.25), (62.5, 56.25)]
    """
    runs = frame.select(
        _panel(frame), "scenario", "method", "seed", accuracy=100 * pl.col("accuracy")
    )
    keys = ["panel", "method"]
    means = runs.group_by(*keys, "scenario").agg(pl.col("accuracy").mean())
    means = means.group_by(keys).agg(average=pl.col("accuracy").mean())
    runs = runs.join(means, on=keys, how="left", maintain_order="left")
    panels = runs.partition_by("panel")
    n_boxes = max((panel.select("scenario", "method").n_unique() for panel in panels), default=0)
    source, present = context.source, styles_for(frame["method"], context.style)
    return Figure(
        "boxes",
        "Accuracy over runs",
        "A dot is a run: the same images in another order, or with another prior. The box holds "
        "the middle half of the runs, the thin line all of them, and "
        f"the tick is their median. The dashed line is the mean of {source}, on the same streams. "
        "Beside each method stands its average over the scenarios of the panel; all panels have "
        f"one axis.{differences('boxes', frame)}",
        runs,
        partial(
            _draw_boxes, source=source, style=present, ends=axis_limits(list(runs["accuracy"]))
        ),
        size=(min(max(3.5, 0.7 + 0.16 * n_boxes), 7.0), 3.5),
        columns=3,
    )


def _panel(frame: pl.DataFrame) -> pl.Expr:
    """The kind of a scenario, after the model and the batch size where there are several."""
    kind = pl.lit("all scenarios")
    if {"iid", "prior_shift"} <= {*frame.columns}:
        kind = pl.when(~pl.col("iid")).then(pl.lit("non-i.i.d."))
        kind = (
            kind.when("prior_shift").then(pl.lit("i.i.d., prior shift")).otherwise(pl.lit("i.i.d."))
        )
    return panel_label(frame, kind).alias("panel")


def _draw_boxes(
    axes: "Axes", rows: pl.DataFrame, source: str, style: SeriesStyles, ends: tuple[float, float]
) -> None:
    scenarios = list(dict.fromkeys(rows["scenario"]))
    methods = list(dict.fromkeys(rows["method"]))
    step = 0.84 / len(methods)
    for x, scenario in enumerate(scenarios):
        for i, method in enumerate(methods):
            values = rows.filter(scenario=scenario, method=method)["accuracy"].to_numpy()
            if not len(values):
                continue
            color, place = style[method].color, x + (i - (len(methods) - 1) / 2) * step
            if method == source:
                mean, around = values.mean(), (x - 0.46, x + 0.46)
                axes.plot(around, (mean, mean), color=color, lw=1, ls="--", zorder=1)
            low, first, median, third, high = np.quantile(values, (0, 0.25, 0.5, 0.75, 1))
            axes.plot((place, place), (low, high), color=color, lw=1)
            axes.bar(place, third - first, 0.7 * step, first, color=color, alpha=0.4)
            axes.plot(np.full(len(values), place), values, "o", color=color, ms=2.2, mew=0)
            across = (place - 0.4 * step, place + 0.4 * step)
            axes.plot(across, (median, median), color=color, lw=2, solid_capstyle="butt")
    label = partial(textwrap.fill, width=max(7, 44 // len(scenarios)))
    upright = len(scenarios) > 5
    axes.set_xticks(
        range(len(scenarios)),
        scenarios if upright else map(label, scenarios),
        rotation=90 if upright else 0,
    )
    axes.set_xlim(-0.5, len(scenarios) - 0.5)
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False, axis="x")
    axes.set_ylim(ends)
    axes.set_ylabel("accuracy (%)")
    axes.set_xlabel("scenario")
    average = dict(rows.select("method", "average").iter_rows())
    handles = [
        SeriesStyle(style[name].color, filled=True).handle(f"{name} {average[name]:.1f}")
        for name in methods
    ]
    columns = 3 if max(map(len, methods)) < 12 else 2
    axes.legend(
        handles=handles,
        ncols=columns,
        loc="lower left",
        bbox_to_anchor=(-0.04, 0.98),
        fontsize=7.5,
        handlelength=1,
        columnspacing=1,
    )
    axes.set_title(rows["panel"][0], pad=8 + 11 * -(-len(methods) // columns))


def batch_size(frame: pl.DataFrame, context: ReportContext = ROWS_ALONE) -> Figure:
    """The mean accuracy against the batch size: the paper's Figure 9.

    Parameters
    ----------
    frame : DataFrame
        One row a cell.
    context : ReportContext
        The baseline, and how each method is drawn.

    Examples
    --------
    >>> cells = {"method": "Source", "config": "{}", "model": "net", "scenario": "video"}
    >>> cells |= {"seed": 0, "fingerprint": "5f1c"}
    >>> rows = [cells | {"batch_size": n, "accuracy": n / 100} for n in (16, 64)]
    >>> batch_size(pl.DataFrame(rows)).frame()["accuracy"].to_list()
    [16.0, 64.0]
    """
    source = context.source
    means = averages(frame, source, "model", "method", "batch_size").sort(
        "batch_size", maintain_order=True
    )
    data = means.select(pl.col("model").alias("panel"), "batch_size", *MEANS)
    present = line_styles(data, "accuracy", context.style)
    whiskers = f"; whiskers are 95 % intervals of the gain over {source}, paired and {COVERED}"
    sure = data["gain_ci"].is_not_null().any()
    return Figure(
        "batch_size",
        "Accuracy against batch size",
        f"The mean over scenarios{whiskers if sure else ''}.{differences('batch_size', frame)}",
        data,
        partial(_draw_batch_size, style=present),
        present,
        size=(3.8, 2.7),
    )


def _draw_batch_size(axes: "Axes", rows: pl.DataFrame, style: SeriesStyles) -> None:
    for i, (method, mark) in enumerate(style.items()):
        line = rows.filter(method=method)
        axes.errorbar(
            line["batch_size"] * 1.02 ** (i - len(style) / 2),  # whiskers stand side by side
            line["accuracy"],
            line["gain_ci"].fill_null(0),
            color=mark.color,
            marker=mark.marker,
            ls=mark.line,
            elinewidth=1,
        )
    sizes = sorted(set(rows["batch_size"]))
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, map(str, sizes))
    axes.minorticks_off()
    axes.set_xlabel("batch size (samples)")
    axes.set_ylabel("accuracy (%)")


def spread(frame: pl.DataFrame, context: ReportContext = ROWS_ALONE) -> Figure:
    """The gain of each run over the source on the same stream, one line of dots a method.

    Parameters
    ----------
    frame : DataFrame
        One row a cell; methods are drawn in the order in which they come. Where it has a column
        ``iid``, streams that are i.i.d. and those that are not have panels of their own.
    context : ReportContext
        The baseline, at 0, and how each method is drawn.

    Examples
    --------
    >>> cells = {"config": "{}", "model": "net", "scenario": "video", "seed": 0, "batch_size": 64}
    >>> runs = [("Source", 0.5), ("LAME", 0.75)]
    >>> rows = [cells | {"method": m, "accuracy": a, "fingerprint": "5f1c"} for m, a in runs]
    >>> spread(pl.DataFrame(rows)).frame().select("panel", "method", "gain").rows()
    [('all streams', 'LAME', 25.0)]
    """
    source, panel = context.source, pl.lit("all streams")
    if "iid" in frame.columns and frame["iid"].n_unique() == 2:
        panel = (
            pl.when("iid").then(pl.lit("i.i.d. streams")).otherwise(pl.lit("correlated streams"))
        )
    data = gains(frame, source).filter(pl.col("method") != source)
    if data.is_empty():
        raise LamettaError(f"frame must have rows of a method other than {source!r}, got none")
    data = data.select(
        panel.alias("panel"),
        *("method", "model", "scenario", "batch_size", "seed"),
        gain=100 * pl.col("gain"),
    )
    methods = list(dict.fromkeys(data["method"]))
    style, around = styles_for(methods, context.style), axis_limits([0.0, *data["gain"]])
    return Figure(
        "spread",
        "Gain of each run",
        f"A dot is a run: its accuracy less that of {source} on the same stream, in points. The "
        "bar is the mean of a method's runs. What is left of 0 is lost.",
        data,
        partial(_draw_spread, methods=methods, style=style, ends=around),
        size=(3.8, 0.75 + 0.24 * len(methods)),
    )


def _draw_spread(
    axes: "Axes",
    rows: pl.DataFrame,
    methods: list[str],
    style: SeriesStyles,
    ends: tuple[float, float],
) -> None:
    axes.axvline(0, color=INK, lw=0.8)
    for line, method in enumerate(methods):
        own = rows.filter(method=method)["gain"].to_numpy()
        if not len(own):
            continue
        # Each run has a height of its own, so that all dots can be seen.
        heights = line + np.linspace(-0.24, 0.24, len(own)) * (len(own) > 1)
        color, mean = style[method].color, own.mean()
        axes.plot(own, heights, "o", color=color, ms=2.6, mew=0, alpha=0.7)
        axes.plot((mean, mean), (line - 0.36, line + 0.36), color=color, lw=2.4)
    name_rows(axes, range(len(methods)), methods, room=0.5)
    axes.set_xlim(ends)
    axes.set_xlabel("gain (points)")
