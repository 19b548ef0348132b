"""JSON parser that records source spans, for edits that keep all other bytes."""

import json
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

_value = json.JSONDecoder().raw_decode
_space = re.compile(r"[ \t\n\r]*").match


class Span(NamedTuple):
    """Where a member of an object is in the text: its name, and its value from start to end."""

    name: int
    start: int
    end: int


Path = tuple[str | int, ...]
Spans = dict[Path, Span]


def parse(text: str, *paths: Path) -> tuple[object, Spans]:
    """Read a text, and where the members at these paths are; ``-1`` stands for any item.

    Raises ValueError if the text is not JSON.

    Examples
    --------
    >>> text = '{"a": [{"b": 1.50}, {"c": 2}], "d": 3}'
    >>> document, spans = parse(text, ("a", -1, "b"))
    >>> document["d"], spans
    (3, {('a', 0, 'b'): Span(name=8, start=13, end=17)})
    >>> replaced(text, [(spans["a", 0, "b"], '"b": 7')])
    '{"a": [{"b": 7}, {"c": 2}], "d": 3}'
    """
    spans: Spans = {}
    start = _after(text, 1 if text.startswith("\ufeff") else 0)
    try:
        document, end = _read(text, start, (), list(paths), spans)
    except IndexError:
        raise ValueError(f"it ends too early, at character {len(text)}") from None
    if _after(text, end) != len(text):
        raise ValueError(f"there is more after its end, at character {end}")
    return document, spans


def replaced(text: str, edits: Iterable[tuple[Span, str]]) -> str:
    """Replace members, from the name to the end of the value."""
    parts, at = [], 0
    for span, new in sorted(edits):
        parts += [text[at : span.name], new]
        at = span.end
    return "".join([*parts, text[at:]])


def between(text: str, span: Span) -> str:
    """What to put between this member and a new one: a comma, and the space before this one."""
    end = span.name
    while end and text[end - 1] in " \t\n\r":
        end -= 1
    return "," + (text[end : span.name] or " ")


def _read(text: str, at: int, here: Path, paths: list[Path], spans: Spans) -> tuple[object, int]:
    """Read a value: member by member if a path leads into it, else by the json module."""
    if paths and text[at] == "{":
        return _object(text, at, here, paths, spans)
    if paths and text[at] == "[":
        return _list(text, at, here, paths, spans)
    return _value(text, at)


def _object(
    text: str, at: int, here: Path, paths: list[Path], spans: Spans
) -> tuple[dict[str, object], int]:
    found: dict[str, object] = {}

    def member(at: int) -> int:
        if text[at] != '"':
            raise ValueError(f"a name is missing at character {at}")
        name, end = _value(text, at)
        colon = _after(text, end)
        if text[colon] != ":":
            raise ValueError(f"a colon is missing at character {colon}")
        start = _after(text, colon + 1)
        below = [path[1:] for path in paths if path[0] == name]
        deeper = [path for path in below if path]
        found[name], end = _read(text, start, (*here, name), deeper, spans)
        if len(deeper) < len(below):
            spans[*here, name] = Span(at, start, end)
        return end

    return found, _items(text, at, "}", member)


def _list(
    text: str, at: int, here: Path, paths: list[Path], spans: Spans
) -> tuple[list[object], int]:
    items: list[object] = []
    inside = [path[1:] for path in paths if path[0] == -1]

    def item(at: int) -> int:
        value, end = _read(text, at, (*here, len(items)), inside, spans)
        items.append(value)
        return end

    return items, _items(text, at, "]", item)


def _items(text: str, at: int, close: str, read: Callable[[int], int]) -> int:
    at = _after(text, at + 1)
    if text[at] == close:
        return at + 1
    while True:
        at = _after(text, read(at))
        if text[at] == close:
            return at + 1
        if text[at] != ",":
            raise ValueError(f"a comma is missing at character {at}")
        at = _after(text, at + 1)


def _after(text: str, at: int) -> int:
    match = _space(text, at)
    return match.end() if match else at
