import base64
import io
import itertools
import json
import math
import re
import shutil
import statistics
import subprocess
import zlib
from html.parser import HTMLParser
from importlib import resources
from xml.etree import ElementTree

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from typer.testing import CliRunner

from lametta import LamettaError
from lametta.bench import figures, paper, tables
from lametta.bench.experiment import load
from lametta.bench.figures import marks
from lametta.bench.figures.style import INK, pick
from lametta.bench.report import compare, headline, read, read_cells, sections, write
from lametta.bench.select import select, write_selection
from lametta.bench.tables import Entry, Table
from lametta.cli import app

METHODS = {
    "Source": 'kind = "source"',
    "LAME": 'kind = "lame"\nparams = { affinity = "knn" }\ngrid = { k = [1, 3, 5] }',
    "TENT": 'kind = "tent"\ngrid = { lr = [0.001, 0.01, 0.1] }',
    "SHOT-IM": 'kind = "shot_im"\ngrid = { lr = [0.001, 0.1] }',
    "PseudoLabel": 'kind = "pseudo_label"\ngrid = { lr = [0.001, 0.1] }',
    "AdaBN": 'kind = "adabn"\ngrid = { momentum = [0.1, 1.0] }',
    "LAME rbf": 'kind = "lame"\nparams = { affinity = "rbf" }',
    "LAME linear": 'kind = "lame"\nparams = { affinity = "linear" }',
    "TENT fast": 'kind = "tent"\nparams = { lr = 0.1 }',
}
SIX = list(METHODS)[:6]
KERNELS = ["Source", "LAME", "LAME rbf", "LAME linear"]
MODELS = {  # name: label, architecture, training, what it is better by
    "msra": ("RN-50", "ResNet-50", "original", 0.0),
    "rn18": ("RN-18", "ResNet-18", "torchvision", -0.06),
    "rn101": ("RN-101", "ResNet-101", "original", 0.04),
    "b4": ("EN-B4", "EfficientNet-B4", "original", 0.08),
    "vit": ("ViT-B", "ViT-B/16", "original", 0.12),
    "tv": ("RN-50 torchvision", "ResNet-50", "torchvision", 0.01),
    "simclr": ("RN-50 SimCLR", "ResNet-50", "SimCLR", -0.04),
}
VALIDATION = {f"{data}-{letter}": letter for data in ("Val", "C", "C16") for letter in "ABCD"}
TEST = {
    "V2": "A",
    "C-Test": "A",
    "V2 Zipf": "C",
    "C-Test Zipf": "C",
    "V2 sorted": "B",
    "VID": "B",
    "TAO": "B",
}
STUDIES = {
    "main": ("boxes", ["msra"], list(TEST), SIX, 5, [64]),
    "architectures": (
        *("radar_architectures", ["rn18", "msra", "rn101", "b4", "vit"]),
        *(list(TEST), SIX, 1, [16]),
    ),
    "trainings": ("radar_trainings", ["msra", "tv", "simclr"], list(TEST), SIX, 1, [16]),
    "batch_size": ("batch_size", ["msra"], list(TEST), SIX, 2, [16, 32, 64, 128]),
    "kernels": (
        "kernels",
        ["msra"],
        list(TEST),
        ["Source", "LAME", "LAME rbf", "LAME linear"],
        2,
        [64],
    ),
    "rates": ("curves", ["msra"], ["VID"], ["Source", "TENT", "TENT fast"], 2, [64]),
    "cost": ("runtime", ["rn18", "msra", "vit"], ["timed"], SIX[:3], 1, [64]),
}


def experiment_file(name="synthetic"):
    """An experiment with every kind of study, as TOML."""
    lines = [f'name = "{name}"', 'title = "Made-up <numbers> & all"']
    for model, (label, architecture, training, _) in MODELS.items():
        lines += [f"[models.{model}]", 'zoo = "paper:resnet18"', f'label = "{label}"']
        lines += [f'weights = "{model}.pth"']
        lines += [f'architecture = "{architecture}"', f'training = "{training}"']
    lines += ["[datasets.any]", 'reader = "embedded:digits_val"']
    for scenario, letter in (VALIDATION | TEST | {"timed": "A"}).items():
        order = "by_class" if letter in "BD" else "iid"
        prior = "zipf" if letter in "CD" else "as_is"
        lines += [f'[scenarios."{scenario}"]', 'dataset = "any"', f"limit = {len(lines)}"]
        lines += [f'order = "{order}"', f'prior = "{prior}"']
    for method, text in METHODS.items():
        lines += [f'[methods."{method}"]', text]
    lines += ["[validation]", 'models = ["msra"]', f"scenarios = {list(VALIDATION)}"]
    lines += [f"methods = {SIX}", "seeds = [0, 1]"]
    for study, (figure, models, scenarios, methods, n, sizes) in STUDIES.items():
        lines += [f"[studies.{study}]", f'figure = "{figure}"', f"models = {models}"]
        lines += [f"scenarios = {scenarios}", f"methods = {methods}"]
        lines += [f"seeds = {list(range(n))}", f"batch_sizes = {sizes}"]
    return "\n".join(lines) + "\n"


def draws(*key):
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


def row(cell, sorted_stream):
    """The row that a cell might have: LAME helps on sorted streams, and fast TENT collapses."""
    stream = draws(cell.model, cell.scenario, cell.seed)
    luck = draws(cell.method, cell.config, cell.model, cell.scenario, cell.seed, cell.batch_size)
    base = 0.35 + 0.35 * draws(cell.scenario).random() + MODELS[cell.model][3]
    base += 0.01 * stream.normal()
    params, size = cell.params, cell.batch_size
    gain = {"AdaBN": -0.05 if sorted_stream else 0.01}.get(cell.method, 0.0)
    if cell.kind == "lame":
        gain = (0.025 if sorted_stream else -0.001) * params.get("k", 4) * np.log2(size) / 6
    elif "lr" in params:
        speed = 9 if cell.kind == "tent" else 2
        gain = speed * params["lr"] * base * (-0.8 if sorted_stream else 0.1)
    if cell.kind != "source":
        gain += 0.004 * luck.normal()
    n_steps = 30
    rate = np.linspace(base, base + 2 * gain, n_steps).clip(0.01, 0.99)
    hits = np.round(rate * size + stream.uniform(-0.5, 0.5, n_steps)).astype(int).clip(0, size)
    entropy = np.linspace(1.2, 1.2 if gain > -0.1 else 0.1, n_steps) + luck.random(n_steps) / 20
    forward = 0.02 + 0.3 * (MODELS[cell.model][3] + 0.06)
    adapts = cell.kind not in ("source", "lame")
    return {
        "experiment": "synthetic",
        **{name: getattr(cell, name) for name in ("method", "config", "model", "scenario")},
        "dataset": "any",
        "seed": cell.seed,
        "batch_size": size,
        "fingerprint": f"{draws(cell.scenario, cell.seed, size).integers(2**63):016x}",
        "n": size * n_steps,
        "accuracy": hits.sum() / (size * n_steps),
        "class_accuracy": hits.sum() / (size * n_steps) - 0.01,
        "nll": 2 - base,
        "ece": 0.1,
        "entropy": entropy.mean(),
        "diversity": 2.0,
        "changed": None if cell.kind == "source" else 0.125,
        "forward_time": forward if cell.live or adapts else None,
        "optimization_time": (forward * 1.4 if adapts else 0.003) if cell.live else None,
        "inference_time": forward if cell.live and adapts else None,
        "step_time": forward,
        "peak_memory": (5e8 if adapts else 2e8) if cell.live else None,
        "step_n": [size] * n_steps,
        "step_hits": hits.tolist(),
        "step_entropy": entropy.tolist(),
        "step_diversity": [2.0] * n_steps,
    }


def write_cells(folder, experiment, cells):
    (folder / "cells").mkdir(exist_ok=True)
    nullable = dict.fromkeys(
        ("changed", "forward_time", "optimization_time", "inference_time", "peak_memory"), float
    )
    rows = []
    for cell in cells:
        order = experiment.scenarios[cell.scenario].order
        rows.append(row(cell, order == "by_class"))
        frame = pl.DataFrame([rows[-1]], schema_overrides=nullable)
        frame.write_parquet(folder / "cells" / f"{cell.id}.parquet")
    return pl.DataFrame(rows, infer_schema_length=None)


def make_results(folder, name="synthetic"):
    """A folder as a run leaves it, with made-up numbers and one failure."""
    (folder / "experiment.toml").write_text(experiment_file(name))
    experiment = load(folder / "experiment.toml")
    validation = write_cells(folder, experiment, experiment.validation_cells())
    selection = select(validation, list(VALIDATION))
    write_selection(folder / "selected.toml", selection)
    write_cells(folder, experiment, experiment.test_cells(selection.params))
    run = {"lametta": "0.1.0", "platform": "Linux", "packages": {"torch": "2.9"}, "device": "cpu"}
    run |= {"command": "lametta run experiment.toml -o results", "started": "2026-01-02T03:04:05"}
    (folder / "run.json").write_text(json.dumps(run))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_results(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def results(folder):
    return read(folder)


@pytest.fixture(scope="module")
def report(results, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    write(results, folder, paper=True)
    return folder


@pytest.fixture(scope="module")
def main(results):
    """The rows of the main study."""
    return results.studies["main"].rows


@pytest.fixture(scope="module")
def drawn(results):
    """The figures of a report, by name."""
    return {figure.name: figure for section in sections(results) for figure in section.figures}


@pytest.fixture(scope="module")
def canvases(drawn):
    """The same figures, as matplotlib has them."""
    return {name: figure.plot() for name, figure in drawn.items()}


def mean_of_means(rows, value):
    """Over seeds, and then over scenarios: by hand."""
    by_scenario = {}
    for row in rows:
        by_scenario.setdefault(row["scenario"], []).append(row[value])
    return statistics.mean(statistics.mean(values) for values in by_scenario.values())


def test_parts_are_complete_and_in_the_order_of_the_file(results):
    for name, (_, models, scenarios, methods, n, sizes) in STUDIES.items():
        part = results.studies[name]
        assert part.total == part.found == len(part.rows)
        assert part.total == len(models) * len(scenarios) * len(methods) * n * len(sizes)
        assert part.lack == ""
        assert list(dict.fromkeys(part.rows["scenario"])) == scenarios
        assert list(dict.fromkeys(part.rows["method"])) == methods
        assert list(dict.fromkeys(part.rows["model"])) == [MODELS[model][0] for model in models]
    iid = dict(results.studies["main"].rows.select("scenario", "iid").iter_rows())
    assert iid == {name: letter in "AC" for name, letter in TEST.items()}


def test_equal_labels_are_told_apart(folder, tmp_path):
    text = (folder / "experiment.toml").read_text().replace('label = "ViT-B"', 'label = "EN-B4"')
    (tmp_path / "experiment.toml").write_text(text)
    (tmp_path / "cells").symlink_to(folder / "cells")
    (tmp_path / "selected.toml").symlink_to(folder / "selected.toml")
    models = set(read(tmp_path).studies["architectures"].rows["model"])
    assert {"EN-B4 (b4)", "EN-B4 (vit)", "RN-18"} < models


def test_results_agree_with_means_by_hand(main):
    table = tables.results(main)
    assert list(table.header) == ["method", *TEST, "mean"]
    assert [row[0].text for row in table.rows] == SIX
    rows = main.to_dicts()
    for entries in table.rows:
        own = [row for row in rows if row["method"] == entries[0].text]
        for scenario, entry in zip(TEST, entries[1:], strict=False):
            here = [row for row in own if row["scenario"] == scenario]
            mean = 100 * statistics.mean(row["accuracy"] for row in here)
            assert entry.text.startswith(f"{mean:.1f} ± ")
        assert entries[-1].text.startswith(f"{100 * mean_of_means(own, 'accuracy'):.1f} ± ")


def test_intervals_are_those_of_student(main):
    here = main.filter(scenario="VID", method="LAME")["accuracy"].to_numpy()
    low, high = stats.t.interval(0.95, len(here) - 1, here.mean(), stats.sem(here))
    row = tables.results(main).data.filter(scenario="VID", method="LAME")
    assert row["accuracy_ci"].item() == pytest.approx((high - low) / 2)


def test_gains_color_all_but_the_source_and_the_best_is_bold(main):
    table = tables.results(main)
    for j in range(1, len(table.header)):
        column = [row[j] for row in table.rows]
        assert column[0].gain is None
        assert all(entry.gain is not None for entry in column[1:])
        best = max(float(entry.text.split()[0]) for entry in column)
        assert {float(entry.text.split()[0]) for entry in column if entry.best} == {best}


def test_models_have_rows_or_columns(results):
    rows = results.studies["architectures"].rows
    by_row = tables.results(rows)
    assert list(by_row.header[:2]) == ["model", "method"]
    assert len(by_row.rows) == 5 * len(SIX)
    by_column = tables.results(rows, columns="model")
    assert list(by_column.header) == ["method", "RN-18", "RN-50", "RN-101", "EN-B4", "ViT-B"]
    means = by_row.data.filter(scenario="mean", model="ViT-B", method="LAME")["accuracy"]
    same = by_column.data.filter(model="ViT-B", method="LAME")["accuracy"]
    assert means.item() == pytest.approx(same.item())


def test_ranking_has_the_best_first_and_the_worst_of_each(main):
    table = tables.ranking(main)
    accuracies = [float(row[1].text.split()[0]) for row in table.rows]
    assert accuracies == sorted(accuracies, reverse=True)
    source = {
        (row["scenario"], row["seed"]): row["accuracy"]
        for row in main.filter(method="Source").iter_rows(named=True)
    }
    for method, *_, low, where, above in table.data.select(
        "method", "worst_gain", "worst_scenario", "scenarios_above"
    ).iter_rows():
        gains = {}
        for row in main.filter(method=method).iter_rows(named=True):
            gain = row["accuracy"] - source[row["scenario"], row["seed"]]
            gains.setdefault(row["scenario"], []).append(gain)
        means = {scenario: statistics.mean(values) for scenario, values in gains.items()}
        assert low == pytest.approx(min(means.values()))
        assert means[where] == pytest.approx(low)
        assert above == sum(mean > 1e-12 for mean in means.values())


def test_the_csv_holds_the_numbers(main):
    table = tables.results(main)
    frame = pl.read_csv(io.StringIO(table.csv()))
    assert frame["accuracy"].to_list() == pytest.approx(table.data["accuracy"].to_list())
    assert len(frame) == len(SIX) * (len(TEST) + 1)


@given(st.lists(st.text(alphabet="a|\\&%$#_{}~^±·…- 1", max_size=9), min_size=2, max_size=5))
def test_any_text_is_escaped(words):
    table = Table("t", "T", words, [[Entry(word, best=True) for word in words]])
    lines = table.markdown().splitlines()
    assert len(lines) == 3
    for line in lines:
        assert len(re.findall(r"(?<!\\)\|", line)) == len(words) + 1
    body = [line.removesuffix(r" \\") for line in table.latex().splitlines()[2:5:2]]
    for line in body:
        bare = re.sub(r"\\(textbackslash|textasciitilde|textasciicircum|dots)\{\}", "", line)
        bare = re.sub(r"\\textbf\{|\\[&%$#_{}]|\$\\(pm|cdot)\$|\$-\$", "", bare)
        assert not re.search(r"[\\%$#_{~^±·…]", bare)
        assert bare.count("&") == len(words) - 1


def test_numbers_stand_right_and_words_left(main):
    assert tables.ranking(main).numeric == (False, True, True, True, False, True)
    assert Table("t", "T", ["a"], []).numeric == (True,)


def test_every_study_and_the_validation_are_drawn(drawn):
    assert list(drawn) == [
        *("main", "main_curves", "architectures", "trainings", "batch_size", "kernels"),
        *("rates", "cost", "cross_shift"),
    ]


def test_no_panel_is_empty_and_axes_have_units(drawn, canvases):
    for name, figure in drawn.items():
        axes = canvases[name].axes
        assert len(axes) == figure.frame()["panel"].n_unique()
        for ax in axes:
            assert ax.lines or ax.patches or ax.collections or ax.containers
            assert ax.get_title(loc="left")
            if figure.polar:
                assert "points" in ax.get_title(loc="left")
            else:
                assert ax.get_xlabel()
                assert ax.get_ylabel() or all(t.get_text() for t in ax.get_yticklabels())


def test_words_do_not_overlap(canvases):
    """Tick labels of an axis, which are the longest words."""
    for name, canvas in canvases.items():
        canvas.draw_without_rendering()
        for ax in canvas.axes:
            for axis in (ax.xaxis, ax.yaxis):
                texts = [t for t in axis.get_ticklabels() if t.get_text()]
                boxes = [t.get_window_extent() for t in texts]
                for one, other in itertools.combinations(boxes, 2):
                    assert not one.shrunk(0.9, 0.9).overlaps(other.shrunk(0.9, 0.9)), name


def test_boxes_show_every_run(main):
    frame = figures.boxes(main).frame()
    assert sorted(frame["accuracy"]) == pytest.approx(sorted(100 * main["accuracy"]))
    assert list(dict.fromkeys(frame["panel"])) == list(TEST)


def test_boxes_tell_models_apart(results):
    frame = figures.boxes(results.studies["architectures"].rows).frame()
    assert "RN-18 · VID" in set(frame["panel"])


def test_cross_shift_is_that_of_a_search_by_hand(results):
    rows = results.validation.rows.to_dicts()
    accuracy = {}
    for row in rows:
        key = row["method"], row["config"], row["scenario"]
        accuracy.setdefault(key, []).append(row["accuracy"])
    accuracy = {key: statistics.mean(values) for key, values in accuracy.items()}
    frame = figures.cross_shift(results.validation.rows).frame()
    assert len(frame) == 5 * 12 * 12
    for method, tuned_on, scenario, gain in frame.select(
        "method", "tuned_on", "scenario", "gain"
    ).iter_rows():
        configs = {config for name, config, _ in accuracy if name == method}
        # Of equally good ones, the first in the alphabet.
        best = min(
            configs, key=lambda config: (-round(accuracy[method, config, tuned_on], 9), config)
        )
        ours = accuracy[method, best, scenario] - accuracy["Source", "{}", scenario]
        assert gain == pytest.approx(100 * ours)


@pytest.mark.parametrize("study", ["architectures", "trainings"])
def test_radar_shows_mean_gains(results, study):
    rows = results.studies[study].rows
    frame = figures.radar(rows).frame()
    for spoke, method, gain in frame.select("spoke", "method", "gain").iter_rows():
        ours = rows.filter(model=spoke, method=method).to_dicts()
        base = rows.filter(model=spoke, method="Source").to_dicts()
        expected = mean_of_means(ours, "accuracy") - mean_of_means(base, "accuracy")
        assert gain == pytest.approx(100 * expected)


def test_a_radar_needs_three_spokes(results):
    rows = results.studies["trainings"].rows.filter(pl.col("model") != "RN-50")
    with pytest.raises(LamettaError, match="at least 3 values of model for a radar, got 2"):
        figures.radar(rows)


def test_batch_sizes(results):
    rows = results.studies["batch_size"].rows
    frame = figures.batch_size(rows).frame()
    for method, size, accuracy in frame.select("method", "batch_size", "accuracy").iter_rows():
        own = rows.filter(method=method, batch_size=size).to_dicts()
        assert accuracy == pytest.approx(100 * mean_of_means(own, "accuracy"))


def test_runtime_adds_up(results):
    rows = results.studies["cost"].rows
    frame = figures.runtime(rows).frame()
    tent = frame.filter(model="RN-50", method="TENT")
    parts = rows.filter(model="RN-50", method="TENT").row(0, named=True)
    seconds = sum(parts[f"{stage}_time"] for stage in ("forward", "optimization", "inference"))
    times = tent.filter(pl.col("stage") != "memory")["value"]
    assert times.sum() == pytest.approx(1e3 * seconds)
    assert tent.filter(stage="memory")["value"].item() == pytest.approx(5e8 / 2**20)


def test_runtime_leaves_out_what_replayed_stored_outputs(main):
    assert set(figures.runtime(main).frame()["method"]) == set(SIX) - {"Source", "LAME"}
    with pytest.raises(LamettaError, match="rows with a forward_time, got none"):
        figures.runtime(main.filter(method="LAME"))


def test_curves_end_at_the_accuracy(main):
    frame = figures.curves(main).frame()
    for scenario, method in itertools.product(TEST, SIX):
        line = frame.filter(scenario=scenario, method=method)
        mean = main.filter(scenario=scenario, method=method)["accuracy"].mean()
        accuracy = line.filter(quantity="online_accuracy")
        assert accuracy["value"][-1] == pytest.approx(100 * mean)
        assert accuracy["samples"][-1] == 30 * 64
        entropy = line.filter(quantity="entropy")["value"].mean()
        assert entropy == pytest.approx(
            main.filter(scenario=scenario, method=method)["entropy"].mean()
        )


def test_long_streams_are_thinned_and_lose_nothing_at_the_end():
    n = 1000
    steps = {
        "step_n": [[4] * n],
        "step_hits": [list(np.arange(n) % 5)],
        "step_entropy": [list(np.linspace(0, 1, n))],
        "step_diversity": [[1.0] * n],
    }
    cell = {"method": "TENT", "config": "{}", "model": "net", "scenario": "a", "seed": 0}
    frame = figures.curves(pl.DataFrame(cell | steps | {"batch_size": 4})).frame()
    accuracy = frame.filter(quantity="online_accuracy")
    assert len(accuracy) <= 60
    assert accuracy.row(-1, named=True)["samples"] == 4 * n
    assert accuracy["value"][-1] == pytest.approx(100 * sum(np.arange(n) % 5) / (4 * n))


def test_configurations_of_a_method_are_lines_of_their_own(results):
    rows = results.validation.rows.filter(method="TENT", scenario="Val-B")
    assert list(figures.curves(rows).legend) == ["TENT lr 0.001", "TENT lr 0.01", "TENT lr 0.1"]


def test_any_name_can_be_drawn(main):
    name = r"<b> & $x$ \frac{ %s _"
    rows = main.filter(scenario="VID").with_columns(
        scenario=pl.lit(name), method=pl.col("method").replace("LAME", name)
    )
    for figure in (figures.boxes(rows), figures.curves(rows)):
        root = ElementTree.fromstring(figure.inline()[0].replace("xlink:", ""))
        assert name in {element.text for element in root.iter("text")}


def test_no_rows_no_figure(main):
    with pytest.raises(LamettaError, match="must have rows for the figure 'boxes', got none"):
        figures.boxes(main.clear())


def test_files_are_the_same_every_time(results, tmp_path):
    rows = results.studies["rates"].rows
    first = [path.read_bytes() for path in figures.curves(rows).save(tmp_path / "a")]
    second = [path.read_bytes() for path in figures.curves(rows).save(tmp_path / "b")]
    assert first == second
    svg, pdf = first
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert pdf.startswith(b"%PDF")


def test_methods_keep_their_colors():
    everywhere, some = marks(METHODS), marks(["TENT", "LAME"])
    assert everywhere["TENT"].color == some["TENT"].color
    assert everywhere["LAME"].color == some["LAME"].color
    assert len({mark.color for name, mark in everywhere.items() if name in SIX}) == 6


@given(st.lists(st.text(max_size=5), max_size=21, unique=True))
def test_no_two_marks_are_alike(names):
    chosen = marks(names)
    assert list(chosen) == names
    assert len({(mark.color, mark.dashes) for mark in chosen.values()}) == len(names)


def test_a_style_that_tells_too_few_apart_is_left():
    style = marks(METHODS)
    three = ["LAME rbf", "LAME linear", "TENT fast"]
    assert len({style[name].color for name in three}) < 3
    assert len({mark.color for mark in pick(three, style).values()}) == 3
    assert pick(SIX, style) == {name: style[name] for name in SIX}


def test_colors_can_be_seen_on_white_and_on_black():
    """By the definition of contrast in the Web Content Accessibility Guidelines."""

    def luminance(color):
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        return np.dot(linear, (0.2126, 0.7152, 0.0722))

    css = resources.files("lametta.bench").joinpath("templates/report.css").read_text()
    pages = re.search(r"--back: light-dark\((#\w+), (#\w+)\)", css).groups()
    assert len(pages) == 2
    for mark in marks([*SIX, "other", "another"]).values():
        for page in pages:
            low, high = sorted((luminance(mark.color), luminance(page)))
            assert (high + 0.05) / (low + 0.05) > 2


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
    assert names == {"ranking", "streams", "selected", "paper", *STUDIES} - {"cost"}
    for name in names:
        assert (report / "tables" / f"{name}.md").read_text().startswith("| ")
        assert (report / "tables" / f"{name}.tex").read_text().startswith(r"\begin{tabular}")
        assert pl.read_csv(report / "tables" / f"{name}.csv").height


@pytest.mark.parametrize(
    ("gain", "half_width", "expected"),
    [
        (0.04, 0.01, "LAME is best: right in 50.0 % on average over 7 scenarios, +4.0 ± 1.0 "),
        (0.004, 0.01, "+0.4 ± 1.0 points over Source, which may be chance."),
        (-0.02, None, "No method is better than Source on average over 7 scenarios; closest is "),
    ],
)
def test_the_headline_is_true(gain, half_width, expected):
    rows = [("LAME", 0.5, gain, half_width, 7), ("Source", 0.5 - gain, 0.0, None, 7)]
    schema = {"method": str, "accuracy": float, "gain": float, "gain_ci": float, "scenarios": int}
    ranking = pl.DataFrame(rows, schema=schema, orient="row")
    assert expected in headline(ranking, "Source")
    assert headline(ranking.filter(method="Source"), "Source") == "Only Source was run."


def part_of(folder, target, keep):
    """A copy of the results with some of their cells."""
    (target / "cells").mkdir(parents=True)
    for name in ("experiment.toml", "selected.toml", "run.json"):
        shutil.copy(folder / name, target)
    for file in (folder / "cells").iterdir():
        if keep(file):
            (target / "cells" / file.name).symlink_to(file)
    return target


def test_what_was_not_run_is_said(folder, results, tmp_path):
    tao = set(results.frame.filter(scenario="TAO", method="LAME")["id"])
    no_source = set(results.frame.filter(scenario="V2", method="Source")["id"])
    timed = set(results.frame.filter(scenario="timed")["id"])
    left = part_of(folder, tmp_path / "part", lambda file: file.stem not in tao | no_source | timed)
    partial = read(left)
    shown = {section.name: section for section in sections(partial)}
    assert shown["main"].notes == (
        "10 of 210 cells were not run; 25 more are left out, since their stream has no source",
    )
    assert "V2" not in partial.studies["main"].rows["scenario"]
    assert {figure.name for figure in shown["main"].figures} == {"main", "main_curves"}
    assert shown["cost"].notes == ("9 of 9 cells were not run",)
    assert shown["cost"].figures == shown["cost"].tables == ()
    assert shown["validation"].notes == ()


def test_a_validation_with_holes_draws_no_matrix(folder, results, tmp_path):
    one = results.frame.filter(scenario="Val-A", method="TENT")["id"][0]
    partial = read(part_of(folder, tmp_path / "part", lambda file: file.stem != one))
    section = next(part for part in sections(partial) if part.name == "validation")
    assert section.figures == ()
    assert section.notes[0] == "1 of 312 cells were not run"
    assert "every configuration on every stream" in section.notes[1]


def test_before_the_selection_there_is_a_report_too(folder, results, tmp_path):
    cells = results.experiment.validation_cells()
    ids = {cell.id for cell in cells if cell.scenario in ("Val-A", "Val-B")}
    early = part_of(folder, tmp_path / "early", lambda file: file.stem in ids)
    (early / "selected.toml").unlink()
    (early / "run.json").unlink()
    page = write(read(early), tmp_path / "report")
    text = page.read_text(encoding="utf-8")
    assert "Only Source was run." in text
    assert "selected must have LAME, which has 3 configurations, got none" in text
    Page(text)


def test_files_stay_where_they_belong(folder, results, tmp_path):
    few = {cell.id for cell in results.experiment.study_cells("rates", results.selected)}
    small = part_of(folder, tmp_path / "part", lambda file: file.stem in few)
    text = (small / "experiment.toml").read_text()
    (small / "experiment.toml").write_text(text.replace("studies.rates", 'studies."../../a b"'))
    write(read(small), tmp_path / "report" / "deep")
    assert (tmp_path / "report" / "deep" / "figures" / "-a-b.svg").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"part", "report"}


def test_learning_rates_are_drawn_from_the_validation(folder, tmp_path):
    whole = part_of(folder, tmp_path / "part", lambda _: True)
    text = (whole / "experiment.toml").read_text()
    (whole / "experiment.toml").write_text(text.replace('figure = "curves"', 'figure = "boxes"'))
    section = next(part for part in sections(read(whole)) if part.name == "validation")
    rates = section.figures[1]
    assert rates.name == "rates"
    assert list(rates.legend) == ["Source", "TENT lr 0.001", "TENT lr 0.01", "TENT lr 0.1"]
    assert rates.frame()["scenario"].n_unique() == 1


def test_failures_are_shown_and_end_with_1(folder, results, tmp_path):
    few = {cell.id for cell in results.experiment.study_cells("rates", results.selected)}
    failing = part_of(folder, tmp_path / "part", lambda file: file.stem in few)
    (failing / "failed").mkdir()
    note = {"method": "TENT", "scenario": "V2", "seed": 3, "traceback": "Traceback\n<oh> & no\n"}
    (failing / "failed" / "0123.json").write_text(json.dumps(note))
    result = run("report", failing, "-o", tmp_path / "out")
    assert result.exit_code == 1, result.output
    text = (tmp_path / "out" / "report.html").read_text()
    assert "TENT in V2, seed 3: &lt;oh&gt; &amp; no" in text


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_report_prints_the_table(folder, results, tmp_path):
    few = {cell.id for cell in results.experiment.study_cells("rates", results.selected)}
    small = part_of(folder, tmp_path / "part", lambda file: file.stem in few)
    result = run("report", small)
    assert result.exit_code == 0, result.output
    assert (small / "report" / "report.html").exists()
    assert re.search(r"method +VID\nSource +64\.8 ±\d", result.output)
    assert "Beside the paper" not in (small / "report" / "report.html").read_text()


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda folder: folder.rmdir(), "results must be a folder, got"),
        (lambda folder: None, "results must have files cells/*.parquet, got none in"),
        (
            lambda folder: ((folder / "cells").mkdir(), (folder / "cells/a.parquet").touch()),
            "results must have Parquet files, got",
        ),
    ],
)
def test_bad_results_end_with_2(tmp_path, prepare, message):
    results = tmp_path / "results"
    results.mkdir()
    prepare(results)
    for arguments in (["report", results], ["compare", results, results]):
        result = run(*arguments)
        assert result.exit_code == 2
        assert message in result.output


def test_results_without_their_experiment_end_with_2(folder, tmp_path):
    (tmp_path / "cells").symlink_to(folder / "cells")
    result = run("report", tmp_path)
    assert result.exit_code == 2
    assert "experiment.toml" in result.output


@pytest.fixture
def changed(folder, results, tmp_path):
    """The main study with one accuracy higher by 0.01, and one stream that is another."""
    cells = results.experiment.study_cells("main", results.selected)
    copy = tmp_path / "changed"
    (copy / "cells").mkdir(parents=True)
    for cell in cells:
        row = pl.read_parquet(folder / "cells" / f"{cell.id}.parquet")
        if (cell.method, cell.scenario, cell.seed) == ("TENT", "VID", 1):
            row = row.with_columns(pl.col("accuracy") + 0.01)
        if (cell.scenario, cell.seed) == ("TAO", 2):
            row = row.with_columns(fingerprint=pl.lit("other"))
        row.write_parquet(copy / "cells" / f"{cell.id}.parquet")
    return copy


def test_compare(folder, changed):
    same = run("compare", folder, folder)
    assert same.exit_code == 0, same.output
    assert "1065 cells in both, 0 differ; only in A: 0, only in B: 0" in same.output
    other = run("compare", folder, changed)
    assert other.exit_code == 1
    assert "210 cells in both, 1 differ; only in A: 855, only in B: 0" in other.output
    assert re.search(r"TENT( +=)+ +\+1\s", other.output)
    assert re.search(
        "other stream: TAO, seed 2, batches of 64: [0-9a-f]{16} and other", other.output
    )


def test_a_tolerance_makes_equal_but_not_streams(folder, changed):
    assert run("compare", folder, changed, "--tolerance", "0.02").exit_code == 1
    a, b = read_cells(folder), read_cells(changed)
    same_streams = b.drop("fingerprint").join(
        a.select("id", "fingerprint"), on="id", maintain_order="left"
    )
    assert not compare(a, same_streams, tolerance=0.009).equal
    assert compare(a, same_streams, tolerance=0.011).equal
    nan = same_streams.with_columns(accuracy=pl.lit(math.nan))
    assert not compare(a, nan).equal


def test_what_cannot_be_compared_ends_with_2(folder, changed, tmp_path):
    assert run("compare", folder, changed, "--tolerance", "-1").exit_code == 2
    file = next((changed / "cells").iterdir())
    (tmp_path / "alone" / "cells").mkdir(parents=True)
    pl.read_parquet(file).with_columns(seed=pl.lit(77)).write_parquet(
        tmp_path / "alone" / "cells" / file.name
    )
    result = run("compare", folder, tmp_path / "alone")
    assert result.exit_code == 2
    assert "must have cells in common, got 1065 and 1" in " ".join(result.output.split())


def test_the_papers_numbers_agree_with_each_other():
    original, rn50 = paper.TRAININGS.index("original"), paper.ARCHITECTURES.index("RN-50")
    for method, values in paper.BY_ARCHITECTURE.items():
        assert values[rn50] == paper.BY_TRAINING[method][original]
        for size, value in zip(paper.BATCH_SIZES, paper.BY_BATCH_SIZE[method], strict=True):
            if size == 16:
                assert value == pytest.approx(values[rn50], abs=0.45)
    # What the text of the paper says of its tables.
    assert statistics.mean(paper.BY_TRAINING["TENT"]) == pytest.approx(38.4, abs=0.05)
    assert statistics.mean(paper.BY_TRAINING["Source"]) == pytest.approx(51.0, abs=0.05)
    assert paper.NON_IID["LAME"] - paper.NON_IID["Source"] == pytest.approx(6.7)
    for k, mean in {1: 2.9, 3: 4.3, 5: 6.5}.items():
        assert statistics.mean(paper.LAME_ROWS[k]) == pytest.approx(mean, abs=0.05)
    matrix = np.array(paper.TENT_MATRIX)
    assert matrix.shape == (len(paper.VALIDATION),) * 2
    assert matrix.min() == -66


def test_ours_beside_the_papers(results, drawn, report):
    studies = results.experiment.studies
    rows = [(study.figure, results.studies[name].rows) for name, study in studies.items()]
    both = paper.beside([*rows, ("cross_shift", drawn["cross_shift"].frame())])
    found = {
        (of, method): (ours, theirs)
        for quantity, of, method, ours, theirs in both.iter_rows()
        if quantity != "seconds a batch"
    }
    architectures = results.studies["architectures"].rows
    vit = architectures.filter(model="ViT-B", method="LAME").to_dicts()
    assert found["ViT-B", "LAME"] == (pytest.approx(100 * mean_of_means(vit, "accuracy")), 71.22)
    sizes = results.studies["batch_size"].rows.filter(batch_size=128, method="AdaBN").to_dicts()
    ours = pytest.approx(100 * mean_of_means(sizes, "accuracy"))
    assert found["batches of 128", "AdaBN"] == (ours, 50.9)
    matrix = drawn["cross_shift"].frame().filter(pl.col("tuned_on") != pl.col("scenario"))
    worst = matrix.filter(method="TENT")["gain"].min()
    assert found["where not tuned", "TENT"] == (pytest.approx(worst), -66)
    sorted_streams = results.studies["main"].rows.filter(~pl.col("iid"))
    gain = mean_of_means(sorted_streams.filter(method="LAME").to_dicts(), "accuracy")
    gain -= mean_of_means(sorted_streams.filter(method="Source").to_dicts(), "accuracy")
    expected = (pytest.approx(100 * gain), pytest.approx(6.7))
    assert found["non-i.i.d. scenarios", "LAME"] == expected
    assert ("RN-18", "AdaBN") not in found  # which the paper has not
    other = results.studies["batch_size"].rows.with_columns(architecture=pl.lit("digits"))
    assert paper.beside([("batch_size", other)]).is_empty()
    assert "71.2" in (report / "tables" / "paper.md").read_text()


def test_an_experiment_called_paper_has_them_without_asking(folder, results, tmp_path):
    few = {cell.id for cell in results.experiment.validation_cells() if cell.scenario == "Val-A"}
    small = part_of(folder, tmp_path / "part", lambda file: file.stem in few)
    (small / "experiment.toml").write_text(experiment_file("paper"))
    page = small / "report" / "report.html"
    assert run("report", small).exit_code == 0
    assert "Nothing that was run has a number in the paper." in page.read_text()
    assert run("report", small, "--no-paper").exit_code == 0
    assert "Beside the paper" not in page.read_text()


@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_shows_the_page(report, tmp_path, width):
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    browser = next(filter(None, map(shutil.which, names)), None)
    if browser is None:
        pytest.skip(f"none of {', '.join(names)} is installed")
    # Behind the page's own script, one that clicks and measures.
    probe = """<script>
      document.getElementById("theme").click();
      const page = document.documentElement;
      page.dataset.scheme = page.style.colorScheme;
      page.dataset.overflow = page.scrollWidth - page.clientWidth;
      page.dataset.empty = [...document.querySelectorAll(".panels svg")]
        .filter((svg) => svg.getBoundingClientRect().height < 50).length;
    </script></body>"""
    probed = tmp_path / "report.html"
    probed.write_text((report / "report.html").read_text().replace("</body>", probe))
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    options += [f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},900"]
    done = subprocess.run(
        [browser, *options, "--dump-dom", probed.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    root = re.search("<html[^>]*>", done.stdout)[0]
    assert 'data-ready="yes"' in root
    assert re.search('data-scheme="(light|dark)"', root)
    assert 'data-overflow="0"' in root  # wide tables scroll in a box of their own
    assert 'data-empty="0"' in root
    assert "Uncaught" not in done.stderr
    assert "CONSOLE" not in done.stderr
