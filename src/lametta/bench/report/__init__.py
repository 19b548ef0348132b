"""The report of an experiment: a page, figures and tables, from a folder of results."""

from lametta.bench.report.comparison import Comparison, compare
from lametta.bench.report.content import Section, headline_rows, sections
from lametta.bench.report.page import headline
from lametta.bench.report.writing import write
from lametta.bench.results import Part, Results, read, read_cells

__all__ = [
    "Comparison",
    "Part",
    "Results",
    "Section",
    "compare",
    "headline",
    "headline_rows",
    "read",
    "read_cells",
    "sections",
    "write",
]
