import itertools
import json
import math
import os
import statistics
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lametta.bench.analysis.selection import (
    Selection,
    cross_shift,
    label_free,
    matrix,
    read_selection,
    select,
    write_selection,
)
from lametta.types import LamettaError
from tests.bench.analysis.test_analysis import cells

K1, K3, K5 = ('{"k": 1}', '{"k": 3}', '{"k": 5}')


def validation(**changes):
    """Two scenarios, two seeds: k = 5 is best on average, k = 3 in scenario a."""
    accuracies = {("Source", "{}", scenario, seed): 0.5 for scenario in "ab" for seed in (0, 1)}
    means = {(K1, "a"): 0.5, (K1, "b"): 0.5, (K3, "a"): 0.7, (K3, "b"): 0.4}
    means |= {(K5, "a"): 0.6, (K5, "b"): 0.8}
    for (config, scenario), mean in means.items():
        accuracies["LAME", config, scenario, 0] = mean - 0.05
        accuracies["LAME", config, scenario, 1] = mean + 0.05
    return cells(accuracies, **changes)


def test_selects_the_best_mean_over_the_scenarios():
    selection = select(validation(), ["a", "b"])
    assert selection == {"Source": "{}", "LAME": K5}
    assert selection.params == {"Source": {}, "LAME": {"k": 5}}
    source, lame = selection.table.iter_rows(named=True)
    assert lame["accuracy"] == pytest.approx(0.7)
    assert lame["gain"] == pytest.approx(0.2)
    assert lame["runner_up"] == K3
    assert lame["runner_up_accuracy"] == pytest.approx(0.55)
    assert source["gain"] == 0
    assert (source["runner_up"], source["runner_up_accuracy"]) == (None, None)


def test_other_scenarios_are_left_out():
    assert select(validation(), ["a"]) == {"Source": "{}", "LAME": K3}
    with pytest.raises(LamettaError, match=r"scenarios must have rows in the frame, got \['c'\]"):
        select(validation(), ["a", "c"])
    with pytest.raises(LamettaError, match="scenarios must have rows in the frame"):
        select(validation(), [])
    with pytest.raises(LamettaError, match=r"scenarios must not repeat one, got \['a', 'a'\]"):
        select(validation(), ["a", "a"])


def test_a_scenario_with_more_seeds_weighs_no_more():
    """Over all rows, k = 1 has the better mean; over the scenarios, k = 3 has."""
    accuracies = {("LAME", K1, "a", seed): 0.6 for seed in range(5)}
    accuracies |= {("LAME", K3, "a", seed): 0.5 for seed in range(5)}
    accuracies |= {("LAME", K1, "b", 0): 0.5, ("LAME", K3, "b", 0): 0.7}
    assert select(cells(accuracies), ["a", "b"]) == {"LAME": K3}


def test_without_the_source_there_is_no_gain():
    frame = validation().filter(method="LAME")
    assert select(frame, ["a", "b"]).table["gain"].to_list() == [None]
    base = frame.filter(config=K1).with_columns(method=pl.lit("Base"))
    table = select(pl.concat([frame, base]), ["a", "b"], source="Base").table
    assert table["gain"].to_list() == pytest.approx([0.2, 0.0])


def test_ties_go_to_the_first_in_the_file():
    accuracies = {("LAME", config, "a", 0): 0.5 for config in (K5, K1, K3)}
    frame = cells(accuracies)
    assert select(frame, ["a"]) == {"LAME": K1}
    selection = select(frame, ["a"], {"LAME": [K3, K5, K1]})
    assert selection == {"LAME": K3}
    assert selection.table["runner_up"].to_list() == [K5]
    # Grids may say the same twice.
    repeated = select(frame, ["a"], {"LAME": [K3, K3, K5, K3]})
    assert repeated.table.equals(selection.table)
    # One that the file does not name comes last, however the alphabet has it.
    assert select(frame, ["a"], {"LAME": [K5, K3]}).table["runner_up"].to_list() == [K3]


@pytest.mark.slow
def test_rounding_does_not_break_ties():
    """The same four numbers in any order: their means differ in the last digit."""
    streams = list(itertools.product("ab", (0, 1)))
    accuracies = {
        ("LAME", json.dumps(place), *stream): accuracy
        for place, row in enumerate(itertools.permutations([0.2, 0.4, 0.14, 0.94]))
        for stream, accuracy in zip(streams, row, strict=True)
    }
    for config in map(json.dumps, range(24)):
        assert select(cells(accuracies), ["a", "b"], {"LAME": [config]}) == {"LAME": config}


def test_incomplete_configurations_are_refused():
    gone = (pl.col("config") == K3) & (pl.col("scenario") == "b") & (pl.col("seed") == 1)
    message = (
        r"every configuration on every stream; not so for 1: \(method='LAME', "
        r"config='{\"k\": 3}', model='net', scenario='b', seed=1, batch_size=64\)$"
    )
    with pytest.raises(LamettaError, match=message):
        select(validation().filter(~gone), ["a", "b"])
    with pytest.raises(LamettaError, match="not so for 2: .*method='Source'"):
        select(
            validation().filter(~((pl.col("method") == "Source") & (pl.col("seed") == 1))),
            ["a", "b"],
        )
    with pytest.raises(LamettaError, match=r"not so for 4: .*'{\"k\": 9}'.*, \.\.\.$"):
        select(validation(), ["a", "b"], {"LAME": [K1, '{"k": 9}']})
    # Of a method that was not run at all, nothing is missing.
    assert "TENT" not in select(validation(), ["a", "b"], {"TENT": ["{}"]})


def test_what_is_no_accuracy_is_refused():
    frame = validation()
    nan = frame.with_columns(
        accuracy=pl.when((pl.col("config") == K3) & (pl.col("seed") == 0))
        .then(float("nan"))
        .otherwise("accuracy")
    )
    with pytest.raises(LamettaError, match="a number for accuracy; not so for 2: .*accuracy=nan"):
        select(nan, ["a", "b"])
    with pytest.raises(LamettaError, match="each cell once"):
        select(pl.concat([frame, frame]), ["a", "b"])
    other = frame.with_columns(pl.col("fingerprint") + pl.col("config"))
    with pytest.raises(LamettaError, match="one fingerprint, for all methods; not so for 4"):
        select(other, ["a", "b"])
    with pytest.raises(LamettaError, match="must have the columns scenario"):
        select(frame.drop("scenario"), ["a"])


@st.composite
def grids(draw):
    """Accuracies of random grids, in 64ths so that there are ties and sums are exact."""
    configs, scenarios = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    keys = [("Source", "{}"), *(("LAME", json.dumps({"k": k})) for k in range(configs))]
    streams = itertools.product("abcd"[:scenarios], range(draw(st.sampled_from([1, 2, 4]))))
    each = [(*key, *stream) for key, stream in itertools.product(keys, streams)]
    drawn = draw(st.binary(min_size=len(each), max_size=len(each)))
    return {key: number % 65 / 64 for key, number in zip(each, drawn, strict=True)}


def mean(accuracies, method, config, scenario):
    return statistics.fmean(
        accuracy for key, accuracy in accuracies.items() if key[:3] == (method, config, scenario)
    )


@pytest.mark.slow
@given(grids(), st.randoms(use_true_random=True))
def test_selection_by_definition(accuracies, random):
    scenarios = sorted({key[2] for key in accuracies})
    order = sorted({key[1] for key in accuracies if key[0] == "LAME"})
    random.shuffle(order)
    best, score = None, -1
    for config in order:
        found = statistics.fmean(mean(accuracies, "LAME", config, s) for s in scenarios)
        if found > score + 1e-9:
            best, score = config, found
    rows = list(accuracies.items())
    random.shuffle(rows)
    selection = select(cells(dict(rows)), scenarios, {"LAME": order})
    assert selection["LAME"] == best
    assert selection.table.filter(method="LAME")["accuracy"].item() == pytest.approx(score)


@pytest.mark.slow
@given(grids(), st.randoms(use_true_random=True))
def test_cross_shift_by_definition(accuracies, random):
    scenarios = sorted({key[2] for key in accuracies})
    random.shuffle(scenarios)
    configs = sorted({key[1] for key in accuracies if key[0] == "LAME"})
    cross = cross_shift(cells(accuracies), "LAME", scenarios)
    assert cross["tuned_on"].to_list() == [s for s in scenarios for _ in scenarios]
    assert cross["scenario"].to_list() == scenarios * len(scenarios)
    expected = []
    for tuned_on in scenarios:
        best = max(configs, key=lambda config, at=tuned_on: mean(accuracies, "LAME", config, at))
        assert set(cross.filter(tuned_on=tuned_on)["config"]) == {best}
        expected.append(
            [
                100 * (mean(accuracies, "LAME", best, s) - mean(accuracies, "Source", "{}", s))
                for s in scenarios
            ]
        )
    found = matrix(cross)
    assert np.allclose(found, expected)
    assert (np.diag(found) == found.max(axis=0)).all()  # nothing beats tuning in place


def test_cross_shift_on_rows_made_by_hand():
    cross = cross_shift(validation(), "LAME", ["b", "a"])
    assert cross.columns == ["tuned_on", "config", "scenario", "gain"]
    assert cross["config"].to_list() == [K5, K5, K3, K3]
    assert matrix(cross) == pytest.approx(np.array([[30.0, 10.0], [-10.0, 20.0]]))
    assert (matrix(cross_shift(validation(), "Source", ["a", "b"])) == 0).all()


def test_cross_shift_breaks_ties_as_selection_does():
    frame = cells(
        {("LAME", config, "a", 0): 0.5 for config in (K1, K3)} | {("Source", "a", 0): 0.5}
    )
    assert cross_shift(frame, "LAME", ["a"])["config"].item() == K1
    order = {"LAME": [K3, K1], "TENT": ["{}"]}
    assert cross_shift(frame, "LAME", ["a"], order=order)["config"].item() == K3


def test_cross_shift_names_what_is_wrong():
    with pytest.raises(LamettaError, match="method must have rows .* got 'TENT', not Source, LAME"):
        cross_shift(validation(), "TENT", ["a", "b"])
    with pytest.raises(LamettaError, match="one row of the source 'Base'"):
        cross_shift(validation(), "LAME", ["a", "b"], "Base")
    gone = (pl.col("config") == K3) & (pl.col("scenario") == "b")
    with pytest.raises(LamettaError, match="every configuration on every stream; not so for 2"):
        cross_shift(validation().filter(~gone), "LAME", ["a", "b"])
    tent = cells({("TENT", "a", 0): 0.5})  # incomplete, but not asked for
    assert cross_shift(pl.concat([validation(), tent]), "LAME", ["a", "b"]).height == 4


def test_the_file_is_tidy(tmp_path: Path):
    selection = select(validation(), ["a", "b"])
    write_selection(tmp_path / "selected.toml", selection)
    text = (tmp_path / "selected.toml").read_text()
    assert text == "[Source]\nconfig = {}\n\n[LAME]\nconfig = { k = 5 }\n"
    assert read_selection(tmp_path / "selected.toml") == selection.params
    assert os.listdir(tmp_path) == ["selected.toml"]


VALUES = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("selection") / "selected.toml"


@pytest.mark.slow
@given(
    params=st.dictionaries(st.text(), st.dictionaries(st.text(), VALUES, max_size=4), max_size=3)
)
def test_whatever_is_written_is_read(file, params):
    write_selection(file, {method: json.dumps(config) for method, config in params.items()})
    found = read_selection(file)
    assert found == params
    assert list(found) == list(params)
    assert repr(found) == repr(params)  # True is not 1, nor 1 1.0


def test_a_failed_write_leaves_the_old_file(tmp_path: Path):
    path = tmp_path / "selected.toml"
    write_selection(path, {"LAME": K5})
    with pytest.raises(LamettaError, match="value must be one that TOML has, got None"):
        write_selection(path, {"LAME": K1, "TENT": '{"lr": null}'})
    assert read_selection(path) == {"LAME": {"k": 5}}
    with pytest.raises(UnicodeEncodeError):
        write_selection(path, {"LAME": json.dumps({"affinity": "\ud800"})})
    assert read_selection(path) == {"LAME": {"k": 5}}
    assert os.listdir(tmp_path) == ["selected.toml"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[LAME", "selected.toml' is not valid TOML: "),
        ("LAME = 5", "selected.toml: LAME: must be a table, got 5"),
        ("[LAME]\nk = 5", "selected.toml: LAME.config: must be given, got none"),
        ("[LAME]\nconfig = { k = 5 }\nk = 3", "LAME.k: must be one of config, got 'k'"),
        ("[LAME]\nconfig = { k = 2020-01-01 }", "LAME.config: must be numbers, .*got 2020-01-01"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, text, message):
    (tmp_path / "selected.toml").write_text(text)
    with pytest.raises(LamettaError, match=message):
        read_selection(tmp_path / "selected.toml")


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(LamettaError, match="no such file: '.*nowhere.toml'"):
        read_selection(tmp_path / "nowhere.toml")


def test_selection_is_a_mapping():
    selection = select(validation(), ["a", "b"])
    assert isinstance(selection, Selection)
    assert list(selection) == ["Source", "LAME"]
    assert (len(selection), "LAME" in selection, "TENT" in selection) == (2, True, False)


def tried(**changes):
    """Two methods in three scenarios, with what is known of each configuration without labels."""
    rng = np.random.default_rng(3)
    rows = [
        {
            "method": method,
            "config": f'{{"k": {k}}}',
            "model": "net",
            "scenario": scenario,
            "seed": seed,
            "batch_size": 64,
            "fingerprint": f"{scenario}{seed}",
            "accuracy": rng.random(),
            **{name: rng.random() for name in ("entropy", "neighborhood", "consistency")},
        }
        for method, n in (("Source", 1), ("LAME", 3), ("TENT", 2))
        for k in range(n)
        for scenario in ("clean", "fog", "snow")
        for seed in (0, 1)
    ]
    return pl.DataFrame(rows).with_columns(**changes)


def test_costs_of_choices_without_labels_by_hand():
    frame = tried()
    found = label_free(frame, ["clean", "fog", "snow"], source_scenarios=["clean"])

    def mean(name, method, k, *scenarios):
        rows = frame.filter(method=method, config=f'{{"k": {k}}}').filter(
            pl.col("scenario").is_in(scenarios)
        )
        return rows[name].mean()

    assert set(found["method"]) == {"LAME", "TENT"}
    assert set(found["scenario"]) == {"fog", "snow"}
    for row in found.iter_rows(named=True):
        method, here = row["method"], row["scenario"]
        ks = range(3 if method == "LAME" else 2)
        elsewhere = "snow" if here == "fog" else "fog"
        accuracies = [mean("accuracy", method, k, here) for k in ks]
        score = {
            "entropy": (-1, "entropy", here),
            "neighborhood": (1, "neighborhood", here),
            "consistency": (1, "consistency", here),
            "source": (1, "accuracy", "clean"),
            "other shifts": (1, "accuracy", elsewhere),
        }
        assert row["oracle"] == pytest.approx(max(accuracies))
        if row["rule"] == "chance":
            assert row["accuracy"] == pytest.approx(np.mean(accuracies))
            continue
        sign, name, where = score[row["rule"]]
        scores = [sign * mean(name, method, k, where) for k in ks]
        chosen = scores.index(max(scores))
        assert row["config"] == f'{{"k": {chosen}}}'
        assert row["cost"] == pytest.approx(max(accuracies) - accuracies[chosen])
    assert len(found) == 2 * 2 * 6


def test_rules_without_their_measure_are_left_out():
    frame = tried(consistency=pl.lit(None, pl.Float64)).drop("neighborhood")
    found = label_free(frame, ["fog"])
    assert set(found["rule"]) == {"entropy", "chance"}  # no source, nor another scenario
    frame = tried(entropy=pl.when(pl.col("config") == '{"k": 0}').then(math.nan).otherwise(1.0))
    chosen = label_free(frame, ["fog"]).filter(rule="entropy")
    assert chosen["config"].to_list() == ['{"k": 1}'] * 2  # one that diverged is not the surest
    assert label_free(tried().filter(method="Source"), ["fog"]).is_empty()
