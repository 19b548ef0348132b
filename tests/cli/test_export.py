"""``lametta export``: a graph that ONNX Runtime runs, or a line that says what is wrong."""

import json
import os

import numpy as np
import onnxruntime
import pytest
from typer.testing import CliRunner

import lametta
from lametta.cli import app
from tests.conftest import make_batch
from tests.integrations.graphs import B, D, W, X, linear, value


def run(*arguments):
    return CliRunner().invoke(app, ["export", *map(str, arguments)])


def corrected(path, **inputs):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(["corrected"], inputs)[0]


@pytest.mark.parametrize(
    ("options", "affinity", "weight", "n_iter"),
    [
        ("", lametta.knn(5), 1, 20),
        ("--k 3 --iterations 7 --weight 0.5 --symmetric", lametta.knn(3, symmetric=True), 0.5, 7),
        ("--k 2 --direction reverse", lametta.knn(2, direction="reverse"), 1, 20),
        ("--affinity RBF --k 2 --row-sum 4", lametta.rbf(2, row_sum=4.0), 1, 20),
    ],
)
def test_a_graph_of_its_own(tmp_path, options, affinity, weight, n_iter):
    path = tmp_path / "lame.onnx"
    path.write_text("old")
    done = run(path, *options.split())
    assert done.exit_code == 0, done.output
    assert done.stdout == f"wrote {path}\n"
    assert os.listdir(tmp_path) == ["lame.onnx"]
    features, probs = (array.astype(np.float32) for array in make_batch(20, 4))
    result = lametta.lame(features, probs, affinity=affinity, weight=weight, max_iter=n_iter, tol=0)
    got = corrected(path, features=features, probs=probs)
    np.testing.assert_allclose(got, result.probs, rtol=0, atol=1e-5)


def test_json_says_what_the_graph_takes_and_gives(tmp_path):
    path = tmp_path / "lame.onnx"
    found = json.loads(run(path, "--json", "--iterations", 3).stdout)
    assert found == {
        "inputs": {"features": ["N", "d"], "probs": ["N", "K"]},
        "outputs": {"corrected": ["N", "K"], "label": ["N"]},
        "iterations": 3,
        "output": str(path),
    }
    joined, weights = tmp_path / "joined.onnx", [value("w", W.shape), value("b", B.shape)]
    old = linear(tmp_path / "net.onnx", x=[value("x", ["n", D]), *weights])  # as old graphs have it
    found = json.loads(run(joined, "--model", old, "--json").stdout)
    session = onnxruntime.InferenceSession(joined, providers=["CPUExecutionProvider"])
    assert found["inputs"] == {one.name: one.shape for one in session.get_inputs()}
    assert found["outputs"] == {one.name: one.shape for one in session.get_outputs()}


def test_behind_a_model(tmp_path):
    path = linear(tmp_path / "net.onnx")
    options = ("--model", path, "--features", "x", "--logits", "y", "--k", 2, "--no-probabilities")
    done = run(tmp_path / "joined.onnx", *options)
    assert done.exit_code == 0, done.output
    model = lametta.integrations.onnx.OnnxModel(path, features="x")
    core = lametta.LAME(lametta.knn(2), max_iter=20, tol=0)
    expected = lametta.Corrected(model, core).step(X).probs
    got = corrected(tmp_path / "joined.onnx", x=X)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--k 0", "--k must be an integer >= 1, got 0"),
        (
            "--affinity cosine",
            "--affinity must be one of 'knn', 'scenes', 'rbf', 'linear', or python:",
        ),
        ("--row-sum 5", "--row-sum is no option of lame"),
        ("--weight -1", "--weight must be a finite number >= 0 and <= 1e+06, got -1.0"),
        ("--iterations -1", "--iterations must be an integer >= 0, got -1"),
        ("--iterations 5000", "--iterations must be <= 1000, got 5000"),
        ("--logits z", "--logits must come with a model, got 'z'"),
        ("--probabilities", "--probabilities must come with a model, got True"),
        ("--model absent.onnx", "no such file: 'absent.onnx'"),
    ],
)
def test_what_is_wrong(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    done = run("lame.onnx", *options.split())
    assert done.exit_code == 2
    assert " ".join(done.stderr.split()).startswith(f"lametta: {message}")
    assert os.listdir(tmp_path) == []


def test_a_file_is_whole_or_as_it_was(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    path = tmp_path / "lame.onnx"
    path.write_text("old")
    monkeypatch.setattr("lametta._files.os.fsync", full)
    done = run(path)
    assert done.exit_code == 2
    assert f"could not write {path}: No space left on device" in done.stderr
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["lame.onnx"]
    done = run(tmp_path / "absent" / "lame.onnx")
    assert done.stderr.startswith("lametta: no such folder: ")


def test_what_has_to_be_installed(monkeypatch):
    monkeypatch.setattr("lametta.cli._console.find_spec", lambda name: None)
    done = run("lame.onnx", "--model", "net.onnx")
    assert done.stderr == (
        "lametta: this needs onnx, onnxruntime: pip install '.[onnx]' in a clone of lametta\n"
    )
