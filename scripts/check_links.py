"""Check that every link of a built site leads somewhere, and that no page loads from elsewhere.

python scripts/check_links.py docs/_build/html
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADS = {"src", "srcset", "data", "poster"}
_OUTSIDE = re.compile(r"https?://[\w-]+(\.[\w-]+)+(:\d+)?([/?#]\S*)?")


class Page(HTMLParser):
    """What a page links to, what it loads, and which places it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        back = ("class", "viewcode-back") in attrs
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.places.add(value)
            elif name in _LOADS or (name == "href" and tag != "a"):
                self.loads.append(value or "")
            elif name == "href":
                # The way back from source code is to the right page, but not always to the right
                # place: Sphinx remembers one module for all names of a file.
                self.links.append((value or "").partition("#")[0] if back else value or "")


def problems(folder: Path) -> list[str]:
    """What is wrong with the pages below a folder."""
    pages = {p.resolve(): Page(p.read_text(encoding="utf-8")) for p in folder.rglob("*.html")}
    found = [] if pages else [f"{folder}: no pages"]
    for path, page in pages.items():
        for address in page.loads:
            if address.startswith("data:"):
                continue
            if "//" in address or not _there(path, address, pages):
                found.append(f"{path.name}: loads {address!r}")
        for address in page.links:
            if re.match(r"[a-z]+:", address):
                if not _OUTSIDE.fullmatch(address):
                    found.append(f"{path.name}: links to {address!r}")
            elif not _there(path, address, pages):
                found.append(f"{path.name}: links to {address!r}, which is not there")
    for sheet in folder.rglob("*.css"):
        for address in re.findall(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')]*)",
                                  sheet.read_text(encoding="utf-8")):  # fmt: skip
            found.append(f"{sheet.name}: loads {address!r}")
    return sorted(set(found))


def _there(path: Path, address: str, pages: dict[Path, Page]) -> bool:
    """Whether there is a file, and the place in it."""
    parts = urlsplit(address)
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        return False
    place = unquote(parts.fragment)
    return not place or target not in pages or place in pages[target].places


if __name__ == "__main__":
    wrong = problems(Path(sys.argv[1]))
    print("\n".join(wrong) or "all links lead somewhere, and nothing is loaded from elsewhere")
    sys.exit(bool(wrong))
