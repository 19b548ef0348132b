"""Banks of files that changed since, and two extractions of one bank."""

import os
import threading
import time
import zipfile

import numpy as np
import pytest

from lametta import LamettaError, Output
from lametta.data import image_folder
from lametta.data.bank import Bank, build, cache_images, extract
from lametta.data.bank.safetensors import read_layout, write_blocks
from tests.data.bank.conftest import image, make_data, run


class Counting:
    """A model that gives the mean color, and counts the images that it saw."""

    def __init__(self):
        self.seen = []

    def __call__(self, x):
        self.seen.append(len(x))
        return Output(x.mean((1, 2)), x.mean((1, 2)) * 2)


def pixels(picture):
    return np.array(picture, np.float32)


@pytest.fixture
def photos(tmp_path):
    for i in range(6):
        folder = tmp_path / "photos" / "ab"[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        image(i).save(folder / f"{i}.png")
    return tmp_path / "photos"


def again(folder, name="bank", **options):
    model = Counting()
    path = folder.parent / f"{name}.safetensors"
    options = {"batch_size": 4, "workers": 0, **options}
    bank = extract(model, image_folder(folder), pixels, path, **options)
    return bank, sum(model.seen)


def check_fresh(folder, bank):
    """A bank is just what an extraction from nothing gives."""
    fresh, _ = again(folder, "fresh", restart=True)
    for name in ("features", "logits", "labels"):
        assert np.array_equal(getattr(bank, name), getattr(fresh, name))
    assert (bank.keys, bank.header) == (fresh.keys, fresh.header)


def test_one_more_image_extracts_one_more_image(photos):
    assert again(photos)[1] == 6
    assert again(photos)[1] == 0
    image(9).save(photos / "a" / "1.png")
    bank, seen = again(photos)
    assert (len(bank), seen) == (7, 1)
    check_fresh(photos, bank)
    (photos / "c").mkdir()
    image(10).save(photos / "c" / "0.png")  # a class more
    bank, seen = again(photos)
    assert (len(bank), seen) == (8, 1)
    check_fresh(photos, bank)


def test_an_image_overwritten_in_place_is_extracted_again(photos):
    before, _ = again(photos)
    old = np.asarray(before.features)
    image(77).save(photos / "b" / "3.png")
    bank, seen = again(photos)
    assert seen == 1
    changed = np.flatnonzero((np.asarray(bank.features) != old).any(axis=1))
    assert [bank.keys[i] for i in changed] == ["b/3.png"]
    check_fresh(photos, bank)


def test_a_bank_that_is_open_while_it_changes_says_so(photos):
    bank, _ = again(photos)
    (photos / "a" / "0.png").unlink()
    again(photos)
    with pytest.raises(LamettaError, match="bank.safetensors was changed while it was read"):
        bank([0])


def test_removed_images_are_dropped(photos):
    again(photos)
    (photos / "b" / "1.png").unlink()
    bank, seen = again(photos)
    assert (len(bank), seen) == (5, 0)
    check_fresh(photos, bank)


def test_images_that_were_broken_are_tried_again_once_they_changed(photos):
    good = (photos / "a" / "2.png").read_bytes()
    (photos / "a" / "2.png").write_bytes(good[:40])
    bank, _ = again(photos, on_error="report")
    assert bank.header["failed"] == ["a/2.png"]
    assert again(photos, on_error="report")[1] == 0
    with pytest.raises(LamettaError, match="cannot read image a/2.png$"):
        again(photos)
    (photos / "a" / "2.png").write_bytes(good)
    bank, seen = again(photos)
    assert (len(bank), seen, bank.header["failed"]) == (6, 1, [])
    check_fresh(photos, bank)


def test_changes_are_seen_in_archives(tmp_path):
    def pack(seeds):
        with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
            for i, seed in enumerate(seeds):
                image(seed).save(tmp_path / "x.png")
                archive.write(tmp_path / "x.png", f"{'ab'[i % 2]}/{i}.png")

    pack(range(5))
    assert again(tmp_path / "photos.zip")[1] == 5
    pack(range(5))  # a new file of the same images
    assert again(tmp_path / "photos.zip")[1] == 0
    pack([0, 1, 9, 3, 4])
    bank, seen = again(tmp_path / "photos.zip")
    assert seen == 1
    check_fresh(tmp_path / "photos.zip", bank)


def test_a_change_between_a_stop_and_the_next_run(photos, monkeypatch):
    monkeypatch.setattr("lametta.data.bank.shards._FLUSH_SECONDS", 0)
    good = (photos / "b" / "5.png").read_bytes()
    (photos / "b" / "5.png").write_bytes(good[:40])
    with pytest.raises(LamettaError, match="cannot read image"):
        again(photos, batch_size=2)
    (photos / "b" / "5.png").write_bytes(good)
    image(78).save(photos / "b" / "1.png")  # in the second of two shards
    bank, seen = again(photos, batch_size=2)
    assert seen == 4
    fresh, _ = again(photos, "fresh", batch_size=2)
    assert np.array_equal(bank.features, fresh.features)


def test_decoded_images_follow_changes(photos, tmp_path):
    def cached():
        path = tmp_path / "images.safetensors"
        return cache_images(image_folder(photos), np.array, path, workers=0)

    cached()
    image(79).save(photos / "a" / "0.png")
    assert np.array_equal(cached()[0].x, np.array(image(79)))


def test_a_bank_of_an_earlier_version_is_taken_as_it_is(photos):
    before = np.asarray(again(photos)[0].features)
    path = photos.parent / "bank.safetensors"
    arrays, header = read_layout(path)
    kept = {name: [np.asarray(x)] for name, x in arrays.items() if name != "stamps"}
    write_blocks(path, kept, header)
    image(80).save(photos / "a" / "0.png")
    old, seen = again(photos)
    assert seen == 0
    assert np.array_equal(old.features, before)
    image(81).save(photos / "a" / "1.png")
    with pytest.raises(LamettaError, match="was made with fingerprint .*; delete it, or"):
        again(photos)


def test_another_folder_of_the_same_name_is_no_change(photos, tmp_path):
    again(photos)
    other = tmp_path / "other" / "photos"
    (other / "z").mkdir(parents=True)
    image(0).save(other / "z" / "0.png")
    with pytest.raises(LamettaError, match="was made with fingerprint .*; delete it, or"):
        extract(Counting(), image_folder(other), pixels, tmp_path / "bank.safetensors",
                batch_size=4, workers=0)  # fmt: skip


def test_rows_of_another_shape_are_refused(photos):
    again(photos)
    image(82).save(photos / "a" / "0.png")
    path = photos.parent / "bank.safetensors"
    with pytest.raises(LamettaError, match=r"features must have rows of shape \(3,\) as before"):
        extract(lambda x: Output(x.flatten(1), x.flatten(1)), image_folder(photos), pixels, path,
                batch_size=4, workers=0)  # fmt: skip


# Two at once


def test_the_second_waits_and_finds_the_file(model, tmp_path, logged):
    entered, calls = threading.Event(), []

    def slow(x):
        entered.set()
        time.sleep(0.1)
        return model(x)

    path = tmp_path / "bank.safetensors"
    first = threading.Thread(target=lambda: run(slow, make_data(), path))
    first.start()
    entered.wait()
    bank = run(lambda x: calls.append(x), make_data(), path)
    first.join()
    assert (len(bank), calls) == (11, [])
    assert f"waiting for process {os.getpid()} on " in logged.getvalue()
    assert os.listdir(tmp_path) == ["bank.safetensors"]


def test_who_holds_a_bank_is_named(model, tmp_path):
    path = tmp_path / "bank.safetensors"
    message = rf"bank.safetensors.lock is locked by process {os.getpid()} on .*; waited 0.1 s"
    lock = build.file_lock(tmp_path / "bank.safetensors.lock")
    with lock, pytest.raises(LamettaError, match=message):
        run(model, make_data(), path, wait=0.1)


def test_a_missing_folder_is_named_at_once(model, tmp_path):
    with pytest.raises(LamettaError, match="no such folder: "):
        run(model, make_data(), tmp_path / "none" / "bank.safetensors")


def test_stamps_leave_a_bank_as_it_was_for_others(photos):
    again(photos)
    arrays, header = read_layout(photos.parent / "bank.safetensors")
    assert arrays.keys() == {"features", "logits", "labels", "keys.utf8", "stamps"}
    assert (arrays["stamps"].dtype, arrays["stamps"].shape) == (np.uint64, (6,))
    assert "stamps" not in header
    assert isinstance(Bank.open(photos.parent / "bank.safetensors"), Bank)
