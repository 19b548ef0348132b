"""Streams with samples of unknown classes and mirror images, against loops without the bench."""

import json

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.metrics import roc_auc_score

from lametta import LAME, Corrected, LamettaError, knn
from lametta.bench import Workspace, load, read_cells, run
from lametta.bench.analysis.results import read_results
from lametta.bench.experiment.schema import DatasetSpec
from lametta.bench.planning import dry_run
from lametta.bench.report import sections
from lametta.bench.running.workspace import as_specified
from lametta.bench.tables.accuracy import details
from lametta.data import load as load_data
from lametta.data.dataset import UNKNOWN
from lametta.stream import Scenario
from lametta.torch import Classifier, tent
from lametta.torch.digits import digits_net
from tests.bench.tiny import write

CONTENT = {
    "name": "open",
    "models": {"net": {"zoo": "embedded:digits"}},
    "datasets": {
        "mixed": {
            "reader": "embedded:digits_val",
            "part": [0, 4],
            "unknown": {"reader": "embedded:digits_vid", "part": [0, 16], "most": 90},
        },
        "clean": {"reader": "embedded:digits_v2", "part": [0, 8], "source": True},
    },
    "scenarios": {
        "mixed": {"dataset": "mixed"},
        "tuned": {"dataset": "mixed", "order": "by_class"},
        "clean": {"dataset": "clean"},
    },
    "methods": {
        "Source": {"kind": "source"},
        "LAME": {"kind": "lame", "grid": {"k": [1, 5]}},
        "TENT": {"kind": "tent", "grid": {"lr": [0.001, 0.1]}},
    },
    "validation": {
        "models": ["net"],
        "scenarios": ["tuned", "clean"],
        "seeds": [0],
        "batch_size": 32,
        "consistency": True,
    },
    "studies": {
        "main": {"models": ["net"], "scenarios": ["mixed"], "seeds": [3], "batch_sizes": [32]}
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("open")
    file = write(folder / "open.toml", CONTENT)
    assert run(Workspace(load(file), folder), text=file.read_text()) == []
    return folder


def stream_of(order="iid", seed=3):
    """What `CONTENT` mixes, by other means."""
    digits, others = load_data("embedded:digits_val"), load_data("embedded:digits_vid")
    known, few = digits.take(range(0, len(digits), 4)), others.take(range(0, len(others), 16))
    spec = DatasetSpec(reader="embedded:digits_vid", most=90)
    few = as_specified("few", spec, few)
    x = np.concatenate([known.samples, np.stack([few.samples[i] for i in range(len(few))])])
    labels = np.concatenate([known.labels, np.full(len(few), 10)])
    keys = [*known.keys, *(f"unknown/{key}" for key in few.keys)]
    return x, labels, Scenario(order, batch_size=32, seed=seed)(labels, keys=keys)


def adapter_of(kind, net, config):
    if kind == "lame":
        return Corrected(Classifier(net), LAME(knn(**config)))
    return tent(Classifier(net), **config)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["LAME", "TENT"])
def test_rows_with_unknown_samples(folder, method):
    results = read_results(folder)
    config = results.selected[method]
    (row,) = results.frame.filter(method=method, scenario="mixed").to_dicts()
    x, labels, stream = stream_of()
    assert row["fingerprint"] == stream.fingerprint
    adapter = adapter_of(method.lower(), digits_net(), config)
    found = [(i, adapter.step(torch.from_numpy(x[i])).probs.numpy()) for i in stream]
    index, probs = (np.concatenate(part) for part in zip(*found, strict=True))
    known = labels[index] < 10
    assert 0 < known.sum() < len(known) == row["n"]
    right = (probs.argmax(1) == labels[index])[known]
    assert row["accuracy"] == pytest.approx(right.mean())
    auroc = roc_auc_score(known, probs.max(1))
    assert row["auroc"] == pytest.approx(auroc, abs=1e-4)
    mean = 2 * right.mean() * auroc / (right.mean() + auroc)
    assert row["h_score"] == pytest.approx(mean, abs=1e-4)
    assert sum(row["step_n"]) == known.sum()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["LAME", "TENT"])
def test_consistency_is_that_of_a_second_run_on_mirror_images(folder, method):
    rows = read_cells(folder)
    x, _, stream = stream_of("by_class", 0)
    for row in rows.filter(method=method, scenario="tuned").to_dicts():
        config = json.loads(row["config"])
        one = adapter_of(method.lower(), digits_net(), config)
        other = adapter_of(method.lower(), digits_net(), config)
        agree = []
        for i in stream:
            batch = torch.from_numpy(x[i])
            answers = [a.step(b).probs.argmax(1) for a, b in ((one, batch), (other, batch.flip(3)))]
            agree.append((answers[0] == answers[1]).float().mean().item())
        assert row["consistency"] == pytest.approx(np.mean(agree))
        assert row["consistency"] < 1
    assert rows.filter(scenario="mixed")["consistency"].null_count() == 3


@pytest.mark.slow
def test_the_report_shows_what_choices_cost_and_open_metrics(folder):
    results = read_results(folder)
    parts = {section.name: section for section in sections(results)}
    tables = {table.name: table for table in parts["validation"].tables}
    table = tables["label_free"]
    rules = ["entropy", "neighborhood", "consistency", "source", "chance"]
    assert list(table.header) == ["method", "oracle", *rules]
    assert [row[0].text for row in table.rows] == ["LAME", "TENT"]
    assert "with unknown embedded:digits_vid" in parts["datasets"].tables[0].markdown()
    assert "10 of" not in parts["datasets"].tables[0].markdown()
    shown = details(results.headline_rows, "mixed")
    assert {"AUROC (%)", "H-score (%)"} <= {*shown.header}
    card = parts["card"].tables[0].markdown()
    assert "90 of them of unknown classes, embedded:digits_vid" in card


@pytest.mark.slow
def test_a_dry_run_counts_both_runs(folder):
    plan = dry_run(load(folder / "open.toml"))
    passes = {x.name: (x.forward, x.backward) for x in plan.cost.methods}
    n_mixed, n_clean = 113 + 90, len(load_data("embedded:digits_v2").samples[::8])
    twice = 2 * 2 * (n_mixed + n_clean) + n_mixed  # two rates, two runs, and the study
    assert passes["TENT"] == (2 * twice, twice)


def test_unknown_classes_must_come_alone():
    spec = {"reader": "embedded:digits_val", "unknown": {"reader": "embedded:noise"}}
    with pytest.raises(ValueError, match="unknown must not be given together with super-classes"):
        DatasetSpec(**spec, classes={"a": [0], "b": [1]})
    data = load_data("embedded:digits_super")
    with pytest.raises(LamettaError, match="unknown must not be given for .*, which has"):
        data.with_unknown(load_data("embedded:noise", n=3))
    data = load_data("embedded:digits_val").with_unknown(load_data("embedded:digits_v2"))
    assert (data.n_known, data.classes[-1]) == (10, UNKNOWN)
    assert np.array_equal(data.samples[450], load_data("embedded:digits_v2").samples[0])


def test_noise_is_the_same_for_all():
    data = load_data("embedded:noise", n=4, side=8)
    again = load_data("embedded:noise", n=9, side=8)
    assert len(data) == 4
    pixels = np.stack([np.asarray(sample.x) for sample in data])
    assert np.array_equal(pixels, [np.asarray(again[i].x) for i in range(4)])
    assert pixels.std() == pytest.approx(256 / 12**0.5, rel=0.05)
    with pytest.raises(IndexError):
        data.samples[4]
    with pytest.raises(LamettaError, match="n must be an integer >= 1, got 0"):
        load_data("embedded:noise", n=0)


def test_cells_on_mirror_images_have_ids_of_their_own(tmp_path):
    plain = CONTENT | {"validation": CONTENT["validation"] | {"consistency": False}}
    ids = [
        {cell.id for cell in load(write(tmp_path / "x.toml", content)).validation_cells()}
        for content in (CONTENT, plain)
    ]
    assert not ids[0] & ids[1]
    twice = CONTENT | {"studies": {"main": CONTENT["studies"]["main"] | {"scenarios": ["tuned"]}}}
    with pytest.raises(LamettaError, match="must not have what validation.consistency is of"):
        load(write(tmp_path / "x.toml", twice))


def test_series_of_batches_without_known_samples(folder):
    rows = read_cells(folder).filter(scenario="tuned")
    assert rows["step_n"].list.min().min() == 0  # by class: the unknown ones are together
    assert rows.select(pl.col("accuracy").is_finite().all()).item()
