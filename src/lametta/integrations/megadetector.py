"""Camera traps: correct the classifications in a file of results of MegaDetector's tools."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lametta._checks import check_choice, check_flag, check_integer, check_number
from lametta.classmap import ClassMap
from lametta.correctors._state import fresh
from lametta.integrations._megadetector import (
    CATEGORIES,
    LISTED,
    SOURCE,
    TEXTS,
    Results,
    images_of,
    listed_in,
)
from lametta.integrations._sequences import BY, Place, streams_of
from lametta.integrations._spread import spread
from lametta.methods import as_corrector
from lametta.types import Corrector, LamettaError

__all__ = ["Corrected", "Results", "correct"]

IGNORED = frozenset({"animal", "blank", "empty", "mammal", "no cv result", "other", "unknown"})
"""Names of categories that say nothing of the species; megadetector-utils has most of them."""

_TINY = 1e-9  # what a probability of 0 counts as
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
    detections, unsure, streams : int
        How many detections have classifications, how many of them are below the threshold, and how
        many streams the others form.
    changed : int
        How many detections have another first class than before.

    Examples
    --------
    >>> Corrected({"images": []}, detections=0, unsure=0, streams=0, changed=0).changed
    0
    """

    document: dict[str, Any]
    detections: int
    unsure: int
    streams: int
    changed: int


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
) -> Corrected:
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
    check_choice("by", by, BY)
    check_number("gap", gap, 0)
    check_number("confidence", confidence, 0, 1)
    check_integer("batch_size", batch_size, 0)
    check_flag("keep_source", keep_source)
    own = fresh(as_corrector(corrector))
    images = images_of(document)
    listed = dict(listed_in(document, images))
    categories = document.get(CATEGORIES) or {}
    column = {category: place for place, category in enumerate(categories)}
    targets, new = dict(categories), dict(document)
    if class_map is not None:
        new |= _mapped(document, list(categories), class_map)
        targets = new[CATEGORIES]
    silent = np.array([str(name).strip().lower() in ignore for name in targets.values()], bool)
    conf = {(i, j): float(images[i]["detections"][j].get("conf", 1)) for i, j in listed}
    sure = [place for place in listed if conf[place] >= confidence]
    streams = streams_of(images, sure, by, gap)
    if class_map is not None:  # whose targets all detections get
        streams += [[place] for place in listed if conf[place] < confidence]
    changes, changed = dict[Place, list[object]](), 0
    for places in streams:
        rows = _rows(column, [listed[place] for place in places])
        before = rows if class_map is None else class_map.pool_probs(rows)
        weights = np.array([conf[place] for place in places])
        after = _answers(own, before, weights, silent, batch_size, as_one=by != "location")
        changed += int((before.argmax(axis=1) != after.argmax(axis=1)).sum())
        for place, old, row in zip(places, before, after, strict=True):
            if class_map is not None or abs(row - old).max() > _SAME:
                changes[place] = _list(list(targets), row, len(listed[place]))
        if progress is not None:
            progress(len(places))
    new["images"] = _with(images, changes, keep_source)
    n_streams = len(streams) - (0 if class_map is None else len(listed) - len(sure))
    return Corrected(new, len(listed), len(listed) - len(sure), n_streams, changed)


def _rows(column: Mapping[str, int], lists: list[dict[str, float]]) -> _Rows:
    n = len(column)
    return np.array([spread(n, [column[k] for k in one], [*one.values()]) for one in lists])


def _answers(
    corrector: Corrector,
    rows: _Rows,
    weights: _Rows,
    silent: NDArray[np.bool_],
    batch_size: int,
    *,
    as_one: bool,
) -> _Rows:
    """Corrected rows of a stream; unchanged where fewer than two detections vote."""
    voting = ~silent[rows.argmax(axis=1)]
    if voting.sum() < 2 or (~silent).sum() < 2:
        return rows
    votes = rows[voting][:, ~silent]
    votes += np.maximum(1 - votes.sum(axis=1, keepdims=True), 0) / votes.shape[1]
    # A vote counts as a power, so that it says nothing where the power is 0.
    votes = np.maximum(votes, _TINY) ** (weights[voting] / weights[voting].max())[:, None]
    votes /= votes.sum(axis=1, keepdims=True)
    corrector.reset()
    size = batch_size or len(votes)
    parts = [votes[start : start + size] for start in range(0, len(votes), size)]
    answers = np.concatenate([corrector.correct(np.sqrt(part), part).probs for part in parts])
    after = rows.copy()
    if as_one and getattr(corrector, "causal", False):  # it knows no more of the last than of all
        voting, answers = np.ones_like(voting), answers[-1:]
    after[voting] = 0
    after[np.ix_(voting, ~silent)] = answers
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
