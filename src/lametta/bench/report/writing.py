"""Writing a report."""

from pathlib import Path

from lametta.bench.report.content import headline_rows, paper_section, sections
from lametta.bench.report.page import render, streams
from lametta.bench.results import Results
from lametta.bench.tables import ranking


def write(results: Results, folder: str | Path, *, paper: bool | None = None) -> Path:
    """Write ``report.html``, ``figures/*.svg|pdf|csv`` and ``tables/*.md|tex|csv``.

    Parameters
    ----------
    results : Results
        What to report on.
    folder : path
        Where to; it is made if need be, and files in it are replaced.
    paper : bool, optional
        Whether to show the paper's numbers beside ours; without it, if the experiment is called
        "paper".

    Returns
    -------
    Path
        The page.
    """
    folder = Path(folder)
    parts, rows = list(sections(results)), headline_rows(results)
    if results.experiment.name == "paper" if paper is None else paper:
        parts.append(paper_section(results, parts))
    for part in parts:
        for figure in part.figures:
            figure.save(folder / "figures")
            figure.frame().write_csv(folder / "figures" / f"{figure.name}.csv")
    every = [ranking(rows, results.source), streams(results)]
    for table in [*every, *(table for part in parts for table in part.tables)]:
        for suffix, text in (
            ("md", table.markdown()),
            ("tex", table.latex()),
            ("csv", table.csv()),
        ):
            _write(folder / "tables" / f"{table.name}.{suffix}", text)
    page = folder / "report.html"
    _write(page, render(results, parts, rows))
    return page


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
