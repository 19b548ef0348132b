"""The columns of results: those that files on disk have, and who fills them."""

import numpy as np
import polars as pl

from lametta.bench.columns import CELL, COLUMNS, SCHEMA, STREAM, names
from lametta.bench.running.scores import StreamingMetrics


def test_files_have_the_columns_that_they_always_had():
    words = dict.fromkeys(
        ("experiment", "method", "config", "model", "scenario", "dataset"), pl.String
    )
    counts = dict.fromkeys(("seed", "batch_size"), pl.Int64)
    metrics = dict.fromkeys(("accuracy", "class_accuracy", "nll", "ece"), pl.Float64)
    metrics |= dict.fromkeys(("auroc", "h_score"), pl.Float64)  # added
    measured = ("entropy", "diversity", "changed", "estimated_accuracy")  # one added
    measured += ("neighborhood", "consistency", "order")  # added too
    measured += ("forward_time", "optimization_time", "inference_time", "step_time", "peak_memory")
    expected = words | counts | {"fingerprint": pl.String} | metrics | {"n": pl.Int64}
    expected |= {"causal": pl.Boolean}  # added to the first ones
    expected |= dict.fromkeys(("needs", "answers"), pl.String)  # added too
    expected |= dict.fromkeys(measured, pl.Float64)
    passes = ("forwards", "forward_samples", "backwards", "backward_samples")
    expected |= dict.fromkeys(passes, pl.Float64)  # added too
    expected |= dict.fromkeys(("step_n", "step_hits"), pl.List(pl.Int64))
    expected |= dict.fromkeys(("step_entropy", "step_diversity"), pl.List(pl.Float64))
    assert list(SCHEMA.items()) == list(expected.items())


def test_cells_are_told_apart_by_method_and_stream():
    assert CELL[2:] == STREAM
    assert CELL == ("method", "config", "model", "scenario", "seed", "batch_size")


def test_every_metric_is_computed():
    metrics = StreamingMetrics(2)
    metrics.update(np.array([[0.75, 0.25]]), np.array([0]))
    assert {*metrics.compute()} == {*names("metric"), "n"}


def test_what_tables_show_has_a_label_and_a_unit():
    for name in names("metric", "signal", "stage", "time", "memory", "passes"):
        assert COLUMNS[name].label
        assert COLUMNS[name].unit or COLUMNS[name].words


def test_the_order_of_a_stream_is_said_in_words():
    """Means over batches and runs of 1, -1 and 0."""
    said = [COLUMNS["order"].text(x) for x in (1.0, 0.7, 0.3, 0.0, -0.3, -0.7, -1.0, None)]
    assert said == [*["by classes"] * 2, *["none"] * 3, *["by domains"] * 2, ""]
