"""The columns of a cell's row, each declared once: what it holds, and how tables show it."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import polars as pl

Kind: TypeAlias = Literal[
    "note",
    "method",
    "stream",
    "metric",
    "open",
    "signal",
    "stage",
    "time",
    "memory",
    "passes",
    "series",
]
"""What a column is.

A *method* or *stream* column tells cells apart; a *note* only says more. A *metric* needs labels, a
*signal* does not; *open* ones are metrics of streams with samples of unknown classes. A *stage* is
the mean time of a part of a batch, *time* that of all of it, *memory* its peak, and *passes* are
those through the network that were counted. A *series* holds a number for each batch.
"""


@dataclass(frozen=True)
class Column:
    """A column: its type on disk, and the label, the unit and the scale that a reader sees.

    Examples
    --------
    >>> column = Column("ece", "metric", pl.Float64(), "ECE", "%", scale=100, digits=2)
    >>> column.title, column.text(0.125), column.text(None)
    ('ECE (%)', '12.50', '')
    >>> column = Column("order", "signal", pl.Float64(), "order", words=("down", "none", "up"))
    >>> column.title, column.text(-0.9), column.text(0.2)
    ('order', 'down', 'none')
    """

    name: str
    kind: Kind
    type: pl.DataType
    label: str = ""
    unit: str = ""
    scale: float = 1.0
    digits: int = 3
    words: tuple[str, str, str] | None = None  # instead of -1, 0 and 1, and of means near them

    @property
    def title(self) -> str:
        """The label and the unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    def text(self, value: float | None) -> str:
        """A value in this unit, or in words; empty for None."""
        if self.words and value is not None:
            return self.words[1 + round(value)]
        return "" if value is None else f"{self.scale * value:.{self.digits}f}"


_TEXT, _COUNT, _NUMBER, _FLAG = pl.String(), pl.Int64(), pl.Float64(), pl.Boolean()

COLUMNS = {
    column.name: column
    for column in (
        Column("experiment", "note", _TEXT),
        Column("method", "method", _TEXT),
        Column("config", "method", _TEXT),
        Column("model", "stream", _TEXT),
        Column("scenario", "stream", _TEXT),
        Column("dataset", "note", _TEXT),
        Column("seed", "stream", _COUNT),
        Column("batch_size", "stream", _COUNT),
        Column("fingerprint", "note", _TEXT),
        Column("accuracy", "metric", _NUMBER, "accuracy", "%", 100, 1),
        Column("class_accuracy", "metric", _NUMBER, "mean over classes", "%", 100, 1),
        Column("nll", "metric", _NUMBER, "NLL", "nats"),
        Column("ece", "metric", _NUMBER, "ECE", "%", 100, 2),
        Column("auroc", "open", _NUMBER, "AUROC", "%", 100, 1),
        Column("h_score", "open", _NUMBER, "H-score", "%", 100, 1),
        Column("n", "note", _COUNT),
        Column("causal", "note", _FLAG),  # whether the method never looks ahead in a batch
        Column("needs", "note", _TEXT, "needs"),  # of the method, beside its network or outputs
        Column("answers", "note", _TEXT, "answers"),  # before or after its update
        Column("entropy", "signal", _NUMBER, "entropy", "nats"),
        Column("diversity", "signal", _NUMBER, "diversity", "nats"),
        Column("changed", "signal", _NUMBER, "changed", "%", 100, 1),
        Column("estimated_accuracy", "signal", _NUMBER, "estimated accuracy", "%", 100, 1),
        Column("neighborhood", "signal", _NUMBER, "neighborhood density", "nats"),
        Column("consistency", "signal", _NUMBER, "consistency", "%", 100, 1),
        Column("order", "signal", _NUMBER, "order", words=("by domains", "none", "by classes")),
        Column("forward_time", "stage", _NUMBER, "forward", "ms", 1e3),
        Column("optimization_time", "stage", _NUMBER, "optimization", "ms", 1e3),
        Column("inference_time", "stage", _NUMBER, "second forward", "ms", 1e3),
        Column("step_time", "time", _NUMBER, "batch", "ms", 1e3),
        Column("peak_memory", "memory", _NUMBER, "memory", "MiB", 2**-20),
        Column("forwards", "passes", _NUMBER, "forward passes", "a batch", digits=1),
        Column("forward_samples", "passes", _NUMBER, "forward", "samples a batch", digits=1),
        Column("backwards", "passes", _NUMBER, "backward passes", "a batch", digits=1),
        Column("backward_samples", "passes", _NUMBER, "backward", "samples a batch", digits=1),
        Column("step_n", "series", pl.List(_COUNT)),
        Column("step_hits", "series", pl.List(_COUNT)),
        Column("step_entropy", "series", pl.List(_NUMBER)),
        Column("step_diversity", "series", pl.List(_NUMBER)),
    )
}
"""All columns, in the order of the files.

Another metric is a line here and a number of that name from
`lametta.bench.running.scores.StreamingMetrics`; another signal is a line here and a number of that
name in the ``info`` of a method's predictions.
"""

SCHEMA = {name: column.type for name, column in COLUMNS.items()}
"""The types of the columns, as a file of a cell has them."""


def names(*kinds: Kind) -> tuple[str, ...]:
    """The names of the columns of these kinds.

    Examples
    --------
    >>> names("stage", "memory")
    ('forward_time', 'optimization_time', 'inference_time', 'peak_memory')
    """
    return tuple(name for name, column in COLUMNS.items() if column.kind in kinds)


STREAM = names("stream")
"""The columns that say which stream a cell saw, and through which model."""
CELL = names("method", "stream")
"""The columns that tell the cells of an experiment apart."""
NEEDED = (*CELL, "fingerprint", "accuracy")
"""The columns in which every row has a value."""
