"""The course of a stream: accuracy so far, and how sure the predictions are."""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import polars as pl

from lametta.bench import metrics
from lametta.bench.columns import COLUMNS
from lametta.bench.figures.figure import Figure
from lametta.bench.figures.rows import place, variants
from lametta.bench.figures.style import Marks, pick

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_N_POINTS = 60  # of a line: more are no sharper on a page
_QUANTITIES = {
    "online_accuracy": f"accuracy so far ({COLUMNS['accuracy'].unit})",
    "entropy": COLUMNS["entropy"].title,
}


def curves(frame: pl.DataFrame, style: Marks | None = None) -> Figure:
    """Online accuracy and entropy along the stream: the paper's Figure 1.

    Parameters
    ----------
    frame : DataFrame
        One row a cell. Configurations of one method are lines of their own.
    style : mapping of str to Mark, optional
        How each method is drawn.

    Examples
    --------
    >>> cell = {"method": "TENT", "config": "{}", "model": "net", "scenario": "video", "seed": 0}
    >>> steps = {"step_n": [[2, 2]], "step_hits": [[2, 1]]}
    >>> steps |= {"step_entropy": [[0.5, 0.25]], "step_diversity": [[0.6, 0.5]]}
    >>> rows = pl.DataFrame(cell | steps | {"batch_size": 2})
    >>> curves(rows).frame().select("samples", "quantity", "value").rows()
    [(2, 'online_accuracy', 100.0), (4, 'online_accuracy', 75.0),
     (2, 'entropy', 0.5), (4, 'entropy', 0.25)]
    """
    data = _thinned(
        metrics.curves(variants(frame).with_columns(scenario=place(frame)))
    ).with_columns(
        panel=pl.col("scenario") + pl.lit(": ") + pl.col("quantity").replace(_QUANTITIES)
    )
    present = pick(data["method"], style)
    return Figure(
        "curves",
        "Along the stream",
        "The accuracy over all samples so far, and the mean entropy of the predictions; the mean "
        "over seeds. Entropy that falls while accuracy falls too is collapse.",
        data,
        partial(_draw_lines, style=present),
        present,
        size=(3.8, 2.2),
    )


def widest(frame: pl.DataFrame, source: str, style: Marks | None = None, n: int = 3) -> Figure:
    """The same for the ``n`` scenarios where methods are furthest apart."""
    means = metrics.summary(metrics.gains(frame, source), ["scenario", "method"])
    spread = means.group_by("scenario", maintain_order=True).agg(
        pl.col("accuracy").max() - pl.col("accuracy").min()
    )
    chosen = spread.top_k(n, by="accuracy")["scenario"]
    figure = curves(frame.filter(pl.col("scenario").is_in(chosen.implode())), style)
    if len(chosen) == len(spread):
        return figure
    these = "is the scenario" if n == 1 else f"are the {n} scenarios"
    more = f" Shown {these} where the lines end furthest apart."
    return replace(figure, caption=figure.caption + more)


def _thinned(courses: pl.DataFrame) -> pl.DataFrame:
    """Means over seeds, at so many points of the stream at the most."""
    every = -(-courses["step"].max() // _N_POINTS)  # type: ignore[operator]
    keys = ["scenario", "method", "point"]
    scenarios = courses["scenario"].unique(maintain_order=True)
    return (
        courses.with_columns(point=(pl.col("step") - 1) // every)
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


def _draw_lines(axes: "Axes", rows: pl.DataFrame, style: Marks) -> None:
    for method, mark in style.items():
        line = rows.filter(method=method)
        axes.plot(line["samples"], line["value"], color=mark.color, ls=mark.line, lw=1.4)
    axes.set_title(rows["scenario"][0])
    axes.set_xlabel("samples")
    axes.set_ylabel(_QUANTITIES[rows["quantity"][0]])
