"""``lametta extract`` on what people have: flat folders, videos, names on standard input, maps."""

import json
import shutil
import sys
from types import ModuleType

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from lametta import ClassMap
from lametta.cli.extract import extract
from lametta.data.bank import Bank
from lametta.preprocess import Preprocess
from tests.conftest import shared
from tests.data.bank.conftest import Net, image
from tests.data.readers.test_videos import film

app = typer.Typer()
app.command()(extract)


@pytest.fixture(autouse=True)
def _nets(monkeypatch):
    """A network of 4 classes, and one of 8."""
    module = ModuleType("user_nets")

    def build(classes):
        torch.manual_seed(1)
        return Net(classes), Preprocess(resize=None, crop=8)

    module.four, module.eight = lambda: build(4), lambda: build(8)
    monkeypatch.setitem(sys.modules, "user_nets", module)


def plant(root, *names):
    for i, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        image(i).save(root / name)


def invoke(data, *more, net="four", output="bank.safetensors", given=None, code=0):
    arguments = ["--model", f"torch:user_nets:{net}", "--data", data, "-o", output]
    words = [str(word) for word in [*arguments, "--workers", 0, *more]]
    result = CliRunner().invoke(app, words, input=given)
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


@pytest.fixture
def bank(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda: Bank.open("bank.safetensors")


def test_a_flat_folder(tmp_path, bank):
    plant(tmp_path / "photos", "2.png", "10.png", "b.png")
    said = invoke("photos")
    assert bank().keys == ("2.png", "10.png", "b.png")
    assert (bank().labels, bank().groups, bank().header["classes"]) == (None, None, [])
    assert "labels none" in said
    assert "groups none" in said


def test_folders_of_frames_are_groups(tmp_path, bank):
    plant(tmp_path / "videos", "swan/2.png", "swan/10.png", "cow/1.png")
    said = invoke("videos")
    assert bank().groups.tolist() == ["cow", "swan", "swan"]
    assert bank().header["classes"] == ["cow", "swan"]
    assert "groups 2 (cow, swan)" in said
    assert "labels unused: cow, swan are not the 4 classes of the model; --map says" in said
    invoke("folder:videos", "--root", ".", "--restart")
    assert bank().groups is None


def test_folders_that_are_classes_are_no_groups(tmp_path, bank):
    plant(tmp_path / "photos", *(f"{name}/{i}.png" for name in "abcd" for i in range(2)))
    assert "accuracy" in invoke("photos")
    assert (bank().groups, bank().labels.tolist()) == (None, [0, 0, 1, 1, 2, 2, 3, 3])
    plant(tmp_path / "numbers", "3/1.png", "0/1.png")
    assert "accuracy" in invoke("numbers", "--restart")
    assert (bank().labels.tolist(), bank().header["classes"]) == ([0, 3], list("0123"))
    plant(tmp_path / "classes", *(f"{name}/images/{i}.png" for name in "abcd" for i in range(2)))
    invoke("classes", "--restart")
    assert bank().groups is None  # a folder of one name in each class is no video


def test_videos_in_classes_are_groups(tmp_path, bank):
    plant(tmp_path / "videos", *(f"{name}/v{i}/1.png" for name in "abcd" for i in range(2)))
    assert "accuracy" in invoke("videos")
    assert bank().groups.tolist()[:3] == ["a/v0", "a/v1", "b/v0"]
    assert bank().labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_labels_of_a_file(tmp_path, bank):
    plant(tmp_path / "videos", "swan/1.png", "cow/1.png")
    (tmp_path / "videos/labels.json").write_text(json.dumps({"swan": 2, "cow": 0}))
    assert "accuracy" in invoke("videos")
    assert (bank().labels.tolist(), bank().groups.tolist()) == ([0, 2], ["cow", "swan"])


def test_names_on_standard_input(tmp_path, bank):
    plant(tmp_path / "photos", "a/1.png", "b/1.png", "c.png")
    said = invoke("-", given="photos/b/1.png\n\nphotos/a/1.png\r\n")
    assert bank().keys == ("photos/b/1.png", "photos/a/1.png")
    assert bank().groups.tolist() == ["photos/b", "photos/a"]
    assert "labels none" in said
    assert "no such file: 'absent.png', which standard input names" in invoke(
        "-", given="absent.png\n", code=2
    )
    assert "no names of images on standard input" in invoke("-", given="\n", code=2)


def test_one_image(tmp_path, bank):
    plant(tmp_path, "cat.png")
    invoke("cat.png")
    assert bank().keys == ("cat.png",)


def test_paths_win_over_names(tmp_path, bank):
    plant(tmp_path / "imagenet_val", "1.png")
    invoke("imagenet_val")
    assert bank().keys == ("1.png",)


def test_video_files(tmp_path, bank):
    film(tmp_path / "clips/swan.mp4", 12, fps=4)
    film(tmp_path / "clips/cow.mp4", 8, fps=4)
    said = invoke("clips", "--fps", 2)
    assert bank().groups.tolist() == ["cow.mp4"] * 4 + ["swan.mp4"] * 6
    assert bank().keys[4:6] == ("swan.mp4/000000", "swan.mp4/000002")
    assert bank().labels is None
    assert "groups 2 (cow.mp4, swan.mp4)" in said
    invoke("clips/swan.mp4", "--restart")
    assert len(bank()) == 12
    assert "--fps must be a finite number > 0, got 0" in invoke("clips", "--fps", 0, code=2)


def test_videos_in_folders_of_classes(tmp_path, bank):
    for name in "abcd":
        film(tmp_path / f"clips/{name}/1.mp4", 3)
    assert "accuracy" in invoke("clips")
    assert bank().labels.tolist() == np.repeat(range(4), 3).tolist()
    assert bank().groups.tolist()[::3] == [f"{name}/1.mp4" for name in "abcd"]


def test_a_map_lines_folders_up_by_name(tmp_path, bank):
    plant(tmp_path / "pets", "cat/1.png", "cat/2.png", "dog/1.png")
    ClassMap({"dog": [0, 1], "cat": [5, 6]}, n_source=8).save(tmp_path / "map.json")
    said = invoke("pets", "--map", "map.json", net="eight")
    assert "accuracy" in said
    assert bank().labels.tolist() == [1, 1, 0]
    assert (bank().groups, bank().header["classes"]) == (None, ["dog", "cat"])
    assert bank().class_map == ClassMap.load("map.json")
    ClassMap({"cow": [0], "cat": [5]}, n_source=8).save(tmp_path / "other.json")
    said = invoke("pets", "--map", "other.json", net="eight", code=2)
    assert "--map must have the classes of the labels as targets, got cow, cat without dog" in said


def test_a_map_reduces_the_models_own_classes(tmp_path, bank):
    plant(tmp_path / "photos", *(f"{name}/{i}.png" for name in "abcd" for i in range(2)))
    ClassMap({"y": [3], "x": [0, 1]}, n_source=4).save(tmp_path / "map.json")
    said = invoke("photos", "--map", "map.json")
    assert "left out 2 of 8 images, whose classes map.json does not map" in said
    assert bank().labels.tolist() == [1, 1, 1, 1, 0, 0]


def test_a_map_without_labels(tmp_path, bank):
    plant(tmp_path / "photos", "1.png", "2.png")
    ClassMap({"y": [3], "x": [0, 1]}, n_source=4).save(tmp_path / "map.json")
    assert "labels none" in invoke("photos", "--map", "map.json")
    assert (bank().labels, bank().header["classes"]) == (None, ["y", "x"])
    assert bank().mapped(bank().class_map)([0, 1]).logits.shape == (2, 2)


def test_what_changed_is_extracted_again(tmp_path, bank):
    plant(tmp_path / "photos", *(f"{name}/{i}.png" for name in "abcd" for i in range(2)))
    assert "extracted now 8 in" in invoke("photos")
    assert "extracted now 0 in" in invoke("photos")
    image(50).save(tmp_path / "photos/a/0.png")
    assert "extracted now 1 in" in invoke("photos")
    image(51).save(tmp_path / "photos/c/7.png")
    assert "extracted now 1 in" in invoke("photos")


def test_links_that_go_round_are_named(tmp_path, bank):
    plant(tmp_path / "photos", "a/1.png")
    (tmp_path / "photos/a/back").symlink_to(tmp_path / "photos")
    assert "must not hold a link to a folder around it, got" in invoke("photos", code=2)


@pytest.mark.slow
def test_real_videos(tmp_path, bank):
    for name in ("blackswan", "cows"):
        shutil.copytree(shared("data", "video", name), tmp_path / "video" / name)
    said = invoke("video")
    assert "groups 2 (blackswan, cows)" in said
    assert "labels unused: blackswan, cows are not the 4 classes of the model" in said
