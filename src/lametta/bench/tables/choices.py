"""Which configurations were chosen."""

import json
from collections.abc import Mapping
from typing import Any

import polars as pl

from lametta.bench.tables.table import Entry, Table, number


def selected(
    params: Mapping[str, Mapping[str, object]], table: pl.DataFrame | None = None
) -> Table:
    """The configuration that the validation scenarios chose for each method.

    Parameters
    ----------
    params : mapping
        The parameters of each method.
    table : DataFrame, optional
        As `lametta.bench.select.Selection` has it.

    Examples
    --------
    >>> print(selected({"LAME": {"k": 5}, "Source": {}}).markdown())
    | method | configuration |
    |---|---|
    | LAME | k = 5 |
    | Source | as it is |
    """
    known = {} if table is None else {row["method"]: row for row in table.iter_rows(named=True)}
    rows = [
        [Entry(method), Entry(words(config)), *(_validated(known.get(method)) if known else ())]
        for method, config in params.items()
    ]
    extra = ["validation accuracy (%)", "gain", "runner-up", "its accuracy (%)"] if known else []
    data = pl.DataFrame(
        {"method": list(params), "config": [json.dumps(config) for config in params.values()]}
    )
    title = "Chosen on the validation scenarios"
    return Table("selected", title, ["method", "configuration", *extra], rows, data)


def _validated(row: Mapping[str, Any] | None) -> list[Entry]:
    if row is None:
        return [Entry("")] * 4
    gain = None if row["gain"] is None else 100 * row["gain"]
    return [
        Entry(number(100 * row["accuracy"])),
        Entry("" if gain is None else number(gain, signed=True), gain),
        *_runner_up(row),
    ]


def _runner_up(row: Mapping[str, Any]) -> list[Entry]:
    """How the second best differs, and its accuracy."""
    if row["runner_up"] is None:
        return [Entry(""), Entry("")]
    chosen, second = json.loads(row["config"]), json.loads(row["runner_up"])
    other = {name: value for name, value in second.items() if chosen.get(name) != value}
    return [Entry(words(other)), Entry(number(100 * row["runner_up_accuracy"]))]


def words(params: Mapping[str, object]) -> str:
    """Parameters as a reader sees them.

    Examples
    --------
    >>> words({"affinity": "knn", "k": 5})
    'affinity = knn, k = 5'
    """
    return ", ".join(f"{name} = {value}" for name, value in params.items()) or "as it is"
