"""The page of a report: one file with everything in it."""

import base64
import re
from collections.abc import Mapping
from typing import Any

import polars as pl
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from lametta.bench import tables
from lametta.bench.figures import marks
from lametta.bench.report.content import Section
from lametta.bench.results import Results
from lametta.bench.tables import Table, number


def render(results: Results, sections: list[Section], rows: pl.DataFrame) -> str:
    """The report as HTML.

    Parameters
    ----------
    results : Results
        What was run.
    sections : list of Section
        What is shown of it.
    rows : DataFrame
        What the headline is about.
    """
    environment = Environment(
        loader=PackageLoader("lametta.bench"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"csv_link": _csv_link, "minus": _minus, "shade": _shade}
    ranking = tables.ranking(rows, results.source)
    scenarios = list(dict.fromkeys(rows["scenario"]))
    return environment.get_template("report.html.j2").render(
        title=results.experiment.title,
        results=results,
        message=headline(ranking.data, results.source),
        cards=ranking.data.filter(pl.col("method") != results.source).to_dicts(),
        marks=marks(results.experiment.methods),
        sections=sections,
        details=[tables.details(rows, scenario) for scenario in scenarios],
        environment=_flat(results.environment),
        streams=streams(results),
        experiment_file=(results.folder / "experiment.toml").read_text(encoding="utf-8"),
        number=number,
        Markup=Markup,
    )


def headline(ranking: pl.DataFrame, source: str) -> str:
    """What the numbers say, in a sentence.

    Examples
    --------
    >>> rows = {"method": ["LAME", "Source"], "accuracy": [0.56, 0.52], "gain": [0.04, 0.0]}
    >>> headline(pl.DataFrame(rows | {"gain_ci": [0.01, None], "scenarios": 7}), "Source")
    'LAME is best: right in 56.0 % on average over 7 scenarios, +4.0 ± 1.0 points over Source.'
    """
    others = ranking.filter(pl.col("method") != source)
    if others.is_empty():
        return f"Only {source} was run."
    best = others.row(0, named=True)
    n = best["scenarios"]
    where = f"on average over {n} scenarios" if n > 1 else "in the one scenario"
    sure = None if best["gain_ci"] is None else 100 * best["gain_ci"]
    gain = f"{number(100 * best['gain'], sure, signed=True)} points over {source}"
    if best["gain"] <= 0:
        return f"No method is better than {source} {where}; closest is {best['method']}, {gain}."
    accuracy = number(100 * best["accuracy"])
    level = abs(best["gain"]) <= (best["gain_ci"] or 0)
    caution = ", which may be chance" if level else ""
    return f"{best['method']} is best: right in {accuracy} % {where}, {gain}{caution}."


def streams(results: Results) -> Table:
    """The streams, by the fingerprints that two machines can compare."""
    columns = ("scenario", "seed", "batch_size", "n", "fingerprint")
    rows = results.frame.select(columns).unique().sort(columns)
    return tables.as_table("streams", "Streams", rows.rename({"n": "samples"}))


def _flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in content.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name} ")
        else:
            flat[prefix + name] = str(value)
    return flat


def _csv_link(frame: pl.DataFrame) -> str:
    encoded = base64.b64encode(frame.write_csv().encode()).decode()
    return f"data:text/csv;charset=utf-8;base64,{encoded}"


def _minus(text: str) -> str:
    """Numbers with a real minus sign, which is as wide as the plus."""
    return re.sub(r"(?<![\w.])-(?=\d)", "\N{MINUS SIGN}", text)


def _shade(gain: float) -> str:
    """How strongly a gain in points colors its cell: the root shows small ones too."""
    return f"{min(1.0, abs(gain) / 20) ** 0.5:.0%}"
