"""The cross-shift matrices: what a configuration tuned on one scenario does in the others."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from lametta.bench.analysis import selection
from lametta.bench.analysis.paper import differences
from lametta.bench.figures.figure import ROWS_ALONE, Figure, ReportContext
from lametta.bench.figures.style import GAIN, INK, LOSS
from lametta.types import LamettaError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def cross_shift(
    frame: pl.DataFrame,
    context: ReportContext = ROWS_ALONE,
    scenarios: Sequence[str] | None = None,
) -> Figure:
    """A matrix for each method: tuned on the row's scenario, tested on the column's.

    It is the paper's Figure 3, with one linear scale of colors for all matrices. The diagonal is
    what a method can do when it is tuned on the very scenario it is tested on; the rest is what
    happens otherwise.

    Parameters
    ----------
    frame : DataFrame
        One row a cell, of every configuration in every scenario.
    context : ReportContext
        The baseline, and the experiment, whose order of configurations breaks ties.
    scenarios : sequence of str, optional
        Those to show, in order; without it all, as they come.

    Examples
    --------
    >>> cells = {"model": "net", "seed": 0, "batch_size": 64, "fingerprint": "5f1c"}
    >>> runs = [("Source", "{}", 0.5), ("LAME", '{"k":1}', 0.25), ("LAME", '{"k":5}', 0.75)]
    >>> rows = [
    ...     cells | {"method": m, "config": c, "accuracy": a, "scenario": "video"}
    ...     for m, c, a in runs
    ... ]
    >>> cross_shift(pl.DataFrame(rows)).frame().select("method", "gain").rows()
    [('LAME', 25.0)]
    """
    scenarios = list(dict.fromkeys(frame["scenario"]) if scenarios is None else scenarios)
    source, order = context.source, context.order
    methods = [name for name in dict.fromkeys(frame["method"]) if name != source]
    if not methods:
        raise LamettaError(f"frame must have rows of a method other than {source!r}, got none")
    data = pl.concat(
        selection.cross_shift(frame, method, scenarios, source, order=order).with_columns(
            panel=pl.lit(method), method=pl.lit(method)
        )
        for method in methods
    ).select("panel", "method", "tuned_on", "scenario", "gain", "config")
    # The means of rows, which are drawn too, are never further from 0.
    most = max(1.0, float(np.abs(data["gain"].to_numpy()).max()))
    side = 0.7 + 0.065 * max(map(len, scenarios)) + 0.215 * (len(scenarios) + 1)
    return Figure(
        "cross_shift",
        "Tuned on one scenario, tested on another",
        "Gain over the source in points. Each row is the configuration that is best in its "
        "scenario; the outlined diagonal is a method tested where it was tuned, the last column, "
        "which the paper has not, the mean of the row. All matrices share one scale of colors."
        + differences("cross_shift", frame),
        data,
        partial(_draw_matrix, most=most),
        size=(side + 0.55, side),
    )


def _draw_matrix(axes: "Axes", rows: pl.DataFrame, most: float) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.collections import PatchCollection
    from matplotlib.colors import LinearSegmentedColormap, Normalize, to_rgba
    from matplotlib.patches import Rectangle

    scenarios = list(dict.fromkeys(rows["tuned_on"]))
    n = len(scenarios)
    gains = selection.matrix(rows)
    values = np.column_stack([gains, gains.mean(axis=1)])
    x, y = np.meshgrid([*range(n), n + 0.3], range(n))  # the mean stands apart
    # Transparent, so that they suit a white page and a black one.
    ends = [to_rgba(LOSS, 0.8), to_rgba(LOSS, 0.0), to_rgba(GAIN, 0.0), to_rgba(GAIN, 0.8)]
    places = [0.0, 0.5, 0.5, 1.0]
    colors = LinearSegmentedColormap.from_list("gain", [*zip(places, ends, strict=True)], 41)
    scale = ScalarMappable(Normalize(-most, most), colors)
    cells = [
        Rectangle((i - 0.47, j - 0.47), 0.94, 0.94) for i, j in zip(x.flat, y.flat, strict=True)
    ]
    shades = scale.to_rgba(values.ravel())
    axes.add_collection(PatchCollection(cells, facecolors=shades, linewidths=0))
    diagonal = [cell for cell, i, j in zip(cells, x.flat, y.flat, strict=True) if i == j]
    axes.add_collection(
        PatchCollection(diagonal, facecolors="none", edgecolors=INK, linewidths=0.9)
    )
    for i, j, value in zip(x.flat, y.flat, values.flat, strict=True):
        text = axes.text(i, j, _short(value), ha="center", va="center", size=6.3)
        text.set_in_layout(False)  # it is inside the axes, and there are many
    bar = axes.figure.colorbar(scale, cax=axes.inset_axes((1.02, 0, 0.03, 1)))
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=6.3, length=2, pad=1)
    axes.set_xlim(-0.6, n + 0.9)
    axes.set_ylim(n - 0.4, -0.6)
    axes.set_aspect("equal")
    axes.set_xticks([*range(n), n + 0.3], [*scenarios, "mean"], rotation=90, size=7)
    axes.set_yticks(range(n), scenarios, size=7)
    axes.set_xlabel("tested on")
    axes.set_ylabel("tuned on")
    axes.tick_params(length=0, pad=1)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


def _short(value: float) -> str:
    """Two digits, as there is no room for more."""
    text = f"{value:.0f}" if abs(value) >= 9.95 else f"{value:.1f}"
    return {"-0.0": "0", "0.0": "0"}.get(text, text.replace("-", "\N{MINUS SIGN}"))
