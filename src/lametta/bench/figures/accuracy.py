"""Figures of accuracies: of every run, and against the batch size."""

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from lametta.bench.figures.figure import Figure
from lametta.bench.figures.rows import MEANS, averages, place
from lametta.bench.figures.style import Marks, pick

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def boxes(frame: pl.DataFrame, source: str = "Source", style: Marks | None = None) -> Figure:
    """The accuracy of each run, by scenario: the paper's Figure 4.

    Parameters
    ----------
    frame : DataFrame
        One row a cell. Scenarios and methods are drawn in the order in which they come.
    source : str
        The baseline; its mean is drawn as a line through all methods.
    style : mapping of str to Mark, optional
        How each method is drawn.

    Examples
    --------
    >>> cells = {"model": "net", "scenario": "video", "batch_size": 64}
    >>> rows = [cells | {"method": "LAME", "seed": s, "accuracy": 0.5 + s / 8} for s in range(2)]
    >>> boxes(pl.DataFrame(rows)).frame()["accuracy"].to_list()
    [50.0, 62.5]
    """
    runs = frame.select(
        panel=place(frame),
        method="method",
        seed="seed",
        accuracy=100 * pl.col("accuracy"),
    )
    n = runs["method"].n_unique()
    return Figure(
        "boxes",
        "Accuracy over runs",
        "A dot is a run; the bar holds the middle half of the runs, the thin line all of them, and "
        f"the tick is their median. The dashed line is the mean of {source}, on the same streams.",
        runs,
        partial(_draw_boxes, source=source, style=pick(frame["method"], style)),
        size=(3.1, 0.75 + 0.21 * n),
        columns=3,
    )


def _draw_boxes(axes: "Axes", rows: pl.DataFrame, source: str, style: Marks) -> None:
    methods = list(dict.fromkeys(rows["method"]))
    for y, method in enumerate(methods):
        values = rows.filter(method=method)["accuracy"].to_numpy()
        if method == source:
            axes.axvline(values.mean(), color=style[source].color, lw=1, ls="--", zorder=1)
        low, first, median, third, high = np.quantile(values, (0, 0.25, 0.5, 0.75, 1))
        color = style[method].color
        axes.plot((low, high), (y, y), color=color, lw=1)
        axes.plot((first, third), (y, y), color=color, lw=8, alpha=0.4, solid_capstyle="butt")
        axes.plot(values, np.full(len(values), y), "o", color=color, ms=2.6, alpha=0.9, mew=0)
        axes.plot(median, y, "|", color=color, ms=10, mew=2)
    axes.set_yticks(range(len(methods)), methods)
    axes.set_ylim(len(methods) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.margins(x=0.08)
    axes.set_xlabel("accuracy (%)")


def batch_size(frame: pl.DataFrame, source: str = "Source", style: Marks | None = None) -> Figure:
    """The mean accuracy against the batch size.

    Parameters
    ----------
    frame : DataFrame
        One row a cell.
    source : str
        The baseline.
    style : mapping of str to Mark, optional
        How each method is drawn.

    Examples
    --------
    >>> cells = {"method": "Source", "config": "{}", "model": "net", "scenario": "video"}
    >>> cells |= {"seed": 0, "fingerprint": "5f1c"}
    >>> rows = [cells | {"batch_size": n, "accuracy": n / 100} for n in (16, 64)]
    >>> batch_size(pl.DataFrame(rows)).frame()["accuracy"].to_list()
    [16.0, 64.0]
    """
    means = averages(frame, source, "model", "method", "batch_size")
    data = means.select(pl.col("model").alias("panel"), "batch_size", *MEANS)
    present = pick(data["method"], style)
    whiskers = f"; whiskers are 95 % intervals of the gain over {source}, paired by seed"
    sure = data["gain_ci"].is_not_null().any()
    return Figure(
        "batch_size",
        "Accuracy against batch size",
        f"The mean over scenarios{whiskers if sure else ''}.",
        data,
        partial(_draw_batch_size, style=present),
        present,
        size=(3.8, 2.7),
    )


def _draw_batch_size(axes: "Axes", rows: pl.DataFrame, style: Marks) -> None:
    for i, (method, mark) in enumerate(style.items()):
        line = rows.filter(method=method).sort("batch_size")
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
