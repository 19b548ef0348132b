"""Tables of what methods need, and of passes, time and memory of a batch."""

from collections.abc import Callable, Iterable
from typing import Any

import polars as pl

from lametta.bench.analysis import at_stream_speed
from lametta.bench.columns import COLUMNS, names
from lametta.bench.tables import Entry, Table, percent

_TRAITS = ("needs", "answers")
_SHOWN = ("forwards", "backwards", *names("stage", "time", "memory"))

_AT_SPEED = {"speed_accuracy": "accuracy at stream speed (%)", "misses": "missed batches (%)"}


def costs(frame: pl.DataFrame, source: str | None = None) -> Table:
    """What methods need, the passes of a batch as counted, its time by stage and its peak memory.

    ``answers`` says whether a method answers from before or after its update. Where the source was
    timed too, ``at stream speed`` is the accuracy where batches come as fast as the source answers
    them, by `lametta.bench.analysis.at_stream_speed`.

    Parameters
    ----------
    frame : DataFrame
        One row a cell. Cells that replayed stored outputs are left out. Results from before passes
        were counted have no such columns.
    source : str, optional
        The baseline.

    Examples
    --------
    >>> cell = {"method": "TENT", "model": "net", "forwards": 2.0, "backwards": 1.0}
    >>> cost = {"forward_time": 0.25, "optimization_time": 0.5, "inference_time": 0.25}
    >>> print(costs(pl.DataFrame([cell | cost])).markdown().splitlines()[2])
    | TENT | 2.0 | 1.0 | 250.000 | 500.000 | 250.000 |
    """
    timed = frame.filter(pl.col("forward_time").is_not_null())
    shown = [COLUMNS[name] for name in _filled(timed, _SHOWN)]
    traits = _filled(timed, _TRAITS)
    data = timed.group_by("model", "method", maintain_order=True).agg(
        *(pl.col(name).first() for name in traits),
        *(pl.col(column.name).mean() for column in shown),
    )
    fast = _at_speed(timed, source)
    at_speed = {name: title for name, title in _AT_SPEED.items() if name in fast}
    data = data.join(fast, on=["model", "method"], how="left", maintain_order="left")
    several = data["model"].n_unique() > 1
    texts: dict[str, Callable[[Any], str]] = {
        **dict.fromkeys(traits, lambda trait: trait or ""),
        **{column.name: column.text for column in shown},
        **dict.fromkeys(at_speed, _percent),
    }
    rows = [
        [
            Entry(f"{row['model']} · {row['method']}" if several else row["method"]),
            *(Entry(text(row[name])) for name, text in texts.items()),
        ]
        for row in data.iter_rows(named=True)
    ]
    header = ["method", *traits, *(column.title for column in shown), *at_speed.values()]
    return Table("cost", "Cost of a batch", header, rows, data)


def traits(frame: pl.DataFrame) -> Table:
    """What methods need, passes a sample as counted, and when they answer: before or after updates.

    Parameters
    ----------
    frame : DataFrame
        One row a cell. A method whose cells replayed stored outputs made no pass of its own.

    Examples
    --------
    >>> cell = {"method": "TENT", "needs": "gradients", "answers": "after", "causal": False}
    >>> counts = {"n": 100, "step_n": [64, 36], "forward_samples": 100.0, "backward_samples": 50.0}
    >>> print(traits(pl.DataFrame([cell | counts])).markdown().splitlines()[2])
    | TENT | gradients | 2 + 1 | after its update | yes |
    """
    batches = pl.col("step_n").list.len() / pl.col("n")
    data = frame.group_by("method", maintain_order=True).agg(
        pl.col("needs").first(),
        *(
            (pl.col(f"{way}_samples") * batches).mean().fill_null(0)
            for way in ("forward", "backward")
        ),
        pl.col("answers").first(),
        pl.col("causal").first(),
    )
    rows = [
        [
            Entry(row["method"]),
            Entry(row["needs"] or ""),
            Entry(f"{row['forward_samples']:.3g} + {row['backward_samples']:.3g}"),
            Entry(f"{row['answers']} its update" if row["answers"] else ""),
            Entry("" if row["causal"] else "yes"),
        ]
        for row in data.iter_rows(named=True)
    ]
    header = ["method", "needs", "passes a sample", "answers", "looks ahead"]
    footnote = (
        "Passes are counted, forward + backward; 0 + 0 has none of its own, on stored outputs."
    )
    return Table("methods", "What each method needs", header, rows, data, footnote)


def _filled(frame: pl.DataFrame, names: Iterable[str]) -> list[str]:
    """The columns that are there, and not empty in all rows."""
    here = [name for name in names if name in frame.columns]
    return [name for name in here if any(value not in (None, "") for value in frame[name])]


def _at_speed(timed: pl.DataFrame, source: str | None) -> pl.DataFrame:
    """The means of each model and method; without columns of means where the source has no time."""
    known = source is not None and {"step_time", "step_hits", "step_n"} <= set(timed.columns)
    found = at_stream_speed(timed, str(source)) if known else pl.DataFrame()
    if found.is_empty():
        return timed.select("model", "method").unique()
    return found.group_by("model", "method", maintain_order=True).agg(pl.col(*_AT_SPEED).mean())


def _percent(value: float | None) -> str:
    return "" if value is None else percent(value)
