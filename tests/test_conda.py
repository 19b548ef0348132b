"""The recipe for conda says what pyproject.toml says."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
RECIPE = yaml.safe_load((ROOT / "deploy/conda/recipe.yaml").read_text(encoding="utf-8"))
OTHER_NAMES = {
    "matplotlib-base": "matplotlib",
    "prometheus_client": "prometheus-client",
    "pytorch": "torch",
    "ray-default": "ray",
    "redis-py": "redis",
}


def bounds(requirements):
    """Lower bounds by name, without extras of a requirement, markers and our own extras."""
    found = (re.match(r"([\w-]+)(?:\[.*?\])? ?>=([\d.]+)", one) for one in requirements)
    return {OTHER_NAMES.get(m[1], m[1]): m[2] for m in found if m}


def test_it_requires_what_the_package_and_its_command_do():
    wanted = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["cli"]]
    run = bounds(RECIPE["requirements"]["run"])
    assert run.pop("python") == PROJECT["requires-python"].removeprefix(">=")
    assert run == bounds(wanted)


def test_it_holds_optional_packages_to_the_bounds_of_the_extras():
    extras = {
        name: bound
        for extra, wanted in PROJECT["optional-dependencies"].items()
        if extra not in ("dev", "all")
        for name, bound in bounds(wanted).items()
    }
    held = bounds(RECIPE["requirements"]["run_constraints"])
    assert held == {name: extras.get(name) for name in held}


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (RECIPE["package"], {"name": PROJECT["name"], "version": PROJECT["version"]}),
        (RECIPE["about"]["license"], PROJECT["license"]),
        (RECIPE["about"]["license_file"], PROJECT["license-files"]),
        (RECIPE["about"]["summary"], PROJECT["description"]),
        (
            RECIPE["build"]["python"]["entry_points"],
            [f"{name} = {where}" for name, where in PROJECT["scripts"].items()],
        ),
    ],
)
def test_it_is_of_this_package(said, wanted):
    assert said == wanted
