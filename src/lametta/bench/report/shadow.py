"""Report of a server in shadow mode: where its corrections would have differed, from its status."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import polars as pl

from lametta._files import PathLike, check_regular_file
from lametta.bench.analysis.results import read_json
from lametta.bench.report.page import template, write_file, write_table
from lametta.bench.tables import Table, as_table
from lametta.correctors import Shadow, Streams
from lametta.correctors.shadow import Differences
from lametta.types import LamettaError

_MOST_BYTES = 2**26  # a status has some 100 kB a model
_KEYS = {
    "classes": ("class", "source", "corrected", "lost", "gained"),
    "streams": ("id", "samples", "changed"),
    "last": ("time", "stream", "source", "corrected", "source_confidence", "confidence"),
}


def status(
    corrector: Shadow | Streams, name: str = "shadow", names: Sequence[str] | None = None
) -> dict[str, Any]:
    """What ``/status.json`` of a server would say of a `lametta.Shadow`, or of one for each stream.

    As JSON in a file it is what ``lametta report`` reads.

    Parameters
    ----------
    corrector : Shadow or Streams
        What was tried; streams are those of ``lametta.Streams(lametta.Shadow(...))``.
    name : str
        What it is called.
    names : sequence of str, optional
        Of the classes.

    Examples
    --------
    >>> import lametta
    >>> import numpy as np
    >>> streams = lametta.Streams(lametta.Shadow(lametta.LAME()))
    >>> _ = streams.correct(np.eye(2), np.array([[0.9, 0.1], [0.4, 0.6]]), ["door", "yard"])
    >>> [one["id"] for one in status(streams)["models"][0]["shadow"]["streams"]]
    ['door', 'yard']
    """
    found = _differences(corrector)
    streams = [
        {"id": stream, "samples": seen.samples, "changed": seen.changed}
        for stream, seen in found.items()
    ]
    shadow = {
        "samples": sum(seen.samples for seen in found.values()),
        "changed": sum(seen.changed for seen in found.values()),
        "failed": 0,
        "classes": _changed_classes(found.values()),
        "streams": streams if isinstance(corrector, Streams) else [],
        "last": [
            {"time": None, "stream": stream, **row._asdict()}
            for stream, seen in found.items()
            for row in seen.last()
        ],
    }
    return {
        "models": [{"name": name, "shadow": shadow}],
        "classes": None if names is None else list(names),
    }


def _differences(corrector: Shadow | Streams) -> dict[str, Differences]:
    """What each stream's shadow has counted; a shadow by itself is the stream without a name."""
    shadows: dict[str, object] = {"": corrector}
    if isinstance(corrector, Streams):
        shadows = {str(stream): corrector[stream] for stream in corrector.ids}
    found = {name: one.differences for name, one in shadows.items() if isinstance(one, Shadow)}
    if len(found) < len(shadows):
        raise LamettaError("corrector must be a Shadow, or Streams of Shadow, got another one")
    return found


def _changed_classes(found: Iterable[Differences]) -> list[dict[str, int]]:
    """The classes that samples would leave or join, with their counts in all streams."""
    _, *kinds = _KEYS["classes"]
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    for seen, kind in product(found, kinds):
        for label, n in enumerate(getattr(seen, kind).tolist()):
            counts[label][kind] += n
    return [
        {"class": label, **{kind: n[kind] for kind in kinds}}
        for label, n in counts.items()
        if n["lost"] + n["gained"]
    ]


def read_status(path: Path) -> dict[str, Any]:
    """What ``/status.json`` of a server in shadow mode gave, from a file."""
    check_regular_file("RESULTS", path)
    if path.stat().st_size > _MOST_BYTES:
        raise LamettaError(f"RESULTS must be the status of a server, got {path}, which is larger")
    status = read_json(path)
    try:
        models = {str(one["name"]): _checked(one["shadow"]) for one in _list(status["models"])}
        classes = status["classes"]
        names = None if classes is None else [str(name) for name in _list(classes)]
    except (KeyError, TypeError, ValueError) as error:
        raise LamettaError(
            f"RESULTS must be a folder or what /status.json of a server gave, got {path}: {error!r}"
        ) from None
    shadows = {name: shadow for name, shadow in models.items() if shadow is not None}
    if not shadows:
        raise LamettaError(f"the server of {path} was not in shadow mode: lametta serve --shadow")
    return {"models": shadows, "names": names}


def _list(given: object) -> list[Any]:
    if not isinstance(given, list):
        raise TypeError(f"a list was expected, got {type(given).__name__}")
    return given


def _checked(shadow: Any) -> dict[str, Any] | None:
    if shadow is None:
        return None
    found: dict[str, Any] = {name: int(shadow[name]) for name in ("samples", "changed", "failed")}
    for name, keys in _KEYS.items():
        found[name] = [{key: row[key] for key in keys} for row in _list(shadow[name])]
    return found


def tables(status: Mapping[str, Any]) -> list[Table]:
    """What differs: by model, by class and by stream, and the last of it."""
    models, names = status["models"], status["names"]

    def named(label: object) -> str:
        if names is None or not isinstance(label, int) or not 0 <= label < len(names):
            return f"class {label}"
        return str(names[label])

    overview = [
        {
            "model": name,
            "samples": one["samples"],
            "would_change": one["changed"],
            "share_%": _percent(one["changed"], one["samples"]),
            "failed": one["failed"],
        }
        for name, one in models.items()
    ]
    found = [_table("shadow", "Where corrections would have differed", overview)]
    for name, one in models.items():
        classes = [
            {
                "class": named(row["class"]),
                "network": row["source"],
                "corrected": row["corrected"],
                "would_lose": row["lost"],
                "would_gain": row["gained"],
            }
            for row in one["classes"]
        ]
        streams = [
            {
                "stream": str(row["id"]),
                "samples": row["samples"],
                "would_change": row["changed"],
                "share_%": _percent(row["changed"], row["samples"]),
            }
            for row in one["streams"]
        ]
        last = [
            {
                "stream": "" if row["stream"] is None else str(row["stream"]),
                "network": named(row["source"]),
                "its_confidence": row["source_confidence"],
                "corrected": named(row["corrected"]),
                "confidence": row["confidence"],
            }
            for row in one["last"]
        ]
        for kind, title, rows in (
            ("classes", "by class", classes),
            ("streams", "by stream", streams),
            ("last", "the last differences", last),
        ):
            if rows:
                found.append(_table(f"shadow_{name}_{kind}", f"{name}, {title}", rows))
    return found


def _percent(part: int, whole: int) -> float:
    return round(100 * part / max(whole, 1), 1)


def _table(name: str, title: str, rows: list[dict[str, Any]]) -> Table:
    return as_table(name, title, pl.DataFrame(rows, infer_schema_length=None))


def write(shown: list[Table], folder: PathLike) -> Path:
    """Write ``shadow.html`` and ``tables/*.md|tex|csv``; give the page."""
    folder = Path(folder)
    for table in shown:
        write_table(table, folder)
    page = folder / "shadow.html"
    write_file(page, template("shadow.html.j2").render(tables=shown))
    return page
