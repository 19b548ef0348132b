"""Gains, means and intervals, against other libraries and by hand."""

import statistics
import warnings
from fractions import Fraction

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lametta.bench.analysis import curves, gains, summary, worst_drop
from lametta.types import LamettaError


def cells(accuracies, **same):
    """A frame of cells from accuracies by (method, scenario, seed), or with a config in front."""
    rows = []
    for key, accuracy in accuracies.items():
        method, config, scenario, seed = key if len(key) == 4 else (key[0], "{}", *key[1:])
        row = {"method": method, "config": config, "model": "net", "scenario": scenario}
        row |= {"seed": seed, "batch_size": 64, "fingerprint": f"{scenario}/{seed}"}
        rows.append(row | {"accuracy": accuracy} | same)
    return pl.DataFrame(rows)


def results(methods=("LAME", "Source", "TENT"), scenarios="abc", seeds=range(4), seed=0):
    """Accuracies in which seeds differ much, and methods on the same seed little."""
    rng = np.random.default_rng(seed)
    level = {(scenario, s): rng.uniform(0.3, 0.7) for scenario in scenarios for s in seeds}
    return {
        (method, *stream): level[stream] + 0.01 * rng.normal()
        for method in methods
        for stream in level
    }


def test_gains_are_over_the_source_on_the_same_stream():
    accuracies = results()
    frame = cells(accuracies).sample(fraction=1, shuffle=True, seed=0)
    gained = gains(frame)
    assert gained.drop("gain").equals(frame)  # no row moved
    for row in gained.iter_rows(named=True):
        source = accuracies["Source", row["scenario"], row["seed"]]
        assert row["gain"] == row["accuracy"] - source


def test_gains_keep_models_and_batch_sizes_apart():
    frame = pl.concat(
        cells({("Source", "a", 0): base, ("LAME", "a", 0): 0.5}, model=model, batch_size=size)
        for model, size, base in [("x", 16, 0.5), ("x", 64, 0.25), ("y", 16, 0.125)]
    )
    assert gains(frame).filter(method="LAME")["gain"].to_list() == [0.0, 0.25, 0.375]
    assert gains(frame, source="LAME").filter(method="LAME")["gain"].to_list() == [0.0] * 3


def broken(name, value, row=0):
    def change(frame):
        column = frame[name].to_list()
        column[row] = value
        return frame.with_columns(pl.Series(name, column))

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda frame: frame.filter(~((pl.col("method") == "Source") & (pl.col("seed") == 2))),
            "one row of the source 'Source' for each stream; not so for 3: "
            r"\(model='net', scenario='a', seed=2, batch_size=64, sources=0\), ",
        ),
        (
            broken("fingerprint", "other", row=1),
            r"one fingerprint, for all methods; not so for 1: \(model='net', scenario='a', seed=1, "
            r"batch_size=64, fingerprint=\['other', 'a/1'\], method=\['LAME', 'Source', 'TENT'\]\)",
        ),
        (
            lambda frame: pl.concat([frame] * 2),
            r"each cell once; not so for 36: \(method='LAME'.*seed=2, batch_size=64\), \.\.\.$",
        ),
        (broken("accuracy", float("nan")), r"a number for accuracy; not so for 1: .*accuracy=nan"),
        (broken("accuracy", None), r"a number for accuracy; not so for 1: .*accuracy=None"),
        (lambda frame: frame.drop("seed", "config"), "the columns config, seed, got method, model"),
    ],
)
def test_gains_names_the_cells_that_are_wrong(change, message):
    frame = change(cells(results()))
    with pytest.raises(LamettaError, match=message):
        gains(frame)


def test_summary_has_students_intervals_paired_by_seed():
    from scipy import stats

    accuracies = results()
    found = summary(gains(cells(accuracies)), by=["method", "scenario"])
    assert found["method"].to_list() == ["LAME"] * 3 + ["Source"] * 3 + ["TENT"] * 3
    for row in found.filter(pl.col("method") != "Source").iter_rows(named=True):
        own, source = (
            [accuracies[method, row["scenario"], seed] for seed in range(4)]
            for method in (row["method"], "Source")
        )
        interval = stats.ttest_rel(own, source).confidence_interval(0.95)
        assert row["gain"] - row["gain_ci"] == pytest.approx(interval.low)
        assert row["gain"] + row["gain_ci"] == pytest.approx(interval.high)
        low, _ = stats.t.interval(0.95, 3, loc=np.mean(own), scale=stats.sem(own))
        assert row["accuracy"] == pytest.approx(np.mean(own))
        assert row["accuracy_ci"] == pytest.approx(np.mean(own) - low)
        assert row["gain_ci"] < row["accuracy_ci"] / 2  # what pairing is for
        assert (row["scenarios"], row["runs"]) == (1, 4)


def test_scenarios_weigh_the_same():
    from scipy import stats

    accuracies = results()
    found = summary(gains(cells(accuracies)))
    for row in found.iter_rows(named=True):
        per_seed = [
            statistics.fmean(accuracies[row["method"], scenario, seed] for scenario in "abc")
            for seed in range(4)
        ]
        half = stats.t.ppf(0.975, 3) * statistics.stdev(per_seed) / 2
        assert row["accuracy"] == pytest.approx(statistics.fmean(per_seed))
        assert row["accuracy_ci"] == pytest.approx(half)
        assert (row["scenarios"], row["runs"]) == (3, 4)


def test_a_scenario_with_more_seeds_weighs_no_more():
    accuracies = {("Source", "a", 0): 0.5, ("Source", "a", 1): 0.7, ("Source", "b", 0): 0.2}
    row = summary(gains(cells(accuracies))).row(0, named=True)
    assert row["accuracy"] == pytest.approx((0.6 + 0.2) / 2)
    assert row["accuracy_ci"] is None
    assert (row["scenarios"], row["runs"]) == (2, 2)
    # As many cells a seed, but of different scenarios.
    row = summary(gains(cells({("Source", "a", 0): 0.5, ("Source", "b", 1): 0.7}))).row(
        0, named=True
    )
    assert (row["accuracy_ci"], row["gain_ci"]) == (None, None)


def test_one_seed_has_no_interval():
    frame = gains(cells(results(seeds=[3])))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = summary(frame)
    assert found["accuracy_ci"].to_list() == [None] * 3
    assert summary(gains(cells(results())), by=["method", "seed"])["gain_ci"].null_count() == 12


def test_summary_averages_what_else_was_measured():
    frame = gains(cells(results(), ece=0.1)).with_columns(
        peak_memory=pl.lit(None, pl.Float64), step_time=pl.col("seed") * 0.5, other=1.0
    )
    found = summary(frame)
    assert found["ece"].to_list() == pytest.approx([0.1] * 3)
    assert found["step_time"].to_list() == pytest.approx([0.75] * 3)
    assert found["peak_memory"].to_list() == [None] * 3
    assert "other" not in found.columns


@pytest.mark.parametrize(
    ("by", "message"),
    [([], "by must name at least one column"), (["kind"], "must have the columns kind, got")],
)
def test_summary_names_what_is_wrong(by, message):
    with pytest.raises(LamettaError, match=message):
        summary(gains(cells(results())), by)
    with pytest.raises(LamettaError, match="must have the columns gain"):
        summary(cells(results()))


def test_worst_drop_is_the_lowest_mean_gain():
    accuracies = results(scenarios="abcde", seed=1)
    found = worst_drop(gains(cells(accuracies)))
    assert found["method"].to_list() == ["LAME", "Source", "TENT"]
    for row in found.filter(pl.col("method") != "Source").iter_rows(named=True):
        drops = {
            scenario: statistics.fmean(
                accuracies[row["method"], scenario, s] - accuracies["Source", scenario, s]
                for s in range(4)
            )
            for scenario in "abcde"
        }
        assert row["scenario"] == min(drops, key=drops.get)
        assert row["gain"] == pytest.approx(min(drops.values()))
        assert row["gain_ci"] > 0
    assert found.filter(method="Source")["scenario"].to_list() == ["a"]  # a tie: the first
    with pytest.raises(LamettaError, match="by must not name the scenario"):
        worst_drop(gains(cells(accuracies)), by=["scenario"])


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=9))
def test_online_accuracy_by_definition(steps):
    n = [size for size, _ in steps]
    hits = [min(right, size) for size, right in steps]
    courses = {"step_n": n, "step_hits": hits, "step_entropy": n, "step_diversity": n}
    frame = cells({("LAME", "a", 0): 0.5}).with_columns(
        pl.Series(name, [values]) for name, values in courses.items()
    )
    expected = [Fraction(sum(hits[: t + 1]), sum(n[: t + 1])) for t in range(len(n))]
    found = curves(frame)["online_accuracy"].to_list()
    assert found == pytest.approx([float(x) for x in expected])


def test_curves_have_a_row_for_each_batch():
    steps = {
        "step_n": [[4, 4, 2], [8]],
        "step_hits": [[1, 4, 0], [2]],
        "step_entropy": [[0.3, 0.2, 0.1], [0.7]],
        "step_diversity": [[1.3, 1.2, 1.1], [1.7]],
    }
    frame = cells({("LAME", "a", 0): 0.5, ("TENT", "a", 0): 0.25}).with_columns(
        *(pl.Series(name, lists) for name, lists in steps.items())
    )
    found = curves(frame)
    assert found["method"].to_list() == ["LAME"] * 3 + ["TENT"]
    assert found["step"].to_list() == [1, 2, 3, 1]
    assert found["samples"].to_list() == [4, 8, 10, 8]
    assert found["entropy"].to_list() == [0.3, 0.2, 0.1, 0.7]
    assert found["diversity"].to_list() == [1.3, 1.2, 1.1, 1.7]
    assert found["online_accuracy"].to_list() == [0.25, 0.625, 0.5, 0.25]
    assert found["online_accuracy"][2] == frame["accuracy"][0]  # ends at the whole
    with pytest.raises(LamettaError, match="must have the columns step_hits"):
        curves(frame.drop("step_hits"))
