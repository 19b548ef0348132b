"""Frames as CSV that is safe in a spreadsheet."""

from typing import TYPE_CHECKING

from lametta._files import escape_formula

if TYPE_CHECKING:
    import polars as pl


def to_csv(frame: "pl.DataFrame") -> str:
    """A frame as CSV whose names and texts are no formulas.

    Examples
    --------
    >>> import polars as pl
    >>> print(to_csv(pl.DataFrame({"=name": ["+x", None], "n": [-1, 2]})).strip())
    '=name,n
    '+x,-1
    ,2
    """
    import polars as pl

    texts = [
        column.replace_strict(unique, [x if x is None else escape_formula(x) for x in unique])
        for column in frame.iter_columns()
        if column.dtype == pl.String and len(unique := column.unique().to_list())
    ]
    return frame.with_columns(texts).rename(escape_formula).write_csv()
