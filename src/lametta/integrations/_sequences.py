"""Which detections of camera traps belong together: by location, sequence, time and box."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby, pairwise
from typing import Any

from lametta._checks import is_number, raise_as
from lametta.types import LamettaError

BY = ("animal", "sequence", "location")
Place = tuple[int, int]  # of an image, and of a detection in it
Box = tuple[float, float, float, float]  # left, top, right and bottom
_FRAME = "frame_number"
_LOST = 10  # moments after which an animal that is not seen is gone


def streams_of(
    images: Sequence[Mapping[str, Any]], places: Iterable[Place], by: str, gap: float
) -> list[list[Place]]:
    """Group detections into streams in the order of time; those of a video by their frames."""
    members: dict[int, list[int]] = {}
    for i, j in places:
        members.setdefault(i, []).append(j)
    found = []
    for stream in sequences({i: images[i] for i in members}, by, gap):
        ordered = list[Place]()
        for i in stream:
            frames = {j: images[i]["detections"][j].get(_FRAME) for j in members[i]}
            if all(is_number(frame) for frame in frames.values()):
                ordered += [(i, j) for j in sorted(frames, key=frames.__getitem__)]
            else:
                ordered += [(i, j) for j in frames]
        found += _animals(images, ordered) if by == "animal" else [ordered]
    return found


def told_apart(moments: Iterable[Mapping[Place, Box | None]]) -> list[list[Place]]:
    """Follow the boxes of animals from one moment to the next.

    If no moment has more than one, it is one animal. Otherwise each box goes on with the animal
    whose last box it overlaps most. One box that overlaps no animal's is that of the one animal
    that is left over, if there are as many as the moment before; else it is another animal.

    Examples
    --------
    >>> left, right = (0.0, 0.0, 0.4, 0.4), (0.6, 0.6, 1.0, 1.0)
    >>> told_apart([{(0, 0): left, (0, 1): right}, {(1, 0): (0.5, 0.5, 0.9, 0.9)}])
    [[(0, 0)], [(0, 1), (1, 0)]]
    """
    moments = list(moments)
    if all(len(moment) <= 1 for moment in moments):
        return [[place for moment in moments for place in moment]]
    animals: list[list[Place]] = []
    last: dict[int, tuple[int, Box | None]] = {}  # when and where an animal was seen
    for now, moment in enumerate(moments):
        last = {animal: seen for animal, seen in last.items() if now - seen[0] <= _LOST}
        overlaps = [
            (_overlap(box, before), place, animal)
            for place, box in moment.items()
            for animal, (_, before) in last.items()
        ]
        found: dict[Place, int] = {}
        for overlap, place, animal in sorted(overlaps, key=lambda one: -one[0]):
            if overlap > 0 and place not in found and animal not in found.values():
                found[place] = animal
        new = [place for place in moment if place not in found]
        present = [animal for animal, (at, _) in last.items() if at == now - 1]
        gone = [animal for animal in present if animal not in found.values()]
        if len(new) == len(gone) == 1 and len(moment) == len(present):
            found[new[0]] = gone[0]
        for place, box in moment.items():
            if place not in found:
                found[place] = len(animals)
                animals.append([])
            animals[found[place]].append(place)
            last[found[place]] = now, box
    return animals


def _animals(images: Sequence[Mapping[str, Any]], places: list[Place]) -> list[list[Place]]:
    """The detections of a sequence, animal by animal; those of two categories are never one."""

    def detection(place: Place) -> dict[str, Any]:
        found: dict[str, Any] = images[place[0]]["detections"][place[1]]
        return found

    categories: dict[object, list[Place]] = {}
    for place in places:
        categories.setdefault(detection(place).get("category"), []).append(place)
    found = []
    for members in categories.values():
        moments = groupby(members, key=lambda place: (place[0], detection(place).get(_FRAME)))
        found += told_apart(
            {place: _box(detection(place), place) for place in own} for _, own in moments
        )
    return found


def _box(detection: Mapping[str, object], place: Place) -> Box | None:
    box = detection.get("bbox")
    if box is None:
        return None
    if not isinstance(box, list) or len(box) != 4 or not all(is_number(x) for x in box):
        where = "images[{}].detections[{}].bbox".format(*place)
        raise LamettaError(f"{where} must be [left, top, width, height], got {box!r:.80}")
    left, top, width, height = box
    return left, top, left + width, top + height


def _overlap(one: Box | None, other: Box | None) -> float:
    """Intersection over union of two boxes."""
    if one is None or other is None:
        return 0.0
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    if width <= 0 or height <= 0:
        return 0.0
    areas = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other))
    return width * height / (areas - width * height)


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
        cut = by != "location" and len(key) == 1
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
    with raise_as(f"images[{i}].datetime must be a time as 2024-05-01 08:00:00", text):
        date, _, clock = str(text).strip().replace("T", " ", 1).partition(" ")
        time = datetime.fromisoformat(f"{date.replace(':', '-')} {clock or '00:00:00'}")
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
