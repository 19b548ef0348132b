"""Time series along a stream: classes, entropy, online accuracy."""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from lametta.bench import analysis
from lametta.bench.analysis.paper import differences
from lametta.bench.columns import COLUMNS
from lametta.bench.figures.figure import (
    ROWS_ALONE,
    Classes,
    Figure,
    ReportContext,
    line_styles,
    name_configurations,
    panel_label,
)
from lametta.bench.figures.style import SeriesStyles, name_rows
from lametta.types import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_N_POINTS = 60  # of a line: more are no sharper on a page
_N_CELLS = 150  # of a strip
_QUANTITIES = {
    "entropy": COLUMNS["entropy"].title,
    "online_accuracy": f"accuracy so far ({COLUMNS['accuracy'].unit})",
}


def curves(frame: pl.DataFrame, context: ReportContext = ROWS_ALONE) -> Figure:
    """The stream, and entropy and online accuracy along it: the paper's Figure 1.

    Parameters
    ----------
    frame : DataFrame
        One row a cell. Configurations of one method are lines of their own.
    context : ReportContext
        How each method is drawn, and the classes of a stream, which are shown as a strip beside
        those of an i.i.d. stream.

    Examples
    --------
    >>> cell = {"method": "TENT", "config": "{}", "model": "net", "scenario": "video", "seed": 0}
    >>> steps = {"step_n": [[2, 2]], "step_hits": [[2, 1]]}
    >>> steps |= {"step_entropy": [[0.5, 0.25]], "step_diversity": [[0.6, 0.5]]}
    >>> rows = pl.DataFrame(cell | steps | {"batch_size": 2})
    >>> curves(rows).frame().select("samples", "quantity", "value").rows()
    [(2, 'entropy', 0.5), (4, 'entropy', 0.25),
     (2, 'online_accuracy', 100.0), (4, 'online_accuracy', 75.0)]
    """
    data = _thinned(
        analysis.curves(name_configurations(frame).with_columns(scenario=panel_label(frame)))
    ).with_columns(
        panel=pl.col("scenario") + pl.lit(": ") + pl.col("quantity").replace(_QUANTITIES)
    )
    present = line_styles(data, "value", context.style)
    strips = _class_bars(frame, context.classes) if context.classes else data.clear()
    first = "The class of each sample, of the stream and of an i.i.d. one of the same samples; "
    lines = "the mean entropy of the predictions, and the accuracy over all samples so far"
    caption = lines.capitalize() if strips.is_empty() else first + lines
    return Figure(
        "curves",
        "Along the stream",
        f"{caption}; the mean over seeds. Entropy that falls while accuracy falls too is collapse. "
        "The axis counts samples, that of the paper's Figure 1 batches."
        + differences("curves", frame),
        pl.concat([strips.select(data.columns), data]),
        partial(_draw, style=present),
        present,
        size=(3.8 if strips.is_empty() else 3.5, 2.2),
        columns=2 if strips.is_empty() else 3,
    )


def _class_bars(frame: pl.DataFrame, classes: Classes) -> pl.DataFrame:
    """The class of samples at equal distances along a stream of each scenario, where known."""
    parts: list[tuple[str, Array]] = []
    streams = frame.unique("scenario", keep="first", maintain_order=True)
    for scenario, fingerprint in streams.select("scenario", "fingerprint").iter_rows():
        if (labels := classes(fingerprint)) is not None and len(labels):
            parts.append((scenario, labels))
    if parts and "i.i.d." not in dict(parts):
        parts.insert(0, ("i.i.d.", np.random.default_rng(0).permutation(parts[0][1])))
    rows = [
        ("streams", scenario, "", int(i) + 1, "class", float(labels[i]))
        for scenario, labels in parts
        for i in np.unique(np.linspace(0, len(labels) - 1, _N_CELLS).astype(int))
    ]
    names = ("panel", "scenario", "method", "samples", "quantity", "value")
    schema = dict.fromkeys(names, pl.String()) | {"samples": pl.Int64(), "value": pl.Float64()}
    return pl.DataFrame(rows, schema, orient="row")


def most_divergent(frame: pl.DataFrame, context: ReportContext = ROWS_ALONE, n: int = 3) -> Figure:
    """The `curves` of the ``n`` scenarios where methods are furthest apart.

    The classes of the stream are shown where it is one scenario.
    """
    means = analysis.summary(analysis.gains(frame, context.source), ["scenario", "method"])
    spread = means.group_by("scenario", maintain_order=True).agg(
        pl.col("accuracy").max() - pl.col("accuracy").min()
    )
    chosen = spread.top_k(n, by="accuracy")["scenario"]
    shown = frame.filter(pl.col("scenario").is_in(chosen.implode()))
    figure = curves(shown, context if n == 1 else replace(context, classes=None))
    if len(chosen) == len(spread):
        return figure
    these = "is the scenario" if n == 1 else f"are the {n} scenarios"
    more = f" Shown {these} where the lines end furthest apart."
    return replace(figure, caption=figure.caption + more)


def _thinned(series: pl.DataFrame) -> pl.DataFrame:
    """Means over seeds, at no more than `_N_POINTS` points of the stream."""
    every = -(-series.select(pl.col("step").max().fill_null(1)).item() // _N_POINTS)
    keys = ["scenario", "method", "point"]
    scenarios = series["scenario"].unique(maintain_order=True)
    return (
        series.with_columns(point=(pl.col("step") - 1) // every)
        .group_by(*keys, "seed", maintain_order=True)
        .agg(pl.col("samples", "online_accuracy").last(), pl.col("entropy").mean())
        .group_by(keys, maintain_order=True)
        .agg(
            pl.col("samples").max(),
            pl.col("online_accuracy").mean() * COLUMNS["accuracy"].scale,
            pl.col("entropy").mean(),
        )
        .unpivot(
            list(_QUANTITIES), index=["scenario", "method", "samples"], variable_name="quantity"
        )
        .drop_nulls("value")
        .sort(pl.col("scenario").cast(pl.Enum(scenarios)), maintain_order=True)
    )


def _draw(axes: "Axes", rows: pl.DataFrame, style: SeriesStyles) -> None:
    quantity = rows["quantity"][0]
    if quantity == "class":
        _draw_class_bars(axes, rows)
        return
    for method, mark in style.items():
        line = rows.filter(method=method)
        axes.plot(line["samples"], line["value"], color=mark.color, ls=mark.line, lw=1.4)
    axes.set_title(rows["scenario"][0])
    axes.set_xlabel("samples")
    axes.set_ylabel(_QUANTITIES[quantity])


def _draw_class_bars(axes: "Axes", rows: pl.DataFrame) -> None:
    """A strip a stream, whose colors are the classes."""
    from matplotlib import colormaps

    strips = rows.partition_by("scenario", maintain_order=True)
    kinds = np.unique(rows["value"])
    for y, strip in enumerate(strips):
        labels, places = strip["value"].to_numpy(), strip["samples"].to_numpy()
        last = np.append(labels[1:] != labels[:-1], True)  # of each run of samples of one class
        ends = places[last]
        starts = np.append(0, ends[:-1])
        for label, share in zip(kinds, np.linspace(0.08, 0.92, len(kinds)), strict=True):
            mine = labels[last] == label
            spans = [*zip(starts[mine], (ends - starts)[mine], strict=True)]
            color = colormaps["turbo"](share)
            axes.broken_barh(spans, (y - 0.38, 0.76), facecolors=[color], linewidth=0)
    name_rows(axes, range(len(strips)), [strip["scenario"][0] for strip in strips])
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("samples, colored by class")
