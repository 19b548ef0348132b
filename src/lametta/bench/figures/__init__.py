"""Every figure of the paper from the rows of an experiment; each hands back what it drew."""

from lametta.bench.figures.accuracy import batch_size, boxes, spread
from lametta.bench.figures.cost import runtime
from lametta.bench.figures.figure import Figure, ReportContext
from lametta.bench.figures.radars import kernels, radar
from lametta.bench.figures.shifts import cross_shift
from lametta.bench.figures.style import SeriesStyle, series_styles
from lametta.bench.figures.timeseries import curves

__all__ = [
    "Figure",
    "ReportContext",
    "SeriesStyle",
    "batch_size",
    "boxes",
    "cross_shift",
    "curves",
    "kernels",
    "radar",
    "runtime",
    "series_styles",
    "spread",
]
