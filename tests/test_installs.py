"""Whatever tells a reader to install something can be installed as it is written."""

import ast
import re
import shlex
from collections.abc import Iterator

import pytest

from lametta import networks
from lametta._checks import extra
from scripts.tables import pages
from tests.pages import ROOT, check_install

SOURCES = sorted(
    path for folder in ("src", "examples", "scripts") for path in (ROOT / folder).rglob("*.py")
)
TEXTS = [*pages(), *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"))]


def _written(text: str) -> Iterator[list[str]]:
    """The arguments of each pip that a text shows: up to the end of its line or code."""
    for line in re.findall(r"\bpip (install [^`\"\n]+)", text):
        yield shlex.split(line.partition(" in a clone")[0], comments=True)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_shows_what_can_be_installed(path):
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"lametta\[", text)  # of an index, where there is no release
    for arguments in _written(text):
        check_install(arguments)


def _asked(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """What calls of ``import_optional``, ``extra`` and ``require`` name: a wheel or an extra."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            at = {"import_optional": 1, "extra": 0, "require": 0}.get(node.func.id)
            if at is not None and isinstance(node.args[at], ast.Constant):
                yield ("wheel" if at else "extra"), node.args[at].value


def test_a_message_says_what_can_be_installed():
    extras, wheels = set(), set()
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"lametta\[", text), path
        for kind, name in _asked(ast.parse(text)):
            (extras if kind == "extra" else wheels).add(name)
        # What an f-string fills in comes from the calls above and the table of networks.
        for arguments in _written(re.sub(r"pip install \{.*", "", text)):
            check_install(arguments)
    assert {"cli", "torch", "hf", "video", "serve"} <= extras
    for name in extras:
        check_install(shlex.split("install " + extra(name).partition(" in ")[0]))
    assert {"onnx", "pillow"} <= wheels
    for wheel in wheels:
        check_install(["install", wheel])
    for network in networks.NETWORKS.values():
        for wheel in network.package.split():
            check_install(["install", wheel])


@pytest.mark.parametrize("wanted", ["lametta", "lametta[cli]", ".[clj]", "no-such-wheel", ""])
def test_what_cannot_be_installed_is_found(wanted):
    with pytest.raises(AssertionError):
        check_install(["install", wanted])
    check_install(["install", ".", ".[cli,torch]", "tritonclient[http]"])
