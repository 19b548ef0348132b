"""The notebooks: whole, and run from top to bottom."""

import ast
import json
import re

import pytest

from scripts import notebooks
from tests import processes

SOURCES = sorted(notebooks.SOURCES.glob("*.py"))
PRINTS = {
    "first_steps": r"the network: +77\.6% right\n(.*\n)+Prudent, 1 by 1: 82\.6% right\n",
    "video": r"the network 77\.6%, corrected 82\.6%\nwith tracks 90\.5%\n",
    "cameras": r"door: \d+% right before, \d+% after\nyard: (.*\n)gate: ",
}


@pytest.mark.slow(5)
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_it_runs(source):
    done = processes.run(source)
    assert done.returncode == 0, done.stderr
    assert re.search(PRINTS[source.stem], done.stdout), done.stdout


def test_all_that_a_program_says_is_in_its_notebook(tmp_path):
    for source, path in zip(SOURCES, notebooks.write(tmp_path), strict=True):
        made = json.loads(path.read_text(encoding="utf-8"))
        code = "\n\n".join(x["source"] for x in made["cells"] if x["cell_type"] == "code")
        assert ast.dump(ast.parse(code)) == ast.dump(ast.parse(source.read_text(encoding="utf-8")))
        assert made["cells"][0]["source"].startswith("# ")
        assert len({cell["id"] for cell in made["cells"]}) == len(made["cells"])
        assert (made["nbformat"], made["nbformat_minor"]) == (4, 5)
