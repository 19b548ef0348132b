"""The report of an experiment: a page, figures and tables, from a folder of results."""

from lametta.bench.report.comparison import Comparison, compare
from lametta.bench.report.content import Report, Section, headline, make_report, sections
from lametta.bench.report.page import write

__all__ = [
    "Comparison",
    "Report",
    "Section",
    "compare",
    "headline",
    "make_report",
    "sections",
    "write",
]
