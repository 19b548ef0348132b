"""Camera traps: correct the classifications in a file of results of MegaDetector's tools."""

import copy
import json
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from lametta._checks import check_choice, check_flag, check_integer, check_number, is_number
from lametta._files import PathLike, renamed
from lametta.classmap import ClassMap
from lametta.integrations._json_spans import Span, Spans, between, replaced
from lametta.integrations._megadetector import (
    CATEGORIES,
    LISTED,
    TEXTS,
    Place,
    images_of,
    listed_in,
    read_text,
)
from lametta.integrations._sequences import BY, is_timed, sequences
from lametta.integrations._spread import spread
from lametta.types import Corrector, LamettaError

__all__ = ["Corrected", "Results", "correct"]

SOURCE = "source_classifications"
_DIGITS = 4  # of a probability that is written
_SAME = 1e-6  # a row that moved by less stays as it was written
_Rows = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Corrected:
    """What `correct` gives.

    Attributes
    ----------
    document : dict
        The results with corrected classifications; unchanged parts are shared with those given.
    detections, streams : int
        How many detections have classifications, and how many streams they form.
    changed : int
        How many detections have another first class than before.

    Examples
    --------
    >>> Corrected({"images": []}, detections=0, streams=0, changed=0).changed
    0
    """

    document: dict[str, Any]
    detections: int
    streams: int
    changed: int


def correct(
    document: Mapping[str, Any],
    corrector: Corrector,
    *,
    by: str = "sequence",
    gap: float = 60.0,
    passes: int | None = None,
    batch_size: int = 64,
    class_map: ClassMap | None = None,
    keep_source: bool = True,
    progress: Callable[[int], object] | None = None,
) -> Corrected:
    """Correct the classifications of images that belong together.

    A detection's row of probabilities has the classes that it lists; all others share the rest. The
    file has no features; the square roots of the rows take their place.

    Parameters
    ----------
    document : mapping
        Results in MegaDetector's format. Nothing in it is changed.
    corrector : Corrector
        What corrects. It starts anew for each stream, which it sees in the order of time.
    by : {"sequence", "location"}
        What a stream is. A location is that of the image, or the folder of its file. A sequence is
        the images of a location with one ``seq_id``; the frames of a video; or images of which
        each follows the one before by ``gap`` seconds or less, by their ``datetime``. Without
        times, images are in the order of the file and a folder is one sequence.
    gap : float
        The most seconds between two images of a sequence.
    passes : int, optional
        How often the corrector goes through a stream; the last time counts. With 2, as is usual
        for sequences, a corrector that remembers knows all of a stream when it answers, and is
        surer, having seen it twice; with 1, as is usual for locations, it does not look ahead.
    batch_size : int
        Detections that are corrected together; 0 for all of a stream.
    class_map : ClassMap, optional
        A map of the categories, in the order of ``classification_categories``, onto targets.
        Probabilities are pooled by it first, and the document gets the targets as categories.
    keep_source : bool
        Keep what a detection listed before under ``source_classifications``.
    progress : callable, optional
        Called after each stream with the number of its detections.

    Examples
    --------
    >>> from lametta.correctors import Track
    >>> listed = [[["0", 0.8], ["1", 0.2]], [["1", 0.6], ["0", 0.4]], [["0", 0.7], ["1", 0.3]]]
    >>> images = [
    ...     {"file": f"door/{i}.jpg", "detections": [{"category": "1", "classifications": one}]}
    ...     for i, one in enumerate(listed)
    ... ]
    >>> document = {"classification_categories": {"0": "fox", "1": "elk"}, "images": images}
    >>> found = correct(document, Track())
    >>> [image["detections"][0]["classifications"][0] for image in found.document["images"]]
    [['0', 0.7786], ['0', 0.7106], ['0', 0.7402]]
    """
    check_choice("by", by, BY)
    check_number("gap", gap, 0)
    passes = (2 if by == "sequence" else 1) if passes is None else passes
    check_integer("passes", passes, 1)
    check_integer("batch_size", batch_size, 0)
    check_flag("keep_source", keep_source)
    images = images_of(document)
    listed = dict(listed_in(document, images))
    categories = list(document.get(CATEGORIES) or {})
    column = {category: place for place, category in enumerate(categories)}
    targets, new = categories, dict(document)
    if class_map is not None:
        targets = [str(i) for i in range(len(class_map))]
        new |= _mapped(document, categories, class_map)
    streams = sequences({i: images[i] for i, _ in listed}, by, gap)
    own = copy.deepcopy(corrector)
    changes, changed = dict[Place, list[object]](), 0
    for stream in streams:
        places = _in_order(stream, images, listed)
        before = _rows(column, [listed[place] for place in places])
        first = before if class_map is None else class_map.pool_probs(before)
        after = _apply(own, first, passes, batch_size or len(places))
        changed += int((first.argmax(axis=1) != after.argmax(axis=1)).sum())
        for place, old, row in zip(places, first, after, strict=True):
            if class_map is not None or abs(row - old).max() > _SAME:
                changes[place] = _list(targets, row, len(listed[place]))
        if progress is not None:
            progress(len(places))
    new["images"] = _with(images, changes, keep_source)
    return Corrected(new, len(listed), len(streams), changed)


@dataclass(frozen=True, eq=False)
class Results:
    """A file of results; what is written keeps its bytes where nothing changed.

    Attributes
    ----------
    document : dict
        What it holds.

    Examples
    --------
    >>> results = Results.read("detections.json")  # doctest: +SKIP
    >>> found = correct(results.document, Track())  # doctest: +SKIP
    >>> results.write("corrected.json", found.document)  # doctest: +SKIP
    """

    document: dict[str, Any]
    _text: str = field(repr=False)
    _spans: Spans = field(repr=False)

    @classmethod
    def read(cls, path: PathLike) -> Self:
        """Read a file."""
        return cls(*read_text(Path(path)))

    @property
    def is_timed(self) -> bool:
        """Whether all images with classifications have a sequence, a time or frames.

        If some do not, a folder would be taken for one sequence.
        """
        images = images_of(self.document)
        return all(is_timed(images[i]) for i, _ in dict(listed_in(self.document, images)))

    def write(self, path: PathLike, document: Mapping[str, Any]) -> None:
        """Write what `correct` made of the document, whole or not at all."""
        text, old, edits = self._text, self.document, []
        for where, span in self._spans.items():
            if len(where) == 1:
                key = str(where[0])
                if document[key] is not old[key]:
                    edits.append((span, f"{json.dumps(key)}: {json.dumps(document[key])}"))
            else:
                edits += _edit(text, span, old, document, where)
        with renamed(Path(path)) as temporary:
            temporary.write_bytes(replaced(text, edits).encode("utf-8"))


def _edit(
    text: str, span: Span, old: Mapping[str, Any], new: Mapping[str, Any], path: tuple[object, ...]
) -> Iterator[tuple[Span, str]]:
    _, i, _, j, _ = path
    before, after = (side["images"][i]["detections"][j] for side in (old, new))
    if after is not before:
        written = f"{text[span.name : span.start]}{json.dumps(after[LISTED])}"
        if SOURCE in after and SOURCE not in before:
            written += f'{between(text, span)}"{SOURCE}": {text[span.start : span.end]}'
        yield span, written


def _in_order(
    stream: list[int], images: list[dict[str, Any]], listed: Container[Place]
) -> list[Place]:
    """The detections of a stream; those of a video by their frames."""
    places = []
    for i in stream:
        detections = images[i]["detections"]
        own = [j for j in range(len(detections)) if (i, j) in listed]
        frames = [detections[j].get("frame_number") for j in own]
        if all(is_number(frame) for frame in frames):
            own = [own[at] for at in np.argsort(frames, kind="stable")]
        places += [(i, j) for j in own]
    return places


def _rows(column: Mapping[str, int], lists: list[dict[str, float]]) -> _Rows:
    n = len(column)
    return np.array([spread(n, [column[k] for k in one], [*one.values()]) for one in lists])


def _apply(corrector: Corrector, rows: _Rows, passes: int, size: int) -> _Rows:
    corrector.reset()
    after = rows
    alone = len(rows) == 1 or not getattr(corrector, "stateful", False)
    for _ in range(1 if alone else passes):  # alone, a second pass would teach nothing
        parts = (rows[start : start + size] for start in range(0, len(rows), size))
        after = np.concatenate([corrector.correct(np.sqrt(x), x).probs for x in parts])
    return after


def _list(targets: list[str], row: _Rows, n: int) -> list[object]:
    best = np.argsort(-row, kind="stable")[:n]
    return [[targets[k], round(float(row[k]), _DIGITS)] for k in best]


def _with(
    images: list[dict[str, Any]], changes: Mapping[Place, list[object]], keep_source: bool
) -> list[dict[str, Any]]:
    new = list(images)
    for (i, j), listed in changes.items():
        if new[i] is images[i]:
            new[i] = {**images[i], "detections": list(images[i]["detections"])}
        detection: dict[str, object] = {}
        for key, value in images[i]["detections"][j].items():
            detection[key] = listed if key == LISTED else value
            if key == LISTED and keep_source and SOURCE not in images[i]["detections"][j]:
                detection[SOURCE] = value
        new[i]["detections"][j] = detection
    return new


def _mapped(
    document: Mapping[str, object], categories: list[str], class_map: ClassMap
) -> dict[str, object]:
    """The targets as categories, each described by what its members' descriptions share."""
    if class_map.room > len(categories):
        raise LamettaError(
            f"class_map must be of the {len(categories)} categories of {CATEGORIES}, got one of "
            f"{class_map.room}"
        )
    new: dict[str, object] = {CATEGORIES: {str(i): name for i, name in enumerate(class_map.names)}}
    if isinstance(texts := document.get(TEXTS), dict):
        new[TEXTS] = {
            str(i): _shared([str(texts.get(categories[k], "")) for k in group])
            for i, group in enumerate(class_map.groups)
        }
    return new


def _shared(texts: list[str]) -> str:
    """The levels of a taxonomy, with semicolons between them, that all texts begin with."""
    levels = zip(*(text.split(";") for text in texts), strict=False)
    return ";".join(level[0] for level in takewhile(lambda level: len({*level}) == 1, levels))
