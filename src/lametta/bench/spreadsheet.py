"""Text for spreadsheets, which take a cell that begins with = for a formula and run it."""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

_FORMULA = re.compile(r"[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)


def defused(text: str) -> str:
    """Give the text, with an apostrophe before it where a spreadsheet would compute it.

    Examples
    --------
    >>> defused("=1+1"), defused("@cmd"), defused("-a"), defused("-1.5e3"), defused("cat")
    ("'=1+1", "'@cmd", "'-a", '-1.5e3', 'cat')
    """
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


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
        column.replace_strict(unique, [x if x is None else defused(x) for x in unique])
        for column in frame.iter_columns()
        if column.dtype == pl.String and len(unique := column.unique().to_list())
    ]
    return frame.with_columns(texts).rename(defused).write_csv()
