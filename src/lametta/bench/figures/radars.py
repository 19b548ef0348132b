"""Radar charts of gains: over models, and of LAME's kernels over scenarios."""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from lametta.bench.figures.figure import Figure
from lametta.bench.figures.rows import MEANS, averages, variants
from lametta.bench.figures.style import GRID, Marks, pick
from lametta.types import LamettaError

if TYPE_CHECKING:
    from matplotlib.projections.polar import PolarAxes


def radar(
    frame: pl.DataFrame,
    spokes: str = "model",
    source: str = "Source",
    style: Marks | None = None,
) -> Figure:
    """The mean gain of each method, one spoke a model: the paper's Figure 5.

    Parameters
    ----------
    frame : DataFrame
        One row a cell.
    spokes : str
        The column whose values are the spokes; what else varies is averaged over.
    source : str
        The baseline, which is the circle at 0; its accuracy is written at each spoke.
    style : mapping of str to Mark, optional
        How each method is drawn.

    Examples
    --------
    >>> cells = {"config": "{}", "scenario": "video", "seed": 0, "batch_size": 16}
    >>> cells |= {"fingerprint": "5f1c"}
    >>> runs = [("Source", 0.5), ("LAME", 0.75)]
    >>> rows = [cells | {"model": m, "method": x, "accuracy": a} for m in "abc" for x, a in runs]
    >>> radar(pl.DataFrame(rows)).frame()["gain"].to_list()
    [0.0, 25.0, 0.0, 25.0, 0.0, 25.0]
    """
    means = averages(frame, source, spokes, "method")
    if (n := means[spokes].n_unique()) < 3:
        raise LamettaError(f"frame must have at least 3 values of {spokes} for a radar, got {n}")
    data = means.select(pl.lit("gain (points)").alias("panel"), pl.col(spokes), *MEANS)
    present = pick(data["method"], style)
    over = "" if spokes == "scenario" else ", the mean over scenarios"
    return Figure(
        "radar",
        "Gain over the source",
        f"Gain over {source} in points{over}; further out is better. The gray circle is {source}, "
        "whose accuracy stands at each spoke.",
        data.rename({spokes: "spoke"}),
        partial(_draw_radar, source=source, style=present),
        present,
        size=(3.9, 3.3),
        polar=True,
    )


def _draw_radar(axes: "PolarAxes", rows: pl.DataFrame, source: str, style: Marks) -> None:
    from matplotlib.ticker import MaxNLocator

    base = dict(rows.filter(method=source).select("spoke", "accuracy").iter_rows())
    angles = np.linspace(0, 2 * np.pi, len(base), endpoint=False)
    around = np.linspace(0, 2 * np.pi, 181)
    for method, mark in style.items():
        gains = dict(rows.filter(method=method).select("spoke", "gain").iter_rows())
        radii = np.array([gains.get(spoke, np.nan) for spoke in base])
        closed = np.append(angles, angles[0]), np.append(radii, radii[0])
        if method == source:
            axes.plot(around, np.zeros_like(around), color=mark.color, lw=1.6)
        else:
            axes.plot(*closed, color=mark.color, ls=mark.line, marker=mark.marker, ms=3.5)
    axes.set_theta_zero_location("N")
    axes.set_theta_direction(-1)
    axes.set_xticks(angles, [f"{spoke}\n{value:.1f} %" for spoke, value in base.items()])
    for angle, label in zip(angles, axes.get_xticklabels(), strict=True):
        side = round(float(np.sin(angle)), 1)  # right of, above or left of the center
        label.set_horizontalalignment("left" if side > 0 else "right" if side < 0 else "center")
    gain = rows["gain"].to_numpy()
    ticks = MaxNLocator(5).tick_values(min(0.0, gain.min()), max(1.0, gain.max()))
    axes.set_yticks(ticks[1:])
    axes.set_ylim(ticks[0], ticks[-1])
    axes.set_rlabel_position(180 / len(base))
    axes.spines["polar"].set_color(GRID)


def kernels(frame: pl.DataFrame, source: str = "Source", style: Marks | None = None) -> Figure:
    """The gain of each kernel, one spoke a scenario: the paper's kernel comparison.

    Parameters
    ----------
    frame : DataFrame
        One row a cell. Kernels are methods of their own, or configurations of one method.
    source : str
        The baseline.
    style : mapping of str to Mark, optional
        How each method is drawn.

    Examples
    --------
    >>> cells = {"model": "net", "seed": 0, "batch_size": 64, "fingerprint": "5f1c"}
    >>> runs = [("Source", "{}"), ("LAME", '{"affinity":"knn"}'), ("LAME", '{"affinity":"rbf"}')]
    >>> rows = [
    ...     cells | {"method": m, "config": c, "scenario": s, "accuracy": 0.5}
    ...     for m, c in runs
    ...     for s in "abc"
    ... ]
    >>> list(kernels(pl.DataFrame(rows)).legend)
    ['Source', 'LAME knn', 'LAME rbf']
    """
    figure = radar(variants(frame), "scenario", source, style)
    return replace(figure, name="kernels", title="Kernels of LAME")
