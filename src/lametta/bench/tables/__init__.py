"""Table: entries as Markdown, LaTeX, CSV."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from lametta._files import escape_formula

_LATEX = str.maketrans(
    {letter: f"\\{letter}" for letter in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"±": r"$\pm$", "·": r"$\cdot$", "…": r"\dots{}", "†": r"$\dagger$"}
)


@dataclass(frozen=True)
class Entry:
    """Entry of a table: the text, a gain in points that colors it, and a note below.

    Examples
    --------
    >>> Entry("55.7", gain=3.6).note
    ''
    """

    text: str
    gain: float | None = None
    note: str = ""
    best: bool = False


@dataclass(frozen=True, eq=False)
class Table:
    r"""A table to look at, and the frame of numbers behind it.

    Parameters
    ----------
    name, title : str
        The name of its files, and what it shows.
    header : sequence of str
        The names of the columns; the first says what the rows are.
    rows : sequence of sequence of Entry
        What is shown.
    data : DataFrame
        The numbers, one row each.
    footnote : str
        Explains the marks in it.

    Examples
    --------
    >>> table = Table("demo", "A demo", ["method", "%"], [[Entry("LAME"), Entry("3", best=True)]])
    >>> print(table.markdown())
    | method | % |
    |---|---:|
    | LAME | **3** |
    >>> table.numeric
    (False, True)
    >>> print(table.latex().splitlines()[2])
    method & \% \\
    """

    name: str
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[Entry]]
    data: pl.DataFrame = field(default_factory=pl.DataFrame, repr=False)
    footnote: str = ""

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Which columns hold numbers, and are set to the right."""
        columns = zip(*self.rows, strict=True) if self.rows else [()] * len(self.header)
        return tuple(
            all(re.match(r"[-+]?\d|=?$", entry.text) for entry in column) for column in columns
        )

    def markdown(self) -> str:
        """A table as GitHub's Markdown has it."""
        rule = f"|{'|'.join('---:' if right else '---' for right in self.numeric)}|"
        head, *body = (f"| {' | '.join(line)} |" for line in self._lines(_markdown, "**{}**"))
        return "\n".join([head, rule, *body, *(["", self.footnote] if self.footnote else [])])

    def latex(self) -> str:
        """A tabular with the rules of booktabs."""
        head, *body = (rf"{' & '.join(line)} \\" for line in self._lines(_latex, r"\textbf{{{}}}"))
        columns = "".join("r" if right else "l" for right in self.numeric)
        begin = rf"\begin{{tabular}}{{{columns}}}"
        end = [r"\bottomrule", r"\end{tabular}"]
        end += ["", _latex(self.footnote)] if self.footnote else []
        return "\n".join([begin, r"\toprule", head, r"\midrule", *body, *end])

    def _repr_markdown_(self) -> str:
        return f"**{_markdown(self.title)}**\n\n{self.markdown()}"  # notebooks show it

    def _repr_latex_(self) -> str:
        return self.latex()

    def entries(self) -> list[dict[str, str]]:
        """What is shown, a mapping for each row."""
        return [
            {name: entry.text for name, entry in zip(self.header, row, strict=True)}
            for row in self.rows
        ]

    def csv(self) -> str:
        """The numbers behind the table, unrounded."""
        return to_csv(self.data)

    def _lines(self, escape: Callable[[str], str], strong: str) -> Iterable[list[str]]:
        yield [escape(name) for name in self.header]
        for row in self.rows:
            yield [
                strong.format(escape(entry.text)) if entry.best else escape(entry.text)
                for entry in row
            ]


def _markdown(text: str) -> str:
    # A viewer may render HTML, also that in a name.
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace("|", r"\|").replace("\n", " ")


def _latex(text: str) -> str:
    return re.sub(r"-(?=\d)", "$-$", text.translate(_LATEX))


def number(value: float, half_width: float | None = None, *, signed: bool = False) -> str:
    """A number with one decimal, and how sure it is.

    Examples
    --------
    >>> number(55.71, 0.3), number(3.64, signed=True), number(-0.01)
    ('55.7 ± 0.3', '+3.6', '0.0')
    """
    rounded = round(value, 1) + 0.0  # which makes -0.0 into 0.0
    sure = "" if half_width is None else f" ± {half_width:.1f}"
    return f"{rounded:{'+' if signed else ''}.1f}{sure}"


def percent(share: float, half_width: float | None = None, *, signed: bool = False) -> str:
    """A share, or a difference of shares, in percent.

    Examples
    --------
    >>> percent(0.5571, 0.003), percent(0.0364, signed=True)
    ('55.7 ± 0.3', '+3.6')
    """
    return number(100 * share, None if half_width is None else 100 * half_width, signed=signed)


def gain_entries(
    row: Mapping[str, Any], count: str, half_width: float | None = None
) -> list[Entry]:
    """The mean gain of a method, the lowest and where that was, and a count of streams.

    Examples
    --------
    >>> row = {"gain": 0.1, "worst_gain": -0.02, "worst_scenario": "video"}
    >>> [entry.text for entry in gain_entries(row, "3 of 4")]
    ['+10.0', '-2.0', 'video', '3 of 4']
    """
    gain, low = row["gain"], row["worst_gain"]
    return [
        Entry(percent(gain, half_width, signed=True), 100 * gain),
        Entry(percent(low, signed=True), 100 * low),
        Entry(row["worst_scenario"]),
        Entry(count),
    ]


def as_table(name: str, title: str, frame: pl.DataFrame) -> Table:
    """A table of a frame as it is.

    Examples
    --------
    >>> print(as_table("t", "T", pl.DataFrame({"batch_size": [16]})).markdown())
    | batch size |
    |---:|
    | 16 |
    """
    rows = [[Entry("" if x is None else str(x)) for x in row] for row in frame.iter_rows()]
    return Table(name, title, [column.replace("_", " ") for column in frame.columns], rows, frame)


def to_csv(frame: pl.DataFrame) -> str:
    """A frame as CSV whose names and texts are no formulas.

    Examples
    --------
    >>> print(to_csv(pl.DataFrame({"=name": ["+x", None], "n": [-1, 2]})).strip())
    '=name,n
    '+x,-1
    ,2
    """
    texts = [
        column.replace_strict(unique, [x if x is None else escape_formula(x) for x in unique])
        for column in frame.iter_columns()
        if column.dtype == pl.String and len(unique := column.unique().to_list())
    ]
    return frame.with_columns(texts).rename(escape_formula).write_csv()
