"""A file of MegaDetector's results: read, checked, and written with the bytes it had."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from lametta._checks import is_number
from lametta._files import PathLike, atomic_write
from lametta.integrations._json_spans import Span, Spans, between, parse, replaced
from lametta.integrations._sequences import Place, is_timed
from lametta.types import LamettaError

SOURCE = "source_classifications"
LISTED, CATEGORIES = "classifications", "classification_categories"
TEXTS = "classification_category_descriptions"


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
        with atomic_write(Path(path)) as temporary:
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


def read_text(path: Path) -> tuple[dict[str, Any], str, Spans]:
    """Read a file: what it holds, its text, and where in it are the values that may change."""
    try:
        text = path.read_bytes().decode("utf-8")
        document, spans = parse(
            text, (CATEGORIES,), (TEXTS,), ("images", -1, "detections", -1, LISTED)
        )
    except (ValueError, RecursionError) as error:
        raise LamettaError(f"{os.fspath(path)} must be JSON, got what is none: {error}") from None
    if not isinstance(document, dict):
        raise LamettaError(f"{os.fspath(path)} must hold a JSON object, got a {_kind(document)}")
    return document, text, spans


def images_of(document: Mapping[str, object]) -> list[dict[str, Any]]:
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


def listed_in(
    document: Mapping[str, object], images: list[dict[str, Any]]
) -> Iterator[tuple[Place, dict[str, float]]]:
    """The categories that detections list, with their confidences; not of those that list none."""
    categories = document.get(CATEGORIES)
    if categories is not None and not isinstance(categories, dict):
        raise LamettaError(f"{CATEGORIES} must be an object, got {_kind(categories)}")
    for i, image in enumerate(images):
        for j, detection in enumerate(image.get("detections") or ()):
            where = f"images[{i}].detections[{j}]"
            if not isinstance(detection, dict):
                raise LamettaError(f"{where} must be an object, got {_kind(detection)}")
            if not (listed := detection.get(LISTED)):
                continue
            conf = detection.get("conf", 1.0)
            if not is_number(conf) or not 0 <= conf <= 1:
                raise LamettaError(f"{where}.conf must be a number in 0..1, got {conf!r:.80}")
            yield (i, j), _checked(f"{where}.{LISTED}", listed, categories or {})


def _checked(where: str, listed: object, categories: Mapping[str, object]) -> dict[str, float]:
    if not isinstance(listed, list):
        raise LamettaError(f"{where} must be a list, got {_kind(listed)}")
    for place, pair in enumerate(listed):
        if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise LamettaError(f"{where}[{place}] must be [category, conf], got {pair!r:.80}")
        if pair[0] not in categories:
            raise LamettaError(
                f"{where}[{place}] must be a category of {CATEGORIES}, got {pair[0]!r}"
            )
        if not is_number(pair[1]) or not 0 <= pair[1] <= 1:
            raise LamettaError(f"{where}[{place}] must have a conf in 0..1, got {pair[1]!r}")
    if len({pair[0] for pair in listed}) < len(listed):
        raise LamettaError(f"{where} must list each category once, got {listed!r:.80}")
    return dict(listed)


def _kind(value: object) -> str:
    names = {dict: "object", list: "list", str: "text", bool: "flag", type(None): "nothing"}
    return names.get(type(value), "number")
