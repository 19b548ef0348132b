"""What a user meets first: the import, the names, the extras, the README."""

import importlib
import importlib.metadata
import pkgutil
import platform
import re
import sys
import tomllib
from itertools import chain
from pathlib import Path

import numpy as np

import lametta
from lametta.types import StreamsPrediction
from tests.conftest import run_python

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_import_is_light():
    heavy = "'numpy', 'torch', 'jax', 'typer', 'rich', 'sklearn', 'safetensors', 'transformers'"
    code = f"import sys, lametta; print([m for m in ({heavy}) if m in sys.modules])"
    done = run_python(code)
    assert done.stdout.strip() == "[]", done.stderr


def test_public_names():
    assert sorted(lametta.__all__) == [
        "Adapter", "ClassMap", "Corrected", "Corrector", "LAME", "LameResult", "LameStreamsResult",
        "LamettaDeprecationWarning", "LamettaError", "Memory", "Model", "Output", "Prediction",
        "Prudent", "Shadow", "Source", "Streams", "Windowed",
        "__version__", "knn", "lame", "lame_streams", "linear", "rbf", "testing",
    ]  # fmt: skip
    assert sorted(lametta.testing.__all__) == ["check_adapter", "check_corrector", "yield_checks"]
    for name in lametta.__all__:
        assert hasattr(lametta, name)


def test_version_is_said_once_more_only():
    assert PROJECT["version"] == lametta.__version__
    assert f"version: {lametta.__version__}" in (ROOT / "CITATION.cff").read_text()
    assert f"## [{lametta.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


# Modules


def test_no_module_behind_a_function():
    """``import lametta.a.b as b`` gives the module, never a function or class of its name."""
    hidden = []
    for found in pkgutil.walk_packages(lametta.__path__, "lametta."):
        try:
            module = importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            if str(error.name).startswith("lametta"):
                raise
            continue  # Triton is for Linux alone
        parent, _, name = found.name.rpartition(".")
        if getattr(sys.modules[parent], name) is not module:
            hidden.append(found.name)
    assert hidden == []


# Extras


EXTRAS = {
    name: requirements
    for name, requirements in PROJECT["optional-dependencies"].items()
    if name not in ("all", "dev")
}


def names_of(requirements):
    """Names of distributions, as they are compared, and of extras of lametta."""
    names = (re.match(r"[\w.-]+", requirement)[0] for requirement in requirements)
    extras = re.findall(r"lametta\[([^]]*)\]", " ".join(requirements))
    return (
        {re.sub(r"[-_.]+", "-", name).lower() for name in names} - {"lametta"},
        set(chain.from_iterable(extra.split(",") for extra in extras)),
    )


def test_extras_that_are_named_exist():
    texts = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "src").rglob("*.py")]
    named = {
        extra
        for path in [*texts, ROOT / "Makefile"]
        for names in re.findall(r"(?:lametta|\.)\[([a-z,]+)\]'", path.read_text(encoding="utf-8"))
        for extra in names.split(",")
    }
    assert {"cli", "torch", "bench", "dev"} <= named
    assert named <= PROJECT["optional-dependencies"].keys()


def modules_of(package):
    """The modules at the top of a distribution; of one that is not here, its own name."""
    try:
        found = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return [package]
    if declared := found.read_text("top_level.txt"):
        return declared.split()
    return {file.parts[0].removesuffix(".py") for file in found.files if file.suffix == ".py"}


def test_extras_are_used():
    """Some module imports, or asks for by name, each package that an extra brings."""
    code = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    for extra, requirements in EXTRAS.items():
        packages, extras = names_of(requirements)
        assert packages, extra
        assert extras <= EXTRAS.keys(), extra
        for package in packages:
            modules = "|".join(map(re.escape, modules_of(package)))
            pattern = rf"^\s*(import|from) ({modules})\b|\"({modules})[.\"]"
            assert re.search(pattern, code, flags=re.MULTILINE), (extra, package)


def brought_by(extra):
    """All packages that an extra brings, also by other extras."""
    packages, extras = names_of(PROJECT["optional-dependencies"][extra])
    return packages.union(*map(brought_by, extras))


def test_the_demo_installs_no_corruptions():
    assert {"torch", "polars"} <= brought_by("bench")
    assert not {"imagecorruptions-imaug", "timm"} & brought_by("bench")
    assert "imagecorruptions-imaug" in brought_by("dev")
    assert "timm" not in brought_by("dev")
    assert {"imagecorruptions-imaug", "timm"} <= brought_by("all")


def test_all_is_all():
    packages, extras = names_of(PROJECT["optional-dependencies"]["all"])
    assert (packages, extras) == (set(), EXTRAS.keys())


# The README


def test_readme_has_examples():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```\s*```text\n(.*?)```", text, flags=re.DOTALL)
    assert len(examples) == 3
    lines = [line for line in examples[0][0].splitlines() if line]
    assert len(lines) == 10


def test_show_versions(capsys):
    lametta.show_versions()
    found = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert found["lametta"] == lametta.__version__
    assert found["numpy"] == np.__version__
    assert found["python"].startswith(platform.python_version())
    assert "show_versions" in dir(lametta)


def test_the_repr_of_a_prediction_is_short():
    probs = np.full((64, 1000), 1e-3, np.float32)
    prediction = lametta.Prediction(probs, probs, {"changed": 0.25, "n_iter": 3.0}, source=probs)
    assert repr(prediction) == (
        "Prediction(probs=float32[64, 1000], features=float32[64, 1000], "
        "source=float32[64, 1000], info={'changed': 0.25, 'n_iter': 3.0})"
    )
    assert repr(StreamsPrediction(probs)) == "StreamsPrediction(probs=float32[64, 1000])"
