"""The report of an experiment: a page, figures and tables, from a folder of results."""

from lametta.bench.report.compare import Comparison, compare
from lametta.bench.report.page import headline
from lametta.bench.report.results import Part, Results, read, read_cells
from lametta.bench.report.sections import Section, headline_rows, sections
from lametta.bench.report.write import write

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
