"""Figure: data frame, caption, drawing; the context of a report; helpers to average rows."""

import html
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import polars as pl

from lametta._files import atomic_write
from lametta.bench.analysis import gains, summary
from lametta.bench.analysis.selection import Order
from lametta.bench.experiment import Experiment
from lametta.bench.figures.style import (
    GRID,
    INK,
    RC,
    SeriesStyle,
    SeriesStyles,
    dash_overlaps,
    styles_for,
)
from lametta.types import Array, LamettaError

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

MEANS = ("method", "accuracy", "gain", "gain_ci")
"""What is drawn of the columns that `averages` gives."""

Classes: TypeAlias = Callable[[str], Array | None]
"""From a fingerprint to the class of each sample of the stream, [M]; None if it is not known."""


@dataclass(frozen=True, eq=False)
class ReportContext:
    """Context of a report: what its figures share besides the rows that each is given.

    Parameters
    ----------
    source : str
        The baseline.
    style : mapping of str to SeriesStyle, optional
        How each method is drawn, in every figure alike.
    classes : callable, optional
        Gives the class of each sample of a stream, by its fingerprint.
    experiment : Experiment, optional
        What was run.

    Examples
    --------
    >>> ReportContext().source
    'Source'
    """

    source: str = "Source"
    style: SeriesStyles | None = None
    classes: Classes | None = field(default=None, repr=False)
    experiment: Experiment | None = field(default=None, repr=False)

    @property
    def order(self) -> Order | None:
        """The configurations of each method in the order of the file, by which ties are broken."""
        if self.experiment is None:
            return None
        return {name: self.experiment.configs(name) for name in self.experiment.methods}


ROWS_ALONE = ReportContext()
"""The context of rows that belong to no report."""


@dataclass(frozen=True, eq=False)
class Figure:
    """Panels side by side, each a drawing of some rows of a frame.

    Parameters
    ----------
    name : str
        The name of its files.
    title, caption : str
        What it shows, in a few words and in a few sentences.
    data : DataFrame
        What is drawn. Its column ``panel`` says in which panel, and titles it.
    draw : callable
        ``draw(axes, rows)`` draws the rows of one panel.
    legend : mapping of str to SeriesStyle
        What the marks stand for, where the axes do not say so.
    size : tuple of float
        Width and height of a panel, in inches.
    columns : int
        Panels side by side where there is room.
    polar : bool
        Whether the axes are angle and radius.

    Examples
    --------
    >>> rows = pl.DataFrame({"panel": ["a", "b"], "x": [1, 2]})
    >>> figure = Figure("dots", "Dots", "Two.", rows, lambda axes, part: axes.plot(part["x"], "o"))
    >>> figure.frame()["x"].to_list(), len(figure.plot().axes)
    ([1, 2], 2)
    """

    name: str
    title: str
    caption: str
    data: pl.DataFrame = field(repr=False)
    draw: Callable[[Any, pl.DataFrame], object] = field(repr=False)
    legend: SeriesStyles = field(default_factory=dict, repr=False)
    size: tuple[float, float] = (3.4, 2.5)
    columns: int = 2
    polar: bool = False

    def __post_init__(self) -> None:
        if self.data.is_empty():
            raise LamettaError(f"frame must have rows for the figure {self.name!r}, got none")

    def frame(self) -> pl.DataFrame:
        """What is drawn, one row a point, a bar or a cell."""
        return self.data

    def plot(self, columns: int | None = None) -> "Canvas":
        """Draw it with matplotlib, in at most so many columns of panels."""
        return self._canvas(self._panels(), columns or self.columns, self.legend)

    def save(self, folder: str | Path) -> list[Path]:
        """Write it as SVG and as PDF, with equal bytes for equal rows."""
        canvas = self.plot()
        paths = [Path(folder, f"{self.name}.{kind}") for kind in ("svg", "pdf")]
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as temporary:
                temporary.write_bytes(_bytes(canvas, path.suffix[1:], self.name))
            canvas.set_layout_engine("none")  # the first one has laid it out
        return paths

    def inline(self) -> list[str]:
        """An SVG element for each panel, whose words and grid take the colors of the page."""
        return [
            _element(
                _bytes(self._canvas([rows]), "svg", f"{self.name}-{i}").decode(),
                f"{self.title}: {rows['panel'][0]}",
            )
            for i, rows in enumerate(self._panels())
        ]

    def _repr_svg_(self) -> str:
        return _bytes(self.plot(), "svg", self.name).decode()  # notebooks show it

    def _panels(self) -> list[pl.DataFrame]:
        return self.data.partition_by("panel", maintain_order=True)

    def _canvas(
        self, panels: list[pl.DataFrame], columns: int = 1, legend: SeriesStyles | None = None
    ) -> "Canvas":
        import matplotlib
        from matplotlib.figure import Figure as Canvas

        columns = min(columns, len(panels))
        lines = -(-len(panels) // columns)
        width = self.size[0] * columns
        longest = max(map(len, legend), default=0) if legend else 0
        entries = max(1, int(width / max(1.25, 0.6 + 0.075 * longest)))
        above = 0.25 * -(-len(legend or ()) // entries)
        # Matplotlib is slow to look for what is above axes: only polar ones have something there.
        title = {"axes.titley": None if self.polar else 1.0}
        with matplotlib.rc_context(RC | title):
            canvas = Canvas((width, self.size[1] * lines + above), layout="constrained")
            for i, rows in enumerate(panels, start=1):
                axes = canvas.add_subplot(
                    lines, columns, i, projection="polar" if self.polar else None
                )
                axes.set_title(rows["panel"][0])
                self.draw(axes, rows)
            if legend:
                handles = [mark.handle(name) for name, mark in legend.items()]
                canvas.legend(handles=handles, loc="outside upper left", ncols=entries)
            if self.polar:  # the first layout measures names of spokes where they do not stay
                canvas.draw_without_rendering()
        return canvas


def _bytes(canvas: "Canvas", kind: str, salt: str) -> bytes:
    import matplotlib
    from matplotlib.backends.backend_pdf import FigureCanvasPdf
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer, dpi = io.BytesIO(), canvas.dpi
    page = FigureCanvasSVG(canvas) if kind == "svg" else FigureCanvasPdf(canvas)
    date = "Date" if kind == "svg" else "CreationDate"
    # The salt makes the names inside the file depend on nothing else. `savefig` would do this too,
    # but draws everything once more where there is a layout.
    with matplotlib.rc_context(RC | {"svg.hashsalt": salt}):
        getattr(page, f"print_{kind}")(buffer, metadata={date: None})
    canvas.dpi = dpi  # which both set to points an inch
    return buffer.getvalue()


def _element(svg: str, label: str) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    used = set(re.findall(r"#([\w-]+)", svg))
    # Ids that nothing refers to repeat in every panel, but a page may have each only once.
    svg = re.sub(r' id="([^"]*)"', lambda name: name[0] if name[1] in used else "", svg)
    svg = svg.replace(INK, "currentColor").replace(GRID, "var(--grid)")
    view = re.search(r'viewBox="[^"]*"', svg)
    attributes = f'{view[0] if view else ""} role="img" aria-label="{html.escape(label)}"'
    return re.sub(r"<svg[^>]*>", lambda _: f"<svg {attributes}>", svg, count=1)


def averages(frame: pl.DataFrame, source: str, *by: str) -> pl.DataFrame:
    """Means by these columns, in percent, and gains over the source, in points."""
    means = summary(gains(frame, source), by)
    return means.with_columns(pl.col("accuracy", "accuracy_ci", "gain", "gain_ci") * 100)


def line_styles(
    frame: pl.DataFrame, column: str, style: SeriesStyles | None
) -> dict[str, SeriesStyle]:
    """A style for the line of each method, with gaps where it would cover another."""
    return dash_overlaps(styles_for(frame["method"], style), _values_by_method(frame, column))


def _values_by_method(frame: pl.DataFrame, column: str) -> Iterator[dict[str, list[float]]]:
    """The values of each method in the order of the rows, panel by panel."""
    for rows in frame.partition_by("panel", maintain_order=True):
        yield dict(rows.group_by("method", maintain_order=True).agg(column).iter_rows())


def panel_label(frame: pl.DataFrame, what: str | pl.Expr = "scenario") -> pl.Expr:
    """The scenario, after the model and the batch size where there are several of them."""
    varying = [name for name in ("model", "batch_size") if frame[name].n_unique() > 1]
    return pl.concat_str(*varying, what, separator=" · ")


def axis_limits(values: Sequence[float]) -> tuple[float, float]:
    """The ends of an axis that holds them all, with some room."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    room = 0.04 * (high - low) or 1.0
    return low - room, high + room


def name_configurations(frame: pl.DataFrame) -> pl.DataFrame:
    """Add to a method's name what tells its configurations apart."""
    pairs = frame.select("method", "config")
    parsed = {pair: json.loads(pair[1]) for pair in pairs.unique(maintain_order=True).iter_rows()}
    names = {}
    for (method, config), params in parsed.items():
        rivals = [other for (name, _), other in parsed.items() if name == method]
        differing = [
            key for key in params if any(other.get(key) != params[key] for other in rivals)
        ]
        words = [_words(key, params[key]) for key in differing]
        names[method, config] = " ".join([method, ", ".join(words)]).strip()
    new = [names[pair] for pair in pairs.iter_rows()]
    return frame.with_columns(method=pl.Series(new, dtype=pl.String))


def _words(key: str, value: object) -> str:
    return value if isinstance(value, str) else f"{key} {value}"
