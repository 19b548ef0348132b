"""Class maps and lists of targets that are damaged: an error of ours, and no half file."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lametta import ClassMap
from tests.fuzz.hostile import NAMES, changed, damaged, json_leaves
from tests.fuzz.outcomes import attempt, command

PLACE = Path()  # of this process, by the fixture
CONTENT = {"format": "lametta.ClassMap/1", "pooling": "mean", "n_source": 4}
CONTENT |= {"groups": {"cat": [0, 1], "dog": [3]}}
SOME = settings(max_examples=40)


@pytest.fixture(autouse=True, scope="session")
def place(tmp_path_factory):
    global PLACE
    PLACE = tmp_path_factory.mktemp("class_maps")
    command("map", "--targets=dog", memory=None)  # before memory is scarce: what is loaded once
    return PLACE


def write(name, content):
    path = PLACE / name
    path.write_bytes(content)
    return path


@st.composite
def class_maps(draw):
    """The JSON of a class map, or nearly so."""
    content = CONTENT
    for _ in range(draw(st.integers(1, 2))):
        content = draw(changed(content, json_leaves))
    text = json.dumps(content).encode()
    if draw(st.integers(0, 4)) == 0:
        text = text.replace(b'"cat"', b'"dog"')  # twice
    return draw(damaged(text)) if draw(st.booleans()) else text


@given(class_maps())
def test_class_maps(content):
    made = attempt(ClassMap.load, write("bad.json", content))
    if made is not None:
        attempt(made, np.ones((2, 4)))
        n = made.min_classes
        attempt(made.pool_probs, np.ones((2, n)) / n if n < 99 else None)


words = st.sampled_from(["dog", "animal", "red panda", "n02129604", "tiger.n.02", "n1", "x.n.99"])
lists = st.lists(words | st.sampled_from(NAMES) | st.text(max_size=5), max_size=3)


@pytest.mark.slow
@SOME
@given(lists.map("\n".join).map(lambda x: x.encode(errors="surrogatepass")) | st.binary(max_size=9))
def test_lists_of_targets(content):
    target, path = PLACE / "map.json", write("targets.txt", content)
    for names in (f"@{path}", content.decode(errors="replace").replace("\n", ",")):
        target.write_text("old")
        if command("map", f"--targets={names}", "-o", target).exit_code:
            assert target.read_text() == "old"
        else:
            assert len(ClassMap.load(target))


def test_whole_maps_are_read():
    assert len(ClassMap.load(write("whole.json", json.dumps(CONTENT).encode()))) == 2
