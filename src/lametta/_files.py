"""Files that are whole or not there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def renamed(path: Path) -> Iterator[Path]:
    """A file beside ``path`` to write to, which takes its name at the end, or else is deleted."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file at one go."""
    with renamed(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
