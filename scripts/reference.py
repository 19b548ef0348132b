"""Write the tables of docs/methods.md and docs/api.md from the code: python scripts/reference.py.

They are committed, so that the pages can be read without being built; a test holds them against the
code. A table stands between ``<!-- made by scripts/reference.py: NAME -->`` and ``<!-- end -->``.
"""

import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lametta import methods
from lametta.affinity import AFFINITIES
from lametta.registry import Parameter, parameters_of

DOCS = Path(__file__).parents[1] / "docs"
PAGES = ("methods.md", "api.md")
_MADE = re.compile(
    r"(<!-- made by scripts/reference\.py: (\w+) -->\n\n(?:<!-- figures: [^\n]*\n\n)?)"
    r".*?(\n<!-- end -->)",
    flags=re.DOTALL,
)
_DIRECTIVE = re.compile(
    r"^\.\. (auto\w+|currentmodule):: (\S+)\n((?:   .*\n)*)", flags=re.MULTILINE
)


def written(text: str) -> str:
    """A page with its tables as the code has them."""
    module = "lametta"  # that the last currentmodule of the page named

    def table(found: re.Match[str]) -> str:
        nonlocal module
        if make := _TABLES.get(found[2]):
            rows = make()
        else:  # what the directives of the section document
            section = text[found.end() :].partition("\n## ")[0]
            module, names = documented(section, module)
            rows = _names(names)
        return found[1] + _markdown(rows) + found[3]

    return _MADE.sub(table, text)


def documented(text: str, module: str = "lametta") -> tuple[str, list[str]]:
    """The names that the directives of a text document, after its last current module."""
    names = []
    for kind, name, options in _DIRECTIVE.findall(text):
        if kind == "currentmodule":
            module = name
        elif kind == "automodule":
            members = re.search(r":members:([^:]*)", options)
            assert members is not None, name
            names += [f"{name}.{member.strip()}" for member in members[1].split(",")]
        else:
            names.append(name if name.startswith("lametta.") else f"{module}.{name}")
    return module, names


def find(name: str) -> Any:
    """What a full name stands for."""
    path, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(path), attribute)


def _names(names: Iterable[str]) -> Iterator[tuple[str, ...]]:
    yield "name", "what it is"
    for name in names:
        yield f"`{name}`", _line(find(name))


def _methods() -> Iterator[tuple[str, ...]]:
    yield "name", "what it is", "traits", "needs", "passes", "answers", "options"
    for name in methods.METHODS:
        found = methods.find(name)
        traits = ["network" if found.needs_network else "outputs"]
        traits += ["state"] * found.stateful + ["ordered"] * found.ordered
        traits += ["looks ahead"] * (not found.causal)
        cost = found.passes_text, found.answers()
        options = _options(found.parameters())
        yield f"`{name}`", found.summary, ", ".join(traits), ", ".join(found.needs), *cost, options


def _affinities() -> Iterator[tuple[str, ...]]:
    yield "name", "what it is", "options"
    for name, make in AFFINITIES.items():
        yield f"`{name}`", _line(make), _options(parameters_of(make))


_TABLES: dict[str, Callable[[], Iterator[tuple[str, ...]]]] = {
    "methods": _methods,
    "affinities": _affinities,
}


def _options(parameters: Mapping[str, Parameter]) -> str:
    return ", ".join(f"`{parameter.text}`" for parameter in parameters.values())


def _line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0].replace("``", "`").replace("|", "\\|")


def _markdown(rows: Iterable[tuple[str, ...]]) -> str:
    head, *body = (re.sub(r"\|  (?=\|)", "| ", f"| {' | '.join(row)} |") for row in rows)
    rule = "|---" * (head.count(" | ") + 1) + "|"
    return "\n".join([head, rule, *body]) + "\n"


if __name__ == "__main__":
    for page in (DOCS / name for name in PAGES):
        page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")
