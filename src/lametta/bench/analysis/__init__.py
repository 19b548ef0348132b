"""Queries over result rows: gains, means with confidence intervals, risk, time series.

A frame has one row for each cell, that is for each run of a method over a stream.
"""

import math
from collections.abc import Sequence

import numpy as np
import polars as pl

from lametta.bench.columns import CELL, NEEDED, STREAM, names
from lametta.types import LamettaError

_SETTINGS = [name for name in CELL if name != "seed"]
_CERTAIN = ("accuracy", "gain")  # which have an interval
_MEASURES = tuple(  # each once
    dict.fromkeys(
        [*_CERTAIN, *names("metric", "open", "signal", "stage", "time", "memory", "passes")]
    )
)

COVERED = "over seeds: over orders and priors, not over other images"
"""What an interval says something about, in words to follow "interval"."""


def gains(frame: pl.DataFrame, source: str = "Source") -> pl.DataFrame:
    """The frame with a column ``gain``: the accuracy less the source's on the same stream.

    Parameters
    ----------
    frame : DataFrame
        One row for each cell; see `check_cells` for what it must hold.
    source : str
        The method that is the baseline. Each stream needs a row of it.

    Examples
    --------
    >>> frame = pl.DataFrame({"method": ["Source", "LAME"], "accuracy": [0.5, 0.625]})
    >>> stream = {"model": "net", "scenario": "bursts", "seed": 0, "batch_size": 64}
    >>> same = {"config": "{}", "fingerprint": "5f1c"} | stream
    >>> gains(frame.with_columns(**{name: pl.lit(x) for name, x in same.items()}))["gain"].to_list()
    [0.0, 0.125]
    """
    check_cells(frame)
    of_source = pl.col("accuracy").filter(pl.col("method") == source)
    found = frame.select(*STREAM, sources=of_source.len().over(STREAM))
    refuse(
        found.filter(pl.col("sources") != 1).unique(maintain_order=True),
        f"frame must have one row of the source {source!r} for each stream",
    )
    return frame.with_columns(gain=pl.col("accuracy") - of_source.first().over(STREAM))


def check_cells(frame: pl.DataFrame) -> None:
    """Raise unless each cell is there once, has an accuracy, and saw the stream that others saw."""
    check_once(frame)
    finite = pl.col("accuracy").is_finite().fill_null(False)
    refuse(frame.filter(~finite).select(*CELL, "accuracy"), "frame must have a number for accuracy")
    streams = frame.group_by(STREAM, maintain_order=True).agg(
        pl.col("fingerprint", "method").unique(maintain_order=True)
    )
    refuse(
        streams.filter(pl.col("fingerprint").list.len() > 1),
        "frame must have one stream, and so one fingerprint, for all methods",
    )


def check_once(frame: pl.DataFrame, name: str = "frame") -> None:
    """Raise unless each cell is there once, with the columns that every cell has."""
    require(frame, *NEEDED)
    twice = frame.filter(pl.struct(CELL).is_duplicated())
    refuse(twice.select(CELL).unique(maintain_order=True), f"{name} must have each cell once")


def summary(frame: pl.DataFrame, by: Sequence[str] = ("method",)) -> pl.DataFrame:
    """Means over runs, and how sure they are.

    Parameters
    ----------
    frame : DataFrame
        One row for each cell, with the gain that `gains` gives.
    by : sequence of str
        The columns whose groups get a row each, in the order in which they come. Other columns are
        averaged over: without ``"scenario"`` a mean is the plain mean of the scenarios' means, each
        over its seeds.

    Returns
    -------
    DataFrame
        The columns of ``by``; ``scenarios`` and ``runs``, the number of scenarios and of seeds; the
        mean of each measure that the frame has, from accuracy to times and memory; and
        ``accuracy_ci`` and ``gain_ci``, half the width of the 95 % confidence interval of Student's
        t over the seeds. Since the gain is paired by seed, ``gain_ci`` is free of what makes a
        stream easy for all methods. Both are null for one seed, and where a scenario misses some
        seed of another, since averages over different scenarios are not comparable.

    Examples
    --------
    >>> same = {"config": "{}", "model": "net", "scenario": "bursts", "batch_size": 64}
    >>> frame = pl.DataFrame({"method": ["LAME"] * 2, "seed": [0, 1], "accuracy": [0.5, 0.75]})
    >>> frame = frame.with_columns(gain=0.25, **{name: pl.lit(x) for name, x in same.items()})
    >>> row = summary(frame, by=["method"]).row(0, named=True)
    >>> row["runs"], row["accuracy"], round(row["accuracy_ci"], 2), row["gain_ci"]
    (2, 0.625, 1.59, 0.0)
    """
    if not by:
        raise LamettaError("by must name at least one column, got none")
    require(frame, *by, *CELL, *_CERTAIN)
    measures = [name for name in _MEASURES if name in frame.columns]
    n_runs = pl.col("seed").n_unique()
    counts = frame.group_by(by, maintain_order=True).agg(
        pl.col("scenario").n_unique().alias("scenarios"),
        n_runs.alias("runs"),
        complete=pl.len() == n_runs * pl.struct(_SETTINGS).n_unique(),
    )
    averages = means(means(frame, [*by, *_SETTINGS], measures), by, measures)
    per_seed = means(frame, [*by, "seed"], _CERTAIN).group_by(by, maintain_order=True)
    spreads = per_seed.agg(pl.col(_CERTAIN).std().name.suffix("_ci")).drop(by)
    half_width = pl.when("complete").then(pl.col("runs").map_batches(_t_scale, pl.Float64))
    # The order of the groups is the same in all three, so that they fit side by side.
    return (
        pl.concat([counts, averages.drop(by), spreads], how="horizontal")
        .with_columns(pl.col(spreads.columns) * half_width)
        .drop("complete")
    )


def worst_drop(frame: pl.DataFrame, by: Sequence[str] = ("method",)) -> pl.DataFrame:
    """The lowest mean gain over the scenarios, and the scenario that has it.

    Parameters
    ----------
    frame : DataFrame
        One row for each cell, with the gain that `gains` gives.
    by : sequence of str
        The columns whose groups get a row each.

    Examples
    --------
    >>> same = {"config": "{}", "model": "net", "seed": 0, "batch_size": 64}
    >>> frame = pl.DataFrame({"scenario": ["i.i.d.", "bursts"], "gain": [-0.25, 0.5]})
    >>> same |= {"method": "LAME", "accuracy": 0.5}
    >>> frame = frame.with_columns(**{name: pl.lit(x) for name, x in same.items()})
    >>> worst_drop(frame).row(0, named=True)
    {'method': 'LAME', 'scenario': 'i.i.d.', 'gain': -0.25, 'gain_ci': None, 'runs': 1}
    """
    if "scenario" in by:
        raise LamettaError(f"by must not name the scenario, which is looked for, got {by}")
    return (
        summary(frame, [*by, "scenario"])
        .filter(pl.col("gain") == pl.col("gain").min().over(by))
        .unique(by, keep="first", maintain_order=True)
        .select(*by, "scenario", "gain", "gain_ci", "runs")
    )


def risk(
    frame: pl.DataFrame, source: str = "Source", by: Sequence[str] = ("method",)
) -> pl.DataFrame:
    """What may go wrong with each method, and what it gains on average.

    Parameters
    ----------
    frame : DataFrame
        One row for each cell; see `check_cells` for what it must hold.
    source : str
        The baseline, on each stream.
    by : sequence of str
        The columns whose groups get a row each, in the order in which they come.

    Returns
    -------
    DataFrame
        The columns of ``by``; ``streams``, how many there are, each seed by itself; ``gain``, the
        mean as `summary` has it; ``worst_gain``, the lowest of a single stream, and
        ``worst_scenario``, where that was; ``below``, the share of the streams on which the method
        is right less often than the source; ``tail_accuracy``, the expected tail accuracy: the
        mean of the worst tenth of the runs of a scenario, one at least, averaged over scenarios;
        and, where they were measured, ``nll_change`` and ``ece_change``, the mean difference to the
        source's on the same stream.

    Examples
    --------
    >>> runs = [("Source", 0, 0.5, 1.0), ("Source", 1, 0.5, 1.0)]
    >>> runs += [("LAME", 0, 0.75, 0.75), ("LAME", 1, 0.375, 1.75)]
    >>> frame = pl.DataFrame(runs, schema=["method", "seed", "accuracy", "nll"], orient="row")
    >>> same = {"config": "{}", "model": "net", "scenario": "video", "batch_size": 64}
    >>> same |= {"fingerprint": "5f1c"}
    >>> frame = frame.with_columns(**{name: pl.lit(x) for name, x in same.items()})
    >>> row = risk(frame).row(1, named=True)
    >>> row["gain"], row["worst_gain"], row["below"], row["tail_accuracy"], row["nll_change"]
    (0.0625, -0.125, 0.5, 0.375, 0.25)
    """
    paired = gains(frame, source)
    require(paired, *by)
    measured = [name for name in ("nll", "ece") if name in frame.columns]
    changes = [f"{name}_change" for name in measured]
    theirs = pl.col(measured).filter(pl.col("method") == source).first().over(STREAM)
    paired = paired.with_columns((pl.col(measured) - theirs).name.suffix("_change"))
    runs = paired.group_by(list(dict.fromkeys([*by, *_SETTINGS])), maintain_order=True).agg(
        pl.col("gain", *changes).mean(),
        tail_accuracy=pl.col("accuracy").sort().head((pl.len() + 9) // 10).mean(),
    )
    streams = paired.group_by(by, maintain_order=True).agg(
        streams=pl.len(),
        worst_gain=pl.col("gain").min(),
        worst_scenario=pl.col("scenario").get(pl.col("gain").arg_min()),
        below=(pl.col("gain") < 0).mean(),
    )
    averages = means(runs, by, ["gain", "tail_accuracy", *changes])
    return streams.join(averages, on=list(by), maintain_order="left")


def at_stream_speed(
    frame: pl.DataFrame, source: str = "Source", *, eta: float = 1.0
) -> pl.DataFrame:
    """The accuracy of timed cells on a stream that does not wait (Alfarra et al., ICML 2024).

    A batch arrives every ``1 / eta`` times the source's time for one. A method that is still busy
    misses it, and the source answers in its place: one that takes c times as long answers every
    c-th batch, rounded up. Times are the means that were measured, of the network's pass and the
    method's own. What a method would have answered is what it did answer in the run, in which it
    missed nothing: for one that learns from batch to batch that is an approximation, as if it had
    seen those that it misses.

    Parameters
    ----------
    frame : DataFrame
        One row for each cell. Those that replayed stored outputs are left out, and so are those on
        whose stream the source was not timed.
    source : str
        The baseline, on each stream.
    eta : float
        How fast the stream is: at 1 the source just keeps up, at 0.5 batches come half as often.

    Returns
    -------
    DataFrame
        The timed rows with ``misses``, the share of the batches that the source answers, and
        ``speed_accuracy``.

    Examples
    --------
    >>> cells = {"method": ["Source", "TENT"], "step_time": [0.1, 0.25], "forward_time": [0.1, 0.1]}
    >>> cells |= {"step_n": [[2, 2, 2, 2]] * 2, "step_hits": [[1, 1, 1, 1], [2, 2, 2, 1]]}
    >>> same = {"model": "net", "scenario": "video", "seed": 0, "batch_size": 2}
    >>> frame = pl.DataFrame(cells).with_columns(**{name: pl.lit(x) for name, x in same.items()})
    >>> at_stream_speed(frame).select("misses", "speed_accuracy").rows()
    [(0.0, 0.5), (0.5, 0.625)]
    """
    require(frame, *STREAM, "method", "step_time", "forward_time", "step_n", "step_hits")
    if not eta > 0:
        raise LamettaError(f"eta must be > 0, got {eta}")
    timed = frame.filter(pl.col("forward_time").is_not_null(), pl.col("step_time").is_not_null())
    own = timed.filter(method=source).unique(STREAM, maintain_order=True)
    own = own.select(*STREAM, _time="step_time", _hits="step_hits")
    rows = timed.join(own, on=STREAM, maintain_order="left")
    misses, accuracy = [], []
    for row in rows.iter_rows(named=True):
        slower = eta * row["step_time"] / row["_time"]
        every = max(1, math.ceil(slower - 1e-9))  # the source itself takes exactly as long
        n, hits, others = (row[name] for name in ("step_n", "step_hits", "_hits"))
        right = [
            h if i % every == 0 else o for i, (h, o) in enumerate(zip(hits, others, strict=True))
        ]
        misses.append(1 - len(range(0, len(n), every)) / len(n))
        accuracy.append(sum(right) / sum(n))
    return rows.drop("_time", "_hits").with_columns(
        misses=pl.Series(misses, dtype=pl.Float64()),
        speed_accuracy=pl.Series(accuracy, dtype=pl.Float64()),
    )


def curves(frame: pl.DataFrame) -> pl.DataFrame:
    """The time series of each run: one row for each batch of each cell.

    Returns
    -------
    DataFrame
        The columns that tell cells apart; ``step``, from 1; ``samples``, how many there were so
        far; ``online_accuracy``, over those; ``entropy`` and ``diversity`` of the batch.

    Examples
    --------
    >>> steps = {"step_n": [[2, 2]], "step_hits": [[1, 2]]}
    >>> steps |= {"step_entropy": [[0.3, 0.2]], "step_diversity": [[0.6, 0.5]]}
    >>> cell = {name: [0] for name in CELL}
    >>> curves(pl.DataFrame(cell | steps)).select("step", "samples", "online_accuracy").rows()
    [(1, 2, 0.5), (2, 4, 0.75)]
    """
    require(frame, *CELL, *names("series"))
    so_far = pl.element().cum_sum()
    series = frame.select(
        *CELL,
        step=pl.int_ranges(1, pl.col("step_n").list.len() + 1),
        samples=pl.col("step_n").list.eval(so_far),
        online_accuracy=pl.col("step_hits").list.eval(so_far),
        entropy="step_entropy",
        diversity="step_diversity",
    )
    lists = [name for name in series.columns if name not in CELL]
    return series.explode(lists).with_columns(pl.col("online_accuracy") / pl.col("samples"))


def require(frame: pl.DataFrame, *names: str) -> None:
    """Raise unless the frame has these columns."""
    missing = [name for name in dict.fromkeys(names) if name not in frame.columns]
    if missing:
        raise LamettaError(
            f"frame must have the columns {', '.join(missing)}, got {', '.join(frame.columns)}"
        )


def refuse(rows: pl.DataFrame, expected: str) -> None:
    """Raise if there are rows, naming the first of them and how many there are."""
    if rows.is_empty():
        return
    named = [
        "(" + ", ".join(f"{name}={value!r}" for name, value in row.items()) + ")"
        for row in rows.head(3).iter_rows(named=True)
    ]
    more = ", ..." if len(rows) > len(named) else ""
    raise LamettaError(f"{expected}; not so for {len(rows)}: {', '.join(named)}{more}")


def means(frame: pl.DataFrame, by: Sequence[str], names: Sequence[str]) -> pl.DataFrame:
    """The means of these columns, one row for each group, in the order in which groups come."""
    return frame.group_by(list(dict.fromkeys(by)), maintain_order=True).agg(pl.col(names).mean())


def _t_scale(n: pl.Series) -> pl.Series:
    """The factor from the standard deviation of n numbers to half the width of their interval."""
    from scipy.special import stdtrit

    return pl.Series(stdtrit(n.to_numpy() - 1.0, 0.975) / np.sqrt(n.to_numpy()))
