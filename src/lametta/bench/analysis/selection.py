"""Hyperparameter selection on validation scenarios; cross-shift matrix."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from lametta._files import write_text
from lametta.bench.analysis import check_cells, gains, means, refuse, require
from lametta.bench.columns import CELL, STREAM
from lametta.bench.experiment.errors import (
    StrictModel,
    config_error,
    errors_of,
    json_value,
    read_toml,
    to_key,
    to_toml,
)
from lametta.types import LamettaError

Order = Mapping[str, Sequence[str]]
"""The configurations of each method, as JSON, in the order of the experiment file."""


class Selection(dict[str, str]):
    """The configuration chosen for each method: a mapping from its name to canonical JSON.

    Attributes
    ----------
    table : DataFrame
        For each ``method`` its ``config``, the mean ``accuracy`` and ``gain`` over the source, and
        the ``runner_up`` with its ``runner_up_accuracy``, null where there is no other.

    Examples
    --------
    >>> selection = Selection(pl.DataFrame({"method": ["LAME"], "config": ['{"k": 5}']}))
    >>> selection["LAME"], selection.params
    ('{"k": 5}', {'LAME': {'k': 5}})
    """

    def __init__(self, table: pl.DataFrame) -> None:
        super().__init__(table.select("method", "config").iter_rows())
        self.table = table

    @property
    def params(self) -> dict[str, dict[str, object]]:
        """The parameters of each method, as `read_selection` gives them."""
        return {method: json.loads(config) for method, config in self.items()}


def select(
    frame: pl.DataFrame,
    scenarios: Sequence[str],
    order: Order | None = None,
    *,
    source: str = "Source",
) -> Selection:
    """For each method, the configuration with the best mean accuracy over the scenarios.

    The mean is that of the scenarios' means, each over its seeds. All configurations must have been
    run on the same streams: one that lacks some of them is an error, since its mean would be over
    easier or harder scenarios than the others'.

    Parameters
    ----------
    frame : DataFrame
        The validation cells, one row each. Rows of other scenarios are left out.
    scenarios : sequence of str
        The validation scenarios. Each must have rows.
    order : mapping of str to sequence of str, optional
        The configurations that each method should have, if it has rows at all. Of equally good
        ones the first is chosen; without this mapping, the first in the alphabet.
    source : str
        The method that gains are over. Without rows of it the gain is null.

    Examples
    --------
    >>> frame = pl.DataFrame({"config": ['{"k": 1}', '{"k": 5}'], "accuracy": [0.5, 0.6]})
    >>> same = {"method": "LAME", "model": "net", "scenario": "bursts", "seed": 0}
    >>> same |= {"batch_size": 64, "fingerprint": "5f1c"}
    >>> frame = frame.with_columns(**{name: pl.lit(x) for name, x in same.items()})
    >>> select(frame, ["bursts"])
    {'LAME': '{"k": 5}'}
    """
    rows = _rows(frame, scenarios)
    check_cells(rows)
    listed = _listed(rows, order or {})
    if source in rows["method"]:
        rows = gains(rows, source)
    else:
        rows = rows.with_columns(gain=pl.lit(None, pl.Float64))
    configs = means(_by_scenario(rows), ["method", "config"], ["accuracy", "gain"])
    ranked = _best_first(configs, listed).group_by("method", maintain_order=True)
    second = pl.col("config", "accuracy").slice(1, 1).first().name.prefix("runner_up_")
    table = ranked.agg(pl.col("config", "accuracy", "gain").first(), second)
    return Selection(table.rename({"runner_up_config": "runner_up"}))


RULES = {  # what is highest for the best configuration, and what is known for it
    "entropy": -pl.col("entropy"),
    "neighborhood": pl.col("neighborhood"),
    "consistency": pl.col("consistency"),
    "source": pl.col("source_accuracy"),
    "other shifts": pl.col("other_accuracy"),
}
"""How to choose a configuration without labels of the stream: `label_free` says what each costs."""


def label_free(
    frame: pl.DataFrame,
    scenarios: Sequence[str],
    order: Order | None = None,
    *,
    source_scenarios: Sequence[str] = (),
) -> pl.DataFrame:
    """What a choice without labels costs: how far it is below that of an oracle.

    The oracle knows the labels, and takes the configuration that is best on the very stream. The
    rules do not: the least ``entropy`` of the predictions; the highest soft ``neighborhood``
    density of a batch; the highest ``consistency`` with answers for mirror images; the highest
    accuracy on a stream of ``source`` data; that on the ``other shifts``, whose labels one may
    have, on average. ``chance`` takes any configuration. A rule is left out where what it goes by
    was not measured.

    Parameters
    ----------
    frame : DataFrame
        The validation cells, one row each. Methods with a single configuration are left out.
    scenarios : sequence of str
        The scenarios, in the order to be shown.
    order : mapping of str to sequence of str, optional
        As for `select`.
    source_scenarios : sequence of str
        Those of source data, which nothing is chosen for.

    Returns
    -------
    DataFrame
        For each ``method``, ``model`` and ``scenario`` a row for each ``rule``: the ``config`` that
        it chooses, its ``accuracy``, the mean over seeds, that of the ``oracle``, and the ``cost``,
        their difference.

    Examples
    --------
    >>> frame = pl.DataFrame({"config": ['{"k": 1}', '{"k": 5}'], "accuracy": [0.5, 0.75]})
    >>> same = {"method": "LAME", "model": "net", "scenario": "bursts", "seed": 0}
    >>> same |= {"batch_size": 64, "fingerprint": "5f1c"}
    >>> frame = frame.with_columns(**{name: pl.lit(x) for name, x in same.items()})
    >>> found = label_free(frame.with_columns(entropy=pl.Series([0.1, 0.2])), ["bursts"])
    >>> found.select("rule", "config", "cost").rows()
    [('entropy', '{"k": 1}', 0.25), ('chance', None, 0.125)]
    """
    rows = _rows(frame, scenarios)
    check_cells(rows)
    listed, by = _listed(rows, order or {}), ["method", "model", "scenario"]
    measured = [name for name in ("entropy", "neighborhood", "consistency") if name in rows.columns]
    found = means(rows, [*by, "config"], ["accuracy", *measured])
    found = found.filter(pl.len().over(by) > 1)
    of_source = pl.col("scenario").is_in(list(source_scenarios))
    each = ["method", "model", "config"]
    on_source = means(found.filter(of_source), each, ["accuracy"])
    found = found.filter(~of_source).join(
        on_source.rename({"accuracy": "source_accuracy"}),
        on=each,
        how="left",
        maintain_order="left",
    )
    others = (pl.col("accuracy").sum() - pl.col("accuracy")) / (pl.len() - 1)
    others = pl.when(pl.len().over(each) > 1).then(others.over(each))
    found = found.with_columns(other_accuracy=others, oracle=pl.col("accuracy").max().over(by))
    found = found.join(listed, on=["method", "config"], how="left", maintain_order="left")
    shown = ["config", "accuracy", "oracle"]
    chosen = [
        _preferred(found.with_columns(score=score), by).select(*by, *shown, rule=pl.lit(rule))
        for rule, score in RULES.items()
        if {*score.meta.root_names()} <= {*found.columns}
    ]
    chance = found.group_by(by, maintain_order=True).agg(
        pl.lit(None, pl.String).alias("config"), pl.col("accuracy").mean(), pl.col("oracle").first()
    )
    chosen.append(chance.with_columns(rule=pl.lit("chance")))
    costs = pl.concat(chosen).with_columns(cost=pl.col("oracle") - pl.col("accuracy"))
    return costs.select(*by, "rule", *shown, "cost")


def _preferred(found: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """The configuration with the highest score of each group, the first of equal ones."""
    scored = found.filter(pl.col("score").is_finite())
    best = scored.sort(-pl.col("score").round(12), "place", "config", nulls_last=True)
    return best.group_by(by, maintain_order=True).first().select(found.columns)


def cross_shift(
    frame: pl.DataFrame,
    method: str,
    scenarios: Sequence[str],
    source: str = "Source",
    *,
    order: Order | None = None,
) -> pl.DataFrame:
    """What a method gains in each scenario with the configuration that is best in another.

    Parameters
    ----------
    frame : DataFrame
        The validation cells of the method and of the source, one row each; others are left out.
    method, source : str
        The method, and the one that gains are over.
    scenarios : sequence of str
        The scenarios, in the order that rows and columns of the matrix shall have.
    order : mapping of str to sequence of str, optional
        As for `select`.

    Returns
    -------
    DataFrame
        One row for each pair: ``tuned_on``, the ``config`` that is best there, ``scenario``, and
        the mean ``gain`` there in points. Where both are the same, it is the best there is.

    Examples
    --------
    >>> frame = pl.DataFrame(
    ...     [("i.i.d.", "LAME", 0.5), ("bursts", "LAME", 0.75)]
    ...     + [("i.i.d.", "Source", 0.5), ("bursts", "Source", 0.5)],
    ...     schema=["scenario", "method", "accuracy"],
    ...     orient="row",
    ... )
    >>> same = {"config": "{}", "model": "net", "seed": 0, "batch_size": 64, "fingerprint": "5f1c"}
    >>> frame = frame.with_columns(**{name: pl.lit(x) for name, x in same.items()})
    >>> matrix(cross_shift(frame, "LAME", ["i.i.d.", "bursts"]))
    array([[ 0., 25.],
           [ 0., 25.]])
    """
    rows = _rows(frame, scenarios).filter(pl.col("method").is_in([method, source]))
    if method not in rows["method"]:
        have = ", ".join(frame["method"].unique(maintain_order=True))
        raise LamettaError(f"method must have rows in these scenarios, got {method!r}, not {have}")
    rows = gains(rows, source)
    listed = _listed(rows, order or {})
    by_scenario = _by_scenario(rows.filter(method=method))
    best = _best_first(by_scenario, listed).group_by("scenario").agg(pl.col("config").first())
    pairs = best.rename({"scenario": "tuned_on"}).join(by_scenario, on="config")
    places = pl.col("tuned_on", "scenario").cast(pl.Enum(scenarios))
    return pairs.sort(places).select("tuned_on", "config", "scenario", pl.col("gain") * 100)


def matrix(cross: pl.DataFrame, /) -> NDArray[np.float64]:
    """What `cross_shift` gives as a matrix [S, S]: tuned on row i, gain in scenario j.

    Examples
    --------
    >>> cross = {"tuned_on": ["a", "a", "b", "b"], "scenario": ["a", "b"] * 2}
    >>> matrix(pl.DataFrame(cross | {"gain": [1.0, -2.0, 0.5, 3.0]}))
    array([[ 1. , -2. ],
           [ 0.5,  3. ]])
    """
    return cross.pivot("scenario", index="tuned_on", values="gain").drop("tuned_on").to_numpy()


def write_selection(path: str | Path, selection: Mapping[str, str]) -> None:
    """Write what `select` chose for each method as TOML; the file is whole, or not there.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_selection(f"{folder}/selected.toml", {"LAME": '{"affinity": "knn", "k": 5}'})
    ...     print(Path(folder, "selected.toml").read_text().strip())
    [LAME]
    config = { affinity = "knn", k = 5 }
    """
    sections = (
        f"[{to_key(method)}]\nconfig = {to_toml(json.loads(config))}\n"
        for method, config in selection.items()
    )
    write_text(path, "\n".join(sections))


def read_selection(path: str | Path) -> dict[str, dict[str, object]]:
    """Read the parameters of each method from a file that `write_selection` or a person wrote.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_selection(f"{folder}/selected.toml", {"LAME": '{"k": 5}'})
    ...     read_selection(f"{folder}/selected.toml")
    {'LAME': {'k': 5}}
    """
    content = read_toml(Path(path))
    try:
        selected = TypeAdapter(dict[str, _Selected]).validate_python(content)
    except ValidationError as error:
        raise config_error(path, errors_of(error, lambda _: ["config"])) from None
    return {method: section.config for method, section in selected.items()}


class _Selected(StrictModel):
    """What is selected for a method, as the file has it."""

    config: Annotated[dict[str, object], json_value]


def _rows(frame: pl.DataFrame, scenarios: Sequence[str]) -> pl.DataFrame:
    require(frame, *CELL)
    if len(set(scenarios)) < len(scenarios):
        raise LamettaError(f"scenarios must not repeat one, got {list(scenarios)}")
    rows = frame.filter(pl.col("scenario").is_in(list(scenarios)))
    absent = [name for name in scenarios if name not in rows["scenario"]]
    if absent or not scenarios:  # none at all is a mistake too
        raise LamettaError(f"scenarios must have rows in the frame, got {absent}")
    return rows


def _listed(rows: pl.DataFrame, order: Order) -> pl.DataFrame:
    """The configurations that methods with rows should have, and their places in the order.

    Raise if one of these, or one that has rows, did not run on every stream.
    """
    places = [
        (method, config, place)
        for method in rows["method"].unique()
        for place, config in enumerate(dict.fromkeys(order.get(method, ())))
    ]
    schema = {"method": pl.String, "config": pl.String, "place": pl.Int64}
    listed = pl.DataFrame(places, schema=schema, orient="row")
    configs = pl.concat([frame.select("method", "config") for frame in (rows, listed)])
    streams = rows.select(STREAM).unique(maintain_order=True)
    wanted = configs.unique(maintain_order=True).join(streams, how="cross")
    missing = wanted.join(rows, on=CELL, how="anti")
    refuse(missing.sort(CELL), "frame must have every configuration on every stream")
    return listed


def _by_scenario(rows: pl.DataFrame) -> pl.DataFrame:
    return means(rows, ["method", "config", "scenario"], ["accuracy", "gain"])


def _best_first(found: pl.DataFrame, listed: pl.DataFrame) -> pl.DataFrame:
    """Sort by accuracy and then by place, with methods in the order in which they come."""
    methods = found["method"].unique(maintain_order=True)
    # Rounded, since equal means may differ in the last digit by the order of a sum.
    better = -pl.col("accuracy").round(12)
    return found.join(listed, on=["method", "config"], how="left").sort(
        pl.col("method").cast(pl.Enum(methods)), better, "place", "config", nulls_last=True
    )
