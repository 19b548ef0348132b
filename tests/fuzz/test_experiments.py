"""Experiments that make no sense: a line for each thing that is wrong, and nothing else."""

import datetime
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lametta.bench.experiment import bundled, load
from lametta.bench.experiment.errors import to_key, to_toml
from tests.bench.tiny import TINY
from tests.fuzz.hostile import NAMES, changed, damaged, one_of
from tests.fuzz.outcomes import attempt, command

PLACE = Path()  # of this process, by the fixture
DEMO = bundled("demo").read_text(encoding="utf-8")
DATES = [
    *(datetime.date(2020, 1, 2), datetime.time(1, 2), datetime.datetime(2020, 1, 2, 3, 4, 5)),
    datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC),
]
LEAVES = st.sampled_from(
    [
        *(True, False, 0, 1, -1, 64, 10**9, 10**30, 0.0, 0.5, 1e308, float("nan"), float("inf")),
        *("iid", "by_group", "zipf", "lame", "tent+lame", "tent+tent", "source", "digits", "val"),
        *(
            "python:os:path",
            "python:no.such:Name",
            "python:",
            "torch:os:getcwd",
            "a\0b",
            "/etc/passwd",
        ),
        *("folder:../..", "embedded:no", "npz:no.npz", "\u202e", *NAMES),
        *(
            [],
            [0],
            ["Source"],
            ["LAME", "LAME"],
            [[]],
            [{}],
            [*range(300)],
            [True, 1, 1.0],
            [0.1, "a"],
        ),
        *(
            {},
            {"kind": "lame"},
            {"kind": "iid"},
            {"k": []},
            {"k": [1, 2]},
            {"k": [None]},
            {"a": {}},
        ),
        *(
            {"kind": "by_group", "sequence": ["a"]},
            {"kind": "interleaved", "inside": {"kind": "iid"}},
        ),
        *(
            {x: [*range(100)] for x in ("k", "weight", "max_iter", "tol")},
            {"k": [*range(1, 5000)]},
        ),
        *({"affinity": ["knn", "rbf", 3], "k": [1, 2]}, {"affinity": "linear", "k": 3}),
        *DATES,
        DATES,
        {"k": DATES},
        {"lr": DATES[0]},
    ]
)


def nested(depth, open_, close):
    return f"x = {open_ * depth}{close * depth}"


@st.composite
def experiments(draw):
    """A file that is nearly an experiment."""
    kind = one_of(draw, ["tree"] * 4 + ["bytes", "deep"])
    whole = one_of(draw, [TINY, TINY, DEMO])
    if kind == "bytes":
        return draw(damaged(whole.encode()))
    if kind == "deep":
        deep = nested(one_of(draw, [10, 200, 1500]), *one_of(draw, ["[]", ("{a=", "}")]))
        keys = ["a." * one_of(draw, [10, 1500]) + "b = 1", deep]
        return f"{one_of(draw, keys)}\n{whole}".encode()
    content = tomllib.loads(whole)
    if draw(st.booleans()):
        key = one_of(draw, ["kind", "params", "grid"])
        content["methods"][one_of(draw, ["LAME", "TENT"])][key] = draw(LEAVES)
        return write_toml(content).encode()
    for _ in range(draw(st.integers(1, 3))):
        content = draw(changed(content, LEAVES))
    return write_toml(content).encode()


def write_toml(content):
    return "".join(f"{to_key(key)} = {_toml(value)}\n" for key, value in content.items())


def _toml(value):
    """As `to_toml`, and dates too."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{to_key(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return '""' if value is None else to_toml(value)


@pytest.fixture(autouse=True, scope="session")
def place(tmp_path_factory):
    global PLACE
    PLACE = tmp_path_factory.mktemp("experiments")
    command("run", "demo", "--dry-run", memory=None)  # before memory is scarce: what is loaded once
    return PLACE


@pytest.mark.slow(10)
@settings(max_examples=150)
@given(experiments())
def test_experiments(content):
    path = PLACE / "bad.toml"
    path.write_bytes(content)
    attempt(load, path)
    before = {*PLACE.iterdir()}
    result = command("run", path, "--dry-run", "--data", PLACE)
    assert {*PLACE.iterdir()} == before
    assert result.exit_code == 0 or all(
        str(path) in line for line in result.stderr.splitlines()[:1]
    )
