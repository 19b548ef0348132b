"""A small experiment, and made-up results with their report, made once for all tests."""

from dataclasses import replace

import polars as pl
import pytest

from lametta.bench.analysis.results import read_results
from lametta.bench.experiment import load
from lametta.bench.figures import Figure
from lametta.bench.figures.style import RC
from lametta.bench.report import make_report
from lametta.bench.report.page import write
from lametta.bench.running import cell
from tests.bench.made_up import make_results
from tests.bench.tiny import tiny
from tests.bench.tiny import write as write_file


@pytest.fixture
def experiment(tmp_path):
    return load(write_file(tmp_path / "tiny.toml", tiny()))


@pytest.fixture(scope="session")
def measuring():
    """The process that measures memory, which gives back at once what is a megabyte or more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MALLOC_MMAP_THRESHOLD_", str(2**20))
        cell._loaded.cache_clear()
        cell._loaded().submit(int).result()


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
def brief(shown):
    """The same with two panels of a figure and one of the others, drawn in a fifth of the time."""

    def shortened(figure):
        panels = figure.data["panel"].unique(maintain_order=True).head(1 + (figure.name == "main"))
        return replace(figure, data=figure.data.filter(pl.col("panel").is_in(panels.implode())))

    sections = (
        replace(section, figures=tuple(map(shortened, section.figures)))
        for section in shown.sections
    )
    return replace(shown, sections=tuple(sections))


@pytest.fixture(scope="session")
def report(brief, made_once):
    """The folder of a whole report, whose PDF files have their fonts in the form that is quick."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RC, "pdf.fonttype", 3)
        return made_once("made-up-report", lambda folder: write(brief, folder))


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
