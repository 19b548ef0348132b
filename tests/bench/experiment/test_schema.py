"""Experiment files: what they say, and what is wrong with them."""

import contextlib
import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lametta import LamettaError
from lametta.bench.experiment import Experiment, load
from lametta.bench.experiment.schema import DatasetSpec
from lametta.data.corruption import SETS
from lametta.networks import EMBEDDED, NETWORKS
from lametta.torch import zoo
from tests.bench.made_up import invoke
from tests.bench.tiny import TINY, selected, tiny, write


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"name": None}, "name: must be given, got none"),
        ({"name": 3}, "name: must be a valid string, got 3"),
        ({"name": "../up"}, "name: must be letters, digits, dots, - and _, got '../up'"),
        ({"models__a/b": {"zoo": EMBEDDED}}, 'models."a/b": must be letters, .*, got \'a/b\''),
        ({"modls": {}}, "modls: must be one of name, title, .*models, .*; did you mean 'models'"),
        ({"models": None}, "models: must be given, got none"),
        ({"models": {}}, "models: must not be empty, got {}"),
        ({"models__net": "digits"}, "models.net: must be a table, got 'digits'"),
        ({"models__net__zo": "x"}, "models.net.zo: must be one of zoo, weights, .* mean 'zoo'"),
        ({"models__net__zoo": "papr:resnet50"}, "models.net.zoo: must be one of .*paper:resnet50'"),
        ({"models__net__zoo": "timm:"}, "models.net.zoo: must be one of .*, got 'timm:'"),
        ({"models__net__zoo": "paper:resnet50"}, "models.net: weights must be given"),
        ({"models__net__weights": "w"}, "models.net: weights must not be given for embedded"),
        ({"datasets__digits__reader": "digits"}, "digits.reader: must be one of 'imagenet"),
        ({"datasets__digits__part": [2, 2]}, r"datasets.digits.part: must be integers \[i, n\]"),
        ({"datasets__digits__part": [0, 1, 2]}, r"part: must be integers .*, got \[0, 1, 2\]"),
        ({"datasets__digits__corruptions": "tests"}, "corruptions: .* mean 'test'"),
        ({"datasets__digits__corruptions": ["fgo"]}, "corruptions: .* got 'fgo'; .* 'fog'"),
        ({"datasets__digits__corruptions": []}, "corruptions: must not be empty, got "),
        ({"datasets__digits__severity": 3}, "datasets.digits: severity must come with corruptions"),
        ({"datasets__digits__classes": [[0], [0]]}, "classes: mapping must give a class one"),
        ({"datasets__digits__classes": 5}, "datasets.digits.classes: must be a table, got 5"),
        (
            {"datasets__digits__classes": [[0]], "datasets__digits__targets": ["dog"]},
            "datasets.digits: targets must not be given together with classes",
        ),
        ({"datasets__digits__pooling": "avg"}, "pooling: must be one of mean, sum, max, got 'avg'"),
        ({"scenarios__iid__dataset": "digit"}, "scenarios.iid.dataset: .* did you mean 'digits'"),
        ({"scenarios__iid__order": "idd"}, "scenarios.iid.order: must be one of .*got 'idd'"),
        ({"scenarios__iid__order": {"kind": "dirichlet", "gamma": 0}}, "iid.order: gamma must be"),
        ({"scenarios__iid__prior": "zip"}, "scenarios.iid.prior: must be one of .*got 'zip'"),
        ({"scenarios__iid__prior": 7}, "scenarios.iid.prior: must be a name, .*, got 7"),
        ({"scenarios__iid__limit": 0}, "scenarios.iid.limit: must be greater than 0, got 0"),
        ({"scenarios__iid__limit": True}, "scenarios.iid.limit: must be a valid integer, got True"),
        ({"methods__LAME__kind": "lamé"}, "methods.LAME.kind: must be one of 'source', .*'lame'"),
        ({"methods__LAME__kind": "source"}, "methods: must have one .* 'source', got 2"),
        ({"methods__LAME__params": {"weigt": 1}}, "LAME.params.weigt: .* did you mean 'weight'"),
        ({"methods__LAME__grid": {"k": [1, 0]}}, "LAME.grid.k: must be an integer >= 1, got 0"),
        ({"methods__LAME__grid": {"k": 5}}, "methods.LAME.grid.k: must be a list, got 5"),
        ({"methods__LAME__grid": {"k": []}}, "methods.LAME.grid.k: must not be empty"),
        ({"methods__LAME__grid": {"weight": [2]}}, "grid.weight: must not be in params too"),
        ({"methods__LAME__grid": {"k": [1, 1.0]}}, "grid: must give each configuration once"),
        ({"methods__LAME__grid": {"affinity": ["linear"], "k": [5]}}, "grid.k: is no option of"),
        ({"methods__TENT__grid": {"layers": ["bn"]}}, "methods.TENT.grid.layers: must be one of"),
        ({"methods__TENT__grid": {"lr": ["0.1"]}}, "grid.lr: must be a number, got '0.1'"),
        ({"methods__TENT__params": {"momentum": 1}}, "params.momentum: must be .* < 1, got 1"),
        (
            {"methods__TENT__params": {"layers": "conv", "bn_momentum": 0}},
            "methods.TENT: bn_momentum is no option of the layers 'conv'",
        ),
        ({"methods__LAME__grid": {"k": [math.nan]}}, "LAME.grid.k: must be a number, got nan"),
        ({"methods__LAME__params": {"weight": math.inf}}, "weight: must be a finite .*, got inf"),
        ({"datasets__digits__options": {"a": [math.nan]}}, "options: must be a number, got nan"),
        ({"validation__seeds": list(range(10**5))}, "validation: must have .* cells, got 2000000"),
        ({"validation__seeds": None}, "validation.seeds: must be given, got none"),
        ({"validation__seeds": [0, -1]}, "validation.seeds: must be greater than or .*, got -1"),
        ({"validation__seeds": [1, 1]}, "validation.seeds: must have each once, got 1 twice"),
        ({"validation__models": ["nett"]}, "validation.models: .* got 'nett'; did you mean 'net'"),
        ({"validation__methods": ["LAME", "TENT"]}, "validation.methods: must have the method of"),
        ({"validation__batch_size": 0}, "validation.batch_size: must be greater than 0, got 0"),
        ({"studies__main__figure": "box"}, "studies.main.figure: .* did you mean 'boxes'"),
        ({"studies__cost__timed": False}, "studies.cost: timed must be true for .*runtime', got"),
        ({"studies__cost__timed": "yes"}, "studies.cost.timed: must be a valid boolean, got 'yes'"),
        ({"studies__main__timed": True}, "validation.scenarios: must not have what a timed study"),
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
        ("broken.toml", "broken.toml' is not valid TOML: .*line 1"),
        ("latin.toml", "latin.toml' is not valid TOML: .*utf-8"),
        ("none.toml", "no such file: '.*none.toml'"),
        ("", f"cannot read '{tmp_path}': Is a directory"),
    ):
        with pytest.raises(LamettaError, match=why):
            load(tmp_path / name)


@pytest.mark.parametrize("date", ["2020-01-01", "07:32:00", "1979-05-27T07:32:00Z"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("k = [1, 3, 5]", "k = [1, DATE]"),
        ("weight = 1.0", "weight = DATE"),
        ("weight = 1.0", "weight = { a = [DATE] }"),
        ('reader = "embedded:digits_val"', 'reader = "embedded:digits_val"\noptions.a = DATE'),
        ('order = "by_class"', 'order = { kind = "dirichlet", gamma = DATE }'),
        ('order = "by_class"', "order = DATE"),
        ("seeds = [0, 1]\n", "seeds = [DATE]\n"),
        ('name = "tiny"', "name = DATE"),
    ],
)
def test_dates_are_refused(tmp_path, date, before, after):
    path = tmp_path / "tiny.toml"
    path.write_text(TINY.replace(before, after.replace("DATE", date)))
    with pytest.raises(LamettaError, match=r"tiny.toml: .*got ") as caught:
        load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "deep = " + "[" * 9999 + "]" * 9999,
        "deep = " + "{a=" * 9999 + "1" + "}" * 9999,
        TINY.replace("weight = 1.0", "weight = " + "[" * 300 + "]" * 300),
        TINY.replace('order = "by_class"', "order" + ".inside" * 999 + '.kind = "mixed"'),
        TINY + "[methods.Deep]\nkind = 'lame'\nparams" + ".a" * 999 + " = 1\n",
    ],
    ids=["list", "table", "parameter", "order", "dotted"],
)
def test_files_that_nest_too_deeply(tmp_path, text):
    (tmp_path / "tiny.toml").write_text(text)
    with pytest.raises(LamettaError, match="nested too deeply"):
        load(tmp_path / "tiny.toml")


def test_large_grids_are_refused_at_once(tmp_path):
    grid = {key: list(range(10)) for key in "abcdefghi"}
    path = write(tmp_path / "tiny.toml", tiny(methods__LAME__grid=grid))
    start = time.perf_counter()
    with pytest.raises(
        LamettaError, match="grid: must make at most 10000 configurations, got 1000000000\n"
    ):
        load(path)
    assert time.perf_counter() - start < 5


STRANGE = """
import pathlib
pathlib.Path(__file__).with_name("imported").touch()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('zoo = "embedded:digits"', 'zoo = "torch:stranger:net"\nweights = "w.pth"'),
        ('reader = "embedded:digits_val"', 'reader = "python:stranger:data"'),
        ('kind = "lame"', 'kind = "python:stranger:Method"'),
        ('kind = "lame"', 'kind = "lame+python:stranger:Method"'),
        ('affinity = ["knn", "rbf"]', 'affinity = ["knn", "python:stranger:affinity"]'),
        ("params = { weight = 1.0 }", 'params = { "lame.affinity" = "python:stranger:x" }'),
    ],
)
def test_a_dry_run_imports_nothing_of_strangers(tmp_path, monkeypatch, before, after):
    (tmp_path / "stranger.py").write_text(STRANGE)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "tiny.toml").write_text(TINY.replace(before, after))
    (tmp_path / "w.pth").touch()
    result = invoke("run", tmp_path / "tiny.toml", "--dry-run", "--data", tmp_path)
    assert result.exit_code == 0, result.output
    assert "cells, each counted once" in result.stdout
    assert not (tmp_path / "imported").exists()


_values = st.recursive(
    st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats()
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


@pytest.fixture(scope="module")
def folder_of_any(tmp_path_factory):
    return tmp_path_factory.mktemp("any")


@pytest.mark.slow
@settings(max_examples=300)
@given(path=st.sampled_from(list(paths(tiny()))), value=_values)
def test_whatever_a_file_says(folder_of_any, path, value):
    """It loads and makes cells, or is refused in our own words: nothing else is raised."""
    content = tiny()
    table = content
    for key in path[:-1]:
        table = table[key]
    table[path[-1]] = value
    file = write(folder_of_any / "tiny.toml", content)
    with contextlib.suppress(LamettaError):
        experiment = load(file)
        assert experiment.validation_cells() or experiment.test_cells(selected(experiment))


def test_models_are_those_of_the_zoo():
    assert sorted(NETWORKS) == sorted(zoo.names())
    for name in NETWORKS:
        if name.startswith("paper:resnet"):
            with pytest.raises(LamettaError, match="weights must be given"):
                zoo.load(name)


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
