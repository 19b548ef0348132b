"""The code of every page runs, its output is the one shown, and links lead somewhere."""

import csv
import importlib.util
import inspect
import re
import runpy
import sys
import types
from fnmatch import fnmatchcase
from pathlib import Path

import matplotlib
import numpy as np
import polars as pl
import pytest

from lametta.testing import yield_checks
from scripts import field, reference, tables
from tests.pages import LANGUAGES, ROOT, Reader, blocks

PAGES = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in tables.pages()}
SECONDS = {
    "docs/serving.md": 5,
    "README.md": 3,
    "docs/grid.md": 2,
    "docs/start.md": 2,
    "docs/torch.md": 2,
    "docs/try.md": 2,
    "docs/video.md": 2,
    "docs/adaptation.md": 1,
    "docs/integrations/camera-traps.md": 1,
    "docs/integrations/sklearn.md": 1,
}


ELSEWHERE = {"docs/integrations/lightning.md"}  # with the tests of what is slow to load


def _matches(printed: str, shown: str) -> bool:
    """Whether this was printed; a line of three dots stands for any lines."""
    pattern = re.sub(r"([\[*?])", r"[\1]", shown).replace("\n...\n", "\n*\n")
    return fnmatchcase(printed, pattern)


def _paste(name: str, reader: Reader) -> None:
    """Paste all blocks of a page, and hold what they print against the page."""
    printed = None
    for block in blocks(PAGES[name]):
        if block.mark == "not run":
            printed = None
        elif block.language != "text":
            if name == "README.md":  # each of its blocks stands alone
                reader.forget()
            printed = reader.paste(block)
        elif printed is not None:
            assert _matches(printed, block.code), printed


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow(SECONDS[name]) if name in SECONDS else ())
        for name, text in PAGES.items()
        if blocks(text) and name not in ELSEWHERE
    ],
)
def test_the_code_of_a_page_runs_from_top_to_bottom(name, tmp_path, monkeypatch):
    run_page(name, tmp_path, monkeypatch)


def run_page(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    with Reader(Path(name).stem) as reader:
        _paste(name, reader)
        if name == "docs/extending.md":  # the test that it shows
            page = vars(reader.module)
            for check in yield_checks(page["Temperature"]()):
                page["test_the_contract"](check)


def test_blocks_that_do_not_run_are_few_and_say_why():
    left = []
    for name, text in PAGES.items():
        for block in blocks(text):
            assert block.language in LANGUAGES, name
            assert (block.mark in ("not run", "file", "needs")) == bool(block.said), name
            if block.mark == "not run":
                assert len(block.said.split()) > 2, name
                left.append(name)
    assert len([name for name in left if "integrations" not in name]) <= 10
    # A mark that is misspelled would be no mark.
    said = {mark.strip() for text in PAGES.values() for mark in re.findall(r"<!-- ([\w ]+)", text)}
    known = {"not run", "file", "needs", "stays up", "sphinx", "made by scripts", "end", "figures"}
    assert said <= known | {"road", "end of road"}


def test_a_page_that_shows_what_is_not_printed_is_found():
    assert _matches("a [b]\nc\nd\n", "a [b]\n...\nd\n")
    assert _matches("a*\n", "a*\n")
    assert not _matches("ab\n", "a*\n")
    assert not _matches("a\nc\n", "a\n...\nd\n")


# Links


def _places(text: str) -> set[str]:
    """The anchors of a page's headings, as they are made on the web and by Sphinx."""
    text = re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", [*PAGES, "CONTRIBUTING.md"])
def test_links_lead_somewhere(name):
    page = ROOT / name
    text = re.sub(r"^(`{3,}).*?^\1$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    for address in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", address):
            assert re.fullmatch(r"https://[\w-]+(\.[\w-]+)+(/\S*)?", address), address
            continue
        path, _, place = address.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), address
        if place:
            assert place in _places(target.read_text("utf-8")), address


def _check_links() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("check_links", ROOT / "scripts/check_links.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_check_of_the_built_site_finds_what_is_wrong(tmp_path):
    (tmp_path / "a.html").write_text(
        '<h1 id="top">A</h1><a href="b.html#there">b</a><a href="#top">up</a>'
        '<a href="https://example.org/x">out</a><img src="data:image/png;base64,AAAA">'
    )
    (tmp_path / "b.html").write_text('<p id="there"><a href="a.html"></a></p>')
    check = _check_links()
    assert check.problems(tmp_path) == []
    (tmp_path / "b.html").write_text(
        '<a href="a.html#gone"></a><a href="c.html"></a><a href="https:/x"></a>'
        '<script src="https://cdn.example.org/x.js"></script>'
        '<link href="//fonts.example.org/f.css">'
        '<img src="gone.svg">'
    )
    (tmp_path / "s.css").write_text('@import "https://fonts.example.org/f.css";')
    wrong = check.problems(tmp_path)
    for word in (
        "a.html#gone",
        "c.html",
        "https:/x",
        "cdn",
        "//fonts",
        "gone.svg",
        "s.css",
        "#there",
    ):
        assert any(word in line for line in wrong), word
    assert len(wrong) == 8
    assert check.problems(tmp_path / "empty") != []


# The reference


def _documented() -> dict[str, object]:
    """The names of docs/api.md, and what they stand for."""
    _, names = reference.documented(PAGES["docs/api.md"])
    return {name: reference.find(name) for name in names}


@pytest.mark.parametrize("name", reference.PAGES)
def test_tables_are_those_of_the_code(name):
    text = PAGES[f"docs/{name}"]
    assert "| `lametta.lame` |" in text or "| `lame` |" in text
    assert reference.written(text) == text, "run python scripts/reference.py"


def test_a_table_that_is_out_of_date_is_found():
    text = PAGES["docs/methods.md"]
    assert reference.written(text.replace("| `lame` |", "| `lamé` |")) == text
    assert reference.written(text.replace("`k=5`", "`k=7`")) == text


def test_pages_can_be_read_where_they_are_not_built():
    linked = {f"docs/{path}" for path in re.findall(r"\]\(([\w/-]+\.md)\)", PAGES["docs/index.md"])}
    assert linked == PAGES.keys() - {"README.md", "docs/index.md"}
    for name, text in PAGES.items():
        shown = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
        assert not re.search(r"^(`{3,}|:{3,})\{|\)\{\.|\{[a-z:]+\}`", shown, flags=re.MULTILINE), (
            name
        )


def test_every_public_name_is_documented_with_an_example():
    documented = _documented()
    without = [n for n, thing in documented.items() if ">>>" not in (inspect.getdoc(thing) or "")]
    assert without == []
    modules = ["lametta", "lametta.torch", "lametta.stream", "lametta.data", "lametta.correctors"]
    modules += [
        f"lametta.integrations.{name}"
        for name in ("hf", "megadetector", "onnx", "sklearn", "supervision")
    ]
    for module in (importlib.import_module(name) for name in modules):
        for name in module.__all__:
            thing = getattr(module, name)
            if callable(thing) and not isinstance(thing, types.GenericAlias):
                assert any(thing is other for other in documented.values()), (module, name)


# Claims


def _section(name: str, title: str) -> str:
    """What stands below a heading of a page, in one line."""
    text = PAGES[name].partition(f"## {title}\n")[2].partition("\n## ")[0]
    assert text, title
    return " ".join(text.split())


@pytest.mark.parametrize("begin", ["| what do you have?", "| your stream | take |"])
def test_the_front_page_asks_what_the_readme_asks(begin):
    readme, front = (PAGES[name] for name in ("README.md", "docs/index.md"))
    table = begin + readme.partition(begin)[2].partition("\n\n")[0]
    assert table.replace("docs/", "") in front


def test_the_readme_says_what_a_correction_costs():
    page = " ".join(PAGES["docs/adaptation.md"].split())
    worst = re.search(r"where classes are shuffled, LAME loses up to ([\d.]+) points", page)[1]
    assert float(worst) > 2
    cannot = _section("README.md", "What a correction cannot promise")
    assert worst in cannot
    before, after = re.search(r"the network ([\d.]+)%.* Prudent ([\d.]+)%", page).groups()
    assert f"from {before} to {after} % on digits" in cannot
    assert "Prudent()" in _section("README.md", "Which method should I take?")


def test_gains_are_split_by_how_many_classes_occur():
    """Halves of one number: it says little of either."""
    total = re.search(
        r"gained ([\d.]+) points one by one and ([\d.]+) in batches", PAGES["docs/adaptation.md"]
    )
    rows = re.findall(
        r"^\| (?:all classes|ten of a thousand) occur.*", PAGES["README.md"], flags=re.M
    )
    split = [[float(cell) for cell in re.findall(r"\+([\d.]+)", row)] for row in rows]
    assert len(split) == 2
    for i, mean in enumerate(total.groups()):
        assert abs((split[0][i] + split[1][i]) / 2 - float(mean)) < 0.3
        for half in split:
            assert f"+{half[i]}" in _section("docs/adaptation.md", "What Prudent adds")


@pytest.mark.parametrize(
    ("name", "figure"),
    [
        ("README.md", "**90.3 %**"),
        ("README.md", "the worst lost 1.0"),
        ("docs/index.md", "91.6 and 95.0 %"),
        ("docs/adaptation.md", "Photographs of CIFAR-10 in bursts"),
        ("docs/adaptation.md", "(25.4 %)"),
        ("docs/adaptation.md", "On 60 streams of four networks it gained"),
        ("docs/adaptation.md", "Points of accuracy over the frozen network"),
        ("docs/adaptation.md", "Points gained without a reset"),
        ("docs/video.md", "11.7 points on all videos in order"),
    ],
)
def test_a_figure_says_whether_constants_were_chosen_on_its_data(name, figure):
    (paragraph,) = (part for part in PAGES[name].split("\n\n") if figure in part)
    assert re.search(r"\bchosen\b.*\bon\b", paragraph, flags=re.DOTALL)


# Figures


def test_the_road_is_what_its_script_draws(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    with matplotlib.rc_context():  # which the scripts set for themselves
        drawing = importlib.import_module("drawing")
    del sys.modules["drawing"]
    monkeypatch.setitem(sys.modules, "drawing", drawing)
    monkeypatch.setattr(drawing, "IMAGES", tmp_path)
    runpy.run_path(str(ROOT / "scripts" / "draw_road.py"))
    drawn = (tmp_path / "road.svg").read_text(encoding="utf-8")
    assert drawn == (ROOT / "docs" / "img" / "road.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["stream", "stream_photos", "stream_video"])
def test_the_words_of_a_stream_can_be_read_on_a_phone(name):
    text = (ROOT / f"docs/img/{name}.svg").read_text(encoding="utf-8")
    words = re.findall(r"fontsize=(\d+)", (ROOT / "scripts/draw_stream.py").read_text("utf-8"))
    width = float(re.search(r'<svg[^>]* width="([\d.]+)pt"', text)[1])
    # Pixels, in a column of 358: a phone of 390 without its margins.
    assert min(map(int, words)) * 358 / width > 10


def test_pictures_are_small_and_need_nothing_from_elsewhere():
    pictures = sorted((ROOT / "docs" / "img").glob("*.svg"))
    shown = " ".join(PAGES.values())
    for path in pictures:
        assert f"img/{path.name}" in shown, path.name
        text = path.read_text(encoding="utf-8")
        addresses = re.findall(r"(?:href|src)=\"([^\"]*)\"|url\(([^)]*)\)", text)
        assert all(a.startswith(("#", "data:image/png")) for pair in addresses for a in pair if a)
    assert "prefers-reduced-motion" in (ROOT / "docs/img/lame.svg").read_text(encoding="utf-8")
    moving = [path for path in pictures if "@keyframes" in path.read_text(encoding="utf-8")]
    assert sum(path.stat().st_size for path in moving) < 100_000


# Tables


@pytest.mark.parametrize("name", PAGES)
def test_tables_of_figures_say_where_these_come_from(name):
    text = PAGES[name]
    shown = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    shown = re.sub(r"\s+", " ", shown)
    found = list(tables.TABLE.finditer(text))
    assert text.count("<!-- figures: ") == sum(table["origin"] is not None for table in found)
    for table in found:
        origin = table["origin"]
        if origin is None:
            head = table["table"].splitlines()[0]
            assert not tables.has_figures(table["table"]), f"no <!-- figures: ... --> above {head}"
            continue
        way, _, what = origin.partition(" ")
        assert way in ("stored", "tested", "measured", "given"), origin
        if way == "tested":
            test = (ROOT / what.removeprefix("by ")).read_text(encoding="utf-8")
            assert Path(name).name in test, origin
        elif way == "measured":
            run, _, file = what.partition(", stored in ")
            assert file, origin
            made = re.fullmatch(r"by ((?:python|lametta) .+) on (.+), (20\d\d-\d\d-\d\d)", run)
            assert made, origin
            command, machine, date = made.groups()
            assert machine in ("one H200", "two cores")
            assert command in shown, f"{command} is not on the page"
            assert date in shown, f"{date} is not on the page"
            for path in re.findall(r"\S+\.(?:py|toml)", command):
                assert (ROOT / path).is_file(), path
    # Otherwise: python scripts/tables.py
    assert tables.filled(text) == text


def test_every_stored_table_is_shown():
    stored = {str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "tables").rglob("*.*")}
    shown = re.findall(r"<!-- figures: .*?stored in (\S+) -->", " ".join(PAGES.values()))
    assert sorted(shown) == sorted(stored)


def test_a_table_that_is_not_the_stored_one_is_found(tmp_path):
    table = "| | a | why |\n|---|---|---|\n| **x** | **1** | so |\n| y | 2 | 3 of 4 |\n"
    assert tables.has_figures(table)
    assert not tables.has_figures("| | a |\n|---|---|\n| 1 | x |\n| 2 | y 3 |\n| 3 | 4 |\n")
    stored = [["", "a", "why"], ["x", "5", "so"], ["y", "2", "3 of 4"]]
    assert tables.fill(table, stored) == table.replace("**1**", "**5**")
    (tmp_path / "stored.md").write_text(table.replace("1", "5"))
    assert tables.read(tmp_path / "stored.md") == stored
    for wrong, said in (
        ([row[:2] for row in stored], "figures that are not stored: .*3 of 4"),
        (stored[:2], "2 rows, got 1"),
        ([*stored[:2], ["z", "2", "3 of 4"]], "row 'y', got 'z'"),
        ([["", "b", "why"], *stored[1:]], "no column .*'b'"),
    ):
        with pytest.raises(ValueError, match=said):
            tables.fill(table, wrong)
    with pytest.raises(ValueError, match="two columns of one title"):
        tables.fill(table.replace("why", "a"), [["", "a", "a"], *stored[1:]])


def test_tables_of_the_field_are_made_of_cells():
    runs = [("Source", 0, 0.5), ("Source", 1, 0.5), ("LAME", 0, 0.75), ("LAME", 1, 0.45)]
    frame = pl.DataFrame(runs, schema=["method", "seed", "accuracy"], orient="row")
    same = {"config": "{}", "model": "net", "scenario": "a", "batch_size": 64, "fingerprint": "5f"}
    made = field.gained(frame.with_columns(**{k: pl.lit(x) for k, x in same.items()}), {"a": "A"})
    assert made[0] == ["method", "A", "mean", "worst stream", "tail accuracy"]
    assert made[1] == ["Source, errors", "50.0", "50.0", "", "50.0"]
    assert made[2] == ["LAME", "+10.0", "+10.0", "-5.0", "45.0"]


def test_reproduce_md_has_the_steps_of_the_stored_run():
    steps = {(row["network"], row["method"]): row["step"] for row in _stored("networks.csv")}
    networks = "ResNet-18", "ResNet-50", "ResNet-101", "EfficientNet-B4", "ViT-B/16"
    page = PAGES["docs/reproduce.md"].partition("Time of a batch in seconds")[2]
    for method in ("LAME", "TENT"):
        (line,) = re.findall(rf"^\| {method} \|.*$", page, flags=re.MULTILINE)
        ours = [f"{float(steps[network, method]) / 1000:.3f}" for network in networks]
        assert tables.cells(line)[2::2] == ours


def _stored(name: str) -> list[dict[str, str]]:
    titles, *rows = tables.read(ROOT / "docs" / "tables" / name)
    return [dict(zip(titles, row, strict=True)) for row in rows]


def _colored() -> dict[str, list[float]]:
    """The figures of docs/img/kinds.svg, twelve a method, those of CIFAR-10 first."""
    text = (ROOT / "docs/img/kinds.svg").read_text(encoding="utf-8")
    methods = ("AdaBN", "TENT", "SHOT-IM", "Label shift", "OATTA", "Smoothing", "Memory (track)")
    methods += ("LAME", "Prudent")
    figures = [float(x) for x in re.findall(r"<!-- ([+-][\d.]+) -->", text)]
    half = np.array(figures).reshape(2, len(methods), 6)
    return dict(zip(methods, np.hstack([*half]).tolist(), strict=True))


def test_adaptation_md_says_what_the_colored_table_shows():
    colored, page = _colored(), _section("docs/adaptation.md", "All of them on all of it")

    def said(pattern: str) -> list[int]:
        return [int(figure) for figure in re.search(pattern, page).groups()]

    few = [x for method in ("Label shift", "LAME", "Prudent") for x in colored[method][6:]]
    assert said(r"LAME and Prudent gain (\d+) to (\d+)") == [round(min(few)), round(max(few))]
    lost = [-colored[method][i] for method in ("Smoothing", "Memory (track)") for i in (0, 6)]
    assert said(r"lose (\d+) to (\d+) points") == [round(min(lost)), round(max(lost))]
    rivals = [colored[method] for method in ("AdaBN", "TENT", "SHOT-IM")]
    gained = [row[3] for row in rivals]
    assert said(r"\+(\d+) to \+(\d+) on CIFAR-10") == [round(min(gained)), round(max(gained))]
    assert said(r"lose up to (\d+) on the photographs") == [round(-min(min(x) for x in rivals))]
    assert min(colored["Prudent"]) >= 0


def _least_and_most() -> tuple[str, str]:
    """What Prudent gains on the field's streams whose neighbors share their class."""
    gains = []
    for network in ("resnet20", "resnet26_gn"):
        (row,) = (x for x in _stored(f"field_outputs_{network}.csv") if x["method"] == "Prudent")
        gains += [float(row[x]) for x in ("Correlated", "PTTA", "UniTTA, both stay")]
    return f"{min(gains):.0f}", f"{max(gains):.0f}"


def test_pages_repeat_the_stored_figures_of_prudent():
    videos = {row[""]: row for row in _stored("streams_videos.csv")}
    batches = {row[""]: row for row in _stored("streams_batches.csv")}
    smoothing = {row["method"]: row for row in _stored("streams_methods.csv")}["Smoothing, 0.9"]
    promised = {row["streams"]: row for row in _stored("promise_reported.csv")}
    order = videos["seven videos in order (five orders), EN-Lite1 and 2"]
    alone = videos["a video at a time, EN-Lite1 and 2"]
    pages = {name: " ".join(text.split()) for name, text in PAGES.items()}
    for name, said, figures in (
        ("docs/video.md", "`Prudent` gains {} points on all", [order["Prudent"]]),
        ("docs/video.md", "in order and {} on a video", [alone["Prudent"]]),
        ("docs/video.md", "smoothing gains {} and {},", [order["Smoothing"], alone["Smoothing"]]),
        ("docs/video.md", "loses {} on average", [smoothing["mean gain"]]),
        ("docs/video.md", "and {} at worst", [smoothing["worst run"]]),
        ("docs/adaptation.md", "it gained {} points one", [batches["one by one"]["Prudent, mean"]]),
        ("docs/adaptation.md", "{} in batches", [batches["batches of 64"]["Prudent, mean"]]),
        ("docs/adaptation.md", "gained 0 and {}.", [batches["batches of 64"]["LAME, mean"]]),
        ("docs/adaptation.md", "worst lost {}.", [batches["batches of 64"]["worst stream"]]),
        ("docs/field.md", "Prudent gains {} to {} points where", _least_and_most()),
        ("docs/field.md", "gains {} points", [promised["correlated, runs of 200"]["mean"]]),
    ):
        assert said.format(*(x.lstrip("+-") for x in figures)) in pages[name]
    worst = min(float(row["worst"]) for row in promised.values())
    runs = sum(int(row["runs"]) for row in promised.values())
    assert f"Of {runs} runs of other kinds" in pages["README.md"]
    assert f"the worst lost {-worst}" in pages["README.md"]


@pytest.mark.parametrize(
    ("experiment", "column", "non_iid"),
    [
        ("cifar10", 1, ("Test, by class", "Bursts", "Coarse, bursts")),
        ("imagenet_small", 2, ("Test, by class", "Videos", "Coarse, videos")),
    ],
)
def test_claims_of_results_md_follow_from_the_stored_tables(experiment, column, non_iid):
    gains = {}
    for study in ("main", "architectures"):
        rows = {
            row.pop("method"): {key: float(cell.split()[0]) for key, cell in row.items()}
            for row in _stored(f"{experiment}_{study}.md")
        }
        gains[study] = {
            method: {key: value - rows["Source"][key] for key, value in row.items()}
            for method, row in rows.items()
        }
    main, networks = gains["main"], gains["architectures"]
    claims = {
        tables.cells(line)[0]: tables.cells(line)[column]
        for line in PAGES["docs/results.md"].partition("## What is confirmed")[2].splitlines()
        if line.startswith("| ") and line.count("|") == 4
    }

    def said(claim: str, pattern: str) -> list[float]:
        (cell,) = (cell for title, cell in claims.items() if title.startswith(claim))
        found = re.search(pattern, cell)
        assert found, (pattern, cell)
        return [float(figure) for figure in found.groups()]

    close = {"abs": 0.11}  # both are rounded
    mean = {method: row["mean"] for method, row in main.items()}
    assert said("LAME is best", r"best, by ([\d.]+)") == pytest.approx([mean["LAME"]], **close)
    behind = [mean["LAME"] - mean["SHOT-IM"]]
    assert said("LAME is best", r"SHOT-IM,? is ([\d.]+)") == pytest.approx(behind, **close)
    average = [sum(main["LAME"][key] for key in non_iid) / 3]
    assert said("in non-i.i.d.", r"([\d.]+) on average") == pytest.approx(average, **close)
    for method in ("PseudoLabel", "AdaBN"):
        own = said("every network adaptation", rf"{method} (-[\d.]+)")
        assert own == pytest.approx([mean[method]], **close)
    own = [row for key, row in networks["LAME"].items() if key != "mean"]
    shown = said("LAME's gain holds", r"LAME \+([\d.]+) to \+([\d.]+)")
    assert shown == pytest.approx([min(own), max(own)], **close)


def test_speed_is_that_of_the_code_shown_and_of_the_stored_run():
    page, readme = PAGES["docs/speed.md"], re.sub(r"\s+", " ", PAGES["README.md"])
    code = (ROOT / "benchmarks" / "sensible.py").read_text(encoding="utf-8")
    (body,) = re.findall(r"def sensible_numpy.*\n((?:    .*\n)+)", code)
    assert body in page
    with (ROOT / "docs" / "tables" / "lame_cpu.csv").open(encoding="utf-8", newline="") as file:
        rows = {(row[""], row["library"]): row for row in csv.DictReader(file)}

    def times(case, version):
        found = [float(rows[case, name][f"times {version}"]) for name in ("NumPy", "PyTorch")]
        return [f"{x:.0f}" if x >= 10 else f"{x:.1f}" for x in found]

    small, large = (
        (times(f"real, N = {n}", "sensible"), times(f"real, N = {n}", "literal")) for n in (64, 256)
    )
    ours, literal = small
    said = f"it is {ours[0]} times faster than the sensible lines in NumPy and {ours[1]} in PyTorch"
    assert f"{said} (literal: {literal[0]} and {literal[1]})" in readme
    ours, literal = large
    assert f"{ours[0]} and {ours[1]} ({literal[0]} and {literal[1]})" in readme


@pytest.mark.parametrize(("road", "most"), [("image to report", 25), ("request to answer", 12)])
def test_roads_lead_through_files(road, most):
    """Those of docs/design.md: none twice, and all of them there."""
    part = PAGES["docs/design.md"].partition(f"<!-- road: {road} -->")[2]
    files = re.findall(r"`([\w/]+\.py)`", part.partition("<!-- end of road -->")[0])
    assert len(files) == len(set(files))
    assert most - 3 < len(files) <= most
    assert [file for file in files if not (ROOT / "src" / "lametta" / file).is_file()] == []
