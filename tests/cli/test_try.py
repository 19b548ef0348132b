import json
import re
import shlex

import numpy as np
import polars as pl
import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from lametta.cli import app
from lametta.cli._predictions import read
from lametta.data.bank import Bank
from tests.conftest import softmax

runner = CliRunner()
METHODS = "prudent,lame,memory,smoothing"


def run(*arguments):
    return runner.invoke(app, ["try", *map(str, arguments)])


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 20)
    features = (np.eye(3)[labels] + 0.3 * rng.normal(size=(60, 3))).astype(np.float32)
    logits = (np.eye(3)[labels] + rng.normal(size=(60, 3))).astype(np.float32)
    return {"features": features, "logits": logits, "labels": labels}


@pytest.fixture
def bank(arrays, tmp_path):
    np.savez(tmp_path / "bank.npz", **arrays)
    return tmp_path / "bank.npz"


def test_try(bank, arrays, tmp_path):
    page = tmp_path / "page.html"
    result = run(bank, "-o", page, "--methods", METHODS, "--jobs", 1)
    assert result.exit_code == 0, result.output
    right = np.mean(arrays["logits"].argmax(axis=1) == arrays["labels"])
    flat = " ".join(result.output.split())
    assert f"The network alone is right in {100 * right:.1f} %" in flat
    assert "lame, batches of 64" in result.output
    assert re.search(r"^Take ", result.output, re.MULTILINE)
    assert page.read_text().startswith("<!doctype html>")
    made = {path.name for path in tmp_path.iterdir()}
    assert made == {"bank.npz", "page.html", "page.results.safetensors"}


def test_json_goes_on_and_restarts(bank, tmp_path):
    page = tmp_path / "page.html"
    first = run(bank, "-o", page, "--methods", "lame", "--jobs", 1, "--json")
    found = json.loads(first.stdout)
    assert [one["method"] for one in found["runs"]] == ["lame"]
    assert found["samples"] == found["available"] == 60
    assert found["runs"][0].keys() >= {"estimate", "low", "high", "accuracy", "ece", "nll"}
    again = json.loads(run(bank, "-o", page, "--methods", "lame", "--jobs", 1, "--json").stdout)
    assert again == found  # with the time that it took then: nothing was run
    anew = run(bank, "-o", page, "--methods", "lame", "--jobs", 1, "--json", "--restart")
    assert json.loads(anew.stdout)["runs"][0]["ms_a_sample"] != found["runs"][0]["ms_a_sample"]


def test_labels_measure_what_was_estimated(bank, arrays, tmp_path):
    """What --label hands out, filled in, is what --labels takes; both need no label in SOURCE."""
    page, bare = tmp_path / "page.html", tmp_path / "bare.npz"
    np.savez(bare, features=arrays["features"], logits=arrays["logits"])
    options = (bare, "-o", page, "--methods", METHODS, "--jobs", 1)
    result = run(*options, "--label", 20)
    assert result.exit_code == 0, result.output
    assert "samples to label" in result.output
    assert 'download="labels.json"' in page.read_text()
    drawn = json.loads(run(*options, "--label", 20, "--json").stdout)["to_label"]
    for one in drawn["drawn"]:
        one["label"] = int(arrays["labels"][one["row"]])
    file = tmp_path / "labels.json"
    file.write_text(json.dumps(drawn))
    result = run(*options, "--labels", file)
    assert result.exit_code == 0, result.output
    assert "measured gain" in result.output
    n = len(drawn["drawn"])
    assert f"by {n} labels" in " ".join(result.output.split())
    assert {path.name for path in tmp_path.iterdir()} == {
        *("bank.npz", "bare.npz", "labels.json", "page.html", "page.results.safetensors"),
    }
    for arguments, message in (
        ([bank, "--label", 5], "--label must be left out, got 5: SOURCE has labels"),
        ([bare, "--label", 0], "--label must be an integer >= 1"),
        ([bare, "--labels", tmp_path / "none.json"], "no such file"),
    ):
        result = run(*arguments, "-o", page, "--methods", METHODS, "--jobs", 1)
        assert result.exit_code == 2, arguments
        assert message in " ".join(result.output.split())


def test_predictions_without_features(arrays, tmp_path):
    """An .npz file may hold probabilities alone, as a table may."""
    probs = softmax(arrays["logits"].astype(np.float64))
    np.savez(tmp_path / "in.npz", probs=probs, labels=arrays["labels"])
    result = run(tmp_path / "in.npz", "-o", tmp_path / "x.html", "--methods", "lame", "--jobs", 1)
    assert result.exit_code == 0, result.output
    assert "SOURCE has no features" in result.output
    assert np.allclose(read(tmp_path / "in.npz", None).features, np.sqrt(probs))
    np.savez(tmp_path / "in.npz", probs=probs, feature=arrays["features"])
    result = run(tmp_path / "in.npz", "-o", tmp_path / "x.html")
    assert "did you mean 'features'" in " ".join(result.output.split())


def camera_trap(timed=True):
    """Twelve visits of four images each; the classifier is wrong in one of each visit."""
    rng, images = np.random.default_rng(0), []
    for visit in range(12):
        animal = int(rng.integers(3))
        for shot in range(4):
            sure = 0.2 if shot == 2 else 0.55
            listed = [[str(animal), sure], [str((animal + 1) % 3), 0.75 - sure], ["3", 0.1]]
            image = {"file": f"ridge/{visit}-{shot}.jpg"}
            image |= {"datetime": f"2024-05-01 {8 + visit:02}:00:0{shot}"} if timed else {}
            detection = {"category": "1", "conf": 0.9, "bbox": [0.1, 0.1, 0.2, 0.2]}
            images.append(image | {"detections": [detection | {"classifications": listed}]})
    categories = {"0": "fox", "1": "deer", "2": "elk", "3": "blank"}
    return {"classification_categories": categories, "images": images}


def test_camera_traps(tmp_path):
    """Each animal is a stream of its own, and advice names the command that corrects the file."""
    (tmp_path / "in.json").write_text(json.dumps(camera_trap()))
    options = ("-o", tmp_path / "x.html", "--methods", METHODS + ",track,average,cofa", "--jobs", 1)
    result = run(tmp_path / "in.json", *options, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["samples"], found["look"]["streams"], found["look"]["classes"]) == (48, 12, 3)
    assert found["advice"]["method"] == "track"
    assert "lametta camera-traps" in found["advice"]["code"]
    assert "--method track --by animal" in found["advice"]["code"]
    assert "ridge/0-0.jpg" in (tmp_path / "x.html").read_text()
    (tmp_path / "in.json").write_text(json.dumps(camera_trap(timed=False)))
    found = json.loads(run(tmp_path / "in.json", *options, "--json").stdout)
    assert found["look"]["streams"] == 1
    assert found["advice"]["method"] != "track"


def test_groups_that_are_one_object(arrays, tmp_path):
    np.savez(tmp_path / "in.npz", **arrays, groups=np.repeat(np.arange(3), 20))
    options = (tmp_path / "in.npz", "-o", tmp_path / "x.html", "--jobs", 1, "--json")
    options += ("--methods", METHODS + ",track,average,cofa")
    assert json.loads(run(*options).stdout)["advice"]["method"] != "track"
    assert json.loads(run(*options, "--one-object").stdout)["advice"]["method"] == "track"


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_tables_of_predictions(arrays, tmp_path, ending):
    probs = softmax(arrays["logits"].astype(np.float64))
    names = ["ant", "bee", "cat"]
    frame = pl.DataFrame(
        {f"prob_{name}": probs[:, k] for k, name in enumerate(names)}
        | {f"feature_{i}": arrays["features"][:, i] for i in range(3)}
        | {"label": [names[k] for k in arrays["labels"]], "group": ["a"] * 30 + ["b"] * 30}
        | {"key": [f"{i}.jpg" for i in range(60)]}
    )
    file = tmp_path / f"in.{ending}"
    getattr(frame, f"write_{ending}")(file)
    given = read(file, None)
    assert np.allclose(given.probs, probs)
    assert np.allclose(given.features, arrays["features"], atol=1e-6)
    assert (given.labels == arrays["labels"]).all()
    assert given.classes == ("ant", "bee", "cat")
    assert given.groups.tolist() == ["a"] * 30 + ["b"] * 30
    result = run(file, "-o", tmp_path / "x.html", "--methods", "prudent,average", "--jobs", 1)
    assert result.exit_code == 0, result.output
    assert "2 streams, kept apart" in result.output


def test_a_table_without_features_takes_the_roots_of_probabilities(tmp_path):
    (tmp_path / "in.csv").write_text("cat,dog,note\n0.9,0.1,x\n0.25,0.75,y\n")
    given = read(tmp_path / "in.csv", None)
    assert np.allclose(given.features, np.sqrt([[0.9, 0.1], [0.25, 0.75]]))
    assert given.classes == ("cat", "dog")
    assert "note" in given.notes[0]


def test_logits_in_a_table(tmp_path):
    (tmp_path / "in.csv").write_text("logit_0,logit_1,label\n2,0,1\n0,1,0\n")
    given = read(tmp_path / "in.csv", None)
    assert np.allclose(given.probs, softmax(np.array([[2.0, 0], [0, 1]])))
    assert given.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prob_a,prob_b\n0.9,0.3\n", "must be >= 0 and sum to 1 in each row, got a sum of 1.2"),
        ("class,confidence\ncat,0.9\n", "no column of probabilities for each class"),
        ("prob_a,prob_b\n0.9,\n", "must be numbers, got an empty cell"),
        ("prob_a,prob_b,label\n0.9,0.1,c\n", "label of IN must be one of its classes, got 'c'"),
        ("prob_a,prob_b\n", "IN must have one for each sample"),
    ],
)
def test_tables_that_are_refused(tmp_path, text, message):
    (tmp_path / "in.csv").write_text(text)
    result = run(tmp_path / "in.csv", "-o", tmp_path / "x.html")
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_sources_that_are_refused(tmp_path, bank):
    (tmp_path / "md.json").write_text("{}")
    (tmp_path / "photos").mkdir()
    for arguments, message in (
        ([tmp_path / "md.json"], "images must be a list, got nothing"),
        ([tmp_path / "md.json", "--model", "embedded:digits"], "--model must be left out"),
        ([tmp_path / "photos"], "or have a --model beside it"),
        ([bank, "--model", "embedded:digits"], "--model must be left out"),
        ([bank, "--precision", "bf16"], "--precision must come with --model, got 'bf16' without"),
        ([bank, "--compile"], "--compile must come with --model"),
        ([bank, "--fps", "2"], "--fps must come with --model"),
        ([tmp_path / "md.json", "--head", "fc"], "--head must come with --model"),
        ([bank, "--budget", "soon"], "--budget must be a time such as 60s"),
        ([bank, "--methods", "prudnt"], "did you mean 'prudent'"),
        ([bank, "-o", "x.txt"], "--output must end in .html"),
        ([tmp_path / "none.npz"], "no such file"),
    ):
        options = [] if "-o" in arguments else ["-o", tmp_path / "x.html"]
        result = run(*arguments, *options)
        assert result.exit_code == 2, arguments
        assert message in " ".join(result.output.split())


@pytest.mark.slow(8)
def test_a_model_and_its_images(tmp_path, monkeypatch):
    """Pictures of the samples are in the page, and the bank of the outputs beside it."""
    page = tmp_path / "page.html"
    result = run("embedded:digits_vid", "--model", "embedded:digits", "-o", page,
                 "--methods", f"{METHODS},cofa", "--jobs", 1)  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "data:image/jpeg;base64," in page.read_text()
    assert (tmp_path / "page.bank.safetensors").exists()

    # The server that the advice names knows the classes.
    serve = re.search(r"^lametta (serve --shadow .*)  # its page", result.output, re.MULTILINE)
    served = []
    monkeypatch.setattr("lametta.serve.server.run", lambda one, *_: served.append(one))
    assert runner.invoke(app, [*shlex.split(serve[1]), "--store", "memory"]).exit_code == 0
    with TestClient(served[0], base_url="http://localhost") as client:
        names = Bank.open(tmp_path / "page.bank.safetensors").header["classes"]
        assert client.get("/status.json").json()["classes"] == names


@pytest.mark.slow(8)
def test_the_precision_of_a_model(tmp_path):
    options = ("embedded:digits_vid", "--model", "embedded:digits", "--methods", "average",
               "--jobs", 1, "-o", tmp_path / "page.html")  # fmt: skip
    result = run(*options, "--precision", "bf16")
    assert result.exit_code == 0, result.output
    assert Bank.open(tmp_path / "page.bank.safetensors").header["precision"] == "bf16"
    result = run(*options)  # which is not answered with the outputs of another precision
    assert result.exit_code == 2
    assert "precision" in result.output
    assert run(*options, "--restart").exit_code == 0
    assert "precision" not in Bank.open(tmp_path / "page.bank.safetensors").header
    assert "--precision must be one of" in run(*options, "--precision", "fp8").output
