"""A small experiment, and made-up results with their report, made once for all tests."""

import os

import pytest

from lametta._files import locked
from lametta.bench.experiment import load
from lametta.bench.figures import Figure
from lametta.bench.report import make_report, write
from lametta.bench.results import read_results
from tests.bench.made_up import make_results
from tests.bench.tiny import tiny
from tests.bench.tiny import write as write_file


@pytest.fixture
def experiment(tmp_path):
    return load(write_file(tmp_path / "tiny.toml", tiny()))


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    """``made_once(name, make)``: a folder for all processes that run tests, made by the first."""
    place = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = place.parent

    def get(name, make):
        with locked(place / f"{name}.lock"):
            if not (place / f"{name}.done").exists():
                (place / name).mkdir()
                make(place / name)
                (place / f"{name}.done").touch()
        return place / name

    return get


@pytest.fixture(scope="session")
def folder(made_once):
    return made_once("made-up-results", make_results)


@pytest.fixture(scope="session")
def results(folder):
    return read_results(folder)


@pytest.fixture(scope="session")
def shown(results):
    return make_report(results, paper=True)


@pytest.fixture(scope="session")
def report(shown, made_once):
    """The folder of a whole report."""
    return made_once("made-up-report", lambda folder: write(shown, folder))


@pytest.fixture(scope="session")
def main(results):
    """The rows of the main study."""
    return results.studies["main"].rows


@pytest.fixture(scope="session")
def drawn(shown):
    """The figures of the report, by name."""
    return {figure.name: figure for section in shown.sections for figure in section.figures}


@pytest.fixture
def undrawn(monkeypatch):
    """Figures are made but not drawn, for tests of what the page says."""

    def save(self, path):
        path.mkdir(parents=True, exist_ok=True)
        (path / f"{self.name}.svg").touch()

    monkeypatch.setattr(Figure, "save", save)
    monkeypatch.setattr(Figure, "inline", lambda _: [])
