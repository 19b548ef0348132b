"""The protocol card of a run and of its report."""

import hashlib
import json

import numpy as np
import pytest
import torch

from lametta.bench.analysis.results import read_results
from lametta.bench.experiment import Experiment
from lametta.bench.report import sections
from lametta.bench.running import run
from lametta.bench.running.workspace import Workspace
from lametta.data import load
from lametta.torch.digits import digits_net
from tests.bench.tiny import tiny, write


def content():
    return tiny(
        citation="Doe et al., 2030",
        datasets__corrupted={"reader": "embedded:digits_c_test", "part": [0, 20]},
        scenarios__each={
            "dataset": "corrupted",
            "order": {"kind": "each_group", "fresh": True, "inside": "iid"},
        },
        validation__seeds=[0],
        validation__scenarios=["sorted"],
        methods__TENT={"kind": "tent", "grid": {"lr": [0.001, 0.01]}},
        studies={
            "main": {
                "models": ["net"],
                "scenarios": ["sorted", "each"],
                "methods": ["Source", "LAME", "TENT", "Fixed"],
                "seeds": [3, 4],
                "batch_sizes": [32],
            }
        },
        methods__LAME={"kind": "lame"},
        methods__Fixed={"kind": "tent", "params": {"lr": 0.1, "layers": "norms"}},
        validation__methods=["Source", "TENT"],
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("card")
    file = write(folder / "tiny.toml", content())
    experiment = Experiment.model_validate(content())
    assert run(Workspace(experiment, folder, None), text=file.read_text()) == []
    return folder


@pytest.fixture
def card(folder):
    return json.loads((folder / "card.json").read_text())


def test_network(card):
    net = card["models"]["net"]
    assert net["network"] == "embedded:digits"
    digest = hashlib.sha256()
    for name, value in sorted(digits_net().state_dict().items()):
        digest.update(f"{name}\0{value.dtype}\0{tuple(value.shape)}\n".encode())
        digest.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    assert net["weights_sha256"] == digest.hexdigest()
    assert net["preprocessing"] is None


def test_data_and_streams(card):
    groups = load("embedded:digits_c_test").groups[::20]
    names, counts = np.unique(groups, return_counts=True)
    data = card["datasets"]["corrupted"]
    assert data["images_a_domain"] == dict(zip(names.tolist(), counts.tolist(), strict=True))
    assert (data["domains"], data["samples"]) == (4, len(groups))
    assert card["datasets"]["digits"]["images_a_domain"] == {"all": 450}
    each, one = card["scenarios"]["each"], card["scenarios"]["sorted"]
    assert (each["samples"], each["resets"]) == (len(groups), "each of 4 streams begins anew")
    assert (one["samples"], one["resets"]) == (450, "never")
    assert one["order"]["kind"] == "by_class"
    assert (card["batch_sizes"], card["seeds"]) == ([32, 64], [0, 3, 4])  # 64, 0: validation


def test_methods(card):
    methods = card["methods"]
    assert list(methods) == ["Source", "LAME", "TENT", "Fixed"]
    assert methods["TENT"]["answers"] == "after"
    assert methods["TENT"]["params"]["lr"] in (0.001, 0.01)
    assert methods["TENT"]["tuned_on"] == "2 configurations on sorted; networks net"
    assert methods["Fixed"]["tuned_on"].startswith("nothing here")
    assert methods["Fixed"]["params"] == {"lr": 0.1, "layers": "norms"}
    assert methods["LAME"]["answers"] == ""
    assert "95 %" in card["interval"]
    assert card["metric"].startswith("accuracy")
    assert card["citation"] == "Doe et al., 2030"


def test_report_has_it(folder, card):
    *_, last = sections(read_results(folder))
    (table,) = last.tables
    text = table.markdown()
    for part in (
        "Doe et al., 2030",
        card["models"]["net"]["weights_sha256"][:16],
        "each of 4 streams begins anew",
        "answers after its update",
        "2 configurations on sorted",
    ):
        assert part in text, part
    (folder / "card.json").rename(folder / "aside.json")
    assert "card" not in [section.name for section in sections(read_results(folder))]
    (folder / "aside.json").rename(folder / "card.json")


def test_a_run_that_has_all_leaves_it_alone(folder):
    file = folder / "card.json"
    file.write_text("{}\n")
    run(Workspace(Experiment.model_validate(content()), folder, None))
    assert file.read_text() == "{}\n"
    file.unlink()
    run(Workspace(Experiment.model_validate(content()), folder, None))
    assert json.loads(file.read_text())["experiment"] == "tiny"
