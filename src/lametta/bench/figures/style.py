"""Style of figures: one color a series in every figure, readable on white and on black."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, cycle, product
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from lametta.bench.analysis.paper import normalize_name

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

INK, GRID = "#1b1f24", "#d5dae1"
"""Text and grid lines; a page that follows light and dark puts its own colors in their place."""
GAIN, LOSS = "#0072b2", "#d55e00"

# The palette of Okabe and Ito, told apart by color-blind readers too. Gray stands in for its black,
# which would vanish on a dark page, and olive for its yellow, which would on a white one.
_GRAY, _ORANGE, _SKY, _GREEN = "#808890", "#e69f00", "#56b4e9", "#009e73"
_OLIVE, _BLUE, _VERMILLION, _PURPLE = "#999933", "#0072b2", "#d55e00", "#cc79a7"
PALETTE = (_SKY, _OLIVE, _GREEN, _ORANGE, _PURPLE, _BLUE, _VERMILLION)
_KNOWN = {
    "source": _GRAY,
    "baseline": _GRAY,
    "lame": _VERMILLION,
    "tent": _BLUE,
    "shot": _GREEN,
    "pseudolabel": _PURPLE,
    "adabn": _ORANGE,
}
_MARKERS = "osD^vPX"
_DASHES = ((), (5.0, 1.5), (1.5, 1.2))
_GAPS = ((), (4.0, 4.0), (1.5, 4.5), (0.7, 6.0))  # of a line over none, one, two or more others
_AS_WIDE = 0.015  # how much of the height of a panel a line covers

RC: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": INK,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.labelsize": 8.5,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: equal on every machine
    "font.size": 8.5,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",  # words stay words: selectable, and in the font of the page
    "text.color": INK,
    "text.parse_math": False,  # a dollar in a name is a dollar
    "xtick.color": INK,
    "xtick.labelsize": 8,
    "ytick.color": INK,
    "ytick.labelsize": 8,
}


@dataclass(frozen=True)
class SeriesStyle:
    """Style of a series: its color, its marker and its dashes; or, filled, as an area.

    Examples
    --------
    >>> SeriesStyle("#d55e00").line
    '-'
    """

    color: str
    marker: str = "o"
    dashes: tuple[float, ...] = ()
    filled: bool = False

    @property
    def line(self) -> Literal["-"] | tuple[float, tuple[float, ...]]:
        """The style of the line, as matplotlib takes it."""
        return (0, self.dashes) if self.dashes else "-"

    def handle(self, label: str) -> "Artist":
        """The entry of a legend."""
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        if self.filled:
            return Patch(color=self.color, label=label)
        return Line2D(
            [], [], color=self.color, marker=self.marker, linestyle=self.line, label=label
        )


SeriesStyles: TypeAlias = Mapping[str, SeriesStyle]


def series_styles(names: Iterable[str]) -> dict[str, SeriesStyle]:
    """A style for each name: the paper's methods have fixed colors, others take those left.

    Examples
    --------
    >>> chosen = series_styles(["Source", "LAME", "mine"])
    >>> chosen["LAME"].color, len({mark.color for mark in chosen.values()})
    ('#d55e00', 3)
    """
    unique = tuple(dict.fromkeys(names))
    known: dict[str, str] = {}
    for name in unique:
        color = _KNOWN.get(normalize_name(name))
        if color and color not in known.values():  # "TENT" and "tent" are two methods
            known[name] = color
    free = [color for color in PALETTE if color not in known.values()]
    left = cycle([*product(_DASHES, free), *product(_DASHES[1:], known.values())])
    chosen = {}
    for name, marker in zip(unique, cycle(_MARKERS), strict=False):
        dashes, color = (_DASHES[0], known[name]) if name in known else next(left)
        chosen[name] = SeriesStyle(color, marker, dashes)
    return chosen


def styles_for(names: Iterable[str], style: SeriesStyles | None = None) -> dict[str, SeriesStyle]:
    """The styles of these names: those of the style, if it has them all in different colors."""
    unique = tuple(dict.fromkeys(names))
    known = [style[name].color for name in unique if name in style] if style else []
    if style is None or len(set(known)) < len(unique):
        style = series_styles(unique)
    return {name: style[name] for name in unique}


def dash_overlaps(
    style: SeriesStyles, panels: Iterable[Mapping[str, Sequence[float]]]
) -> dict[str, SeriesStyle]:
    """The styles with gaps in lines that would cover others, drawn in the order of the style.

    Parameters
    ----------
    style : mapping of str to SeriesStyle
        How each line is drawn.
    panels : iterable of mapping of str to sequence of float
        The heights of each line, at the same places.

    Examples
    --------
    >>> lines = {"Source": [1, 2, 3], "TENT": [1, 2, 3.01], "LAME": [4, 5, 6]}
    >>> {name: mark.dashes for name, mark in dash_overlaps(series_styles(lines), [lines]).items()}
    {'Source': (), 'TENT': (4.0, 4.0), 'LAME': ()}
    """
    above = dict.fromkeys(style, 0)
    for lines in panels:
        known = {name: np.asarray(lines[name], dtype=float) for name in style if name in lines}
        heights = np.concatenate([*known.values()])
        span = np.nanmax(heights) - np.nanmin(heights)
        for (below, a), (name, b) in combinations(known.items(), 2):
            n = min(len(a), len(b))
            if np.mean(np.abs(a[:n] - b[:n]) <= _AS_WIDE * span) >= 0.25:  # NaN is near nothing
                above[name] = max(above[name], above[below] + 1)
    return {
        name: replace(mark, dashes=mark.dashes or _GAPS[min(above[name], len(_GAPS) - 1)])
        for name, mark in style.items()
    }


def name_rows(
    axes: "Axes", places: Sequence[float], names: Sequence[str], room: float = 0.6
) -> None:
    """Name the rows of a panel, the first on top, without ticks and grid lines."""
    axes.set_yticks(places, names)
    axes.set_ylim(places[-1] + room, places[0] - room)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
