"""Which images of camera traps belong together: by location, sequence and time."""

from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import pairwise

from lametta._checks import explained

BY = ("sequence", "location")


def sequences(images: Mapping[int, Mapping[str, object]], by: str, gap: float) -> list[list[int]]:
    """Group images, which come by position, into streams of positions in the order of time.

    Examples
    --------
    >>> times = ["08:00:00", "08:00:05", "09:00:00"]
    >>> images = {
    ...     i: {"file": "a/1.jpg", "datetime": f"2024-05-01 {time}"} for i, time in enumerate(times)
    ... }
    >>> sequences(images, "sequence", 60), sequences(images, "location", 60)
    ([[0, 1], [2]], [[0, 1, 2]])
    """
    streams: dict[tuple[object, ...], list[int]] = {}
    times = {i: _time(i, image) for i, image in images.items()}
    known = {i: (times[i], image.get("frame_num")) for i, image in images.items()}
    for i, image in images.items():
        streams.setdefault(_stream(i, image, by), []).append(i)
    found = []
    for key, members in streams.items():
        ordered = _ordered(members, known)
        cut = by == "sequence" and len(key) == 1
        found += _cut(ordered, times, gap) if cut else [ordered]
    return found


def is_timed(image: Mapping[str, object]) -> bool:
    """Whether an image tells which others belong to its sequence."""
    known = image.get("seq_id") is not None or image.get("datetime") is not None
    return known or "frames_processed" in image


def _place(image: Mapping[str, object]) -> str:
    """Where an image was taken: its location, or the folder of its file."""
    folder = str(image["file"]).replace("\\", "/").rpartition("/")[0]
    return folder if image.get("location") is None else str(image["location"])


def _stream(i: int, image: Mapping[str, object], by: str) -> tuple[object, ...]:
    """What identifies a stream; one that is identified by its place alone may be cut by time."""
    place = _place(image)
    if by == "location":
        return (place,)
    if image.get("seq_id") is not None:
        return place, "sequence", str(image["seq_id"])
    return (place, "video", i) if "frames_processed" in image else (place,)


def _ordered(members: list[int], known: Mapping[int, tuple[object, object]]) -> list[int]:
    """Sort by time and frame_num, or by the one that all images have; else keep their order."""
    for parts in ((0, 1), (0,), (1,)):
        keys = {i: tuple(known[i][part] for part in parts) for i in members}
        if all(isinstance(x, int | float) for key in keys.values() for x in key):
            return sorted(members, key=keys.__getitem__)
    return members


def _cut(members: list[int], times: Mapping[int, float | None], gap: float) -> list[list[int]]:
    """Cut where more time passed than the gap; not at all if an image has no time."""
    parts = [members[:1]]
    known = all(times[i] is not None for i in members)
    for before, i in pairwise(members):
        if known and times[i] - times[before] > gap:  # type: ignore[operator]
            parts.append([])
        parts[-1].append(i)
    return parts


def _time(i: int, image: Mapping[str, object]) -> float | None:
    """Seconds since 1970, from ISO 8601 or from EXIF's form, 2024:05:01 08:00:00."""
    text = image.get("datetime")
    if text is None:
        return None
    with explained(f"images[{i}].datetime must be a time as 2024-05-01 08:00:00", text):
        date, _, clock = str(text).strip().replace("T", " ", 1).partition(" ")
        time = datetime.fromisoformat(f"{date.replace(':', '-')} {clock or '00:00:00'}")
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
