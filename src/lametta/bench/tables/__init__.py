"""Tables of an experiment, each with the numbers behind it."""

from lametta.bench.tables.accuracy import details, ranking, results
from lametta.bench.tables.choices import selected, words
from lametta.bench.tables.published import beside
from lametta.bench.tables.table import Entry, Table, as_table, number

__all__ = [
    "Entry",
    "Table",
    "as_table",
    "beside",
    "details",
    "number",
    "ranking",
    "results",
    "selected",
    "words",
]
