"""Experiment files: what they say, what is wrong with them, and the cells that they make."""

import contextlib
import copy
import inspect
import json
import subprocess
import sys
import tomllib
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lametta.torch
import torch
from lametta import LAME, Corrected, LamettaError, Output, Source, knn, linear, rbf
from lametta.bench import experiment as config
from lametta.bench.dry_run import dry_run
from lametta.bench.experiment import Experiment, bundled, canonical, load
from lametta.bench.methods import KINDS, LAYERS, build, check_params, is_output_only
from lametta.bench.specs import EMBEDDED, MODELS, DatasetSpec
from lametta.bench.toml import to_key, to_toml
from lametta.data import catalog
from lametta.data.corruption import SETS
from lametta.stream import Scenario
from lametta.torch import Classifier, select, zoo
from lametta.torch.wrapped import _METHODS, _options
from tests.conftest import make_batch, shared
from torch import nn

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "experiments").glob("*.toml"))
LAYER_CHOICES = ["first_half", "second_half", "everything"]

TINY = """
name = "tiny"
[models.net]
zoo = "embedded:digits"
[datasets.digits]
reader = "embedded:digits_val"
[scenarios.iid]
dataset = "digits"
[scenarios.sorted]
dataset = "digits"
order = "by_class"
[scenarios.timed]
dataset = "digits"
[methods.Source]
kind = "source"
[methods.LAME]
kind = "lame"
params = { weight = 1.0 }
grid = { affinity = ["knn", "rbf"], k = [1, 3, 5] }
[methods.TENT]
kind = "tent"
grid = { lr = [0.001, 0.01] }
[methods.Fixed]
kind = "tent"
params = { lr = 0.1 }
[validation]
models = ["net"]
scenarios = ["iid", "sorted"]
seeds = [0, 1]
[studies.main]
models = ["net"]
scenarios = ["iid", "sorted"]
seeds = [0, 1, 2]
[studies.sizes]
figure = "batch_size"
models = ["net"]
scenarios = ["iid"]
methods = ["Source", "LAME"]
seeds = [0]
batch_sizes = [16, 64]
[studies.cost]
figure = "runtime"
models = ["net"]
scenarios = ["timed"]
methods = ["Source", "Fixed"]
seeds = [0]
"""
SELECTED = {"LAME": {"weight": 1, "affinity": "rbf", "k": 3}, "TENT": {"lr": 0.01}}


def tiny(**changes):
    """The content of a small experiment, changed at dotted keys; None takes a key out."""
    content = tomllib.loads(TINY)
    for key, value in changes.items():
        *path, last = key.split("__")
        table = content
        for part in path:
            table = table.setdefault(part, {})
        if value is None:
            del table[last]
        else:
            table[last] = value
    return content


def write(path, content):
    path.write_text("".join(f"{to_key(k)} = {to_toml(v)}\n" for k, v in content.items()))
    return path


@pytest.fixture
def experiment(tmp_path):
    return load(write(tmp_path / "tiny.toml", tiny()))


@pytest.fixture(params=NAMES)
def shipped(request):
    return load(bundled(request.param))


def selected(experiment):
    return {method: experiment.configurations(method)[0] for method in experiment.methods}


# The files that come with lametta.


def test_there_are_these_experiments():
    assert NAMES == ["cifar10", "demo", "demo_full", "paper", "released"]
    assert bundled("demo").parent == ROOT / "experiments"
    with pytest.raises(LamettaError, match="name must be one of .*did you mean 'paper'"):
        bundled("papers")


def test_a_wheel_has_them_beside_the_module(monkeypatch, tmp_path):
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "demo.toml").touch()
    monkeypatch.setattr(config.resources, "files", lambda _: tmp_path)
    assert bundled("demo") == tmp_path / "experiments" / "demo.toml"


def test_loading_is_light():
    code = (
        "import sys; from lametta.bench.experiment import bundled, load; load(bundled('paper')); "
        "print([m for m in ('torch', 'polars', 'matplotlib', 'sklearn') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_shipped_experiments_have_the_papers_protocol(shipped):
    assert len(shipped.validation.scenarios) == 12
    assert len(shipped.studies["main"].scenarios) == 7
    assert shipped.source == "Source"
    kinds = {shipped.methods[name].kind for name in shipped.studies["main"].methods}
    assert kinds == {"source", "lame", "tent", "shot_im", "pseudo_label", "adabn"}
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
    paper = load(bundled("paper"))
    sizes = {name: len(paper.configurations(name)) for name in paper.validation.methods}
    assert sizes == {
        "Source": 1, "LAME": 3, "TENT": 54, "SHOT-IM": 54, "PseudoLabel": 54, "AdaBN": 15,
        "LAME (rbf)": 3, "LAME (linear)": 1,
    }  # fmt: skip
    for params in (*paper.configurations("TENT"), *paper.configurations("SHOT-IM")):
        assert params["optimizer"] == "adam"
    assert {spec.pooling for spec in paper.datasets.values()} == {"mean"}
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
    rates = [paper.configurations(m)[0].get("lr") for m in studies["curves"].methods]
    assert rates == [None, None, 0.001, 0.01, 0.1]
    assert "AdaBN" not in studies["architectures"].methods  # no batch normalization in a ViT


def test_released():
    released, paper = load(bundled("released")), load(bundled("paper"))
    for name, method in released.methods.items():
        for params in released.configurations(name):
            if method.kind in ("tent", "shot_im", "pseudo_label"):
                assert params["optimizer"] == "sgd"
            assert params.get("layers") != "everything"
    assert released.validation.batch_size == 16
    assert released.studies["main"].batch_sizes == (16,)
    assert released.configurations("LAME") == ({"affinity": "rbf", "k": 4},)
    pooled = {name for name, spec in released.datasets.items() if spec.pooling == "sum"}
    assert pooled == {"imagenet_c16", "imagenet_vid", "tao_lasot"}
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


def check_streams(experiment, sets):
    """No batch of one, which has no statistics, and all groups in a stream by group."""
    cells = experiment.validation_cells() + experiment.test_cells(selected(experiment))
    for name, seed, size in {(c.scenario, c.seed, c.batch_size) for c in cells}:
        spec = experiment.scenarios[name]
        labels, groups, _ = sets[spec.dataset]
        stream = Scenario(spec.order, spec.prior, size, seed, spec.limit)(labels, groups)
        assert min(stream.sizes) > 1, (name, seed, size)
        if name in experiment.validation.scenarios and groups is not None:
            assert set(groups[stream.index]) == set(groups)


@pytest.mark.parametrize("name", ["demo", "demo_full"])
def test_streams_of_the_demo(name):
    experiment = load(bundled(name))
    check_streams(experiment, {key: read(spec) for key, spec in experiment.datasets.items()})


def test_streams_of_cifar10():
    root = shared("data", "cifar10", "test-3000.zip").parents[1]
    experiment = load(bundled("cifar10"))
    sets = {key: read(spec, root) for key, spec in experiment.datasets.items()}
    check_streams(experiment, sets)
    seen = set().union(*(sets[name][2] for name in ("val", "c_val", "super")))
    tested = set().union(*(sets[name][2] for name in ("test", "c_test", "other", "coarse")))
    assert not seen & tested
    assert (len(seen), len(tested)) == (375, 1500)
    assert not dry_run(experiment, root).missing


def test_the_network_of_cifar10():
    root = shared("data", "cifar10", "test-3000.zip").parents[1]
    spec = load(bundled("cifar10")).models["resnet20"]
    loaded = zoo.load(spec.zoo, weights=root / spec.weights)
    data = catalog.load("folder:cifar10/test-3000.zip", root)
    chosen = range(0, 3000, 10)
    x = torch.stack([loaded.preprocess(data.samples[i]) for i in chosen])
    assert x.shape == (300, 3, 32, 32)
    right = Classifier(loaded.net)(x).logits.argmax(1).numpy() == data.labels[list(chosen)]
    assert right.mean() > 0.75


# What is wrong with a file.


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"name": None}, "name: must be given, got none"),
        ({"name": 3}, "name: must be a valid string, got 3"),
        ({"name": "../up"}, "name: must be letters, digits, dots, - and _, got '../up'"),
        ({"models__a/b": {"zoo": EMBEDDED}}, 'models."a/b": must be letters, .*, got \'a/b\''),
        ({"modls": {}}, "modls: must be one of name, title, models, .*; did you mean 'models'"),
        ({"models": None}, "models: must be given, got none"),
        ({"models": {}}, "models: must not be empty, got {}"),
        ({"models__net": "digits"}, "models.net: must be a table, got 'digits'"),
        ({"models__net__zo": "x"}, "models.net.zo: must be one of zoo, weights, .* mean 'zoo'"),
        ({"models__net__zoo": "papr:resnet50"}, "models.net.zoo: must be one of .*paper:resnet50'"),
        ({"models__net__zoo": "timm:"}, "models.net.zoo: must be one of .*, got 'timm:'"),
        ({"models__net__zoo": "paper:resnet50"}, "models.net: weights must be given"),
        ({"models__net__weights": "w"}, "models.net: weights must not be given for embedded"),
        ({"datasets__digits__reader": "digits"}, "datasets.digits.reader: must be one of imagenet"),
        ({"datasets__digits__part": [2, 2]}, r"datasets.digits.part: must be integers \[i, n\]"),
        ({"datasets__digits__part": [0, 1, 2]}, r"part: must be integers .*, got \[0, 1, 2\]"),
        ({"datasets__digits__corruptions": "tests"}, "corruptions: .* mean 'test'"),
        ({"datasets__digits__corruptions": ["fgo"]}, "corruptions: .* got 'fgo'; .* 'fog'"),
        ({"datasets__digits__corruptions": []}, "corruptions: must not be empty, got "),
        ({"datasets__digits__severity": 3}, "datasets.digits: severity must come with corruptions"),
        ({"datasets__digits__classes": [[0], [0]]}, "classes: mapping must give a source one"),
        ({"datasets__digits__classes": 5}, "datasets.digits.classes: must be a table, got 5"),
        ({"datasets__digits__pooling": "avg"}, "pooling: must be one of mean, sum, max, got 'avg'"),
        ({"scenarios__iid__dataset": "digit"}, "scenarios.iid.dataset: .* did you mean 'digits'"),
        ({"scenarios__iid__order": "idd"}, "scenarios.iid.order: must be of a kind in .*got 'idd'"),
        ({"scenarios__iid__order": {"kind": "dirichlet", "gamma": 0}}, "iid.order: gamma must be"),
        ({"scenarios__iid__prior": "zip"}, "scenarios.iid.prior: must be of a kind in .*got 'zip'"),
        ({"scenarios__iid__prior": 7}, "scenarios.iid.prior: must be a name, .*, got 7"),
        ({"scenarios__iid__limit": 0}, "scenarios.iid.limit: must be greater than 0, got 0"),
        ({"scenarios__iid__limit": True}, "scenarios.iid.limit: must be a valid integer, got True"),
        ({"methods__LAME__kind": "lamé"}, "methods.LAME.kind: must be one of source, .*'lame'"),
        ({"methods__LAME__kind": "source"}, "methods: must have one .* 'source', got 2"),
        ({"methods__LAME__params": {"weigt": 1}}, "LAME.params.weigt: .* did you mean 'weight'"),
        ({"methods__LAME__grid": {"k": [1, 0]}}, "LAME.grid.k: must be greater than 0, got 0"),
        ({"methods__LAME__grid": {"k": 5}}, "methods.LAME.grid.k: must be a list, got 5"),
        ({"methods__LAME__grid": {"k": []}}, "methods.LAME.grid.k: must not be empty"),
        ({"methods__LAME__grid": {"weight": [2]}}, "grid.weight: must not be in params too"),
        ({"methods__LAME__grid": {"k": [1, 1.0]}}, "grid: must give each configuration once"),
        ({"methods__LAME__grid": {"affinity": ["linear"], "k": [5]}}, "k is no option of the aff"),
        ({"methods__TENT__grid": {"layers": ["bn"]}}, "methods.TENT.grid.layers: must be one of"),
        ({"methods__TENT__grid": {"lr": ["0.1"]}}, "grid.lr: must be a valid number, got '0.1'"),
        ({"methods__TENT__params": {"momentum": 1}}, "params.momentum: must be less than 1, got 1"),
        (
            {"methods__TENT__params": {"layers": "conv", "bn_momentum": 0}},
            "methods.TENT: bn_momentum is no option of the layers 'conv'",
        ),
        ({"validation__seeds": None}, "validation.seeds: must be given, got none"),
        ({"validation__seeds": [0, -1]}, "validation.seeds: must be greater than or .*, got -1"),
        ({"validation__seeds": [1, 1]}, "validation.seeds: must have each once, got 1 twice"),
        ({"validation__models": ["nett"]}, "validation.models: .* got 'nett'; did you mean 'net'"),
        ({"validation__methods": ["LAME", "TENT"]}, "validation.methods: must have the method of"),
        ({"validation__batch_size": 0}, "validation.batch_size: must be greater than 0, got 0"),
        ({"studies__main__figure": "box"}, "studies.main.figure: .* did you mean 'boxes'"),
        ({"studies__main__methods": ["Sourc"]}, "studies.main.methods: .* did you mean 'Source'"),
        ({"studies__main__scenarios": []}, "studies.main.scenarios: must not be empty"),
        ({"studies__cost__scenarios": ["iid"]}, "validation.scenarios: must not .*, got 'iid'"),
        (
            {"validation__methods": ["Source", "LAME"]},
            "studies.main.methods: 'TENT' must be in validation.methods too, .*got 2",
        ),
        ({"validation": None, "studies": None}, "tiny.toml: must have a validation or a study"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)  # fmt: skip
def test_errors_point_at_the_key(tmp_path, changes, line):
    path = write(tmp_path / "tiny.toml", tiny(**changes))
    with pytest.raises(LamettaError, match=line) as caught:
        load(path)
    for said in str(caught.value).splitlines():
        assert said.startswith(f"{path}: ")
        assert "Input should" not in said


def test_every_problem_has_a_line(tmp_path):
    content = tiny(scenarios__iid__order="idd", validation__seeds=[-1], models__net__zoo="?")
    content["methods"]['a "method"'] = {"kind": "tant"}
    with pytest.raises(LamettaError) as caught:
        load(write(tmp_path / "tiny.toml", content))
    keys = [line.split(": ")[1] for line in str(caught.value).splitlines()]
    assert sorted(keys) == [
        r'methods."a \"method\"".kind', "models.net.zoo", "scenarios.iid.order", "validation.seeds",
    ]  # fmt: skip


def test_files_that_are_no_toml(tmp_path):
    (tmp_path / "broken.toml").write_text("name = \n")
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    for name, why in (
        ("broken.toml", "line 1"),
        ("latin.toml", "utf-8"),
        ("none.toml", "No such file"),
        ("", "Is a directory"),
    ):
        with pytest.raises(LamettaError, match=f"path must be a TOML file, got .*{why}"):
            load(tmp_path / name)


_values = st.recursive(
    st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "iid", "zipf", "net", "source", "tent", "test", "embedded:digits_val"])
    | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["kind", "lr", "k", "net", "a", "order", "x y"]), inner)
    ),
    max_leaves=6,
)


def paths(content, prefix=()):
    for key, value in content.items():
        yield (*prefix, key)
        if isinstance(value, dict):
            yield from paths(value, (*prefix, key))


@settings(max_examples=300)
@given(st.sampled_from(list(paths(tiny()))), _values)
def test_whatever_a_file_says(tmp_path_factory, path, value):
    """It loads and makes cells, or is refused in our own words: nothing else is raised."""
    content = tiny()
    table = content
    for key in path[:-1]:
        table = table[key]
    table[path[-1]] = value
    file = write(tmp_path_factory.mktemp("any") / "tiny.toml", content)
    with contextlib.suppress(LamettaError):
        experiment = load(file)
        assert experiment.validation_cells() or experiment.test_cells(selected(experiment))


# Tables that stand in for torch.


def test_models_are_those_of_the_zoo():
    assert sorted(MODELS) == sorted([*zoo.names(), EMBEDDED])
    for name in MODELS:
        if name.startswith("paper:resnet"):
            with pytest.raises(LamettaError, match="weights must be given"):
                zoo.load(name)


def test_layers_are_those_of_select():
    offered = {name for name, value in vars(select).items() if isinstance(value, select.Selector)}
    assert set(LAYERS) | {part for parts in LAYERS.values() for part in parts} >= offered
    assert {part for parts in LAYERS.values() for part in parts} == offered - {"everything"}


@pytest.mark.parametrize("kind", _METHODS)
def test_parameters_are_those_of_the_methods(kind):
    fields = KINDS[kind].model_fields
    options = set(_options(_METHODS[kind]))
    if kind == "lame":  # the options of an affinity stand beside its name
        options |= {"k", "row_sum", "symmetric", "method"}
    assert set(fields) == options
    known = inspect.signature(LAME if kind == "lame" else _METHODS[kind]).parameters
    known = dict(inspect.signature(lametta.torch.NetworkAdapter).parameters) | dict(known)
    for name in fields.keys() & known.keys() - {"layers", "affinity"}:
        assert fields[name].default == known[name].default
    for make in (knn, rbf, linear) if kind == "lame" else ():
        for name, parameter in inspect.signature(make).parameters.items():
            assert fields[name].default == parameter.default


def test_kinds():
    networks = {"tent", "shot_im", "pseudo_label", "adabn"}
    assert set(KINDS) == {"source", "lame"} | networks | {f"{name}+lame" for name in networks}
    assert [kind for kind in KINDS if is_output_only(kind)] == ["source", "lame"]
    for name in networks:
        both = KINDS[name].model_fields.keys(), KINDS["lame"].model_fields.keys()
        assert not both[0] & both[1]
        assert KINDS[f"{name}+lame"].model_fields.keys() == both[0] | both[1]


# Adapters from parameters.


def bank(features, probs):
    return lambda index: Output(features[index], np.log(probs[index]))


@pytest.mark.parametrize(
    ("params", "corrector"),
    [
        ({}, LAME()),
        ({"k": 2, "weight": 0.5}, LAME(knn(2), weight=0.5)),
        ({"affinity": "rbf", "k": 3, "row_sum": 4.0}, LAME(rbf(3, row_sum=4.0))),
        ({"affinity": "linear", "symmetric": True}, LAME(linear(symmetric=True))),
        ({"affinity": "knn", "max_iter": 3, "tol": 0}, LAME(knn(5), max_iter=3, tol=0)),
    ],
    ids=str,
)
def test_build_lame(params, corrector):
    model = bank(*make_batch(40, 5))
    adapter = build("lame", params, model)
    assert adapter == Corrected(model, corrector)
    step = adapter.step(np.arange(20))
    np.testing.assert_array_equal(step.probs, Corrected(model, corrector).step(np.arange(20)).probs)


def make_net():
    """Eight blocks, so that halves are four layers each."""
    net = nn.Sequential()
    for i in range(8):
        net.append(nn.Conv2d(3 if i == 0 else 4, 4, 3, padding=1))
        net.append(nn.BatchNorm2d(4))
    net.append(nn.AdaptiveAvgPool2d(1))
    net.append(nn.Flatten())
    net.fc = nn.Linear(4, 3)
    return net.eval()


def moved(net, kind, params):
    """Places among the modules of the network whose parameters a step changes."""
    before = copy.deepcopy(net.state_dict())
    with Classifier(net) as model:
        adapter = build(kind, params, model)
        adapter.step(torch.randn(8, 3, 6, 6))
        found = [
            i for i, module in enumerate(net)
            if any(not torch.equal(p, before[f"{i}.{n}"])
                   for n, p in module.named_parameters() if f"{i}.{n}" in before)
        ]  # fmt: skip
        adapter.reset()
    return found


@pytest.mark.parametrize("layers", LAYERS)
def test_layers_by_name(layers):
    kind = nn.Conv2d if layers.startswith("conv") else nn.BatchNorm2d
    net = make_net()
    blocks = range(16)
    if "half" in layers:
        # A convolution comes right before its normalization: the ninth is in the second half.
        blocks = range(8) if "first" in layers else range(8, 16)
    expected = [i for i in blocks if isinstance(net[i], kind)]
    assert moved(net, "shot_im", {"layers": layers, "lr": 0.1}) == expected


def test_normalization_layers_are_the_default():
    net = make_net()
    assert (
        moved(net, "tent", {}) == moved(net, "tent", {"layers": "everything"}) == [*range(1, 16, 2)]
    )


@pytest.mark.parametrize("kind", ["tent", "shot_im", "pseudo_label", "adabn"])
def test_lame_on_top_of_a_network_method(kind):
    net, x = make_net(), torch.randn(16, 3, 6, 6)
    with Classifier(net) as model:
        base = getattr(lametta.torch, kind)(model, momentum=0.3)
        expected = Corrected(base, LAME(knn(2))).step(x)
        base.reset()
        adapter = build(f"{kind}+lame", {"momentum": 0.3, "k": 2}, model)
        torch.testing.assert_close(adapter.step(x).probs, expected.probs, rtol=0, atol=0)
        adapter.reset()


def test_build_checks_its_arguments():
    model = bank(*make_batch(8, 3))
    assert build("source", {}, model) == Source(model)
    with pytest.raises(LamettaError, match="model must be a lametta.torch.Classifier for tent"):
        build("tent", {}, model)
    with pytest.raises(LamettaError, match="kind must be one of source, .*did you mean 'tent'"):
        build("tant", {}, model)
    with pytest.raises(LamettaError, match="params of lame .* k: must be greater than 0, got 0"):
        build("lame", {"k": 0}, model)
    with pytest.raises(LamettaError, match="lr: must be one of none, got 'lr'"):
        build("source", {"lr": 1}, model)


# Cells.


def test_configurations_are_a_product_in_the_order_of_the_file(experiment):
    assert experiment.configurations("Source") == ({},)
    assert experiment.configurations("LAME") == tuple(
        {"weight": 1.0, "affinity": a, "k": k} for a in ("knn", "rbf") for k in (1, 3, 5)
    )
    assert experiment.configs("TENT") == ['{"lr": 0.001}', '{"lr": 0.01}']
    released = load(bundled("released"))
    assert [(p["affinity"], p.get("k")) for p in released.configurations("LAME, grid")] == [
        ("knn", 1), ("knn", 3), ("knn", 5), ("rbf", 2), ("rbf", 4), ("linear", None),
    ]  # fmt: skip


def keys(cells):
    return [(c.method, c.config, c.model, c.scenario, c.seed, c.batch_size, c.live) for c in cells]


def test_validation_cells_by_brute_force(experiment):
    cells = experiment.validation_cells()
    expected = {
        (method, config, "net", scenario, seed, 64, False)
        for method in ("Source", "LAME", "TENT", "Fixed")
        for config in experiment.configs(method)
        for scenario in ("iid", "sorted")
        for seed in (0, 1)
    }
    assert len(cells) == len(expected) == (1 + 6 + 2 + 1) * 4
    assert set(keys(cells)) == expected
    assert len({cell.id for cell in cells}) == len(cells)
    for cell in cells:
        assert len(cell.id) == 16
        assert set(cell.id) <= set("0123456789abcdef")
        assert cell.kind == experiment.methods[cell.method].kind
        assert cell.params == json.loads(cell.config)
        assert json.loads(json.dumps(asdict(cell))) == asdict(cell)


def test_study_cells(experiment):
    main = experiment.study_cells("main", SELECTED)
    assert len(main) == 4 * 2 * 3
    assert {cell.params["k"] for cell in main if cell.method == "LAME"} == {3}
    assert {cell.config for cell in main if cell.method == "Fixed"} == {'{"lr": 0.1}'}
    sizes = experiment.study_cells("sizes", SELECTED)
    assert [cell.batch_size for cell in sizes] == [16, 16, 64, 64]
    cost = experiment.study_cells("cost", {})
    assert [cell.live for cell in cost] == [True, True]
    # A cell of two studies, and of the validation, is one cell.
    both = experiment.test_cells(SELECTED)
    assert len(both) == len(set(both)) == len({c.id for c in both}) == 24 + 4 - 2 + 2
    assert set(both) == {*main, *sizes, *cost}
    assert {cell for cell in both if cell.method == "Source" and cell.seed < 2} & set(
        experiment.validation_cells()
    )


def test_what_is_selected_has_to_fit(experiment):
    with pytest.raises(LamettaError, match="selected must have LAME, which has 6 .*got TENT"):
        experiment.study_cells("main", {"TENT": {"lr": 0.01}})
    with pytest.raises(LamettaError, match="selected must fit TENT, got lrr: .*mean 'lr'"):
        experiment.study_cells("main", SELECTED | {"TENT": {"lrr": 1}})


def ids(content):
    experiment = Experiment.model_validate(content)
    cells = experiment.validation_cells() + experiment.test_cells(SELECTED)
    return {replace(cell, id=""): cell.id for cell in cells}


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "other", "title": "Another title"},
        {"models__net__label": "A network", "models__net__training": "by hand"},
        {"scenarios__iid__label": "Shuffled", "studies__main__title": "Everything"},
        {"scenarios__iid__order": {"kind": "iid"}, "scenarios__iid__prior": "as_is"},
        {"scenarios__sorted__order": {"kind": "by_class", "shuffle_inside": True}},
        {"methods__LAME__params": {"weight": 1}, "datasets__digits__pooling": "mean"},
    ],
    ids=str,
)
def test_what_is_only_shown_or_said_otherwise_keeps_the_cells(changes):
    assert ids(tiny(**changes)) == ids(tiny())


@pytest.mark.parametrize(
    ("changes", "others"),
    [
        ({"models__net__zoo": "efficientnet_lite0"}, {"iid", "sorted", "timed"}),
        ({"models__net": {"zoo": "torch:a:b", "weights": "c"}}, {"iid", "sorted", "timed"}),
        ({"datasets__digits__part": [0, 2]}, {"iid", "sorted", "timed"}),
        ({"datasets__digits__pooling": "sum"}, {"iid", "sorted", "timed"}),
        ({"scenarios__iid__limit": 100}, {"iid"}),
        ({"scenarios__sorted__order": {"kind": "by_class", "sequence": "random"}}, {"sorted"}),
        ({"scenarios__timed__prior": {"kind": "zipf", "a": 3}}, {"timed"}),
    ],
    ids=str,
)
def test_what_results_depend_on_makes_other_cells(changes, others):
    before, after = ids(tiny()), ids(tiny(**changes))
    assert before.keys() == after.keys()
    assert {cell.scenario for cell in before if before[cell] != after[cell]} == others
    assert all(before[cell] != after[cell] for cell in before if cell.scenario in others)


def test_ids_stay_what_they_are(experiment):
    """Results on disk are found by them: they may change with the format of results alone."""
    first, *_, last = experiment.validation_cells()
    assert (first.id, last.id) == ("834e21fb3181b3f1", "3420a4db9eeb9edf")


_params = st.dictionaries(
    st.text(max_size=5),
    st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | st.text(max_size=5),
)


@given(_params, st.randoms())
def test_canonical(params, random):
    text = canonical(params)
    assert json.loads(text) == params
    items = list(params.items())
    random.shuffle(items)
    assert canonical(dict(items)) == text
    floats = {k: float(v) if type(v) is int else v for k, v in items}
    assert canonical(floats) == text
    assert canonical(json.loads(text)) == text
    assert canonical(params | {"another": 1}) != text


def test_booleans_are_no_numbers():
    assert canonical([True, 1, 1.0, 0.5, (2.0,)]) == "[true, 1, 1, 0.5, [2]]"


def test_specs_survive_json(shipped):
    assert Experiment.model_validate_json(shipped.model_dump_json()) == shipped
    for spec in shipped.datasets.values():
        assert DatasetSpec.model_validate_json(spec.model_dump_json()) == spec


def test_sets_of_corruptions_are_spelled_out():
    specs = [
        DatasetSpec(reader="imagenet_v2", corruptions=given)
        for given in ("validation", "test", "all", ["fog"])
    ]
    named = [SETS["val"], SETS["test"], SETS["all"], ("fog",)]
    assert [spec.corruptions for spec in specs] == named
    classes = DatasetSpec(reader="imagenet_v2", classes=[[0, 1], [2]]).classes
    assert classes == {"0": [0, 1], "1": [2]}


def test_defaults_of_a_file(experiment):
    assert experiment.title == "tiny"
    assert experiment.models["net"].label == "net"
    assert experiment.scenarios["iid"].label == "iid"
    assert experiment.studies["main"].title == "main"
    assert experiment.validation.methods == ("Source", "LAME", "TENT", "Fixed")
    assert experiment.studies["main"].methods == ("Source", "LAME", "TENT", "Fixed")
    only_studies = Experiment.model_validate(tiny(validation=None))
    assert only_studies.validation_cells() == []


def test_experiments_are_frozen(experiment):
    with pytest.raises(ValueError, match="frozen"):
        experiment.name = "other"


def test_check_params_finds_everything():
    found = check_params("lame", {"k": 0, "affinity": "cosine", "wait": 1})
    assert sorted(problem.keys for problem in found) == [("affinity",), ("k",), ("wait",)]


# What is on disk.


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
