"""Source data of methods that need it: a data set of the experiment, without its labels."""

import json

import numpy as np
import pytest
import torch

from lametta import LamettaError
from lametta.bench.analysis.results import read_results
from lametta.bench.experiment import load
from lametta.bench.planning import count_passes, dry_run
from lametta.bench.report.leaderboard import _details, join
from lametta.bench.running import cell as cells
from lametta.bench.running import run
from lametta.bench.running.workspace import Workspace
from lametta.data import catalog
from lametta.stream import Scenario
from lametta.torch import EATA, Classifier, measure_fisher
from lametta.torch.zoo import load as load_network
from tests.bench.tiny import tiny, write

ALL = {"redundancy": 1.0, "margin": 1.0, "lr": 0.01, "fisher_weight": 1e5}
FISHER = ALL | {"fisher": "dataset:clean"}


def with_eata(tmp_path, clean=("embedded:digits_val", [0, 9]), **params):
    """A small experiment with EATA, and the parts of it that a test looks at."""
    reader, part = clean
    content = tiny(
        methods__EATA={"kind": "eata", "params": FISHER | params},
        datasets__clean={"reader": reader, "part": part},
        validation=None,
        studies={
            "main": {
                "models": ["net"],
                "scenarios": ["iid"],
                "methods": ["Source", "EATA"],
                "seeds": [0],
            }
        },
    )
    return load(write(tmp_path / "eata.toml", content))


def test_eata_in_a_cell_is_eata_with_fisher_of_the_data_set(tmp_path):
    experiment = with_eata(tmp_path)
    workspace = Workspace(experiment, tmp_path / "results")
    assert run(workspace) == []
    cell = next(c for c in experiment.test_cells({}) if c.method == "EATA")
    row, stream = cells.run_cell(workspace, cell)

    data = catalog.load("embedded:digits_val")
    x = torch.stack([torch.as_tensor(sample) for sample in data.samples])
    clean = data.take(range(0, len(data), 9))
    batches = [
        torch.stack([torch.as_tensor(clean.samples[int(i)]) for i in index])
        for index in Scenario(batch_size=64)(clean.labels, keys=clean.keys)
    ]

    def entropy(held):
        model = Classifier(load_network("embedded:digits").net)
        fisher = measure_fisher(model, batches) if held else None
        method = EATA(model, fisher=fisher, **ALL)
        return np.mean([float(method.step(x[index]).info["entropy"]) for index in stream])

    assert row["entropy"] == pytest.approx(entropy(held=True), rel=1e-5)
    assert row["entropy"] != pytest.approx(entropy(held=False), rel=1e-3)  # the term counts


def test_the_cards_of_a_run_and_of_a_cell_have_it(tmp_path):
    experiment, folder = with_eata(tmp_path), tmp_path / "results"
    assert run(Workspace(experiment, folder), text=(tmp_path / "eata.toml").read_text()) == []
    card = json.loads((folder / "card.json").read_text())
    assert card["datasets"]["clean"]["images_a_domain"] == {"all": 50}
    lines, shown = _details(join({"a": read_results(folder)}))
    whole = {cell["title"]: [lines[at][0] for at in cell["lines"]] for _, cell in shown.values()}
    assert "data set clean" in whole["EATA in iid"]
    assert "data set clean" not in whole["Source in iid"]


def test_source_data_has_no_labels(tmp_path):
    workspace = Workspace(with_eata(tmp_path), tmp_path / "results")
    cell = next(c for c in workspace.experiment.test_cells({}) if c.method == "EATA")
    batches = list(cells._unlabeled(workspace, cell, "clean"))
    assert all(isinstance(batch, torch.Tensor) for batch in batches)
    assert [len(batch) for batch in batches[:-1]] == [64] * (len(batches) - 1)


def test_what_the_name_stands_for_is_in_the_id(tmp_path):
    def ids(**changes):
        return {c.method: c.id for c in with_eata(tmp_path, **changes).test_cells({})}

    first, other = ids(), ids(clean=("embedded:digits_val", [1, 9]))
    assert first["Source"] == other["Source"]
    assert first["EATA"] != other["EATA"]


def test_a_dry_run_looks_for_it_and_counts_as_without(tmp_path):
    missing = with_eata(tmp_path, clean=("folder:nowhere", [0, 1]))
    assert [x.name for x in dry_run(missing).missing] == ["clean"]
    assert count_passes("eata", '{"fisher": "dataset:clean"}') == count_passes("eata", "{}")


def test_it_has_to_be_a_data_set_of_the_experiment(tmp_path):
    with pytest.raises(LamettaError, match=r"methods.EATA.params.fisher: .*clean.*'claen'"):
        with_eata(tmp_path, fisher="dataset:claen")
