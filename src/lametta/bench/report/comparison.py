"""Comparing two folders of results, cell by cell."""

from dataclasses import dataclass, field

import polars as pl

from lametta.bench.analysis import check_once
from lametta.bench.columns import CELL
from lametta.bench.tables import Entry, Table
from lametta.types import LamettaError


@dataclass(frozen=True, eq=False)
class Comparison:
    """The cells that two results have in common, and how their accuracies differ.

    Attributes
    ----------
    cells : DataFrame
        One row for each cell in both: what tells cells apart, ``accuracy`` and ``fingerprint`` of
        the first, ``accuracy_b`` and ``fingerprint_b`` of the second, and ``difference``, the
        second's accuracy less the first's.
    only_a, only_b : int
        The cells that one of them has alone.
    tolerance : float
        The difference of accuracies, from 0 to 1, up to which they count as equal.
    """

    cells: pl.DataFrame = field(repr=False)
    only_a: int
    only_b: int
    tolerance: float = 1e-6

    @property
    def different(self) -> pl.DataFrame:
        """The cells whose accuracies differ by more than the tolerance."""
        equal = pl.col("difference").abs() <= self.tolerance
        return self.cells.filter(~equal.fill_null(False))  # null where there is no accuracy

    @property
    def other_streams(self) -> pl.DataFrame:
        """The streams whose fingerprints differ: other samples, or in another order."""
        differ = self.cells.filter(pl.col("fingerprint").ne_missing(pl.col("fingerprint_b")))
        columns = ("scenario", "seed", "batch_size", "fingerprint", "fingerprint_b")
        return differ.select(columns).unique(maintain_order=True)

    @property
    def equal(self) -> bool:
        """Whether all cells in both saw the same streams and have the same accuracies."""
        return self.different.is_empty() and self.other_streams.is_empty()

    def table(self) -> Table:
        """The largest difference of each method in each scenario, in points."""
        largest = self.cells.group_by("method", "scenario", maintain_order=True).agg(
            pl.col("difference").get(pl.col("difference").abs().arg_max())
        )
        values = {(method, scenario): x for method, scenario, x in largest.iter_rows()}
        scenarios = list(dict.fromkeys(largest["scenario"]))
        rows = [
            [Entry(method), *(self._entry(values.get((method, name))) for name in scenarios)]
            for method in dict.fromkeys(largest["method"])
        ]
        title = "Largest difference of accuracy (points)"
        return Table("compare", title, ["method", *scenarios], rows, self.cells)

    def _entry(self, difference: float | None) -> Entry:
        if difference is None:
            return Entry("")
        if abs(difference) <= self.tolerance:
            return Entry("=")
        return Entry(f"{100 * difference:+.2g}", 100 * difference)


def compare(a: pl.DataFrame, b: pl.DataFrame, tolerance: float = 1e-6) -> Comparison:
    """Compare the cells that two frames have in common.

    Parameters
    ----------
    a, b : DataFrame
        One row a cell, as `lametta.bench.analysis.results.read_cells` gives them.
    tolerance : float
        The difference of accuracies, from 0 to 1, up to which they count as equal.

    Examples
    --------
    >>> cell = {"method": "LAME", "config": "{}", "model": "net", "scenario": "video", "seed": 0}
    >>> cell |= {"batch_size": 64, "fingerprint": "5f1c"}
    >>> a, b = (pl.DataFrame([cell | {"accuracy": x}]) for x in (0.5, 0.75))
    >>> compare(a, b).cells["difference"].item(), compare(a, b).equal, compare(a, a).equal
    (0.25, False, True)
    """
    if not tolerance >= 0:
        raise LamettaError(f"tolerance must be >= 0, got {tolerance}")
    check_once(a, "a")
    check_once(b, "b")
    both = a.select(*CELL, "accuracy", "fingerprint").join(
        b.select(*CELL, "accuracy", "fingerprint"), on=CELL, suffix="_b"
    )
    if both.is_empty():
        raise LamettaError(
            f"the results must have cells in common, got {len(a)} and {len(b)} cells that differ "
            f"in {' or '.join(CELL)}"
        )
    cells = both.sort(CELL).with_columns(difference=pl.col("accuracy_b") - pl.col("accuracy"))
    return Comparison(cells, len(a) - len(both), len(b) - len(both), tolerance)
