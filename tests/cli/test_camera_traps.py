"""``lametta camera-traps``."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from lametta import ClassMap
from lametta.cli import app
from lametta.correctors import Average, Smoothing
from lametta.correctors.chain import Chain
from lametta.integrations.megadetector import correct

NAMES = ["red fox", "arctic fox", "moose", "blank"]


def run(*arguments):
    return CliRunner().invoke(app, ["camera-traps", *map(str, arguments)])


def document(times=True):
    images = []
    for i, best in enumerate([0, 0, 1, 0, 2, 2]):
        listed = [[str(best), 0.6 + i / 100], [str((best + 1) % 4), 0.2]]
        detection = {"category": "1", "conf": 0.9, "classifications": listed}
        images.append({"file": f"door/{i}.jpg", "detections": [detection]})
        if times:
            images[-1]["datetime"] = f"2024:05:01 1{i // 4}:00:{i:02d}"
    categories = {str(i): name for i, name in enumerate(NAMES)}
    return {"info": {}, "classification_categories": categories, "images": images}


@pytest.fixture
def given(tmp_path):
    (tmp_path / "in.json").write_text(json.dumps(document(), indent=1))
    return tmp_path / "in.json"


def written(path):
    return json.loads(path.read_text())


def test_correct(given, tmp_path):
    result = run(given, "-o", tmp_path / "out.json")
    assert result.exit_code == 0, result.output
    assert written(tmp_path / "out.json") == correct(document()).document
    assert "streams                2" in result.output
    assert "predictions changed    16.7%" in result.output
    assert "corrected by track, each animal by itself" in result.output


def test_options(given, tmp_path):
    options = [
        "--by",
        "location",
        "--gap",
        5,
        "--confidence",
        0.5,
        "--drop-source",
        "--batch-size",
        0,
    ]
    result = run(given, "-o", tmp_path / "out.json", "--method", "average", *options)
    assert result.exit_code == 0, result.output
    expected = correct(document(), Average(), by="location", keep_source=False)
    assert written(tmp_path / "out.json") == expected.document
    result = run(given, "-o", tmp_path / "out.json", "--confidence", 0.95)
    assert written(tmp_path / "out.json") == document()  # the source, all of it
    assert "below --confidence     6, left as they are" in result.output
    result = run(given, "-o", tmp_path / "out.json", "--method", "average+smoothing")
    expected = correct(document(), Chain((Average(), Smoothing())))
    assert written(tmp_path / "out.json") == expected.document
    best = [one["detections"][0]["classifications"][0] for one in expected.document["images"]]
    assert best[0] == best[3] != best[4]  # one answer for a visit, of a chain, too


def test_files_without_times_are_corrected_with_care(tmp_path):
    (tmp_path / "in.json").write_text(json.dumps(document(times=False)))
    result = run(tmp_path / "in.json", "-o", tmp_path / "out.json")
    assert "corrected by prudent, each location by itself" in result.output


@pytest.mark.slow
def test_targets_by_name(given, tmp_path):
    result = run(given, "-o", tmp_path / "out.json", "--targets", "fox,deer,bird")
    assert result.exit_code == 0, result.output
    assert "no category is a kind of bird" in result.output
    classes = ClassMap({"fox": [0, 1], "deer": [2], "blank": [3]}, n_source=4, pooling="sum")
    expected = correct(document(), class_map=classes).document
    assert expected["classification_categories"] == {"0": "fox", "1": "deer", "2": "blank"}
    assert written(tmp_path / "out.json") == expected
    classes.save(tmp_path / "map.json")
    assert run(given, "-o", tmp_path / "same.json", "--map", tmp_path / "map.json").exit_code == 0
    assert written(tmp_path / "same.json") == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--targets", "airplane"], "--targets must cover a category of IN, got airplane"),
        (["--targets", "foks"], "--targets must be a noun or a synset of WordNet 3.0, got 'foks'"),
        (["--targets", "fox", "--map", "m.json"], "--targets must be left out with --map"),
        (["--by", "day"], "--by must be one of 'animal', 'sequence', 'location', got 'day'"),
        (["--gap", "-1"], "--gap must be a finite number >= 0, got -1.0"),
        (["--confidence", "2"], "--confidence must be a finite number >= 0 and <= 1, got 2.0"),
        (["--method", "tent"], "--method must see outputs alone, got 'tent', which needs a model"),
        (["--batch-size", "-1"], "--batch-size must be an integer >= 0, got -1"),
        (["--set", "size=3"], "--set size is no option of track, which has memory"),
    ],
)
def test_bad_options(given, tmp_path, arguments, message):
    result = run(given, "-o", tmp_path / "out.json", *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert [path.name for path in tmp_path.iterdir()] == ["in.json"]


def test_each_of_two_commands_says_which_files_it_corrects(given, tmp_path):
    result = CliRunner().invoke(app, ["correct", str(given), "-o", str(tmp_path / "out.json")])
    assert result.exit_code == 2
    message = f"IN must be a .npz or .safetensors file, got {given}: lametta camera-traps corrects"
    assert message in " ".join(result.output.split())
    np.savez(tmp_path / "in.npz", features=np.eye(2), probs=np.eye(2))
    result = run(tmp_path / "in.npz", "-o", tmp_path / "out.json")
    assert result.exit_code == 2
    message = f"IN must be a .json file, got {tmp_path / 'in.npz'}: lametta correct corrects"
    assert message in " ".join(result.output.split())


def test_the_help_of_correct_fits_a_screen():
    result = CliRunner().invoke(app, ["correct", "--help"], env={"COLUMNS": "80"})
    assert len(result.output.splitlines()) <= 30
    for option in (
        "--affinity",
        "--k",
        "--row-sum",
        "--symmetric",
        "--weight",
        "--max-iter",
        "--tol",
    ):
        assert option in result.output
    assert "--gap" not in result.output


def test_speciesnets_own_layout_is_refused_by_name(given, tmp_path):
    predictions = [{"filepath": "a.jpg", "classifications": {"classes": ["x"], "scores": [0.9]}}]
    given.write_text(json.dumps({"predictions": predictions}))
    result = run(given, "-o", tmp_path / "out.json")
    assert result.exit_code == 2
    assert f"{given}: images must be a list, got the predictions of SpeciesNet's own layout" in (
        " ".join(result.output.split())
    )


def test_errors_name_the_place(given, tmp_path):
    broken = document()
    broken["images"][3]["detections"][0]["classifications"][1][0] = "9"
    given.write_text(json.dumps(broken))
    result = run(given, "-o", tmp_path / "out.json")
    assert f"{given}: images[3].detections[0].classifications[1] must be a category of" in (
        result.output.replace("\n", "")
    )
    broken = document()
    broken["images"][1]["datetime"] = "soon"
    given.write_text(json.dumps(broken))
    result = run(given, "-o", tmp_path / "out.json")
    assert f"{given}: images[1].datetime must be a time" in result.output.replace("\n", "")
    result = run(given, "-o", tmp_path / "out.csv")
    assert "--output must end in .json, got" in result.output
