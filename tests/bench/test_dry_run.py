"""What an experiment would run, and what of it is on disk."""

import pytest

from lametta.bench.dry_run import dry_run
from lametta.bench.experiment import bundled, load
from tests.bench.tiny import SELECTED, selected


def test_dry_run_counts(experiment):
    plan = dry_run(experiment, "/no/data")
    validation = {c.method: c.cells for c in plan.counts if c.phase == "validation"}
    assert validation == {"Source": 4, "LAME": 24, "TENT": 8, "Fixed": 4}
    for study in experiment.studies:
        total = sum(count.cells for count in plan.counts if count.phase == study)
        assert total == len(experiment.study_cells(study, SELECTED))
    assert plan.n_cells == len(
        {*experiment.validation_cells(), *experiment.test_cells(selected(experiment))}
    )
    assert not plan.missing


@pytest.mark.slow
def test_dry_run_looks_for_data_and_weights(tmp_path, monkeypatch):
    monkeypatch.delenv("LAMETTA_DATA", raising=False)
    paper = load(bundled("paper"))
    (tmp_path / "ilsvrc12" / "val").mkdir(parents=True)
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "resnet18-f37072fd.pth").touch()

    def found(root):
        plan = dry_run(paper, root)
        return {(need.kind, need.name): need for need in plan.needs if need.kind != "package"}

    needs = found(tmp_path)
    assert {key for key, need in needs.items() if need.found} == {
        ("data set", "imagenet_val"), ("weights", "rn18"),
    }  # fmt: skip
    assert len(needs) == 7 + 6
    assert needs["weights", "rn50_simclr"].where == str(
        tmp_path / "weights" / "resnet50_simclr.safetensors"
    )
    assert not any(need.found for need in found(None).values())
    monkeypatch.setenv("LAMETTA_DATA", str(tmp_path))
    assert found(None) == needs


def test_dry_run_names_packages(monkeypatch):
    installed = {"torch"}
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: name if name in installed else None
    )
    packages = {
        name: {need.name: need.found for need in dry_run(load(bundled(name))).needs
               if need.kind == "package"}
        for name in ("paper", "demo", "cifar10")
    }  # fmt: skip
    assert packages == {
        "paper": {"timm": False, "torch": True},
        "demo": {"scikit-learn": False, "torch": True},
        "cifar10": {"imagecorruptions-imaug": False, "torch": True},
    }
