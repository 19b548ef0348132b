"""Figures: what they draw, by hand, and that it can be read."""

import itertools
import re
import statistics
from importlib import resources
from xml.etree import ElementTree

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lametta import LamettaError
from lametta.bench import figures
from lametta.bench.analysis import selection
from lametta.bench.figures import series_styles
from lametta.bench.figures.figure import ReportContext
from lametta.bench.figures.style import dash_overlaps, styles_for
from tests.bench.made_up import METHODS, SIX, TEST, VALIDATION, mean_of_means


@pytest.fixture(scope="module")
def canvases(drawn):
    """The figures of the report, as matplotlib has them."""
    return {name: figure.plot() for name, figure in drawn.items()}


@pytest.mark.slow
def test_every_study_and_the_validation_are_drawn(drawn):
    assert list(drawn) == [
        *("main", "main_curves", "architectures", "trainings", "batch_size", "kernels"),
        *("rates", "cost", "spread", "cross_shift"),
    ]


@pytest.mark.slow
def test_no_panel_is_empty_and_axes_have_units(drawn, canvases):
    for name, figure in drawn.items():
        axes = canvases[name].axes
        assert len(axes) == figure.frame()["panel"].n_unique()
        for ax in axes:
            assert ax.lines or ax.patches or ax.collections or ax.containers
            assert ax.get_title(loc="left")
            if figure.polar:
                assert "(%)" in ax.get_title(loc="left")
            else:
                assert ax.get_xlabel()
                assert ax.get_ylabel() or all(t.get_text() for t in ax.get_yticklabels())


@pytest.mark.slow
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


@pytest.mark.slow
def test_boxes_show_every_run(main):
    frame = figures.boxes(main).frame()
    assert sorted(frame["accuracy"]) == pytest.approx(sorted(100 * main["accuracy"]))
    kinds = {"A": "i.i.d.", "C": "i.i.d., prior shift", "B": "non-i.i.d."}
    shown = dict(frame.select("scenario", "panel").iter_rows())
    assert shown == {scenario: kinds[letter] for scenario, letter in TEST.items()}
    assert list(dict.fromkeys(frame["panel"])) == list(kinds.values())


@pytest.mark.slow
def test_boxes_come_with_the_averages_of_their_panel_on_a_common_axis(drawn, canvases):
    figure, canvas = drawn["main"], canvases["main"]
    assert len({ax.get_ylim() for ax in canvas.axes}) == 1
    for ax in canvas.axes:
        rows = figure.frame().filter(panel=ax.get_title(loc="left")).to_dicts()
        expected = [
            f"{method} {mean_of_means([r for r in rows if r['method'] == method], 'accuracy'):.1f}"
            for method in SIX
        ]
        assert [text.get_text() for text in ax.get_legend().get_texts()] == expected


def test_boxes_tell_models_apart(results):
    frame = figures.boxes(results.studies["architectures"].rows).frame()
    assert "RN-18 · non-i.i.d." in set(frame["panel"])


def test_cross_shift_is_that_of_a_search_by_hand(results):
    rows = results.validation.rows.to_dicts()
    accuracy = {}
    for row in rows:
        key = row["method"], row["config"], row["scenario"]
        accuracy.setdefault(key, []).append(row["accuracy"])
    accuracy = {key: statistics.mean(values) for key, values in accuracy.items()}
    frame = figures.cross_shift(results.validation.rows).frame()
    assert len(frame) == 5 * len(VALIDATION) ** 2
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


@pytest.mark.slow
def test_matrices_share_one_linear_scale_with_a_bar(drawn, canvases):
    figure = drawn["cross_shift"]
    most = figure.frame()["gain"].abs().max()
    shades = {}
    for ax in canvases["cross_shift"].axes:
        bar = ax.child_axes[0]
        assert bar.get_ylim() == pytest.approx((-most, most))
        gains = selection.matrix(figure.frame().filter(panel=ax.get_title(loc="left")))
        values = np.column_stack([gains, gains.mean(axis=1)]).ravel()
        for value, color in zip(values, ax.collections[0].get_facecolor(), strict=True):
            shades[value] = color[3] * (1 if color[2] > color[0] else -1)
    gains, alphas = np.array([*shades]), np.array([*shades.values()])
    assert alphas == pytest.approx(0.8 * gains / most, abs=0.8 / 20)  # in steps of 1/41


@pytest.mark.slow
@pytest.mark.parametrize("study", ["architectures", "trainings"])
def test_radar_shows_mean_accuracies_of_the_source_too(results, study):
    rows = results.studies[study].rows
    figure = figures.radar(rows)
    for spoke, method, accuracy in figure.frame().select("spoke", "method", "accuracy").iter_rows():
        ours = rows.filter(model=spoke, method=method).to_dicts()
        assert accuracy == pytest.approx(100 * mean_of_means(ours, "accuracy"))
    means = figure.frame().group_by("method", maintain_order=True).agg(pl.col("accuracy").mean())
    assert list(figure.legend) == [f"{name} {mean:.1f}" for name, mean in means.iter_rows()]
    assert len(figure.plot().axes[0].lines) == len(SIX)


def test_spokes_of_the_kernels_are_networks_where_there_are_three(results):
    rows = results.studies["architectures"].rows
    assert set(figures.kernels(rows).frame()["spoke"]) == set(rows["model"])
    few = figures.kernels(results.studies["kernels"].rows)
    assert set(few.frame()["spoke"]) == set(TEST)
    assert "these are the scenarios" in few.caption
    assert "these are the scenarios" not in figures.kernels(rows).caption


@pytest.mark.parametrize(("low", "center"), [(0.02, 0), (0.6, 48)])
def test_a_radar_does_not_go_below_0_and_names_its_center(low, center):
    cell = {"config": "{}", "scenario": "video", "seed": 0, "batch_size": 16, "fingerprint": "5f1c"}
    runs = [("Source", 0.9), ("LAME", low)]
    rows = [cell | {"model": x, "method": m, "accuracy": a} for x in "abc" for m, a in runs]
    figure = figures.radar(pl.DataFrame(rows))
    (axes,) = figure.plot().axes
    assert axes.get_ylim()[0] == center
    assert f"the center is {center}." in figure.caption


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


def test_a_strip_shows_the_classes_of_the_stream(results):
    rows = results.studies["rates"].rows
    labels = np.repeat(np.arange(10), 50)
    asked = []
    known = ReportContext(classes=lambda name: asked.append(name) or labels)
    figure = figures.curves(rows, known)
    assert asked == [rows["fingerprint"][0]]
    strips = figure.frame().filter(quantity="class")
    assert list(dict.fromkeys(strips["scenario"])) == ["i.i.d.", "VID"]
    sorted_strip = strips.filter(scenario="VID")
    assert sorted_strip["value"].to_list() == [labels[i - 1] for i in sorted_strip["samples"]]
    shuffled = strips.filter(scenario="i.i.d.")["value"].to_numpy()
    assert np.mean(shuffled[1:] == shuffled[:-1]) < 0.3
    first = figure.plot().axes[0]
    widths = [path.get_extents().width for c in first.collections for path in c.get_paths()]
    assert sum(widths) == pytest.approx(2 * len(labels))  # no gap in either strip
    unknown = figures.curves(rows, ReportContext(classes=lambda _: None))
    assert "class" not in set(unknown.frame()["quantity"])
    assert "The class of" not in unknown.caption


@pytest.mark.slow
def test_names_of_spokes_are_in_the_picture():
    cells = {"method": "Source", "config": "{}", "scenario": "video", "seed": 0, "batch_size": 64}
    names = ("V2, i.i.d.", "C", "V2, Zipf", "C, Zipf", "V2, by class", "VID, videos", "TAO, videos")
    rows = [cells | {"model": name, "accuracy": 0.5, "fingerprint": ""} for name in names]
    figure = figures.radar(pl.DataFrame(rows))
    canvas = figure._canvas(figure._panels())  # as a page shows it
    canvas.draw_without_rendering()
    for label in canvas.axes[0].get_xticklabels():
        box = label.get_window_extent()
        assert box.x0 > 0
        assert box.x1 < canvas.bbox.width


def test_captions_say_how_axes_differ_from_the_paper(main):
    assert "samples, that of the paper's Figure 1 batches" in figures.curves(main).caption
    caption = figures.runtime(main).caption
    assert "above the loaded network" in caption
    assert "bars lie" in caption


def test_a_caption_says_what_the_paper_has_more_of(main):
    assert "The paper's Figure 4 has 10 runs (here 5)." in figures.boxes(main).caption
    ten = [main.with_columns(pl.col("seed") + 5 * i) for i in range(2)]
    assert "The paper's" not in figures.boxes(pl.concat(ten)).caption


def test_lines_that_cover_each_other_are_told_apart():
    lines = {"Source": [1.0, 2, 3, 4], "TENT": [1, 2, 3, 9], "LAME": [5, 6, 7, 8]}
    lines |= {"AdaBN": [1, 2, np.nan, np.nan]}
    dashes = {
        name: mark.dashes for name, mark in dash_overlaps(series_styles(lines), [lines]).items()
    }
    assert dashes["Source"] == dashes["LAME"] == ()
    assert len({dashes[name] for name in ("Source", "TENT", "AdaBN")}) == 3


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


@pytest.mark.slow
def test_any_name_can_be_drawn(main):
    name = r"<b> & $x$ \frac{ %s _"
    rows = main.filter(scenario="VID").with_columns(
        scenario=pl.lit(name), method=pl.col("method").replace("LAME", name)
    )
    for figure in (figures.boxes(rows), figures.curves(rows)):
        root = ElementTree.fromstring(figure.inline()[0].replace("xlink:", ""))
        assert name in {element.text for element in root.iter("text")}


@pytest.mark.parametrize("name", ["boxes", "curves"])
def test_no_rows_no_figure(main, name):
    with pytest.raises(LamettaError, match=f"must have rows for the figure '{name}', got none"):
        getattr(figures, name)(main.clear())


@pytest.mark.slow
def test_files_are_the_same_every_time(results, tmp_path):
    rows = results.studies["rates"].rows
    first = [path.read_bytes() for path in figures.curves(rows).save(tmp_path / "a")]
    second = [path.read_bytes() for path in figures.curves(rows).save(tmp_path / "b")]
    assert first == second
    svg, pdf = first
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert pdf.startswith(b"%PDF")


def test_methods_keep_their_colors():
    everywhere, some = series_styles(METHODS), series_styles(["TENT", "LAME"])
    assert everywhere["TENT"].color == some["TENT"].color
    assert everywhere["LAME"].color == some["LAME"].color
    assert len({mark.color for name, mark in everywhere.items() if name in SIX}) == 6


@given(
    st.lists(
        st.text(max_size=5) | st.sampled_from(["LAME", "lame", "TENT", "Source"]),
        max_size=21,
        unique=True,
    )
)
def test_no_two_marks_are_alike(names):
    chosen = series_styles(names)
    assert list(chosen) == names
    assert len({(mark.color, mark.dashes) for mark in chosen.values()}) == len(names)


def test_a_style_that_tells_too_few_apart_is_left():
    style = series_styles(METHODS)
    three = ["LAME rbf", "LAME linear", "TENT fast"]
    assert len({style[name].color for name in three}) < 3
    assert len({mark.color for mark in styles_for(three, style).values()}) == 3
    assert styles_for(SIX, style) == {name: style[name] for name in SIX}


def test_colors_can_be_seen_on_white_and_on_black():
    """By the definition of contrast in the Web Content Accessibility Guidelines."""

    def luminance(color):
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        return np.dot(linear, (0.2126, 0.7152, 0.0722))

    css = resources.files("lametta.bench").joinpath("templates/report.css").read_text()
    pages = re.search(r"--back: light-dark\((#\w+), (#\w+)\)", css).groups()
    assert len(pages) == 2
    for mark in series_styles([*SIX, "other", "another"]).values():
        for page in pages:
            low, high = sorted((luminance(mark.color), luminance(page)))
            assert (high + 0.05) / (low + 0.05) > 2
