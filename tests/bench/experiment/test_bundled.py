"""The experiments that come with lametta."""

import hashlib
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from lametta import LamettaError
from lametta.bench import experiment as config
from lametta.bench.experiment import Experiment, bundled, load
from lametta.bench.experiment.schema import DatasetSpec
from lametta.bench.running.inputs import find_inputs
from lametta.bench.running.workspace import Workspace
from lametta.data import catalog
from lametta.stream import Scenario
from lametta.torch import Classifier, zoo
from tests.bench.tiny import selected
from tests.conftest import shared

ROOT = Path(__file__).parents[3]


NAMES = sorted(path.stem for path in (ROOT / "experiments").glob("*.toml"))
PROTOCOL = ["paper", "released", "cifar10", "imagenet_small", "demo", "demo_full"]  # the paper's
FIELD = [  # protocols of the field
    *("continual", "gradual", "mixed", "correlated", "ptta"),
    *("recurring", "unitta", "stata", "wild", "label_shift", "open_set"),
]


@cache
def read_bundled(name):
    return load(bundled(name))


@pytest.fixture(params=NAMES)
def shipped(request):
    return read_bundled(request.param)


def test_there_are_these_experiments():
    assert sorted([*PROTOCOL, *FIELD, "streams"]) == NAMES
    assert bundled("demo").parent == (ROOT / "experiments").resolve()
    with pytest.raises(LamettaError, match="name must be one of .*did you mean 'paper'"):
        bundled("papers")


def test_a_wheel_has_them_beside_the_module(monkeypatch, tmp_path):
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "demo.toml").touch()
    monkeypatch.setattr(config.resources, "files", lambda _: tmp_path)
    assert bundled("demo") == tmp_path / "experiments" / "demo.toml"


@pytest.mark.slow
def test_their_cells_are_those_of_old_results(shipped):
    """Results on disk are found by the ids of cells, whatever lametta has learned since."""
    cells = shipped.validation_cells() + shipped.test_cells(selected(shipped))
    digest = hashlib.sha256("".join(cell.id for cell in cells).encode()).hexdigest()[:16]
    assert (len(cells), digest) == {
        "cifar10": (3624, "742e6b4553cc456f"),
        "imagenet_small": (3358, "930a17639ee4a8b6"),
        "demo": (640, "6839af5358b6df06"),
        "demo_full": (9637, "a5700b9cb762bba2"),
        "paper": (12178, "1aed47fe2b01c2fa"),
        "released": (9165, "35aface7a07c9ddd"),
        "streams": (13186, "8c12c743067e2b6d"),
        "continual": (90, "8707fff557721fbf"),
        "gradual": (90, "eab2f25b91d222b3"),
        "mixed": (90, "ef54902b4497858e"),
        "correlated": (167, "5db644b8abe5c0c8"),
        "ptta": (100, "2eb8969a548c90e0"),
        "recurring": (100, "dd41ad8ed8bc9af0"),
        "unitta": (1152, "0be20d0c5544e7a2"),
        "stata": (8964, "54e0461f00d63e35"),
        "wild": (399, "2e29e672934b6dac"),
        "label_shift": (440, "16d47c3238fded62"),
        "open_set": (96, "55b998295beb2189"),
    }[shipped.name]


@pytest.mark.slow
def test_loading_is_light():
    code = (
        "import sys; from lametta.bench.experiment import bundled, load\n"
        "load(bundled('paper'), check='none')\n"
        "print([m for m in ('torch', 'polars', 'matplotlib', 'sklearn') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("shipped", PROTOCOL, indirect=True)
def test_shipped_experiments_have_the_papers_protocol(shipped):
    assert len(shipped.validation.scenarios) == 12
    assert len(shipped.studies["main"].scenarios) == 7
    assert shipped.source == "Source"
    kinds = {shipped.methods[name].kind for name in shipped.studies["main"].methods}
    beyond = {"prudent"} if shipped.name == "demo" else set()
    assert kinds - beyond == {"source", "lame", "tent", "shot_im", "pseudo_label", "adabn"}
    specs = [shipped.scenarios[name] for name in shipped.validation.scenarios]
    iid = [spec.identity()["order"]["kind"] == "iid" for spec in specs]
    zipf = [spec.identity()["prior"]["kind"] == "zipf" for spec in specs]
    assert list(zip(iid, zipf, strict=True)) == list(
        zip([True, False] * 6, [False, False, True, True] * 3, strict=True)
    )
    tests = [shipped.scenarios[name].identity() for name in shipped.studies["main"].scenarios]
    assert [spec["order"]["kind"] == "iid" for spec in tests] == [True] * 4 + [False] * 3
    variants = [spec["prior"].get("variant") for spec in tests]
    assert variants == [None, None, "test", "test", None, None, None]
    # Nothing is chosen by data that it is tested on.
    chosen_by = {shipped.datasets[spec.dataset].model_dump_json() for spec in specs}
    tested_on = {
        shipped.datasets[shipped.scenarios[name].dataset].model_dump_json()
        for name in shipped.studies["main"].scenarios
    }
    assert not chosen_by & tested_on


def test_paper():
    paper = read_bundled("paper")
    sizes = {name: len(paper.configurations(name)) for name in paper.validation.methods}
    assert sizes == {
        "Source": 1, "LAME": 3, "TENT": 54, "SHOT-IM": 54, "PseudoLabel": 54, "AdaBN": 9,
        "LAME (rbf)": 3, "LAME (linear)": 1, "LAME (reverse)": 3, "LAME (both)": 3,
        "SHOT-IM (convolutions)": 18,
    }  # fmt: skip
    for params in (*paper.configurations("TENT"), *paper.configurations("SHOT-IM")):
        assert params["optimizer"] == "adam"
    # "A common grid-search for all NAMs": AdaBN takes its part of it.
    common = {(p["layers"], p["bn_momentum"]) for p in paper.configurations("TENT")}
    assert {(p["layers"], p["momentum"]) for p in paper.configurations("AdaBN")} == common
    assert {momentum for _, momentum in common} == {0, 0.1, 1}
    convolutions = {p["layers"] for p in paper.configurations("SHOT-IM (convolutions)")}
    assert convolutions == {"conv_first_half", "conv_second_half", "conv"}
    assert paper.methods["SHOT-IM"].grid == paper.methods["TENT"].grid
    assert {spec.pooling for spec in paper.datasets.values()} == {"mean"}
    for name in ("imagenet_c_val", "imagenet_c16", "imagenet_c_test"):
        assert paper.datasets[name].options == {"severities": "drawn"}
    # Where the paper says too little, its code decides.
    assert paper.scenarios["v2_by_class"].dataset == paper.scenarios["v2_iid"].dataset
    assert {paper.scenarios[name].limit for name in ("c_iid", "c_zipf", "vid")} == {50_000}
    assert len(paper.validation.seeds) == 3
    assert paper.validation.batch_size == 64
    studies = paper.studies
    assert len(studies["main"].seeds) == 10
    assert studies["main"].batch_sizes == (64,)
    assert studies["batch_size"].batch_sizes == (16, 32, 64, 128)
    models = [paper.models[name] for name in studies["architectures"].models]
    assert [m.architecture for m in models] == ["RN-18", "RN-50", "RN-101", "EN-B4", "ViT-B"]
    trainings = [paper.models[name].training for name in studies["trainings"].models]
    assert trainings == ["original", "torchvision", "SimCLR"]
    kernels = [paper.configurations(m)[0].get("affinity") for m in studies["kernels"].methods]
    assert kernels == [None, "knn", "rbf", "linear"]
    assert studies["kernels"].models == studies["architectures"].models
    assert studies["kernels"].batch_sizes == studies["architectures"].batch_sizes
    ways = [paper.configurations(m)[0].get("direction") for m in studies["directions"].methods]
    assert ways == [None, None, "reverse", "both"]
    rates = [paper.configurations(m)[0].get("lr") for m in studies["curves"].methods]
    assert rates == [None, None, 0.001, 0.01, 0.1]
    assert "AdaBN" not in studies["architectures"].methods  # no batch normalization in a ViT


def test_released():
    released, paper = read_bundled("released"), read_bundled("paper")
    for name, method in released.methods.items():
        for params in released.configurations(name):
            if method.kind in ("tent", "shot_im", "pseudo_label"):
                assert (params["optimizer"], params["weight_decay"]) == ("sgd", 1e-4)
            assert str(params.get("layers", "released_")).startswith("released_")
    assert released.validation.batch_size == 16
    assert released.studies["main"].batch_sizes == (16,)
    assert released.configurations("LAME") == ({"affinity": "rbf", "k": 4},)
    assert released.studies["kernels"].models == paper.studies["kernels"].models
    for name in released.methods:
        assert all("direction" not in params for params in released.configurations(name))
    pooled = {name for name, spec in released.datasets.items() if spec.pooling == "sum"}
    assert pooled == {"imagenet_c16", "imagenet_vid", "tao_lasot"}
    for name in ("imagenet_c_val", "imagenet_c_test"):
        assert released.datasets[name].options == {"severities": [1, 2, 3, 4, 5]}
        assert released.datasets[name].most == 500_000
    assert released.models == paper.models
    assert released.scenarios.keys() == paper.scenarios.keys()
    for name in ("vid", "tao"):
        assert released.scenarios[name].identity()["order"]["shuffle_inside"]
        assert not paper.scenarios[name].identity()["order"]["shuffle_inside"]


def read(spec, root=None):
    """Labels and groups of a data set, by the definition of its table."""
    data = catalog.load(spec.reader, root, **spec.options)
    if spec.part is not None:
        data = data.take(np.arange(len(data))[spec.part[0] :: spec.part[1]])
    labels, groups, keys = np.asarray(data.labels), data.groups, set(data.keys)
    if spec.corruptions is not None:
        groups = np.repeat(np.array(spec.corruptions), len(labels))
        labels = np.tile(labels, len(spec.corruptions))
    if spec.classes is not None:
        targets = {label: i for i, group in enumerate(spec.classes.values()) for label in group}
        kept = np.isin(labels, list(targets))
        labels = np.array([targets[label] for label in labels[kept]])
        groups = None if groups is None else groups[kept]
    return labels, groups, keys


def check_nothing_is_missing(experiment, root):
    """As a dry run would find it, without what that says of costs."""
    cells = experiment.validation_cells() + experiment.test_cells(selected(experiment))
    needs, _ = find_inputs(experiment, cells, root)
    assert {need.kind for need in needs} >= {"data set", "package"}
    assert all(need.found for need in needs)


def check_streams(experiment, sets, methods=None):
    """No batch of one, which has no statistics, and all groups in a stream by group."""
    cells = experiment.validation_cells() + experiment.test_cells(selected(experiment))
    cells = [c for c in cells if methods is None or c.method in methods]
    for name, seed, size in {(c.scenario, c.seed, c.batch_size) for c in cells}:
        spec = experiment.scenarios[name]
        labels, groups, _ = sets[spec.dataset]
        stream = Scenario(spec.order, spec.prior, size, seed, spec.limit)(labels, groups)
        assert min(stream.sizes) > 1, (name, seed, size)
        if name in experiment.validation.scenarios and groups is not None:
            assert set(groups[stream.index]) == set(groups)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["demo", "demo_full"])
def test_streams_of_the_demo(name):
    experiment = read_bundled(name)
    check_streams(experiment, {key: read(spec) for key, spec in experiment.datasets.items()})


@pytest.mark.slow
def test_streams_of_cifar10():
    root = shared("data", "cifar10", "test-3000.zip").parents[1]
    experiment = read_bundled("cifar10")
    sets = {key: read(spec, root) for key, spec in experiment.datasets.items()}
    check_streams(experiment, sets)
    seen = set().union(*(sets[name][2] for name in ("val", "c_val", "super")))
    tested = set().union(*(sets[name][2] for name in ("test", "c_test", "other", "coarse")))
    assert not seen & tested
    assert (len(seen), len(tested)) == (375, 1500)
    check_nothing_is_missing(experiment, root)


@pytest.mark.slow
def test_data_of_imagenet_small():
    root = shared("data", "video", "cows").parents[1]
    experiment = read_bundled("imagenet_small")
    workspace = Workspace(experiment, Path("results"), root)
    sets = {name: workspace.dataset(name) for name in experiment.datasets}
    assert {name: len(data) for name, data in sets.items()} == {
        "val": 250,
        "c_val": 500,
        "super": 500,
        "test": 250,
        "c_test": 500,
        "videos": 427,
        "coarse_videos": 427,
    }
    shown = {
        name: {data.classes[i] for i in data.labels} for name, data in sets.items()
    }  # no class of a scenario is lost on the way to its super-classes
    assert shown["super"] == {"animal", "device", "equipment", "structure", "vehicle"}
    assert shown["coarse_videos"] == {"bird", "ungulate", "wheeled vehicle", "shore"}
    assert not set(sets["val"].keys) & set(sets["test"].keys)
    swan = sets["coarse_videos"].groups == "blackswan"
    assert {sets["coarse_videos"].classes[i] for i in sets["coarse_videos"].labels[swan]} == {
        "bird"
    }
    check_nothing_is_missing(experiment, root)


def test_streams_tests_what_nothing_was_chosen_by():
    """Each network that is reported, image and corruption is of the other half."""
    streams = read_bundled("streams")
    halves = [
        [study for name, study in streams.studies.items() if name.startswith(starts)]
        for starts in ("chosen", ("reported", "baselines", "tracks", "rivals"))
    ]
    assert [len(half) for half in halves] == [7, 13]
    chosen, reported = ({name for study in half for name in study.models} for half in halves)
    assert chosen | reported == set(streams.models)
    assert not chosen & reported
    chosen, reported = (
        {streams.scenarios[name].dataset for study in half for name in study.scenarios} - {"videos"}
        for half in halves
    )
    assert {name.removesuffix("_a") for name in chosen} == {
        name.removesuffix("_b") for name in reported
    }
    for name in chosen:
        one, other = (streams.datasets[name[:-1] + half] for half in "ab")
        assert one.severity == other.severity
        assert not set(one.corruptions or ()) & set(other.corruptions or ())
        if name == "digits_c_a":
            assert (one.reader, other.reader) == ("embedded:digits_c_val", "embedded:digits_c_test")
            continue
        assert one.reader == other.reader
        if name != "videos_c_a":  # the same seven, filmed under something else
            assert (one.part[1], one.part[0] + 1) == (other.part[1], other.part[0])


@pytest.mark.slow
def test_data_of_streams():
    root = shared("data", "video", "cows").parents[1]
    experiment = read_bundled("streams")
    sets = {key: read(spec, root) for key, spec in experiment.datasets.items()}
    assert {name: len(labels) for name, (labels, _, _) in sets.items()} == {
        "photos_a": 250, "photos_c_a": 1000, "cifar_a": 750, "cifar_c_a": 1500,
        "photos_b": 250, "photos_c_b": 1000, "cifar_b": 750, "cifar_c_b": 1500, "videos": 427,
        "photos_hopeless_a": 500, "photos_hopeless_b": 500, "digits_c_a": 1800, "digits_c_b": 1788,
        "videos_c_a": 427, "videos_c_b": 427,
    }  # fmt: skip
    check_streams(experiment, sets, {"TENT", "SHOT-IM", "PseudoLabel", "AdaBN"})
    for spec in experiment.scenarios.values():
        labels, groups, _ = sets[spec.dataset]
        stream = Scenario(spec.order, spec.prior, 64, 0, spec.limit)(labels, groups)
        assert len(stream.index) >= 100, spec.label
    for name in ("photos", "photos_c", "cifar", "cifar_c"):
        assert not sets[f"{name}_a"][2] & sets[f"{name}_b"][2]
    check_nothing_is_missing(experiment, root)


@pytest.fixture(scope="module")
def photos():
    """Some images of CIFAR-10, and their labels."""
    root = shared("data", "cifar10", "test-3000.zip").parents[1]
    data, chosen = catalog.load("folder:cifar10/test-3000.zip", root), range(0, 3000, 50)
    return root, [data.samples[i] for i in chosen], data.labels[list(chosen)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet20", "resnet32", "resnet44", "resnet56"])
def test_the_networks_of_cifar10(photos, name):
    root, images, labels = photos
    spec = read_bundled("cifar10").models[name]
    loaded = zoo.load(spec.zoo, weights=root / spec.weights)
    x = torch.stack([*map(loaded.preprocess, images)])
    assert x.shape == (60, 3, 32, 32)
    assert (Classifier(loaded.net)(x).logits.argmax(1).numpy() == labels).mean() > 0.75


def test_specs_survive_json(shipped):
    unsaid = None if shipped.validation.scenarios else {"validation"}
    assert Experiment.model_validate_json(shipped.model_dump_json(exclude=unsaid)) == shipped
    for spec in shipped.datasets.values():
        assert DatasetSpec.model_validate_json(spec.model_dump_json()) == spec
