"""Data sets by name: those of the package, yours, and those of other packages."""

import shutil
import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest

from lametta import LamettaError
from lametta.data import Dataset, arrays, catalog
from lametta.data.readers.layout import Entry, Layout
from tests.data.readers.plants import (
    plant,
    plant_c,
    plant_c16,
    plant_cifar,
    plant_renditions,
    plant_tao,
    plant_tiny,
    plant_v2,
    plant_val,
    plant_vid,
)


@pytest.mark.slow
def test_catalog_reads_all(tmp_path):
    assert not any(row.found for row in catalog.locate(tmp_path))
    plants = [plant_val, plant_c, plant_c16, plant_v2, plant_vid, plant_tao, plant_tiny]
    plants += [plant_cifar, plant_renditions]
    for plant_one in plants:
        plant_one(tmp_path)
    rows = catalog.locate(tmp_path)
    assert all(row.found and row.where.is_relative_to(tmp_path) for row in rows)
    described = catalog.datasets()
    assert [row.name for row in rows] == [name for name in described if ":" not in name]
    for row in rows:
        data = catalog.load(row.name, tmp_path, **({"severities": 5} if "_c" in row.name else {}))
        assert data.name == row.name
        assert row.where.relative_to(tmp_path).parts[0] in described[row.name].needs


@pytest.mark.parametrize(
    ("plant_one", "name", "options", "words"),
    [
        (plant_val, "imagenet_val", {}, "3 images where 50,000"),
        (plant_c, "imagenet_c_test", {}, "10 images where 500,000"),
        (plant_c, "imagenet_c_test", {"severities": [1, 5]}, "20 images where 1,000,000"),
        (plant_c, "imagenet_c_test", {"corruptions": ["snow"]}, "1 images where 50,000"),
        (plant_c16, "imagenet_c16", {}, "288 images where 14,400"),
        (plant_v2, "imagenet_v2", {}, "3 images where 10,000"),
        (plant_vid, "imagenet_vid", {}, "2 videos where 555 were published, 5 frames where 176,1"),
        (plant_tao, "tao_lasot", {}, "4 frames where 6,558 were published, 3 classes where 76"),
        (plant_tiny, "tiny_imagenet", {}, "3 images where 10,000"),
    ],
)
def test_what_differs_from_what_was_published(tmp_path, plant_one, name, options, words):
    plant_one(tmp_path)
    data = catalog.load(name, tmp_path, **options)
    assert catalog.count_mismatch(name, data).startswith(f"{name} has {words}")


def test_drawn_severities_are_as_many_as_one(tmp_path):
    for severity in range(1, 6):
        plant(tmp_path, f"imagenet_c/test/snow/{severity}/n01443537/a.JPEG")
    for severities, count in (("drawn", 50_000), ([1, 2, 3, 4, 5], 250_000)):
        data = catalog.load(
            "imagenet_c_test", tmp_path, corruptions=["snow"], severities=severities
        )
        assert f"where {count:,} were published" in data.differs


def test_what_was_published_does_not_differ(tmp_path):
    _, folder, _ = plant_tiny(tmp_path)
    rows = [f"val_{i}.JPEG\tn01443537\n" for i in range(10_000)]
    (folder / "val_annotations.txt").write_text("".join(rows))
    assert catalog.count_mismatch("tiny_imagenet", catalog.load("tiny_imagenet", tmp_path)) == ""


def test_catalog_looks_for_every_corruption(tmp_path):
    plant_c(tmp_path)
    shutil.rmtree(tmp_path / "imagenet_c/test/snow")
    (row,) = (row for row in catalog.locate(tmp_path) if row.name == "imagenet_c_test")
    assert (row.found, row.where) == (False, tmp_path / "imagenet_c/test")


def test_catalog_reads_folders(tmp_path, monkeypatch):
    plant(tmp_path / "pets", "cat/1.png")
    plant(tmp_path / "clips", "swan/1.png")
    assert catalog.load("folder:pets", tmp_path, name="x").name == "x"
    assert catalog.load(f"folder:{tmp_path / 'pets'}").keys == ("cat/1.png",)
    clips = catalog.load("videos:clips", tmp_path, labels={"swan": 100})
    assert clips.labels.tolist() == [100]
    monkeypatch.setenv("LAMETTA_DATA", str(tmp_path))
    assert catalog.load("folder:pets").keys == ("cat/1.png",)
    monkeypatch.delenv("LAMETTA_DATA")
    monkeypatch.chdir(tmp_path)  # where a path is relative to, without a data root
    assert catalog.load("folder:pets").keys == ("cat/1.png",)


def test_catalog_errors(tmp_path, monkeypatch):
    monkeypatch.delenv("LAMETTA_DATA", raising=False)
    with pytest.raises(LamettaError, match="data must be a folder, given or named by LAMETTA_DATA"):
        catalog.data_root()
    monkeypatch.setenv("LAMETTA_DATA", str(tmp_path / "none"))
    with pytest.raises(LamettaError, match="no such data folder: '.*none'"):
        catalog.data_root()
    assert catalog.data_root(tmp_path) == tmp_path
    for name in ("imagenet", "folder:", "files:x"):
        with pytest.raises(LamettaError, match=f"name must be one of .*, got '{name}'"):
            catalog.load(name, tmp_path)
    with pytest.raises(LamettaError, match="imagenet_c_val must be among severities, corruptions"):
        catalog.load("imagenet_c_val", tmp_path, split="test")
    with pytest.raises(
        LamettaError, match="options of imagenet_val must be among none, got 'size'"
    ):
        catalog.load("imagenet_val", tmp_path, size=3)


@pytest.mark.slow
def test_import_is_light():
    heavy = "'torch', 'PIL', 'imagecorruptions', 'cv2', 'safetensors'"
    code = "import sys, lametta.data.catalog, lametta.data.loader, lametta.data.corruption\n"
    code += f"print([m for m in ({heavy}) if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


# Readers of others


def make(root, *, n=2, name="mine"):
    """Zeros, as many as asked for.

    And a second paragraph, which no table shows.
    """
    return arrays(np.zeros((n, 1)), [0] * n, name=f"{name} below {root.name}")


def free(n=3, **more):
    return arrays(np.zeros((n, 1)), [0] * n, name=str(more))


@pytest.fixture
def module(monkeypatch):
    module = ModuleType("user_readers")
    module.make, module.free, module.constant = make, free, 3
    module.wrong = lambda: [1, 2]
    module.entry = Entry("a shape", "shapes/", make, Layout(("shapes",)))
    monkeypatch.setitem(sys.modules, "user_readers", module)
    return module


@pytest.fixture
def plugins(module, plug_in):
    plug_in(
        "lametta.datasets",
        zeros="user_readers:make",
        shapes="user_readers:entry",
        broken="no_such_package.readers:read",
        imagenet_val="user_readers:free",  # a name that is taken
    )


def test_a_function_by_its_path(module, tmp_path):
    data = catalog.load("python:user_readers:make", tmp_path, n=4)
    assert isinstance(data, Dataset)
    assert (len(data), data.name) == (4, f"mine below {tmp_path.name}")
    assert catalog.load("python:user_readers:free", a=1).name == "{'a': 1}"
    with pytest.raises(LamettaError, match=r"no such data folder: 'nowhere'"):
        catalog.load("python:user_readers:make", "nowhere")
    with pytest.raises(LamettaError, match="user_readers:make must be among n, name, got 'size'"):
        catalog.load("python:user_readers:make", tmp_path, size=3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:read", "name must name something .*: No module named 'no_such_module'"),
        ("user_readers:absent", "name must name something that can be imported, got .*absent"),
        ("user_readers", "name must name something that can be imported, got"),
        ("not a name", "name must name something that can be imported, got 'python:not a name'"),
        ("user_readers:constant", "python:.*constant must be a function that gives a .*, got 3"),
        ("user_readers:wrong", "python:.*wrong must give a lametta.data.Dataset, got list"),
    ],
)
def test_functions_that_are_none_are_named(module, name, message):
    with pytest.raises(LamettaError, match=f"^{message}"):
        catalog.load(f"python:{name}")


def test_a_module_that_fails_is_named(tmp_path, monkeypatch):
    (tmp_path / "faulty_readers.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        LamettaError, match=r"^name must name .*faulty_readers:read.*: division by zero"
    ):
        catalog.load("python:faulty_readers:read")


def test_entry_points_are_names(plugins, tmp_path):
    assert catalog.names()[-3:] == ["broken", "shapes", "zeros"]
    assert len(catalog.load("zeros", tmp_path, n=5)) == 5
    assert catalog.load("shapes", tmp_path, name="s").name == f"s below {tmp_path.name}"
    described = catalog.datasets()
    assert described["zeros"] == ("Zeros, as many as asked for.", "")
    assert described["shapes"] == ("a shape", "shapes/")
    assert "validation images" in described["imagenet_val"].summary
    assert not any(row.found for row in catalog.locate(tmp_path) if row.name == "shapes")


def test_a_broken_plug_in_is_named(plugins):
    message = "name 'broken' must name something that can be imported, got 'no_such_package.reade"
    with pytest.raises(LamettaError, match=f"^{message}"):
        catalog.load("broken")
    assert catalog.datasets()["broken"].summary.startswith(message)


def test_plug_ins_are_imported_only_when_asked_for(plugins, monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "user_readers")
    (tmp_path / "user_readers.py").write_text("raise OSError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    catalog.load("embedded:digits_val")
    assert "zeros" in catalog.names()
    with pytest.raises(LamettaError, match="'zeros', or python:.* got 'zeroes'; did you mean"):
        catalog.load("zeroes", tmp_path)
    with pytest.raises(LamettaError, match="^name 'zeros' must .*: imported"):
        catalog.load("zeros", tmp_path)


def test_names_are_proposed():
    for wrong, meant in (("imagenet_vall", "imagenet_val"), ("embeded:digits_v2", "embedded:dig")):
        with pytest.raises(LamettaError, match=f"got '{wrong}'; did you mean '{meant}"):
            catalog.load(wrong)
