"""Which configurations were chosen."""

import json
from collections.abc import Mapping
from typing import Any

import polars as pl

from lametta.bench.tables.table import Entry, Table, percent


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
    """Accuracy and gain of the chosen configuration, how the second best differs, its accuracy."""
    entries = [Entry("")] * 4
    if row is None:
        return entries
    entries[0] = Entry(percent(row["accuracy"]))
    if (gain := row["gain"]) is not None:
        entries[1] = Entry(percent(gain, signed=True), 100 * gain)
    if row["runner_up"] is not None:
        chosen, second = json.loads(row["config"]), json.loads(row["runner_up"])
        other = {name: value for name, value in second.items() if chosen.get(name) != value}
        entries[2:] = Entry(words(other)), Entry(percent(row["runner_up_accuracy"]))
    return entries


def words(params: Mapping[str, object]) -> str:
    """Parameters as a reader sees them.

    Examples
    --------
    >>> words({"affinity": "knn", "k": 5})
    'affinity = knn, k = 5'
    """
    return ", ".join(f"{name} = {value}" for name, value in params.items()) or "as it is"
