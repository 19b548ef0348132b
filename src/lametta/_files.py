"""Files that are whole or not there."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

PathLike: TypeAlias = str | os.PathLike[str]


@contextmanager
def renamed(path: Path, folder: Path | None = None) -> Iterator[Path]:
    """A file to write to, which takes the name ``path`` at the end, or is deleted on an error.

    Whoever looks, also after a kill or a power cut, finds the whole file or none. The temporary
    file lies in ``folder``, by default beside ``path``; only a kill leaves it there.
    """
    # Random, since processes on two machines may have the same number, and short, since the
    # name of the file itself may be as long as names can be.
    temporary = (folder or path.parent) / f".lametta-{secrets.token_hex(8)}.tmp"
    try:
        yield temporary
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def delete_leftovers(folder: Path) -> None:
    """Delete the temporary files that kills left in a folder which no one else writes to."""
    for temporary in folder.glob(".lametta-*.tmp"):
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file at one go."""
    with renamed(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
