"""The paper's numbers and ours."""

import polars as pl

from lametta.bench.paper import BY_TRAINING
from lametta.bench.tables.table import Entry, Table, number


def ours_and_papers(numbers: pl.DataFrame) -> Table:
    """Our numbers and the paper's, one column a method.

    Parameters
    ----------
    numbers : DataFrame
        As `lametta.bench.paper.with_ours` gives them.

    Examples
    --------
    >>> row = {"quantity": "accuracy (%)", "of": "RN-50", "method": "LAME", "ours": 50, "paper": 55}
    >>> print(ours_and_papers(pl.DataFrame([row])).markdown())
    | ours / the paper's | LAME |
    |---|---:|
    | accuracy (%), RN-50 | 50.0 / 55.0 |
    """
    entries = {
        (quantity, of, method): _entry(quantity, ours, paper)
        for quantity, of, method, ours, paper in numbers.iter_rows()
    }
    methods = [name for name in BY_TRAINING if name in set(numbers["method"])]
    rows = [
        [Entry(f"{quantity}, {of}"), *(entries.get((quantity, of, m), Entry("")) for m in methods)]
        for quantity, of in dict.fromkeys(numbers.select("quantity", "of").iter_rows())
    ]
    header = ["ours / the paper's", *methods]
    return Table("paper", "Our numbers and the paper's", header, rows, numbers)


def _entry(quantity: str, ours: float, paper: float) -> Entry:
    if quantity.startswith("seconds"):  # where less is better, and one decimal says nothing
        return Entry(f"{ours:.3f} / {paper:.2f}")
    return Entry(f"{number(ours)} / {number(paper)}", ours - paper)
