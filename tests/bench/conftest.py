"""A small experiment, and made-up results with their report, made once for all tests."""

import pytest

from lametta.bench.experiment import load
from lametta.bench.report import make_report, write
from lametta.bench.results import read_results
from tests.bench.made_up import make_results
from tests.bench.tiny import tiny
from tests.bench.tiny import write as write_file


@pytest.fixture
def experiment(tmp_path):
    return load(write_file(tmp_path / "tiny.toml", tiny()))


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return make_results(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="session")
def results(folder):
    return read_results(folder)


@pytest.fixture(scope="session")
def shown(results):
    return make_report(results, paper=True)


@pytest.fixture(scope="session")
def report(shown, tmp_path_factory):
    """The folder of a whole report."""
    folder = tmp_path_factory.mktemp("report")
    assert write(shown, folder) == folder / "report.html"
    return folder


@pytest.fixture(scope="session")
def main(results):
    """The rows of the main study."""
    return results.studies["main"].rows


@pytest.fixture(scope="session")
def drawn(shown):
    """The figures of the report, by name."""
    return {figure.name: figure for section in shown.sections for figure in section.figures}
