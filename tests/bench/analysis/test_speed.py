"""Accuracy where a stream does not wait, against a simulation batch by batch."""

import numpy as np
import polars as pl
import pytest

from lametta import LamettaError
from lametta.bench.analysis import at_stream_speed
from lametta.bench.tables.cost import costs

N = 40


def rows(times, seeds=(0, 1)):
    """Timed cells of the source and a method, with hits of their own."""
    found = []
    for seed in seeds:
        for method, time in times.items():
            rng = np.random.default_rng([seed, len(method)])
            found.append(
                {
                    "model": "net",
                    "scenario": "s",
                    "seed": seed,
                    "batch_size": 8,
                    "method": method,
                    "step_time": time,
                    "forward_time": 0.1,
                    "optimization_time": time - 0.1,
                    "step_n": [8] * N,
                    "step_hits": rng.integers(0, 9, N).tolist(),
                }
            )
    return pl.DataFrame(found)


def simulated(own, source, time, interval):
    """Walk through the stream with a clock."""
    free, right, missed = 0.0, 0, 0
    for i, (mine, theirs) in enumerate(zip(own, source, strict=True)):
        now = i * interval
        if free <= now + 1e-9:
            right, free = right + mine, now + time
        else:
            right, missed = right + theirs, missed + 1
    return right / (8 * N), missed / N


@pytest.mark.parametrize("eta", [1, 0.5, 0.3, 2])
@pytest.mark.parametrize("time", [0.05, 0.1, 0.13, 0.2, 0.71])
def test_as_simulated(time, eta):
    frame = rows({"Source": 0.1, "TENT": time})
    found = at_stream_speed(frame, eta=eta)
    for seed in (0, 1):
        own, source = (
            frame.filter(seed=seed, method=name)["step_hits"][0] for name in ("TENT", "Source")
        )
        row = found.filter(seed=seed, method="TENT").row(0, named=True)
        wanted = simulated(own, source, time, 0.1 / eta)
        assert (row["speed_accuracy"], row["misses"]) == pytest.approx(wanted)


def test_the_source_keeps_up():
    found = at_stream_speed(rows({"Source": 0.1, "TENT": 0.3}))
    assert found.filter(method="Source")["misses"].to_list() == [0, 0]
    assert found.filter(method="TENT")["misses"][0] == pytest.approx(1 - 14 / 40)


def test_what_was_not_timed_is_left_out():
    frame = rows({"Source": 0.1, "TENT": 0.3})
    replayed = frame.with_columns(
        forward_time=pl.when(pl.col("seed") == 1).then(None).otherwise("forward_time")
    )
    assert set(at_stream_speed(replayed)["seed"]) == {0}
    assert at_stream_speed(frame.filter(method="TENT")).is_empty()
    with pytest.raises(LamettaError, match="eta must be > 0"):
        at_stream_speed(frame, eta=0)


def test_table_of_cost():
    table = costs(rows({"Source": 0.1, "TENT": 0.3}), "Source")
    assert table.header[-2:] == ["accuracy at stream speed (%)", "missed batches (%)"]
    assert table.rows[0][-1].text == "0.0"
    assert table.rows[1][-1].text == "65.0"
    alone = costs(rows({"TENT": 0.3}), "Source")
    assert not any("stream speed" in name for name in alone.header)
