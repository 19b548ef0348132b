"""Where the figures of the documentation's tables come from: python scripts/tables.py.

A comment above each table of figures says it, in one of these ways:

- ``<!-- figures: stored in docs/tables/NAME.csv -->``: a program wrote this file, or NAME.md as
  ``lametta report`` does. This script puts its cells into the page, and a test finds pages where
  they differ.
- ``<!-- figures: tested by tests/FILE.py -->``: a test computes them anew.
- ``<!-- figures: measured by COMMAND on MACHINE, DATE, stored in docs/tables/NAME.csv -->``:
  another machine, or another run, gives others. The page names the command and the date, too.
  Programs in benchmarks/ write NAME.csv by ``--csv``.
- ``<!-- figures: given by SOURCE -->``: nothing that we measured.

A stored table has the page's rows, in their order, and those of its columns that hold figures.
"""

import csv
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = re.compile(
    r"(?:^<!-- figures: (?P<origin>.*?) -->\n+)?"
    r"(?P<table>^\|.*\n^\|[ :|-]+\|\n(?:^\|.*\n?)*)",
    flags=re.MULTILINE,
)
_FIGURE = re.compile(r"[+-]?\d")


def pages() -> list[Path]:
    """The README and every page of the documentation."""
    found = sorted((ROOT / "docs").rglob("*.md"))
    left_out = (ROOT / "docs" / "_build", ROOT / "docs" / "tables")
    return [
        ROOT / "README.md",
        *(page for page in found if not any(map(page.is_relative_to, left_out))),
    ]


def cells(line: str) -> list[str]:
    """The cells of a line of a table."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


def plain(cell: str) -> str:
    """A cell without its emphasis."""
    return cell.replace("**", "")


def has_figures(table: str) -> bool:
    """Whether half of the cells of a column, but for the first, begin with a number."""
    _, _, *lines = table.splitlines()
    columns = list(zip(*(map(plain, cells(line)) for line in lines), strict=True))[1:]
    figures = [[bool(_FIGURE.match(cell)) for cell in column if cell] for column in columns]
    return any(sum(column) >= len(column) / 2 > 0 for column in figures)


def read(path: Path) -> list[list[str]]:
    """The cells of a stored table, its titles first."""
    lines = path.read_text(encoding="utf-8").splitlines()
    if path.suffix == ".csv":
        return list(csv.reader(lines))
    return [[plain(cell) for cell in cells(line)] for line in (lines[0], *lines[2:])]


def fill(table: str, stored: list[list[str]]) -> str:
    """The table of a page with the stored cells; `ValueError` where it has another shape."""
    head, rule, *lines = table.splitlines()
    titles, (columns, *rows) = [plain(cell) for cell in cells(head)], stored
    if missing := [column for column in columns if column not in titles]:
        raise ValueError(f"no column {missing} among {titles}")
    if len(set(titles)) < len(titles):  # a figure would land in the first of two
        raise ValueError(f"two columns of one title among {titles}")
    if len(rows) != len(lines):
        raise ValueError(f"{len(lines)} rows, got {len(rows)} stored ones")
    filled = [head, rule]
    for line, row in zip(lines, rows, strict=True):
        shown = cells(line)
        if plain(shown[0]) != row[0]:
            raise ValueError(f"row {shown[0]!r}, got {row[0]!r} stored")
        for title, value in zip(columns, row, strict=True):
            at = titles.index(title)
            shown[at] = shown[at].replace(plain(shown[at]), value) if shown[at] else value
        others = [cell for title, cell in zip(titles, shown, strict=True) if title not in columns]
        if figures := [cell for cell in others if _FIGURE.match(plain(cell))]:
            raise ValueError(f"figures that are not stored: {figures}")
        filled.append("|" + "".join(f" {cell} |" if cell else " |" for cell in shown))
    return "\n".join(filled) + "\n" * table.endswith("\n")


def stored_in(origin: str | None) -> str | None:
    """The file that holds the cells of a table, if there is one."""
    found = re.search(r"\bstored in (\S+)$", origin or "")
    return found and found[1]


def filled(text: str) -> str:
    """A page with the cells that are stored."""

    def replace(found: re.Match[str]) -> str:
        file = stored_in(found["origin"])
        if file is None:
            return found[0]
        return found[0].replace(found["table"], fill(found["table"], read(ROOT / file)))

    return TABLE.sub(replace, text)


if __name__ == "__main__":
    for page in pages():
        before = page.read_text(encoding="utf-8")
        if (after := filled(before)) != before:
            page.write_text(after, encoding="utf-8")
            print(f"wrote {page.relative_to(ROOT)}")
