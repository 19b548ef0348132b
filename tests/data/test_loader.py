"""The loader: the order of a stream, whoever reads it, and files that cannot be read."""

import sys
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from lametta import LamettaError
from lametta.data.dataset import arrays
from lametta.data.loader import Batch, load_batches
from lametta.data.readers.folders import image_folder, video_folder
from lametta.preprocess import Preprocess

TRANSFORM = Preprocess(resize=32, crop=28)


@pytest.fixture
def videos(tmp_path):
    """Ten frames of noise, in two videos."""
    rng = np.random.default_rng(0)
    for i in range(10):
        file = tmp_path / "videos" / f"v{i % 2}" / f"{i}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(256, size=(40, 50, 3), dtype=np.uint8)).save(file)
    return video_folder(tmp_path / "videos", {"v0": "cat", "v1": "dog"})


def truncate(data, i):
    file = data.samples.root / data.keys[i]
    file.write_bytes(file.read_bytes()[:-400])
    return file


def double(x):
    return 2 * x


# A single one, since each loads PyTorch anew; how several take turns depends on no start method.
SPAWN = pytest.param(1, "spawn", marks=pytest.mark.slow)


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "context"), [(0, None), (1, None), (2, "fork"), SPAWN])
def test_order_and_content(videos, workers, context):
    batches = [np.array([7, 3, 3]), np.array([0, 9]), np.array([5])]
    found = list(load_batches(videos, batches, TRANSFORM, workers=workers, context=context))
    for batch, index in zip(found, batches, strict=True):
        assert batch.index.tolist() == index.tolist()
        assert len(batch) == len(index)
        assert torch.equal(batch.x, torch.stack([TRANSFORM(videos[i].x) for i in index]))
        assert batch.y.tolist() == [videos[i].y for i in index]
        assert batch.group.tolist() == [videos[i].group for i in index]
        assert batch.failed == ()


@given(st.lists(st.lists(st.integers(0, 9), max_size=5), max_size=5), st.booleans())
def test_any_stream(batches, grouped):
    data = arrays(
        np.arange(20.0).reshape(10, 2), np.arange(10), list("ab" * 5) if grouped else None
    )
    found = list(load_batches(data, iter(batches), double, workers=0))
    assert [batch.y.tolist() for batch in found] == batches
    for batch, index in zip(found, batches, strict=True):
        assert batch.x.tolist() == (2 * data.samples[index]).tolist() if index else len(batch) == 0
        assert (batch.group is not None) == grouped


@pytest.mark.slow
def test_archives_are_read_by_many(videos, tmp_path):
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for key in videos.keys:
            archive.write(videos.samples.root / key, key)
    data = image_folder(tmp_path / "all.zip")
    assert data[0].x.size == (50, 40)  # open here already, before the workers start
    batches = np.arange(40).reshape(20, 2) % 10
    for batch in load_batches(data, batches, np.array, workers=2):
        for i, pixels in zip(batch.index, batch.x.numpy(), strict=True):
            assert np.array_equal(pixels, videos[i].x)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_unreadable_images_are_named(videos, workers):
    file = truncate(videos, 4)
    batches = load_batches(videos, [[0, 1], [2, 4], [5]], TRANSFORM, workers=workers)
    assert next(batches).index.tolist() == [0, 1]
    with pytest.raises(LamettaError, match=rf"^cannot read image {file}: .*is truncated"):
        next(batches)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_unreadable_images_are_counted(videos, workers):
    files = [truncate(videos, i) for i in (4, 6)]
    (videos.samples.root / videos.keys[8]).unlink()
    stream = [[3, 4, 5], [6, 8], [9]]
    first, lost, last = load_batches(videos, stream, TRANSFORM, workers=workers, on_error="report")
    assert first.index.tolist() == [3, 5]
    assert first.y.tolist() == [videos[i].y for i in (3, 5)]
    assert first.group.tolist() == [videos[i].group for i in (3, 5)]
    assert first.x.shape == (2, 3, 28, 28)
    ((key, reason),) = first.failed
    assert key == videos.keys[4]
    assert str(files[0]) in reason
    assert (len(lost), lost.x.shape, len(lost.y), len(lost.group)) == (0, (0,), 0, 0)
    assert [failure.key for failure in lost.failed] == [videos.keys[6], videos.keys[8]]
    assert "No such file" in lost.failed[1].reason
    assert (len(last), last.failed) == (1, ())


def test_a_fault_of_the_transform_is_no_unreadable_image(videos):
    def faulty(image):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        next(load_batches(videos, [[0]], faulty, workers=0, on_error="report"))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_inputs_of_several_shapes(videos, workers):
    message = r"^transform must give arrays of one shape, got JpegIm.*: a network without prepro"
    with pytest.raises(LamettaError, match=message):
        next(load_batches(videos, [[0]] * 2, None, workers=workers))
    ragged = arrays([np.zeros(2), np.zeros(3)], [0, 1])
    with pytest.raises(LamettaError, match=r"^transform .*, got ndarray \[2\], ndarray \[3\]$"):
        next(load_batches(ragged, [[0, 1]] * 2, workers=workers))


def test_random_states_stay(videos):
    state = torch.get_rng_state()
    list(load_batches(videos, [[0]] * 2, TRANSFORM, workers=1))
    list(load_batches(videos, [[0]], TRANSFORM, workers=0))
    assert torch.equal(state, torch.get_rng_state())


def test_a_single_batch_is_read_here(videos):
    """Since nothing could be done while another process reads it."""
    seen = []
    (batch,) = load_batches(videos, [[4, 2]], lambda x: seen.append(x) or TRANSFORM(x), workers=2)
    assert (len(seen), batch.index.tolist()) == (2, [4, 2])


def test_read_only_arrays():
    x = np.eye(3)
    x.flags.writeable = False
    (batch,) = load_batches(arrays(x, [0, 1, 2]), [[2, 0]], workers=0)
    assert batch.x.tolist() == [[0, 0, 1], [1, 0, 0]]
    assert isinstance(batch, Batch)


@pytest.mark.slow
def test_reading_may_stop_early(videos):
    for batch in load_batches(videos, [[i] for i in range(10)], TRANSFORM, workers=2, prefetch=1):
        if batch.index[0] == 1:
            break
    assert batch.index.tolist() == [1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": -1}, "workers must be an integer >= 0, got -1"),
        ({"prefetch": 0}, "prefetch must be an integer >= 1, got 0"),
        ({"on_error": "ignore"}, "on_error must be one of 'raise', 'report', got 'ignore'"),
        ({"context": "thread"}, "context must be one of .*'spawn'.*, got 'thread'"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(LamettaError, match=message):  # at once, not at the first batch
        load_batches(arrays(np.eye(2), [0, 1]), [[0]], **options)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([0, 2], r"index_batches must lie in 0\.\.1, got 0\.\.2"),
        ([-1], r"index_batches must lie in 0\.\.1, got -1\.\.-1"),
        ([0.5], r"index_batches must be integers \[N\], got float64 of shape \(1,\)"),
        (1, r"index_batches must be integers \[N\], got int64 of shape \(\)"),
    ],
)
def test_bad_positions(batch, message):
    with pytest.raises(LamettaError, match=message):
        next(load_batches(arrays(np.eye(2), [0, 1]), [batch], workers=0))


def test_without_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(LamettaError, match="load_batches needs torch: pip install torch"):
        load_batches(arrays(np.eye(2), [0, 1]), [[0]])
