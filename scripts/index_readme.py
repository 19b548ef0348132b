"""The README as a package index shows it, made whenever a wheel or an archive is built.

On the page of an index, links into the repository lead nowhere. They become absolute by the address
``Source`` of ``[project.urls]``. While there is none, only their texts are left.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_INTO_THE_REPOSITORY = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")


def for_index(text: str, source: str | None, version: str) -> str:
    """Markdown whose links and pictures do not need the files beside it."""

    def absolute(found: re.Match[str]) -> str:
        picture, shown, path = found.groups()
        if source is None:
            return shown
        kind = "raw" if picture else "blob"
        return f"{picture}[{shown}]({source.rstrip('/')}/{kind}/v{version}/{path})"

    return _INTO_THE_REPOSITORY.sub(absolute, text)


class IndexReadme(MetadataHookInterface):
    """Hatchling's hook for what ``[project]`` says is dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = for_index(text, metadata.get("urls", {}).get("Source"), metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
