"""What holds for every reader: it finds what a small tree holds, or says what is wrong."""

import pickle
import shutil

import numpy as np
import pytest
from PIL import Image

from lametta import LamettaError
from lametta.data.dataset import UnreadableImageError
from tests.data.readers.plants import PLANTS


@pytest.fixture(params=PLANTS.values(), ids=PLANTS)
def planted(request, tmp_path):
    return request.param(tmp_path / "data")


@pytest.mark.slow
def test_items(planted, tmp_path):
    reader, folder, rows = planted
    data = reader(tmp_path / "data")
    groups = [None] * len(data) if data.groups is None else data.groups.tolist()
    assert list(zip(data.keys, data.labels.tolist(), groups, strict=True)) == rows
    for sample, (key, label, group) in zip(data, rows, strict=True):
        with Image.open(folder / key) as wanted:
            assert np.array_equal(sample.x, wanted)
        assert (sample.y, sample.group) == (label, group)
    if data.class_map is not None:
        assert data.class_map.names == data.classes


@pytest.mark.slow
def test_the_same_wherever_it_lies(planted, tmp_path):
    reader, _, _ = planted
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    first, second = reader(str(tmp_path / "data")), reader(tmp_path / "copy")
    assert first.fingerprint == second.fingerprint
    restored = pickle.loads(pickle.dumps(second))
    assert restored.fingerprint == first.fingerprint
    assert np.array_equal(restored[0].x, first[0].x)


def test_broken_image(planted, tmp_path):
    reader, folder, rows = planted
    file = folder / rows[0][0]
    file.write_bytes(file.read_bytes()[:50])
    data = reader(tmp_path / "data")  # lazy: nobody looked into the file yet
    with pytest.raises(UnreadableImageError, match=f"cannot read image {file}: "):
        data[0]
    assert data[1].x.size == (8, 6)


def test_missing_folder(planted, tmp_path):
    reader, folder, _ = planted
    shutil.rmtree(folder)
    with pytest.raises(LamettaError) as error:
        reader(tmp_path / "data")
    assert str(folder) in str(error.value)


@pytest.mark.parametrize("name", ["val", "c", "c16", "v2", "folder", "videos"])
def test_folder_without_images(name, tmp_path):
    reader, folder, _ = PLANTS[name](tmp_path / "data")
    for file in folder.rglob("*.*"):
        if file.is_file():
            file.unlink()
    with pytest.raises(LamettaError, match=rf"no images \(.*\) in {folder}"):
        reader(tmp_path / "data")
