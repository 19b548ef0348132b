"""Frames of video files: which, in which order, and from any place."""

import pickle

import numpy as np
import pytest

from lametta import LamettaError
from lametta.data import load_batches
from lametta.data.dataset import UnreadableImageError
from lametta.data.readers.folders import open_path
from lametta.data.readers.videos import video_frames

av = pytest.importorskip("av", reason="PyAV is not installed")


def film(path, n, fps=10, codec="mpeg4"):
    """A video whose frame number i has the gray level 10 i."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as video:
        stream = video.add_stream(codec, rate=fps, options={"g": "5", "bf": "2", "qmax": "2"})
        stream.bit_rate = 10_000_000
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for i in range(n):
            pixels = np.full((48, 64, 3), 10 * i, np.uint8)
            video.mux(stream.encode(av.VideoFrame.from_ndarray(pixels)))
        video.mux(stream.encode())
    return path


def level(image):
    return round(float(np.asarray(image).mean()) / 10)


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.mov", "a.avi"])
def test_frames_come_in_order_and_from_anywhere(tmp_path, name):
    film(tmp_path / name, 20)
    frames = video_frames(tmp_path, [name])
    assert len(frames) == 20
    assert frames[0].size == (64, 48)
    for order in (range(20), range(19, -1, -1), np.random.default_rng(0).permutation(20)):
        assert [level(frames[i]) for i in order] == list(order)
    assert frames.keys[:2] == (f"{name}/000000", f"{name}/000001")


@pytest.mark.parametrize(
    ("fps", "expected"),
    [
        (10, range(20)),
        (100, range(20)),
        (5, range(0, 20, 2)),
        (1, (0, 10)),
        (3, (0, 4, 7, 10, 14, 17)),
    ],
)
def test_some_frames_a_second(tmp_path, fps, expected):
    film(tmp_path / "a.mp4", 20, fps=10)
    frames = video_frames(tmp_path, ["a.mp4"], fps)
    assert frames.numbers.tolist() == list(expected)
    assert [level(frames[i]) for i in range(len(frames))] == list(expected)


@pytest.mark.slow
def test_workers_read_the_same(tmp_path):
    for name in ("a", "b"):
        film(tmp_path / f"{name}.mp4", 12)
    data = open_path(tmp_path)
    assert sorted(set(data.groups)) == ["a.mp4", "b.mp4"]
    index = [range(i, i + 4) for i in range(0, 24, 4)]
    batches = load_batches(data, index, np.asarray, workers=2)
    levels = [round(float(row.float().mean()) / 10) for batch in batches for row in batch.x]
    assert levels == [*range(12), *range(12)]
    assert len(pickle.dumps(data.samples)) < 5000


def test_a_changed_video_is_seen(tmp_path):
    film(tmp_path / "a.mp4", 4)
    frames = video_frames(tmp_path, ["a.mp4"])
    before, first = frames.file_versions(), level(frames[3])
    film(tmp_path / "a.mp4", 9)
    assert first == 3
    assert all(a != b for a, b in zip(before, frames.file_versions(), strict=True))
    assert level(frames[3]) == 3


def test_broken_videos_are_named(tmp_path):
    (tmp_path / "a.mp4").write_bytes(b"no video")
    with pytest.raises(LamettaError, match=r"cannot read '.*a\.mp4' as a video"):
        video_frames(tmp_path, ["a.mp4"])
    content = film(tmp_path / "b.mkv", 25).read_bytes()
    (tmp_path / "b.mkv").write_bytes(content[: len(content) // 2])
    frames = video_frames(tmp_path, ["b.mkv"])
    (tmp_path / "b.mkv").write_bytes(content[: len(content) // 3])
    with pytest.raises(UnreadableImageError, match=r"cannot read frame \d+ of .*b"):
        frames[len(frames) - 1]


def test_images_and_videos_are_not_mixed(tmp_path):
    film(tmp_path / "a.mp4", 2)
    (tmp_path / "1.jpg").touch()
    with pytest.raises(LamettaError, match="must hold images or videos, got 1.jpg and a.mp4"):
        open_path(tmp_path)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(LamettaError, match="a folder, a .zip file, an image or a video, got .*txt"):
        open_path(tmp_path / "notes.txt")
    (tmp_path / "empty").mkdir()
    with pytest.raises(LamettaError, match="no images or videos in .*empty"):
        open_path(tmp_path / "empty")
    with pytest.raises(LamettaError, match="no such file or folder: '.*none'"):
        open_path(tmp_path / "none")
