"""What a release is made of: metadata, workflows, archives, the time of the import."""

import fnmatch
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.conftest import run_python

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
if not WORKFLOWS:
    pytest.skip("workflows are in the repository, not in the archive", allow_module_level=True)


def workflow(name):
    return yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8"))


def steps(path):
    jobs = workflow(path.name)["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


# Workflows


def test_there_is_a_workflow_for_each_job():
    assert [path.name for path in WORKFLOWS] == ["docs.yml", "publish.yml", "test.yml"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_what_there_is(path):
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, flags=re.MULTILINE))
    jobs = workflow(path.name)["jobs"]
    tried = 0
    for job in jobs.values():
        rows = job.get("strategy", {}).get("matrix", {}).get("include", [])
        for step in job["steps"]:
            for words in re.findall(r"^make (.+)$", step.get("run", ""), flags=re.MULTILINE):
                named = set(words.split())
                if "${{ matrix.target }}" in words:
                    named = {row["target"] for row in rows}
                assert named <= targets, named - targets
                tried += len(named)
            for program in re.findall(r"\bscripts/\w+\.py", step.get("run", "")):
                assert (ROOT / program).is_file(), program
    assert tried


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_to_commits(path):
    lines = re.findall(r"uses: (.*)", path.read_text(encoding="utf-8"))
    assert len(lines) >= 3
    for line in lines:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v[\d.]+", line), line


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_may_do_little(path):
    found = workflow(path.name)
    assert found["permissions"] in ({}, {"contents": "read"})
    assert "secrets." not in path.read_text(encoding="utf-8")
    wider = {
        name: job["permissions"]
        for name, job in found["jobs"].items()
        if job.get("permissions", {"contents": "read"}) != {"contents": "read"}
    }
    publishing = {"publish": {"id-token": "write"}, "attach": {"contents": "write"}}
    assert wider == (publishing if path.name == "publish.yml" else {})
    assert all("timeout-minutes" in job for job in found["jobs"].values())
    for step in steps(path):
        if "checkout" in step.get("uses", ""):
            assert step["with"]["persist-credentials"] is False


def test_publishing_needs_a_build_and_an_environment():
    jobs = workflow("publish.yml")["jobs"]
    assert jobs["publish"]["needs"] == "build"
    assert jobs["publish"]["environment"] == "pypi"
    (upload,) = (step for step in jobs["publish"]["steps"] if "pypi-publish" in step["uses"])
    assert "with" not in upload  # no password
    assert len(jobs["publish"]["steps"]) == 2  # nothing else runs beside the permission


# Metadata


def test_pythons_that_are_declared_are_tested():
    prefix = "Programming Language :: Python :: 3."
    declared = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if prefix in name]
    jobs = workflow("test.yml")["jobs"]
    assert [row["python"] for row in jobs["test"]["strategy"]["matrix"]["include"]] == declared
    assert set(declared) <= set(jobs["wheel"]["strategy"]["matrix"]["python"])
    assert PROJECT["requires-python"] == f">={declared[0]}"


def test_metadata_is_complete():
    wanted = {"name", "version", "description", "license", "authors", "keywords"}
    assert wanted <= PROJECT.keys()
    assert PROJECT["dynamic"] == ["readme"]
    assert all((ROOT / name).is_file() for name in PROJECT["license-files"])
    assert "Typing :: Typed" in PROJECT["classifiers"]
    assert (ROOT / "src" / "lametta" / "py.typed").is_file()
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["license"] == PROJECT["license"]
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()


def test_links_of_the_readme_lead_somewhere_from_an_index():
    from hatchling.metadata.core import ProjectMetadata
    from hatchling.plugin.manager import PluginManager

    from scripts.index_readme import for_index

    # What is built now: no address is known, so no link is left that needs one.
    built = ProjectMetadata(str(ROOT), PluginManager()).core
    assert built.readme_content_type == "text/markdown"
    targets = re.findall(r"\]\(([^)\s]+)\)", built.readme)
    assert targets
    assert all(target.startswith("https://") for target in targets), targets
    assert "](docs/" in (ROOT / "README.md").read_text(encoding="utf-8")
    # What is built once an address is known.
    text = "![a\nb](docs/img/a.svg) [c](docs/c.md#d), [e](#f), [g](https://example.org/g)"
    address = "https://example.org/us/lametta"
    assert for_index(text, address, "1.2") == (
        f"![a\nb]({address}/raw/v1.2/docs/img/a.svg) [c]({address}/blob/v1.2/docs/c.md#d), "
        "[e](#f), [g](https://example.org/g)"
    )
    assert for_index(text, None, "1.2").startswith("a\nb c, [e](#f)")


def test_the_lowest_versions_are_those_that_are_allowed():
    """Of the core and of every extra, and one for each package: they go into one environment."""
    extras = PROJECT["optional-dependencies"]
    given = [*PROJECT["dependencies"]]
    given += [one for name in extras.keys() - {"all", "dev"} for one in extras[name]]
    given = [re.match(r"([\w-]+)(\[.*\])?>=([\d.]+)", one) for one in given]
    allowed = {f"{found[1]}=={found[3]}" for found in given if found}
    text = (ROOT / "constraints-lowest.txt").read_text(encoding="utf-8")
    lowest = [line for line in text.splitlines() if not line.startswith("#")]
    assert lowest == sorted(allowed)
    assert len({line.partition("==")[0] for line in lowest}) == len(lowest)


def test_every_extra_keeps_a_promise():
    from scripts.check_wheel import PROMISES

    assert PROMISES.keys() == PROJECT["optional-dependencies"].keys() - {"all", "dev"}
    for name in PROMISES.values():
        parts = name.split(".")
        if parts[0] == "lametta":
            place = (ROOT / "src").joinpath(*parts)
            assert place.with_suffix(".py").is_file() or (place / "__init__.py").is_file(), name


def test_the_archive_has_what_the_tests_need():
    listed = subprocess.run(
        ["git", "ls-files"], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    if listed.returncode:
        pytest.skip("not a git repository")
    include = PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    top = {line.partition("/")[0] for line in listed.stdout.splitlines()}
    left = {
        name for name in top if not any(fnmatch.fnmatch(f"/{name}", given) for given in include)
    }
    # Hatchling takes the last three by itself.
    hosting = {".ci", ".github", ".pre-commit-config.yaml"}
    assert left - hosting == {".gitignore", "LICENSE", "pyproject.toml"}


# Texts for those who come


def test_forms_for_issues_are_whole():
    forms = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    assert [path.stem for path in forms] == ["bug", "config", "idea", "worse"]
    for path in forms:
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        if path.stem != "config":
            assert {"name", "description", "body"} == form.keys()
            ids = [part["id"] for part in form["body"] if part["type"] != "markdown"]
            assert len(ids) == len(set(ids)) >= 2


def test_there_is_a_page_for_reports_and_one_for_conduct():
    for name in ("SECURITY.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "LICENSE"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert len(text) > 1000
        assert "@" not in text or name == "CONTRIBUTING.md"  # no address that nobody reads


# The time of the import


def test_import_loads_what_it_needs():
    """Each of these takes a good share of what all of lametta does; see benchmarks/imports.py."""
    slow = ("numpy.f2py", "numpy.testing", "importlib.metadata", "logging", "pathlib", "pickle")
    code = "import sys, numpy; had = set(sys.modules); import lametta; new = set(sys.modules) - had"
    done = run_python(f"{code}; print(*new.intersection({slow}))")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""
