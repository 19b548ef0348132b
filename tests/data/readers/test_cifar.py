"""CIFAR's files: the binary version, the arrays of CIFAR-C, and what is wrong with them."""

import numpy as np
import pytest

from lametta import LamettaError
from lametta.data import load
from lametta.data.catalog import count_mismatch
from lametta.data.corruption import STANDARD
from tests.conftest import shared


@pytest.fixture
def images():
    return np.random.default_rng(0).integers(0, 256, (10, 32, 32, 3), np.uint8)


def write_binary(file, images, *labels):
    """As the published program describes it: labels, then 1024 bytes of each color."""
    file.parent.mkdir(parents=True)
    with file.open("wb") as out:
        for i, image in enumerate(images):
            out.write(bytes([one[i] for one in labels]))
            for color in range(3):
                out.write(image[..., color].tobytes())


def write_c(folder, images, labels, names=("fog", "snow")):
    folder.mkdir(parents=True)
    np.save(folder / "labels.npy", np.asarray(labels, np.uint8))
    for i, name in enumerate(names):
        np.save(folder / f"{name}.npy", images + np.uint8(i))


def test_cifar10_binary(tmp_path, images):
    write_binary(tmp_path / "cifar-10-batches-bin/test_batch.bin", images, range(10))
    data = load("cifar10_test", tmp_path)
    assert data.labels.tolist() == list(range(10))
    assert (data.classes[0], data.classes[9]) == ("airplane", "truck")
    for found, wanted in zip(data.samples, images, strict=True):
        assert np.array_equal(found, wanted)
    assert data.keys[3] == "00003"
    assert count_mismatch("cifar10_test", data).endswith("10 images where 10,000 were published")


def test_cifar10_arrays(tmp_path, images):
    (tmp_path / "cifar10").mkdir()
    np.savez(tmp_path / "cifar10/cifar10_test.npz", images=images, labels=np.arange(10))
    data = load("cifar10_test", tmp_path)
    assert np.array_equal(data.samples[7], images[7])
    np.savez(tmp_path / "cifar10/cifar10_test.npz", images=images[:4], labels=np.arange(10))
    with pytest.raises(LamettaError, match=r"must hold uint8 \[10, 32, 32, 3\].*got uint8 \[4,"):
        load("cifar10_test", tmp_path)
    np.savez(tmp_path / "cifar10/cifar10_test.npz", images=images)
    with pytest.raises(LamettaError, match="must hold images and labels"):
        load("cifar10_test", tmp_path)


def test_cifar100_has_fine_labels(tmp_path, images):
    file = tmp_path / "cifar-100-binary/test.bin"
    write_binary(file, images, [7] * 10, range(10))
    file.with_name("fine_label_names.txt").write_text("\n".join("abcdefghij"))
    data = load("cifar100_test", tmp_path)
    assert data.labels.tolist() == list(range(10))
    assert data.classes == tuple("abcdefghij")
    assert np.array_equal(data.samples[2], images[2])


def test_binary_of_another_length(tmp_path, images):
    file = tmp_path / "cifar-10-batches-bin/test_batch.bin"
    write_binary(file, images, range(10))
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(LamettaError, match="must hold rows of 3073 bytes, got 30725 bytes"):
        load("cifar10_test", tmp_path)


def test_cifar_c(tmp_path, images):
    """Rows of severity s are the s-th fifth of an array."""
    write_c(tmp_path / "CIFAR-10-C", images, [4, 2] * 5)
    data = load("cifar10_c", tmp_path, severities=[2, 5], corruptions=["snow", "fog"])
    assert data.keys[:4] == ("snow/2/00000", "snow/2/00001", "snow/5/00000", "snow/5/00001")
    names = ("snow/2", "snow/5", "fog/2", "fog/5")
    assert data.groups.tolist() == [name for name in names for _ in range(2)]
    assert data.labels.tolist() == [4, 2] * 4
    rows = [2, 3, 8, 9]
    wanted = np.concatenate([images[rows] + np.uint8(1), images[rows]])
    assert all(np.array_equal(x, y) for x, y in zip(data.samples, wanted, strict=True))
    assert np.array_equal(data.take([6, 0])[0].x, images[8])
    assert len(data.samples.file_versions()) == 8
    worst = load("cifar10_c", tmp_path, corruptions=["fog"])
    assert worst.groups.tolist() == ["fog", "fog"]


def test_cifar100_c_has_numbers_for_names(tmp_path, images):
    write_c(tmp_path / "CIFAR-100-C", images, [99, 0] * 5)
    data = load("cifar100_c", tmp_path, corruptions=["fog"])
    assert (len(data.classes), data.classes[99]) == (100, "99")
    assert data.labels.tolist() == [99, 0]


def test_wrong_arrays(tmp_path, images):
    write_c(tmp_path / "CIFAR-10-C", images, range(5))
    with pytest.raises(LamettaError, match=r"must hold uint8 \[5, 32, 32, 3\], one image a label"):
        load("cifar10_c", tmp_path, corruptions=["fog"])
    with pytest.raises(LamettaError, match=f"there is no .*{STANDARD[0]}.npy"):
        load("cifar10_c", tmp_path)
    with pytest.raises(LamettaError, match="severities must be one of"):
        load("cifar10_c", tmp_path, severities=6, corruptions=["fog"])
    with pytest.raises(LamettaError, match="corruptions must be one of"):
        load("cifar10_c", tmp_path, corruptions=["rain"])
    with pytest.raises(LamettaError, match="must not be empty"):
        load("cifar10_c", tmp_path, corruptions=[])


def test_nothing_is_unpickled(tmp_path, images):
    write_c(tmp_path / "CIFAR-10-C", images, [4, 2] * 5)
    np.save(tmp_path / "CIFAR-10-C/fog.npy", np.array([print]), allow_pickle=True)
    with pytest.raises(LamettaError, match=r"fog.npy must be an array that NumPy wrote"):
        load("cifar10_c", tmp_path, corruptions=["fog"])


def test_the_real_one():
    data = load("cifar10_test", shared("data", "cifar10", "cifar10_test.npz").parents[1])
    assert data.differs == ""
    assert np.bincount(data.labels).tolist() == [1000] * 10


def test_renditions(tmp_path):
    for folder, synsets in (
        ("imagenet-r", ["n01443537", "n02099601"]),
        ("imagenet-a", ["n02099601"]),
        ("sketch", ["n01440764"]),
    ):
        for synset in synsets:
            (tmp_path / folder / synset).mkdir(parents=True)
            (tmp_path / folder / synset / "art_1.jpg").touch()
    data = load("imagenet_r", tmp_path)
    assert data.classes == ("n01443537", "n02099601")
    assert data.class_map.groups == ((1,), (207,))  # goldfish, golden retriever
    assert data.labels.tolist() == [0, 1]
    assert "2 classes where 200 were published" in data.differs
    assert load("imagenet_a", tmp_path).class_map.groups == ((207,),)
    assert load("imagenet_sketch", tmp_path).class_map.groups == ((0,),)
