"""Tables of an experiment, each with the numbers behind it."""

from lametta.bench.tables.accuracy import accuracies, details, ranking
from lametta.bench.tables.choices import selected, words
from lametta.bench.tables.paper import ours_and_papers
from lametta.bench.tables.risks import risk
from lametta.bench.tables.table import Entry, Table, as_table, number, percent
from lametta.bench.tables.used import datasets

__all__ = [
    "Entry",
    "Table",
    "accuracies",
    "as_table",
    "datasets",
    "details",
    "number",
    "ours_and_papers",
    "percent",
    "ranking",
    "risk",
    "selected",
    "words",
]
