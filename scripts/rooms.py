"""Print the first line of every module, folder by folder: python scripts/rooms.py [FOLDER ...].

Read from top to bottom, it tells where each thing is. A folder is one of ``src/lametta``, such as
``data`` or ``data/bank``; without any, all are printed.
"""

import ast
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "lametta"


def rooms(folder: Path = PACKAGE) -> Iterator[tuple[Path, str]]:
    """The modules of a folder and its folders, and the first line of each: empty if there is none.

    Modules come before folders, and ``__init__.py``, which says what its folder is, before both.
    """
    inside = sorted(folder.iterdir(), key=lambda path: (path.is_dir(), path.name))
    for path in inside:
        if path.suffix == ".py":
            tree = ast.parse(path.read_text(encoding="utf-8"))
            yield path, (ast.get_docstring(tree) or "").partition("\n")[0]
        elif path.is_dir():
            yield from rooms(path)


def main(*folders: str) -> None:
    for start in folders or ("",):
        for folder, modules in groupby(rooms(PACKAGE / start), key=lambda room: room[0].parent):
            listed = list(modules)
            print(f"\n{folder.relative_to(PACKAGE.parent)}/")
            width = max(len(path.name) for path, _ in listed)
            for path, line in listed:
                print(f"  {path.name:{width}}  {line}")


if __name__ == "__main__":
    main(*sys.argv[1:])
