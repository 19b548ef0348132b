"""Frames of video files, decoded on demand (PyAV)."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lametta._checks import check_number, extra, import_optional, reading
from lametta.data.dataset import UnreadableImageError
from lametta.data.readers.images import file_version
from lametta.types import LamettaError

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".avi", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".webm")


@dataclass(frozen=True, eq=False)
class VideoFrames:
    """Frames of videos below a root, decoded when they are asked for; in order is fastest."""

    root: Path  # a folder
    paths: tuple[str, ...]  # the video of each frame
    times: NDArray[np.int64]  # when each is shown, in the unit of its video
    numbers: NDArray[np.int64]  # which frame of its video each is, from 0

    @property
    def keys(self) -> tuple[str, ...]:
        """A name for each frame: its video and its number."""
        return tuple(f"{path}/{i:06}" for path, i in zip(self.paths, self.numbers, strict=True))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int, /) -> "Image":
        """Give the frame as an image, turned as the video says."""
        path = self.root / self.paths[i]
        try:
            frame = _decoder(path, os.getpid(), file_version(path)).at(int(self.times[i]))
        except Exception as error:  # a broken file may raise anything
            raise UnreadableImageError(
                f"cannot read frame {self.numbers[i]} of {path}: {error}"
            ) from error
        image: Image = frame.to_image(threads=1)
        return image.rotate(frame.rotation, expand=True) if frame.rotation else image

    def file_versions(self) -> tuple[str, ...]:
        """The size of each video and when it was changed."""
        of_file = {path: file_version(self.root / path) for path in set(self.paths)}
        return tuple(of_file[path] for path in self.paths)


def video_frames(root: Path, paths: Sequence[str], fps: float | None = None) -> VideoFrames:
    """Find the frames of videos below a root: the first after each tick of a clock, or all."""
    if fps is not None:
        check_number("fps", fps, above=0)
    found = [_frames(root / path, fps) for path in paths]
    names = tuple(
        path for path, (times, _) in zip(paths, found, strict=True) for _ in range(len(times))
    )
    times, numbers = (np.concatenate(part) for part in zip(*found, strict=True))
    return VideoFrames(root, names, times, numbers)


def _frames(path: Path, fps: float | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The times at which the chosen frames are shown, and their numbers."""
    with reading(path, "a video"):
        with _open(path) as video:
            unit = float(video.streams.video[0].time_base)
            shown = [packet.pts for packet in video.demux(video=0) if packet.size]
        if None in shown:  # an old container, whose frames have times only once they are decoded
            with _open(path) as video:
                shown = [frame.pts for frame in video.decode(video=0)]
        times = np.unique(np.array(shown, np.int64))
    numbers = np.arange(len(times))
    if not len(times):
        raise LamettaError(f"no frames in video {path}")
    if fps is not None:
        ticks = np.floor((times - times[0]) * unit * fps + 1e-6)
        numbers = np.flatnonzero(np.diff(ticks, prepend=-1))
    return times[numbers], numbers


def _open(path: Path) -> Any:
    video = import_optional("av", extra("video"), "a video").open(str(path))
    if not video.streams.video:
        video.close()
        raise LamettaError(f"no pictures in video {path}")
    return video


class _Decoder:
    """An open video, and the frame that it is at."""

    frames: Iterator[Any]
    frame: Any

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reopen()

    def at(self, time: int) -> Any:
        """The frame that is shown at this time."""
        if self.frame is not None and self.frame.pts > time:
            self._seek(time)
        while self.frame is None or self.frame.pts < time:
            self.frame = next(self.frames, None)
            if self.frame is None:
                self._reopen()
                raise LamettaError("the video ends before it")
        if self.frame.pts != time:
            raise LamettaError("it cannot be decoded")
        return self.frame

    def _reopen(self) -> None:
        self.video = _open(self.path)
        codec = self.video.streams.video[0].codec_context
        # No threads, as for `to_image`: a fork would have none of them, and wait forever.
        codec.thread_type, codec.thread_count = "NONE", 1
        self.frames, self.frame = self.video.decode(video=0), None

    def _seek(self, time: int) -> None:
        """Go back to a frame before the time, or to the beginning where a video allows no jumps."""
        self.video.seek(time, stream=self.video.streams.video[0])
        self.frames = self.video.decode(video=0)
        self.frame = next(self.frames, None)
        if self.frame is None or self.frame.pts > time:
            self._reopen()


@lru_cache(maxsize=2)
def _decoder(path: Path, process: int, version: str) -> _Decoder:
    """Open a video once in each process: after a fork two would share one file position."""
    return _Decoder(path)
