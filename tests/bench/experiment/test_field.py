"""The field's protocols: their parameters, their streams, and each run in a cut-down form."""

import itertools
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from lametta import methods
from lametta.bench import read_cells
from lametta.bench.experiment import Experiment, bundled, load
from lametta.bench.running import run
from lametta.bench.running.workspace import Workspace
from lametta.data import corrupt
from lametta.data import load as load_data
from lametta.data.corruption import STANDARD
from lametta.stream import Scenario, by_class, each_group
from lametta.torch import Classifier, measure_fisher, zoo
from tests.bench.experiment.test_bundled import FIELD
from tests.conftest import shared
from tests.stream.cases import repeats, runs


def read(name):
    return load(bundled(name))


def stream_of(experiment, scenario, batch_size=64, n=100, corruptions=STANDARD):
    """A scenario on a small stand-in for CIFAR-10-C: n images, ten classes."""
    spec = experiment.scenarios[scenario]
    data = experiment.datasets[spec.dataset]
    labels, groups = np.arange(n) % 10, None
    if data.corruptions is not None:
        levels = data.severity if isinstance(data.severity, tuple) else (data.severity,)
        names = [f"{c}/{s}" if len(levels) > 1 else c for c in data.corruptions for s in levels]
        labels, groups = np.tile(labels, len(names)), np.repeat(np.array(names), n)
    return spec.scenario(batch_size, 0)(labels, groups), labels, groups


@pytest.mark.parametrize("name", FIELD)
def test_each_names_its_paper(name):
    experiment = read(name)
    assert " et al., " in experiment.citation
    assert experiment.name == name
    assert not experiment.validation.scenarios  # settings are published, nothing is chosen here
    kinds = {method.kind for method in experiment.methods.values()}
    assert {"source", "lame", "prudent"} <= kinds


@pytest.mark.parametrize("name", sorted({*FIELD} - {"stata", "label_shift", "open_set"}))
def test_cifar_10_c_at_severity_5_in_order(name):
    data = read(name).datasets["cifar10_c"]
    assert (data.reader, data.constants) == ("cifar10_test", "cifar")
    assert data.severity == ((1, 2, 3, 4, 5) if name == "gradual" else 5)
    if name not in ("ptta", "recurring"):
        assert data.corruptions == STANDARD
    else:  # RoTTA's own order of the same
        assert sorted(data.corruptions) == sorted(STANDARD)
        assert data.corruptions[0] == "motion_blur"
        assert data.corruptions[-1] == "impulse_noise"


def test_continual_and_mixed():
    continual, _, groups = stream_of(read("continual"), "continual")
    assert runs(groups[continual.index]) == list(STANDARD)
    mixed, _, groups = stream_of(read("mixed"), "mixed")
    assert repeats(groups[mixed.index]) < 0.15
    for name in ("continual", "gradual", "mixed", "correlated"):
        experiment = read(name)
        sizes = {s.batch_sizes for key, s in experiment.studies.items() if key != "lame"}
        assert sizes == {(200,)}
        single = ("decides", "first")
        seeds = {study.seeds for key, study in experiment.studies.items() if key not in single}
        assert seeds == {(1, 2, 3, 4, 5)}


def test_gradual():
    stream, _, groups = stream_of(read("gradual"), "gradual", n=10)
    ramp = (1, 2, 3, 4, 5, 4, 3, 2, 1)
    assert runs(groups[stream.index]) == [f"{c}/{s}" for c in STANDARD for s in ramp]


def test_correlated():
    experiment = read("correlated")
    stream, labels, groups = stream_of(experiment, "sorted", 10)
    assert all(len(set(labels[batch])) == 1 for batch in stream)
    assert runs(labels[stream.index]) == 15 * list(range(10))
    assert runs(groups[stream.index]) == list(STANDARD)
    images = stream.index.reshape(15, 100) % 100
    assert (images == images[0]).all()
    first, _, _ = stream_of(experiment, "first", 10)
    assert (first.index == images[0]).all()
    chunks, labels, groups = stream_of(experiment, "chunks", n=1000)
    assert runs(groups[chunks.index]) == list(STANDARD)
    assert repeats(labels[chunks.index]) > 0.9
    assert list(experiment.models) == ["resnet26_gn"]  # no batch normalization here


def test_ptta_and_its_visits():
    once, labels, groups = stream_of(read("ptta"), "ptta")
    assert runs(groups[once.index]) == list(read("ptta").datasets["cifar10_c"].corruptions)
    assert repeats(labels[once.index]) > 0.7
    visits, _, _ = stream_of(read("recurring"), "recurring")
    assert np.array_equal(visits.index, np.tile(once.index, 20))
    assert {study.batch_sizes for study in read("ptta").studies.values()} == {(64,)}


def test_unitta_has_24_settings():
    experiment = read("unitta")
    seen = set()
    for name, spec in experiment.scenarios.items():
        order, prior = spec.identity()["order"], spec.identity()["prior"]
        imbalance = (prior.get("imbalance", 1), prior.get("domain_imbalance", 1))
        seen.add((order["stay"], order["stay_domain"], *imbalance))
        _, _, domains, _ = name.split("_")
        stream, _, groups = stream_of(experiment, name)
        if domains == "continual":
            assert len(runs(groups[stream.index])) == 15
    assert seen == set(itertools.product(("iid", 0.95), ("iid", 0.85, 1), (1, 10), (1, 5)))
    assert experiment.studies["unitta"].scenarios == tuple(experiment.scenarios)
    assert experiment.methods["LAME"].params == {"affinity": "knn", "k": 5}


def test_stata():
    experiment = read("stata")
    for name, spec in experiment.scenarios.items():
        order = spec.identity()["order"]
        if order["kind"] == "few_classes":
            (study,) = (s for s in experiment.studies.values() if name in s.scenarios)
            assert study.batch_sizes == (order["size"],)
        else:
            n, k = (10_000, 10) if spec.dataset == "cifar10" else (50_000, 1000)
            assert spec.limit == n // 128 * 128
            assert order.get("slots", min(n // 128, k)) == min(n // 128, k)
            assert order.get("bursts") in (None, False)
    gammas = {s.order["gamma"] for s in experiment.scenarios.values() if "gamma" in s.order}
    assert gammas == {0.1, 0.01, 0.001}
    assert len(experiment.studies["cifar_online"].seeds) == 100
    for name, study in experiment.studies.items():
        if name.endswith("tasks"):  # a thousand, the last one of a seed not among them
            (size,), n = study.batch_sizes, 10_000 if name.startswith("cifar") else 50_000
            assert len(study.seeds) * (n // size) >= 1000
    assert {"stata", "transclip"} <= {m.kind for m in experiment.methods.values()}


def test_wild():
    experiment = read("wild")
    stream, labels, _ = stream_of(experiment, "label_shifts_500000")
    assert runs(stream.ids) == list(STANDARD)  # each from the source
    assert len(stream.index) == 15 * 10 * 1000
    assert repeats(labels[stream.index]) > 0.99
    even, labels, _ = stream_of(experiment, "label_shifts_1")
    assert repeats(labels[even.index]) < 0.15
    one, _, _ = stream_of(experiment, "one_by_one", 1)
    assert set(one.sizes) == {1}
    alone = experiment.studies["one_by_one"]
    assert alone.batch_sizes == (1,)
    rates = [experiment.methods[name].params.get("lr", 0) for name in alone.methods]
    assert rates == [0, 0, *3 * (2 * 1e-3 / 64,)]  # as SAR's code has them for small batches


def test_label_shift():
    experiment = read("label_shift")
    assert list(experiment.scenarios) == ["monotone", "square", "sinusoidal", "bernoulli"]
    assert experiment.studies["one_by_one"].batch_sizes == (1,)


def test_open_set():
    experiment = read("open_set")
    for name, unknown in (("noise", "embedded:noise"), ("cifar100", "cifar100_test")):
        (study,) = (x for x in experiment.studies.values() if name in x.scenarios)
        assert (study.scenarios, study.batch_sizes) == ((name,), (64,))
        data = experiment.datasets[experiment.scenarios[name].dataset]
        assert (data.reader, data.unknown.reader) == ("cifar10_test", unknown)
        assert (data.corruptions, data.constants) == (STANDARD, "cifar")
        assert data.unknown.part is data.unknown.most is None  # as many as there are known ones
    assert "sotta" in {method.kind for method in experiment.methods.values()}


def test_each_protocol_has_the_method_of_its_paper():
    for name, kind in (
        *(("ptta", "rotta"), ("recurring", "petta"), ("wild", "sar"), ("continual", "cotta")),
        *(("mixed", "roid"), ("correlated", "roid"), ("correlated", "rotta"), ("stata", "stata")),
    ):
        assert kind in {method.kind for method in read(name).methods.values()}


SCRIPTS = sorted(path.stem for path in Path(__file__).parents[3].glob("scripts/*.toml"))


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_files_behind_tables_of_the_documentation_can_be_read(name):
    experiment = load(Path(__file__).parents[3] / "scripts" / f"{name}.toml")
    cells = experiment.validation_cells() or experiment.test_cells({})
    assert cells
    for method in experiment.methods.values():
        assert not methods.find(method.kind).param_errors(method.params)


def cut(experiment):
    """The same with a few images, one seed, short streams and no ImageNet."""
    content = experiment.model_dump(exclude_defaults=True)
    for data in content["datasets"].values():
        # NOTE's slots need ten images for each of ten classes.
        data["part"] = [0, 50 if experiment.name == "correlated" else 200]
        if "corruptions" in data:
            data["corruptions"] = data["corruptions"][:2]
        if "severity" in data:
            data["severity"] = [1, 2]
        if "unknown" in data:
            data["unknown"] = {"reader": "embedded:noise", "options": {"n": 40}}
    for scenario in content["scenarios"].values():
        scenario["limit"] = 40
    studies = {}
    for name, study in content["studies"].items():
        # One change of a setting each, of methods that run in other studies.
        if "lite0" not in study["models"] and name != "decides":
            sizes = sorted({min(size, 20) for size in study.get("batch_sizes", (64,))})
            studies[name] = study | {"seeds": [1], "batch_sizes": sizes, "models": ["resnet26_gn"]}
    if experiment.name == "unitta":  # 24 settings: one method that adapts the network will do
        studies["unitta"]["methods"] = ["Source", "LAME", "LAME (rbf)", "Prudent", "TENT"]
    if "CoTTA" in content["methods"]:
        content["methods"]["CoTTA"]["params"]["views"] = 2
    for name in {"RoTTA", "PeTTA"} & {*content["methods"]}:  # or nothing would be learned
        content["methods"][name]["params"]["capacity"] = 16
    if "RoTTA" in content["methods"]:
        content["methods"]["RoTTA"]["params"]["update_every"] = 16
    return Experiment.model_validate(content | {"studies": studies})


@pytest.mark.slow
@pytest.mark.parametrize("name", FIELD)
def test_each_runs(name, tmp_path):
    root = shared("data", "cifar10", "cifar10_test.npz").parents[1]
    experiment = cut(read(name))
    assert run(Workspace(experiment, tmp_path, root)) == []
    rows = read_cells(tmp_path)
    assert len(rows) == len(experiment.test_cells({}))
    assert set(rows["method"]) == {m for s in experiment.studies.values() for m in s.methods}
    # Every method saw the same stream.
    streams = rows.group_by("scenario", "seed", "batch_size").agg(pl.col("fingerprint").n_unique())
    assert set(streams["fingerprint"]) == {1}
    assert rows["accuracy"].is_between(0, 1).all()
    assert (rows["auroc"].null_count() == 0) == (name == "open_set")


def source_batches(root, preprocess):
    """The clean images of the experiment `cut`, in batches of 20."""
    data = load_data("cifar10_test", root)
    data = data.take(range(0, len(data), 50))
    for index in Scenario(batch_size=20)(data.labels, keys=data.keys):
        yield torch.stack([preprocess(data.samples[i]) for i in index])


@pytest.mark.slow
def test_rows_are_those_of_a_loop_without_the_bench(tmp_path):
    """Every method of the correlated table, in a loop that anyone may write."""
    root = shared("data", "cifar10", "cifar10_test.npz").parents[1]
    experiment = cut(read("correlated"))
    experiment = experiment.only("table")
    assert run(Workspace(experiment, tmp_path, root)) == []
    data = corrupt(
        load_data("cifar10_test", root).take(range(0, 10_000, 50)),
        ["gaussian_noise", "shot_noise"],
        constants="cifar",
    )
    order = each_group(by_class(sequence=tuple(range(10))), same=True)
    stream = Scenario(order, batch_size=20, seed=1, limit=40)(
        data.labels, data.groups, keys=data.keys
    )
    rows = {row["method"]: row for row in read_cells(tmp_path).to_dicts()}
    assert set(rows) == set(experiment.studies["table"].methods)
    for name, row in rows.items():
        loaded = zoo.load(
            "torch:lametta.torch.cifar:resnet26_gn", weights=root / "cifar10/resnet26_gn.npz"
        )
        method, params = experiment.methods[name], dict(experiment.methods[name].params)
        model = Classifier(loaded.net, preprocess=loaded.preprocess)
        if "fisher" in params:
            params["fisher"] = measure_fisher(model, source_batches(root, loaded.preprocess))
        adapter = methods.find(method.kind).build(model, params)
        hits = []
        for index in stream:
            x = torch.stack([loaded.preprocess(data.samples[i]) for i in index])
            probs = np.asarray(adapter.step(x).probs)
            hits.append(int((probs.argmax(1) == data.labels[index]).sum()))
        assert row["fingerprint"] == stream.fingerprint
        assert row["step_hits"] == hits, name
        assert row["accuracy"] == sum(hits) / 40
