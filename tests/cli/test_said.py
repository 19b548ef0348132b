"""What commands print: JSON for scripts, and more or less for people."""

import json
import logging
import tomllib
from functools import partialmethod

import jsonschema
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from lametta.bench.analysis.results import read_results
from lametta.bench.experiment import bundled, json_schema, load
from lametta.cli import app
from lametta.cli._console import err, out
from lametta.data.bank import Bank

EXPERIMENTS = bundled("demo").parent
SMALL = """
name = "small"
models.net.zoo = "embedded:digits"
datasets.val = {reader = "embedded:digits_val", part = [0, 16]}
scenarios.sorted = {dataset = "val", order = "by_class"}
methods.Source.kind = "source"
methods.LAME.kind = "lame"
studies.main = {models = ["net"], scenarios = ["sorted"], seeds = [0]}
"""


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def given(tmp_path):
    probs = np.eye(3)[[0, 0, 1, 2]] * 0.7 + 0.1
    np.savez(tmp_path / "in.npz", features=np.eye(4), probs=probs)
    return tmp_path / "in.npz"


@pytest.mark.parametrize("kind", [(), ("methods",), ("datasets",), ("scenarios",)])
def test_list_has_all_of_it_as_json(kind):
    result = invoke("list", *kind, "--json")
    found = json.loads(result.stdout)
    found = found if kind else found["methods"]
    assert all(entry["name"] for entry in found)
    assert kind != ("scenarios",) or {entry["part"] for entry in found} == {"order", "prior"}


@pytest.mark.slow(7)
def test_run_report_and_compare_print_json(tmp_path):
    (tmp_path / "small.toml").write_text(SMALL)
    plan = json.loads(invoke("run", tmp_path / "small.toml", "--dry-run", "--json").stdout)
    assert (plan["cells"], plan["missing"], plan["device"]) == (2, 0, "cpu")
    result = invoke("run", tmp_path / "small.toml", "-o", tmp_path / "r", "--json")
    assert json.loads(result.stdout)["failed"] == 0
    result = invoke("compare", tmp_path / "r", tmp_path / "r", "--json")
    assert json.loads(result.stdout)["equal"] is True
    page = json.loads(invoke("report", tmp_path / "r", "--json").stdout)
    assert [row["method"] for row in page["accuracies"]] == ["Source", "LAME"]
    shown = read_results(tmp_path / "r")._repr_html_()  # as a notebook asks for it
    assert all(word in shown for word in ("<table", "LAME", "sorted"))


@pytest.mark.slow
def test_map_prints_json():
    assert json.loads(invoke("map", "--targets", "bear,cat", "--json").stdout)["bear"]


def test_quiet_leaves_errors_alone(given, tmp_path):
    corrected = ("correct", given, "-o", tmp_path / "out.npz")
    assert "samples" in invoke(*corrected).stdout
    for quiet in (("--quiet", *corrected), (*corrected, "--quiet")):
        result = invoke(*quiet)
        assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    result = invoke("--quiet", "correct", tmp_path / "none.npz", "-o", tmp_path / "out.npz")
    assert result.exit_code == 2
    assert "no such file" in result.stderr
    assert (out.quiet, err.quiet) == (False, False)  # for whoever calls a command from Python


def test_verbose_says_where_an_error_is_from(given, tmp_path):
    wrong = ("correct", tmp_path / "none.npz", "-o", tmp_path / "out.npz")
    assert "Traceback" not in invoke(*wrong).stderr
    assert "Traceback" in invoke(*wrong, "--verbose").stderr
    assert logging.getLogger("lametta").level == logging.NOTSET


def test_the_schema_that_comes_with_the_experiments_is_current():
    """Write it anew: lametta list schema > src/lametta/bench/experiments/experiment.schema.json."""
    stored = json.loads((EXPERIMENTS / "experiment.schema.json").read_text(encoding="utf-8"))
    assert stored == json_schema() == json.loads(invoke("list", "schema").stdout)


@pytest.mark.parametrize("file", sorted(EXPERIMENTS.glob("*.toml")), ids=lambda file: file.stem)
def test_experiments_name_their_schema_and_fit_it(file):
    text = file.read_text(encoding="utf-8")
    assert text.startswith("#:schema experiment.schema.json\n")
    validator = jsonschema.Draft202012Validator(json_schema())
    assert not list(validator.iter_errors(tomllib.loads(text)))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('kind = "lame"', "kind = 3"),
        ("part = [0, 16]", 'corruptions = ["rain"]'),
        ("seeds = [0]", 'seeds = "all"'),
        ('name = "small"', 'name = "small"\nprecision = "fp8"'),
        ('name = "small"', 'name = "small"\ncolour = "red"'),
    ],
)
def test_the_schema_refuses_what_is_no_experiment(old, new):
    validator = jsonschema.Draft202012Validator(json_schema())
    assert not list(validator.iter_errors(tomllib.loads(SMALL)))
    assert list(validator.iter_errors(tomllib.loads(SMALL.replace(old, new))))


def test_precision_is_part_of_what_a_cell_is(tmp_path):
    file = tmp_path / "small.toml"
    file.write_text(SMALL)
    plain, other = load(file), load(file, given={"precision": "bf16"})
    ids = [{cell.id for cell in one.test_cells({})} for one in (plain, other)]
    assert not ids[0] & ids[1]
    file.write_text(f'precision = "float32"\n{SMALL}')
    assert {cell.id for cell in load(file).test_cells({})} == ids[0]  # as it is without
    result = invoke("run", file, "-o", tmp_path, "--precision", "bf16")
    assert result.exit_code == 2
    assert "--precision must be left out" in result.stderr
    result = invoke("run", file, "-o", tmp_path, "--precision", "fp8")
    assert "--precision must be one of" in result.stderr


def test_methods_that_adapt_do_not_take_a_compiled_network(tmp_path):
    file = tmp_path / "small.toml"
    file.write_text(SMALL.replace('"lame"', '"tent"'))
    result = invoke("run", file, "-o", tmp_path, "--compile")
    assert result.exit_code == 2
    assert "must be false where a method adapts the network, got true with LAME" in result.stderr


@pytest.mark.slow(1)
@pytest.mark.filterwarnings("ignore")  # of PyTorch's compiler, whatever it says
def test_a_compiled_network_fills_a_bank(tmp_path, monkeypatch):
    quickly = partialmethod(torch.nn.Module.compile, backend="eager")  # half a minute without
    monkeypatch.setattr(torch.nn.Module, "compile", quickly)
    given = ("--model", "embedded:digits", "--data", "embedded:digits_v2", "--workers", "0")
    for name, more in (("plain", ()), ("compiled", ("--compile",))):
        path = tmp_path / f"{name}.safetensors"
        result = invoke("extract", *given, "-o", path, *more, "--json")
        assert json.loads(result.stdout)["samples"] == 447, result.output
    plain, compiled = (
        Bank.open(tmp_path / f"{name}.safetensors") for name in ("plain", "compiled")
    )
    assert compiled.header["compile"] is True
    np.testing.assert_allclose(compiled.logits, plain.logits, atol=1e-4)


@pytest.mark.slow
def test_results_keep_the_precision_that_was_asked_for(tmp_path):
    (tmp_path / "small.toml").write_text(SMALL)
    result = invoke("run", tmp_path / "small.toml", "-o", tmp_path / "r", "--precision", "bf16")
    assert result.exit_code == 0, result.output
    assert load(tmp_path / "r" / "experiment.toml").models["net"].computed == {"precision": "bf16"}
    card = json.loads((tmp_path / "r" / "card.json").read_text(encoding="utf-8"))
    assert card["models"]["net"]["precision"] == "bf16"
