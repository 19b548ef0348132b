"""MegaDetector results: correct the classifications of camera-trap sequences."""

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby, pairwise, product, takewhile
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from lametta._arrays import from_top_k, log
from lametta._checks import (
    check_choice,
    check_flag,
    check_integer,
    check_number,
    is_number,
    raise_as,
)
from lametta._files import PathLike, atomic_write
from lametta.classmap import ClassMap
from lametta.correctors.base import checked_prediction, clone
from lametta.data.bank import Bank
from lametta.data.dataset import abbreviate
from lametta.integrations._json_spans import Span, Spans, between, parse, replaced
from lametta.methods import as_corrector
from lametta.types import Corrector, LamettaError

__all__ = ["Corrected", "CorrectionResult", "Results", "as_bank", "correct"]

IGNORED = frozenset({"animal", "blank", "empty", "mammal", "no cv result", "other", "unknown"})
"""Names of categories that say nothing of the species; megadetector-utils has most of them."""

_SOURCE = "source_classifications"
_LISTED, _CATEGORIES = "classifications", "classification_categories"
_TEXTS = "classification_category_descriptions"
_BY = ("animal", "sequence", "location")
_Index = tuple[int, int]  # of an image, and of a detection in it
_Box = tuple[float, float, float, float]  # left, top, right and bottom
_Seen = dict[int, tuple[int, _Box | None]]  # when and where each animal was last
_FRAME = "frame_number"
_LOST = 10  # moments after which an animal that is not seen is gone
_TINY = 1e-9  # what a probability of 0 counts as
_DIGITS = 4  # of a probability that is written
_SAME = 1e-6  # a row that moved by less stays as it was written
_Rows = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CorrectionResult:
    """Corrected results, and how many detections, streams and changes there were.

    Attributes
    ----------
    document : dict
        The results with corrected classifications; unchanged parts are shared with those given.
    detections, unsure, streams : int
        How many detections have classifications, how many of them are below the threshold, and how
        many streams the others form.
    changed : int
        How many detections have another first class than before.

    Examples
    --------
    >>> CorrectionResult({"images": []}, detections=0, unsure=0, streams=0, changed=0).changed
    0
    """

    document: dict[str, Any]
    detections: int
    unsure: int
    streams: int
    changed: int


Corrected = CorrectionResult
"""The name that it had before."""


def correct(
    document: Mapping[str, Any],
    corrector: str | Corrector = "track",
    *,
    by: str = "animal",
    gap: float = 60.0,
    confidence: float = 0.15,
    ignore: Collection[str] = IGNORED,
    batch_size: int = 64,
    class_map: ClassMap | None = None,
    keep_source: bool = True,
    progress: Callable[[int], object] | None = None,
) -> CorrectionResult:
    """Correct the classifications of detections that belong together.

    A detection's row of probabilities has the classes that it lists; all others share the rest. It
    counts as far as the detector is sure of the animal: to the power of its ``conf``, divided by
    the largest one of the stream. The file has no features; the square roots of the rows take their
    place.

    The detections of an animal, or of a sequence, all get what the corrector says after the last
    of them. Only a corrector that looks ahead in a batch, such as LAME, or one that is shown a
    whole location gives each detection an answer of its own.

    Parameters
    ----------
    document : mapping
        Results in MegaDetector's format. Nothing in it is changed.
    corrector : str or Corrector
        What corrects, or its name. It starts anew for each stream, which it sees in the order of
        time.
    by : {"animal", "sequence", "location"}
        What a stream is. A location is that of the image, or the folder of its file. A sequence is
        the images of a location with one ``seq_id``; the frames of a video; or images of which
        each follows the one before by ``gap`` seconds or less, by their ``datetime``. Without
        times, images are in the order of the file and a folder is one sequence. An animal is the
        detections of a sequence that have one category, if no image has two of these; else
        detections whose boxes overlap from image to image. One that is alone stays as it is.
    gap : float
        The most seconds between two images of a sequence.
    confidence : float
        Detections whose ``conf`` is below neither vote nor change. The default is the threshold of
        the smoothing of megadetector-utils.
    ignore : collection of str
        Names of categories that do not vote, in lower case. A detection of which one of these is
        the first class gets the species of its animal or sequence if at least two others voted.
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
    >>> listed = [[["0", 0.8], ["1", 0.2]], [["1", 0.6], ["0", 0.4]], [["0", 0.7], ["1", 0.3]]]
    >>> images = [
    ...     {"file": f"door/{i}.jpg", "detections": [{"category": "1", "classifications": one}]}
    ...     for i, one in enumerate(listed)
    ... ]
    >>> document = {"classification_categories": {"0": "fox", "1": "elk"}, "images": images}
    >>> found = correct(document)
    >>> [image["detections"][0]["classifications"] for image in found.document["images"]][1]
    [['0', 0.7009], ['1', 0.2991]]
    """
    check_choice("by", by, _BY)
    check_number("gap", gap, 0)
    check_number("confidence", confidence, 0, 1)
    check_integer("batch_size", batch_size, 0)
    check_flag("keep_source", keep_source)
    own = clone(as_corrector(corrector))
    given = _Detections.of(document, ignore, class_map)
    streams = given.streams(by, gap, confidence)
    n_streams, unsure = len(streams), [index for index, x in given.conf.items() if x < confidence]
    if class_map is not None:  # whose targets all detections get
        streams += [[index] for index in unsure]
    changes, changed = dict[_Index, list[object]](), 0
    for stream in streams:
        before, weights = given.rows(stream), given.weights(stream)
        after = _answers(own, before, weights, given.species, batch_size, as_one=by != "location")
        changed += int((before.argmax(axis=1) != after.argmax(axis=1)).sum())
        moved = abs(after - before).max(axis=1) > _SAME
        for place in np.flatnonzero(moved | (class_map is not None)):
            n = len(given.listed[stream[place]])
            changes[stream[place]] = _list(list(given.targets), after[place], n)
        if progress is not None:
            progress(len(stream))
    images = _with(given.images, changes, keep_source)
    new = {**document, **given.mapped, "images": images}
    return CorrectionResult(new, len(given.listed), len(unsure), n_streams, changed)


@dataclass(frozen=True, eq=False)
class _Detections:
    """The classified detections of a document, and the categories that they are to have."""

    images: list[dict[str, Any]]
    listed: dict[_Index, dict[str, float]]  # the categories of each detection
    conf: dict[_Index, float]  # how sure the detector is of it
    columns: dict[str, int]  # of the document's categories
    class_map: ClassMap | None
    mapped: dict[str, object]  # what a map makes of the document's categories
    targets: dict[str, object]  # their names by category, after the map
    species: NDArray[np.bool_]  # which of the targets vote

    @classmethod
    def of(
        cls, document: Mapping[str, Any], ignore: Collection[str], class_map: ClassMap | None
    ) -> Self:
        """Check a document, and take it apart."""
        images = _images(document)
        listed = dict(_classified(document, images))
        conf = {(i, j): float(images[i]["detections"][j].get("conf", 1)) for i, j in listed}
        categories = document.get(_CATEGORIES) or {}
        columns = {category: k for k, category in enumerate(categories)}
        mapped = _mapped(document, list(categories), class_map)
        targets: dict[str, object] = {**document, **mapped}.get(_CATEGORIES) or {}
        species = [str(name).strip().lower() not in ignore for name in targets.values()]
        return cls(
            images, listed, conf, columns, class_map, mapped, targets, np.array(species, bool)
        )

    def streams(self, by: str, gap: float, confidence: float) -> list[list[_Index]]:
        """The detections that the detector is sure of, stream by stream."""
        sure = [index for index, conf in self.conf.items() if conf >= confidence]
        return _streams(self.images, sure, by, gap)

    def rows(self, stream: list[_Index]) -> _Rows:
        """The probabilities of all targets, for each detection of a stream."""
        n, lists = len(self.columns), [self.listed[index] for index in stream]
        rows = np.array(
            [from_top_k(n, [self.columns[k] for k in one], [*one.values()]) for one in lists]
        )
        return rows if self.class_map is None else self.class_map.pool_probs(rows)

    def weights(self, stream: list[_Index]) -> _Rows:
        """How sure the detector is of each detection of a stream."""
        return np.array([self.conf[index] for index in stream])


def _answers(
    corrector: Corrector,
    rows: _Rows,
    weights: _Rows,
    species: NDArray[np.bool_],
    batch_size: int,
    *,
    as_one: bool,
) -> _Rows:
    """Corrected rows of a stream; unchanged where fewer than two detections vote."""
    voting = species[rows.argmax(axis=1)]
    if voting.sum() < 2 or species.sum() < 2:
        return rows
    votes = _votes(rows[voting][:, species], weights[voting])
    corrector.reset()
    size = batch_size or len(votes)
    parts = [votes[start : start + size] for start in range(0, len(votes), size)]
    found = [corrector.correct(np.sqrt(part), part) for part in parts]
    answers = np.concatenate([checked_prediction(one, corrector).probs for one in found])
    after = rows.copy()
    if as_one and getattr(corrector, "causal", False):  # it knows no more of the last than of all
        voting, answers = np.ones_like(voting), answers[-1:]
    after[voting] = 0
    after[np.ix_(voting, species)] = answers
    return after


def _votes(rows: _Rows, weights: _Rows) -> _Rows:
    """Probabilities of the classes that vote, which count as far as the detector is sure."""
    votes = rows + np.maximum(1 - rows.sum(axis=1, keepdims=True), 0) / rows.shape[1]
    # A vote counts as a power, so that it says nothing where the power is 0.
    votes = np.maximum(votes, _TINY) ** (weights / weights.max())[:, None]
    found: _Rows = votes / votes.sum(axis=1, keepdims=True)
    return found


def as_bank(
    document: Mapping[str, Any],
    *,
    by: str = "animal",
    gap: float = 60.0,
    confidence: float = 0.15,
    ignore: Collection[str] = IGNORED,
    class_map: ClassMap | None = None,
) -> Bank:
    """The detections that `correct` corrects, as a bank: what a corrector sees of them.

    Each stream is a group. Detections that do not vote are left out.

    Parameters
    ----------
    document : mapping
        Results in MegaDetector's format.
    by, gap, confidence, ignore, class_map
        As for `correct`.

    Examples
    --------
    >>> listed = [[["0", 0.8], ["1", 0.2]], [["1", 0.6], ["0", 0.4]]]
    >>> images = [
    ...     {"file": f"door/{i}.jpg", "detections": [{"category": "1", "classifications": one}]}
    ...     for i, one in enumerate(listed)
    ... ]
    >>> document = {"classification_categories": {"0": "fox", "1": "elk"}, "images": images}
    >>> bank = as_bank(document)
    >>> bank.keys, bank.groups, bank.header["classes"]
    (('door/0.jpg', 'door/1.jpg'), array(['1 door', '1 door'], dtype='<U6'), ['fox', 'elk'])
    """
    check_choice("by", by, _BY)
    given = _Detections.of(document, ignore, class_map)
    targets, species = [str(name) for name in given.targets.values()], given.species
    if species.sum() < 2:
        raise LamettaError(
            f"{_CATEGORIES} must have two species or more, got {abbreviate(targets)}"
        )
    probs, keys, groups = [np.zeros((0, int(species.sum())))], list[str](), list[str]()
    for number, stream in enumerate(given.streams(by, gap, confidence), 1):
        rows = given.rows(stream)
        voting = species[rows.argmax(axis=1)]
        if not voting.any():
            continue
        probs.append(_votes(rows[voting][:, species], given.weights(stream)[voting]))
        kept = [given.images[stream[place][0]] for place in np.flatnonzero(voting)]
        keys += [str(image["file"]) for image in kept]
        groups += [f"{number} {_location(kept[0])}".strip()] * len(kept)
    found = np.concatenate(probs)
    names = [targets[k] for k in np.flatnonzero(species)]
    return Bank(
        np.sqrt(found), log(np, found), None, np.array(groups), tuple(keys), {"classes": names}
    )


def _list(targets: list[str], row: _Rows, n: int) -> list[object]:
    best = np.argsort(-row, kind="stable")[:n]
    return [[targets[k], round(float(row[k]), _DIGITS)] for k in best]


def _with(
    images: list[dict[str, Any]], changes: Mapping[_Index, list[object]], keep_source: bool
) -> list[dict[str, Any]]:
    new = list(images)
    for (i, j), listed in changes.items():
        if new[i] is images[i]:
            new[i] = {**images[i], "detections": list(images[i]["detections"])}
        detection: dict[str, object] = {}
        for key, value in images[i]["detections"][j].items():
            detection[key] = listed if key == _LISTED else value
            if key == _LISTED and keep_source and _SOURCE not in images[i]["detections"][j]:
                detection[_SOURCE] = value
        new[i]["detections"][j] = detection
    return new


def _mapped(
    document: Mapping[str, object], categories: list[str], class_map: ClassMap | None
) -> dict[str, object]:
    """The targets of a map as categories, described by what their members' descriptions share."""
    if class_map is None:
        return {}
    if class_map.min_classes > len(categories):
        raise LamettaError(
            f"class_map must be of the {len(categories)} categories of {_CATEGORIES}, got one of "
            f"{class_map.min_classes}"
        )
    new: dict[str, object] = {_CATEGORIES: {str(i): name for i, name in enumerate(class_map.names)}}
    if isinstance(texts := document.get(_TEXTS), dict):
        new[_TEXTS] = {
            str(i): _shared([str(texts.get(categories[k], "")) for k in group])
            for i, group in enumerate(class_map.groups)
        }
    return new


def _shared(texts: list[str]) -> str:
    """The levels of a taxonomy, with semicolons between them, that all texts begin with."""
    levels = zip(*(text.split(";") for text in texts), strict=False)
    return ";".join(level[0] for level in takewhile(lambda level: len({*level}) == 1, levels))


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
        return cls(*_read(Path(path)))

    @property
    def is_timed(self) -> bool:
        """Whether all images with classifications have a sequence, a time or frames.

        If some do not, a folder would be taken for one sequence.
        """
        images = _images(self.document)
        return all(_is_timed(images[i]) for i, _ in dict(_classified(self.document, images)))

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
        with atomic_write(Path(path)) as temporary:
            temporary.write_bytes(replaced(text, edits).encode("utf-8"))


def _edit(
    text: str, span: Span, old: Mapping[str, Any], new: Mapping[str, Any], path: tuple[object, ...]
) -> Iterator[tuple[Span, str]]:
    _, i, _, j, _ = path
    before, after = (side["images"][i]["detections"][j] for side in (old, new))
    if after is not before:
        written = f"{text[span.name : span.start]}{json.dumps(after[_LISTED])}"
        if _SOURCE in after and _SOURCE not in before:
            written += f'{between(text, span)}"{_SOURCE}": {text[span.start : span.end]}'
        yield span, written


def _read(path: Path) -> tuple[dict[str, Any], str, Spans]:
    """Read a file: what it holds, its text, and where in it are the values that may change."""
    try:
        text = path.read_bytes().decode("utf-8")
        document, spans = parse(
            text, (_CATEGORIES,), (_TEXTS,), ("images", -1, "detections", -1, _LISTED)
        )
    except (ValueError, RecursionError) as error:
        raise LamettaError(f"{os.fspath(path)!r} is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise LamettaError(f"{os.fspath(path)} must hold a JSON object, got a {_kind(document)}")
    return document, text, spans


def _images(document: Mapping[str, object]) -> list[dict[str, Any]]:
    """The images, each an object with a file and perhaps a list of detections."""
    images = document.get("images")
    if images is None and "predictions" in document:
        raise LamettaError(
            "images must be a list, got the predictions of SpeciesNet's own layout: "
            "megadetector.data_management.speciesnet_to_md of megadetector-utils converts the file"
        )
    if not isinstance(images, list):
        raise LamettaError(f"images must be a list, got {_kind(images)}")
    for i, image in enumerate(images):
        if not isinstance(image, dict) or not isinstance(image.get("file"), str):
            raise LamettaError(
                f"images[{i}] must be an object with a text as file, got {image!r:.80}"
            )
        found = image.get("detections")
        if found is not None and not isinstance(found, list):
            raise LamettaError(f"images[{i}].detections must be a list or null, got {_kind(found)}")
    return images


def _classified(
    document: Mapping[str, object], images: list[dict[str, Any]]
) -> Iterator[tuple[_Index, dict[str, float]]]:
    """The categories that detections list, with their confidences; not of those that list none."""
    categories = document.get(_CATEGORIES)
    if categories is not None and not isinstance(categories, dict):
        raise LamettaError(f"{_CATEGORIES} must be an object, got {_kind(categories)}")
    for i, image in enumerate(images):
        for j, detection in enumerate(image.get("detections") or ()):
            where = f"images[{i}].detections[{j}]"
            if not isinstance(detection, dict):
                raise LamettaError(f"{where} must be an object, got {_kind(detection)}")
            if not (listed := detection.get(_LISTED)):
                continue
            conf = detection.get("conf", 1.0)
            if not is_number(conf) or not 0 <= conf <= 1:
                raise LamettaError(f"{where}.conf must be a number in 0..1, got {conf!r:.80}")
            yield (i, j), _checked(f"{where}.{_LISTED}", listed, categories or {})


def _checked(where: str, listed: object, categories: Mapping[str, object]) -> dict[str, float]:
    if not isinstance(listed, list):
        raise LamettaError(f"{where} must be a list, got {_kind(listed)}")
    for index, pair in enumerate(listed):
        _check_pair(f"{where}[{index}]", pair, categories)
    if len({pair[0] for pair in listed}) < len(listed):
        raise LamettaError(f"{where} must list each category once, got {listed!r:.80}")
    return dict(listed)


def _check_pair(where: str, pair: object, categories: Mapping[str, object]) -> None:
    if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], str):
        raise LamettaError(f"{where} must be [category, conf], got {pair!r:.80}")
    if pair[0] not in categories:
        raise LamettaError(f"{where} must be a category of {_CATEGORIES}, got {pair[0]!r}")
    if not is_number(pair[1]) or not 0 <= pair[1] <= 1:
        raise LamettaError(f"{where} must have a conf in 0..1, got {pair[1]!r}")


def _kind(value: object) -> str:
    names = {dict: "object", list: "list", str: "text", bool: "flag", type(None): "nothing"}
    return names.get(type(value), "number")


def _streams(
    images: Sequence[Mapping[str, Any]], indices: Iterable[_Index], by: str, gap: float
) -> list[list[_Index]]:
    """Group detections into streams in the order of time; those of a video by their frames."""
    members: dict[int, list[int]] = {}
    for i, j in indices:
        members.setdefault(i, []).append(j)
    found = []
    for stream in sequences({i: images[i] for i in members}, by, gap):
        ordered = [(i, j) for i in stream for j in _by_frame(images[i]["detections"], members[i])]
        found += _animals(images, ordered) if by == "animal" else [ordered]
    return found


def _by_frame(detections: Sequence[Mapping[str, Any]], chosen: list[int]) -> list[int]:
    """Detections of a video in the order of their frames; as they are where one has none."""
    frames: dict[int, Any] = {j: detections[j].get(_FRAME) for j in chosen}
    known = all(is_number(frame) for frame in frames.values())
    return sorted(frames, key=frames.__getitem__) if known else chosen


def track_boxes(moments: Iterable[Mapping[_Index, _Box | None]]) -> list[list[_Index]]:
    """Follow the boxes of animals from one moment to the next.

    If no moment has more than one, it is one animal. Otherwise each box goes on with the animal
    whose last box it overlaps most. One box that overlaps no animal's is that of the one animal
    that is left over, if there are as many as the moment before; else it is another animal.

    Examples
    --------
    >>> left, right = (0.0, 0.0, 0.4, 0.4), (0.6, 0.6, 1.0, 1.0)
    >>> track_boxes([{(0, 0): left, (0, 1): right}, {(1, 0): (0.5, 0.5, 0.9, 0.9)}])
    [[(0, 0)], [(0, 1), (1, 0)]]
    """
    moments = list(moments)
    if all(len(moment) <= 1 for moment in moments):
        return [[index for moment in moments for index in moment]]
    animals: list[list[_Index]] = []
    last: _Seen = {}
    for now, moment in enumerate(moments):
        last = {animal: seen for animal, seen in last.items() if now - seen[0] <= _LOST}
        present = [animal for animal, (at, _) in last.items() if at == now - 1]
        found = _matched(moment, last, present)
        for index, box in moment.items():
            if index not in found:
                found[index] = len(animals)
                animals.append([])
            animals[found[index]].append(index)
            last[found[index]] = now, box
    return animals


def _matched(
    moment: Mapping[_Index, _Box | None], last: _Seen, present: Collection[int]
) -> dict[_Index, int]:
    """The animals that boxes belong to, by the largest overlaps first, and then the one left over.

    ``present`` are the animals of the moment before.
    """
    overlaps = [
        (_iou(box, before), index, animal)
        for (index, box), (animal, (_, before)) in product(moment.items(), last.items())
    ]
    found: dict[_Index, int] = {}
    for overlap, index, animal in sorted(overlaps, key=lambda one: -one[0]):
        if overlap > 0 and index not in found and animal not in found.values():
            found[index] = animal
    new = [index for index in moment if index not in found]
    gone = [animal for animal in present if animal not in found.values()]
    if len(new) == len(gone) == 1 and len(moment) == len(present):
        found[new[0]] = gone[0]
    return found


def _animals(images: Sequence[Mapping[str, Any]], indices: list[_Index]) -> list[list[_Index]]:
    """The detections of a sequence, animal by animal; those of two categories are never one."""

    def detection(index: _Index) -> dict[str, Any]:
        found: dict[str, Any] = images[index[0]]["detections"][index[1]]
        return found

    categories: dict[object, list[_Index]] = {}
    for index in indices:
        categories.setdefault(detection(index).get("category"), []).append(index)
    found = []
    for members in categories.values():
        moments = groupby(members, key=lambda index: (index[0], detection(index).get(_FRAME)))
        found += track_boxes(
            {index: _box(detection(index), index) for index in own} for _, own in moments
        )
    return found


def _box(detection: Mapping[str, object], index: _Index) -> _Box | None:
    box = detection.get("bbox")
    if box is None:
        return None
    if not isinstance(box, list) or len(box) != 4 or not all(is_number(x) for x in box):
        where = "images[{}].detections[{}].bbox".format(*index)
        raise LamettaError(f"{where} must be [left, top, width, height], got {box!r:.80}")
    left, top, width, height = box
    return left, top, left + width, top + height


def _iou(one: _Box | None, other: _Box | None) -> float:
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


def _is_timed(image: Mapping[str, object]) -> bool:
    """Whether an image tells which others belong to its sequence."""
    known = image.get("seq_id") is not None or image.get("datetime") is not None
    return known or "frames_processed" in image


def _location(image: Mapping[str, object]) -> str:
    """Where an image was taken: its location, or the folder of its file."""
    folder = str(image["file"]).replace("\\", "/").rpartition("/")[0]
    return folder if image.get("location") is None else str(image["location"])


def _stream(i: int, image: Mapping[str, object], by: str) -> tuple[object, ...]:
    """What identifies a stream; one that is identified by its location alone may be cut by time."""
    location = _location(image)
    if by == "location":
        return (location,)
    if image.get("seq_id") is not None:
        return location, "sequence", str(image["seq_id"])
    return (location, "video", i) if "frames_processed" in image else (location,)


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
