"""The page of a report, as text and in a browser, and the files beside it."""

import base64
import errno
import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest

from lametta import LamettaError
from lametta.bench.figures.style import INK
from lametta.bench.report import headline
from lametta.bench.report.page import write
from lametta.bench.tables import accuracy as tables
from tests.bench.made_up import STUDIES

pytestmark = pytest.mark.slow  # the whole report is drawn for it


class Page(HTMLParser):
    """Checks that tags are closed in order, and collects what a page refers to."""

    VOID = ("meta", "br", "link", "img")

    def __init__(self, text):
        super().__init__()
        self.open, self.links, self.ids, self.tags, self.words = [], [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        names = dict(attributes)
        self.ids += [names["id"]] if "id" in names else []
        self.links += [names[key] for key in ("href", "src", "xlink:href") if names.get(key)]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)


@pytest.fixture(scope="module")
def page(report):
    return Page((report / "report.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def drawn(brief):
    """The figures of the page, by name."""
    return {figure.name: figure for section in brief.sections for figure in section.figures}


def test_the_page_stands_alone(page):
    assert not {"link", "img", "iframe"} & set(page.tags)
    assert page.tags.count("script") == 1
    for link in page.links:
        assert link.startswith(("#", "data:text/csv"))
        if link.startswith("#"):
            assert link[1:] in page.ids
    assert len(page.ids) == len(set(page.ids))


def test_panels_follow_the_colors_of_the_page(report, drawn):
    text = (report / "report.html").read_text(encoding="utf-8")
    panels = re.findall(r'<svg viewBox[^>]*role="img".*?</svg>', text, flags=re.DOTALL)
    assert len(panels) == sum(figure.frame()["panel"].n_unique() for figure in drawn.values())
    for panel in panels:
        assert "currentColor" in panel
        assert INK not in panel
        assert "<style" not in panel
    ids = re.findall(r' id="([^"]+)"', text)
    for reference in re.findall(r'url\(#([^)]+)\)|xlink:href="#([^"]+)"', "".join(panels)):
        assert "".join(reference) in ids


def test_the_page_says_everything(page, results, drawn):
    text = re.sub(r"\s+", " ", "".join(page.words))
    assert "Made-up <numbers> & all" in text
    ranking = tables.ranking(results.studies["main"].rows).data
    assert headline(ranking, "Source") in text
    for fingerprint in results.frame["fingerprint"].unique():
        assert fingerprint in text
    for figure in drawn.values():
        assert figure.caption in text
    for said in ("packages torch", "2.9", "lametta run experiment.toml -o results", "k = 5"):
        assert said in text
    assert f"lametta run {results.folder}/experiment.toml -o {results.folder}" in text
    for section in STUDIES:
        assert section in page.ids
    assert "were not run" not in text
    assert (results.folder / "experiment.toml").read_text()[:500] in "".join(page.words)


def test_a_page_hands_back_the_numbers_of_a_figure(page, drawn):
    links = [link for link in page.links if link.startswith("data:")]
    texts = [base64.b64decode(link.partition("base64,")[2]).decode() for link in links]
    for figure in drawn.values():
        assert figure.frame().write_csv() in texts


def test_figures_and_tables_are_files_too(report, drawn):
    for name in drawn:
        for suffix in ("svg", "pdf", "csv"):
            assert (report / "figures" / f"{name}.{suffix}").stat().st_size > 100
    names = {path.stem for path in (report / "tables").iterdir()}
    others = {"ranking", "risk", "streams", "selected", "datasets", "paper"}
    assert names == {*others, *STUDIES}
    for name in names:
        assert (report / "tables" / f"{name}.md").read_text().startswith("| ")
        assert (report / "tables" / f"{name}.tex").read_text().startswith(r"\begin{tabular}")
        assert pl.read_csv(report / "tables" / f"{name}.csv").height


def test_a_browser_shows_the_page(browser, report, tmp_path):
    # Behind the page's own script, one that clicks and measures.
    probe = """<script>
      document.getElementById("theme").click();
      const page = document.documentElement;
      parent.postMessage({
        ready: page.dataset.ready,
        scheme: page.style.colorScheme,
        width: page.clientWidth,
        overflow: page.scrollWidth - page.clientWidth,
        empty: [...document.querySelectorAll(".panels svg")]
          .filter((svg) => svg.getBoundingClientRect().height < 50).length,
      }, "*");
    </script></body>"""
    text = (report / "report.html").read_text()
    (tmp_path / "report.html").write_text(text.replace("</body>", probe))
    # On a wide screen and on a telephone, in one browser, which takes long to start.
    (tmp_path / "both.html").write_text("""<!doctype html><body><script>
      addEventListener("message", (said) => {
        document.body.append(JSON.stringify(said.data) + ";");
      });
      for (const width of [1280, 390]) {
        const frame = document.createElement("iframe");
        Object.assign(frame, {src: "report.html", width, height: 900});
        document.body.append(frame);
      }
    </script></body>""")
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    options += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1400,900"]
    done = subprocess.run(
        [browser, *options, "--dump-dom", (tmp_path / "both.html").as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found = [
        json.loads(said) for said in re.findall(r"({[^{}]*});", done.stdout.split("</script>")[1])
    ]
    wide, narrow = sorted(found, key=lambda said: -said["width"])
    assert wide["width"] > 1200
    assert narrow["width"] < 400
    for said in found:
        assert said["ready"] == "yes"
        assert said["scheme"] in ("light", "dark")
        assert said["overflow"] == 0  # wide tables scroll in a box of their own
        assert said["empty"] == 0
    assert "Uncaught" not in done.stderr
    assert "CONSOLE" not in done.stderr


def test_a_report_that_cannot_be_written_leaves_the_old_one(report, brief, tmp_path, monkeypatch):
    """A full disk, say: a file is the old one or the new one, and never half of it."""
    shutil.copytree(report, tmp_path / "report")
    before = {path: path.read_bytes() for path in (tmp_path / "report").rglob("*.*")}

    def write_half(path, text, **_):
        true_write(path, text[: len(text) // 2].encode() if isinstance(text, str) else text[:9])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    true_write = Path.write_bytes
    monkeypatch.setattr(Path, "write_bytes", write_half)
    monkeypatch.setattr(Path, "write_text", write_half)
    other = replace(brief.sections[-1], figures=brief.sections[1].figures)
    for sections in ((other,), ()):
        with pytest.raises(LamettaError, match="could not write .*No space left"):
            write(replace(brief, sections=sections), tmp_path / "report")
    monkeypatch.undo()
    assert {path: path.read_bytes() for path in (tmp_path / "report").rglob("*.*")} == before
