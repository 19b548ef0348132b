"""A report on disk: the page, one file with everything in it, and its figures and tables."""

import base64
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import polars as pl
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from lametta._files import PathLike, write_text
from lametta.bench.analysis.results import Results
from lametta.bench.figures import series_styles
from lametta.bench.report import Report
from lametta.bench.tables import Table, as_table, percent, to_csv
from lametta.bench.tables.accuracy import details, non_causal


def write(report: Report, folder: PathLike) -> Path:
    """Write ``report.html``, ``figures/*.svg|pdf|csv`` and ``tables/*.md|tex|csv``.

    Parameters
    ----------
    report : Report
        What to write.
    folder : path
        Is made if need be; files in it are replaced.

    Returns
    -------
    Path
        The page.
    """
    folder = Path(folder)
    for section in report.sections:
        for figure in section.figures:
            figure.save(folder / "figures")
            write_file(folder / "figures" / f"{figure.name}.csv", to_csv(figure.frame()))
    streams = _streams(report.results)
    shown = [table for section in report.sections for table in section.tables]
    for table in (report.ranking, streams, *shown):
        write_table(table, folder)
    page = folder / "report.html"
    write_file(page, _render(report, streams))
    return page


def write_table(table: Table, folder: Path) -> None:
    """Write a table in each of its forms."""
    forms = {"md": table.markdown(), "tex": table.latex(), "csv": table.csv()}
    for suffix, text in forms.items():
        write_file(folder / "tables" / f"{table.name}.{suffix}", text)


def write_file(path: Path, text: str) -> None:
    """Write a file, and make its folder if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text.rstrip("\n") + "\n")


def _render(report: Report, streams: Table) -> str:
    results, rows = report.results, report.results.headline_rows
    scenarios = list(dict.fromkeys(rows["scenario"]))
    return template("report.html.j2").render(
        title=results.experiment.title,
        results=results,
        message=report.message,
        cards=report.ranking.data.filter(pl.col("method") != results.source).to_dicts(),
        ahead=non_causal(rows),
        marks=series_styles(results.experiment.methods),
        sections=report.sections,
        details=[details(rows, scenario) for scenario in scenarios],
        environment=_flat(results.environment),
        commands=_commands(results),
        streams=streams,
        experiment_file=(results.folder / "experiment.toml").read_text(encoding="utf-8"),
        percent=percent,
        Markup=Markup,
    )


def template(name: str) -> Template:
    """A template of a page, with the filters that all of them use."""
    environment = Environment(
        loader=PackageLoader("lametta.bench"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"csv_link": _csv_link, "minus": _minus, "shade": _shade}
    return environment.get_template(name)


def _streams(results: Results) -> Table:
    """The streams, by the fingerprints that two machines can compare."""
    columns = ("scenario", "seed", "batch_size", "n", "fingerprint")
    rows = results.frame.select(columns).unique().sort(columns)
    return as_table("streams", "Streams", rows.rename({"n": "samples"}))


def _commands(results: Results) -> list[str]:
    """The commands that make these results again, from the file beside them."""
    folder, environment = str(results.folder), results.environment
    again = ["lametta", "run", str(results.folder / "experiment.toml"), "-o", folder]
    if root := _data_root(str(environment.get("command", ""))):
        again += ["--data", root]
    if (device := str(environment.get("device", "cpu"))) != "cpu":
        again += ["--device", device]
    return [shlex.join(again), shlex.join(["lametta", "report", folder])]


def _data_root(command: str) -> str | None:
    """The data root that a command names."""
    words: list[str] = []
    with suppress(ValueError):  # names may have quotes that do not match
        words = shlex.split(command)
    for word, following in pairwise([*words, ""]):
        if word.startswith("--data="):
            return word.removeprefix("--data=")
        if word == "--data" and following:
            return following
    return None


def _flat(content: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in content.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name} ")
        else:
            flat[prefix + name] = str(value)
    return flat


def _csv_link(frame: pl.DataFrame) -> str:
    encoded = base64.b64encode(to_csv(frame).encode()).decode()
    return f"data:text/csv;charset=utf-8;base64,{encoded}"


def _minus(text: str) -> str:
    """Numbers with a real minus sign, which is as wide as the plus."""
    return re.sub(r"(?<![\w.])-(?=\d)", "\N{MINUS SIGN}", text)


def _shade(gain: float) -> str:
    """How strongly a gain in points colors its cell: the root shows small ones too."""
    return f"{min(1.0, abs(gain) / 20) ** 0.5:.0%}"
