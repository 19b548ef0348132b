import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

import lametta
from lametta.cli import app
from lametta.cli.correct import _batches, _streams
from tests import processes
from tests.conftest import make_batch, shared, softmax

runner = CliRunner()


@pytest.fixture
def bank(tmp_path):
    """A stream of four classes in runs, as a .npz file, and its arrays."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 50)
    features = (np.eye(4)[labels] + 0.3 * rng.normal(size=(200, 4))).astype(np.float32)
    logits = (np.eye(4)[labels] + rng.normal(size=(200, 4))).astype(np.float32)
    arrays = {"features": features, "logits": logits, "labels": labels}
    np.savez(tmp_path / "in.npz", **arrays)
    return arrays


def run(*arguments):
    return runner.invoke(app, [str(argument) for argument in arguments])


def expected(arrays, batch_size, **options):
    probs = softmax(arrays["logits"])
    return np.concatenate(
        [
            lametta.lame(
                arrays["features"][i : i + batch_size], probs[i : i + batch_size], **options
            ).probs
            for i in range(0, len(probs), batch_size)
        ]
    )


def test_correct(bank, tmp_path):
    result = run("correct", tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    assert result.exit_code == 0, result.output
    with np.load(tmp_path / "out.npz") as out:
        assert np.allclose(out["probs"], expected(bank, 64), atol=1e-6)
        assert out["probs"].dtype == np.float32
        assert np.array_equal(out["labels"], bank["labels"])
        after = np.mean(out["probs"].argmax(axis=1) == bank["labels"])
    before = np.mean(bank["logits"].argmax(axis=1) == bank["labels"])
    assert f"accuracy before      {before:.2%}" in result.output
    assert f"accuracy after       {after:.2%}" in result.output
    assert after > before + 0.1
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


SET = {"affinity": lametta.knn(3), "weight": 0.5}
SET_RBF = {"affinity": lametta.rbf(row_sum=2.5), "weight": 0.5}


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (["--affinity", "kNN", "--k", "3"], {"affinity": lametta.knn(3)}),
        (
            ["--symmetric", "--weight", "0.5"],
            {"affinity": lametta.knn(symmetric=True), "weight": 0.5},
        ),
        (["--set", "direction=reverse"], {"affinity": lametta.knn(direction="reverse")}),
        (["--affinity", "rbf", "--k", "2"], {"affinity": lametta.rbf(2)}),
        (["--affinity", "rbf", "--row-sum", "5"], {"affinity": lametta.rbf(row_sum=5)}),
        (["--affinity", "linear", "--row-sum", "3"], {"affinity": lametta.linear(row_sum=3)}),
        (["--max-iter", "2", "--tol", "0"], {"max_iter": 2, "tol": 0}),
        (["--method", "lame", "--set", "k=3", "--set", "weight=0.5"], SET),
        (["--set", "affinity=rbf", "--set", "row_sum=2.5", "--set", "lame.weight=0.5"], SET_RBF),
        (["--set", "method=faiss", "--set", "k=1"], {"affinity": lametta.knn(1, method="faiss")}),
        (["--set", "affinity=python:lametta.affinity:rbf"], {"affinity": lametta.rbf()}),
    ],
)
def test_every_option_acts(bank, tmp_path, arguments, options):
    out = tmp_path / "out.npz"
    result = run("correct", tmp_path / "in.npz", "-o", out, "--batch-size", 40, *arguments)
    assert result.exit_code == 0, result.output
    with np.load(out) as archive:
        assert np.allclose(archive["probs"], expected(bank, 40, **options), atol=1e-6)
        assert not np.allclose(archive["probs"], expected(bank, 40), atol=1e-6)


def test_safetensors_and_probs(bank, tmp_path):
    arrays = {"features": bank["features"], "probs": softmax(bank["logits"])}
    save_file(arrays, tmp_path / "in.safetensors")
    result = run("correct", tmp_path / "in.safetensors", "-o", tmp_path / "out.safetensors")
    assert result.exit_code == 0, result.output
    assert "accuracy" not in result.output
    out = load_file(tmp_path / "out.safetensors")
    assert np.allclose(out["probs"], expected(bank, 64), atol=1e-6)


@pytest.mark.parametrize("groups", [np.arange(200) // 70, np.array(list("ba" * 100))])
def test_batches_never_cross_a_group(bank, tmp_path, groups):
    np.savez(tmp_path / "in.npz", **bank, groups=groups)
    result = run("correct", tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    assert result.exit_code == 0, result.output
    with np.load(tmp_path / "out.npz") as archive:
        out, kept = archive["probs"], archive["groups"]
    assert np.array_equal(kept, groups)
    for group in np.unique(groups):
        mask = groups == group
        alone = expected({name: bank[name][mask] for name in ("features", "logits")}, 64)
        assert np.allclose(out[mask], alone, atol=1e-6)


def test_batches_of_groups():
    groups = np.array([7, 7, 3, 7, 3, 3, 7])
    batches = [batch.tolist() for stream in _streams(7, groups) for batch in _batches(stream, 3)]
    assert batches == [[0, 1, 3], [6], [2, 4, 5]]
    assert [batch.tolist() for batch in _batches(*_streams(3, None), 2)] == [[0, 1], [2]]


def test_half_precision_file(bank, tmp_path):
    arrays = {name: bank[name].astype(np.float16) for name in ("features", "logits")}
    np.savez(tmp_path / "half.npz", **arrays)
    result = run("correct", tmp_path / "half.npz", "-o", tmp_path / "out.npz")
    assert result.exit_code == 0, result.output
    with np.load(tmp_path / "out.npz") as out:
        assert out["probs"].dtype == np.float32
        assert np.abs(out["probs"] - expected(bank, 64)).max() < 0.05


def test_empty_file(tmp_path):
    np.savez(tmp_path / "in.npz", features=np.zeros((0, 4)), probs=np.zeros((0, 3)))
    result = run("correct", tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    assert result.exit_code == 0, result.output
    with np.load(tmp_path / "out.npz") as out:
        assert out["probs"].shape == (0, 3)


def test_real_bank(tmp_path):
    bank = shared("data", "banks", "cifar10_resnet20_clean.npz")
    result = run("correct", bank, "-o", tmp_path / "out.npz")
    assert "accuracy before      81.04%" in result.output
    assert "accuracy after       89.82%" in result.output


FEATURES, PROBS = make_batch(10, 3)


@pytest.mark.parametrize(
    ("arrays", "arguments", "message"),
    [
        ({"features": FEATURES}, [], "must hold features, and logits or probs, got features"),
        ({}, [], "must hold features, and logits or probs, got nothing"),
        (
            {"features": FEATURES, "probs": PROBS[:9]},
            [],
            "probs must have shape [N, K] with N = 10",
        ),
        ({"features": FEATURES[0], "probs": PROBS}, [], "features must have shape [N, d]"),
        (
            {"features": FEATURES, "probs": 2 * PROBS},
            [],
            "probs must have rows that sum to 1, got 2",
        ),
        ({"features": FEATURES, "logits": PROBS * np.nan}, [], "logits must be finite"),
        ({"features": FEATURES * np.inf, "probs": PROBS}, [], "features must be finite"),
        ({"features": FEATURES.astype(int), "probs": PROBS}, [], "features must be of a floating"),
        (
            {"features": FEATURES, "probs": PROBS, "labels": np.full(10, 3)},
            [],
            "labels must lie in 0..2, got 3..3",
        ),
        (
            {"features": FEATURES, "probs": PROBS, "labels": np.zeros(10)},
            [],
            "labels must be integers, got float64",
        ),
        (
            {"features": FEATURES, "probs": PROBS, "groups": np.zeros(3)},
            [],
            "groups must have shape [N] with N = 10, got (3,)",
        ),
        (
            {"features": FEATURES, "probs": PROBS, "groups": np.array([{}] * 10)},
            [],
            "as a .npz file: ",
        ),
        ({"features": FEATURES, "probs": PROBS}, ["--k", "0"], "k must be an integer >= 1, got 0"),
        (
            {"features": FEATURES, "probs": PROBS},
            ["--batch-size", "-1"],
            "--batch-size must be >= 0",
        ),
        ({"features": FEATURES, "probs": PROBS}, ["--row-sum", "3"], "--row-sum is no option of"),
        (
            {"features": FEATURES, "probs": PROBS},
            ["--affinity", "linear", "--k", "3"],
            "--k is no option of lame, which has affinity, weight, max_iter, tol, row_sum",
        ),
        ({"features": FEATURES, "probs": PROBS}, ["--weight", "-1"], "weight must be a finite"),
        (
            {"features": FEATURES, "probs": PROBS},
            ["--set", "k"],
            "--set must be NAME=VALUE, got 'k'",
        ),
        ({"features": FEATURES, "probs": PROBS}, ["--set", "k=a"], "--set k must be an integer"),
        (
            {"features": FEATURES, "probs": PROBS},
            ["--method", "tent"],
            "method must see outputs alone, got 'tent', which needs a model",
        ),
        (
            {"features": FEATURES, "probs": PROBS},
            ["--method", "lema"],
            "--method must be one of 'source', 'lame', 'tent'",
        ),
        (
            {"features": FEATURES, "probs": PROBS},
            ["--method", "python:no.such:Thing"],
            "must name something that can be imported, got 'python:no.such:Thing'",
        ),
    ],
)
def test_errors_name_what_is_wrong(tmp_path, arrays, arguments, message):
    np.savez(tmp_path / "in.npz", **arrays)
    result = run("correct", tmp_path / "in.npz", "-o", tmp_path / "out.npz", *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert not (tmp_path / "out.npz").exists()


def test_errors_in_paths(bank, tmp_path):
    good, out = tmp_path / "in.npz", tmp_path / "out.npz"
    (tmp_path / "text.npz").write_text("no zip")
    for source, target, message in [
        (tmp_path / "absent.npz", out, "no such file: "),
        (tmp_path / "in.csv", out, "IN must end in .npz or .safetensors"),
        (tmp_path / "text.npz", out, "text.npz' as a .npz file: "),
        (good, tmp_path / "out.txt", "--output must end in .npz, .safetensors, .csv or .parquet"),
        (good, good, "--output must not be IN itself"),
        (good, tmp_path / "absent" / "out.npz", "no such folder: "),
    ]:
        result = run("correct", source, "-o", target)
        assert result.exit_code == 2
        assert message in " ".join(result.stderr.split())
    assert np.load(good)["features"].shape == (200, 4)


def test_list():
    result = run("list")
    assert result.exit_code == 0
    for name in ("lame", "source", "knn", "rbf", "linear", "mean, sum, max", "NumPy"):
        assert name in result.output
    listed = " ".join(run("list", "methods").output.split())
    assert "passes 2 + 1" in listed


def test_version():
    assert run("--version").output.strip() == f"lametta {lametta.__version__}"


@pytest.mark.slow
def test_command_in_a_terminal(bank, tmp_path):
    done = processes.run("-m", "lametta", "correct", "in.npz", "-o", "out.npz", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "wrote out.npz" in done.stdout


def test_without_the_extra_the_command_says_what_to_install(tmp_path):
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError(name='typer')")
    done = subprocess.run(
        [sys.executable, "-m", "lametta", "list"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    wanted = "lametta: the command needs 'typer': pip install '.[cli]' in a clone of lametta"
    assert done.stderr.strip() == wanted


@pytest.mark.slow
def test_list_shows_models_data_sets_and_scenarios(tmp_path, monkeypatch):
    monkeypatch.delenv("LAMETTA_DATA", raising=False)
    assert "paper:resnet50_msra" in run("list", "models").stdout
    scenarios = run("list", "scenarios").stdout
    assert "dirichlet" in scenarios
    assert "gamma=0.1" in scenarios
    assert re.search(r"runtime +Time and memory", run("list", "figures").stdout)
    assert re.search(r"norms +normalization layers", run("list", "layers").stdout)
    assert "no data root" in run("list", "datasets").stdout
    (tmp_path / "ilsvrc12" / "val" / "n01440764").mkdir(parents=True)
    shown = run("list", "datasets", "--data", tmp_path).stdout
    assert re.search(r"imagenet_val +yes", shown)
    assert re.search(r"imagenet_v2 +no", shown)
    assert re.search(r"embedded:digits_val +always", shown)
    assert f"looked below {tmp_path}" in shown
    assert run("list", "nothing").exit_code == 2
    assert run("list", "models", "--data", tmp_path).exit_code == 2


@pytest.mark.slow
def test_list_shows_what_packages_add(plug_in):
    for kind in ("methods", "affinities", "models", "datasets", "scenarios", "figures", "layers"):
        groups = {"models": "networks", "scenarios": "orders"}
        plug_in(f"lametta.{groups.get(kind, kind)}", acme="no_such_package:Thing")
        result = run("list", kind)
        assert result.exit_code == 0, result.output
        assert re.search(r"^(order +)?acme ", result.stdout, flags=re.MULTILINE), kind
        imported = kind in ("models", "figures")  # these are described without their code
        assert ("No module named" in " ".join(result.stdout.split())) == (not imported)


def test_list_shows_a_method_whose_traits_cannot_be_known(plug_in):
    plug_in("lametta.methods", acme="tests.test_methods:Demanding")
    result = run("list", "methods")
    assert result.exit_code == 0, result.output
    said = "stateful must be True or False on the class of acme"
    assert said in " ".join(result.stdout.split())


@pytest.mark.slow
def test_list_counts_what_was_published(tmp_path, monkeypatch):
    monkeypatch.delenv("LAMETTA_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    folder = tmp_path / "tiny-imagenet-200/val"
    (folder / "images").mkdir(parents=True)
    (folder.parent / "wnids.txt").write_text("n01443537")
    rows = [f"val_{i}.JPEG n01443537\n" for i in range(10_000)]
    (folder / "val_annotations.txt").write_text(rows[0])
    (tmp_path / "ilsvrc12/val").mkdir(parents=True)
    (tmp_path / "ilsvrc12/val/ILSVRC2012_val_00000001.JPEG").touch()
    shown = " ".join(run("list", "datasets", "--data", tmp_path, "--count").stdout.split())
    assert "tiny_imagenet has 1 images where 10,000 were published" in shown
    assert "must hold <class>/<image>, got ILSVRC2012_val_00000001.JPEG" in shown
    assert "were published" not in run("list", "datasets", "--data", tmp_path).stdout
    (folder / "val_annotations.txt").write_text("".join(rows))
    shown = " ".join(run("list", "datasets", "--data", tmp_path, "--count").stdout.split())
    assert "10,000 samples of 1 classes, as published" in shown
    assert run("list", "datasets", "--count").exit_code == 2
    assert run("list", "models", "--count").exit_code == 2


def test_a_batch_size_of_0_is_the_whole_file(bank, tmp_path):
    assert run("correct", tmp_path / "in.npz", "-o", tmp_path / "out.npz", "--batch-size", 0)
    with np.load(tmp_path / "out.npz") as out:
        np.testing.assert_allclose(out["probs"], expected(bank, 200), atol=1e-6)
    streams = _streams(5, np.array([0, 1, 0, 1, 0]))
    assert [len(b) for stream in streams for b in _batches(stream, 0)] == [3, 2]


def test_json(bank, tmp_path):
    groups = np.repeat(["a", "b"], 100)
    np.savez(tmp_path / "in.npz", **bank, groups=groups)
    result = run("correct", tmp_path / "in.npz", "-o", tmp_path / "out.npz", "--json")
    found = json.loads(result.stdout)
    with np.load(tmp_path / "out.npz") as out:
        right = out["probs"].argmax(axis=1) == bank["labels"]
    assert found["after"] == right.mean()
    assert [one["after"] for one in found["groups"]] == [right[:100].mean(), right[100:].mean()]
    assert found["batches"] == 4
