"""The gain of every run on one axis: what a method wins on average, and what it may lose."""

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from lametta.bench.figures.figure import Figure
from lametta.bench.figures.rows import ends
from lametta.bench.figures.style import INK, Marks, name_rows, pick
from lametta.bench.metrics import gains
from lametta.types import LamettaError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def spread(frame: pl.DataFrame, source: str = "Source", style: Marks | None = None) -> Figure:
    """The gain of each run over the source on the same stream, one line of dots a method.

    Parameters
    ----------
    frame : DataFrame
        One row a cell; methods are drawn in the order in which they come. Where it has a column
        ``iid``, streams that are i.i.d. and those that are not have panels of their own.
    source : str
        The baseline, at 0.
    style : mapping of str to Mark, optional
        How each method is drawn.

    Examples
    --------
    >>> cells = {"config": "{}", "model": "net", "scenario": "video", "seed": 0, "batch_size": 64}
    >>> runs = [("Source", 0.5), ("LAME", 0.75)]
    >>> rows = [cells | {"method": m, "accuracy": a, "fingerprint": "5f1c"} for m, a in runs]
    >>> spread(pl.DataFrame(rows)).frame().select("panel", "method", "gain").rows()
    [('all streams', 'LAME', 25.0)]
    """
    panel = pl.lit("all streams")
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
    style, around = pick(methods, style), ends([0.0, *data["gain"]])
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
    axes: "Axes", rows: pl.DataFrame, methods: list[str], style: Marks, ends: tuple[float, float]
) -> None:
    axes.axvline(0, color=INK, lw=0.8)
    for place, method in enumerate(methods):
        own = rows.filter(method=method)["gain"].to_numpy()
        if not len(own):
            continue
        # Each run has a height of its own, so that all dots can be seen.
        heights = place + np.linspace(-0.24, 0.24, len(own)) * (len(own) > 1)
        color, mean = style[method].color, own.mean()
        axes.plot(own, heights, "o", color=color, ms=2.6, mew=0, alpha=0.7)
        axes.plot((mean, mean), (place - 0.36, place + 0.36), color=color, lw=2.4)
    name_rows(axes, range(len(methods)), methods, room=0.5)
    axes.set_xlim(ends)
    axes.set_xlabel("gain (points)")
