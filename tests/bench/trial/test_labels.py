"""Labels of a few samples of a small stream: drawn, measured, handed out by the page."""

import json
from dataclasses import replace

import numpy as np
import pytest

from lametta.bench.trial import Draw, Estimate, Trial, try_methods
from lametta.bench.trial.labels import ANOTHER, UNKNOWN, draw, measure, read
from lametta.bench.trial.runs import Candidate, Outputs, Run
from lametta.types import LamettaError
from tests.bench.trial.test_trial import METHODS, made_bank
from tests.serve.chromium import chromium


@pytest.fixture(scope="module")
def bank():
    return made_bank()


@pytest.fixture(scope="module")
def trial(bank):
    return try_methods(replace(bank, labels=None), METHODS, jobs=1)


def labeled(drawn: Draw, labels) -> Draw:
    return drawn.labeled(dict(enumerate(np.asarray(labels).tolist())))


def true_gain(run, outputs, labels):
    return np.mean(run.after == labels) - np.mean(outputs.before == labels)


def test_all_labels_measure_the_gain_exactly(trial, bank):
    drawn = labeled(trial.draw(160), bank.labels)
    for title, one in trial.measured(drawn).estimates.items():
        (run,) = (run for run in trial.runs if run.candidate.title == title)
        gain = true_gain(run, trial.outputs, bank.labels)
        assert np.isclose(one.gain, gain)
        assert np.isclose(one.low, gain)
        assert np.isclose(one.high, gain)


def test_samples_of_which_all_answer_alike_are_not_drawn(trial):
    differ = np.any([run.after != trial.outputs.before for run in trial.runs], axis=0)
    assert set(trial.draw(1000).rows) == set(np.flatnonzero(differ))


@pytest.mark.parametrize("guess", [None, 0.0, 0.9, -0.9])
def test_measures_are_unbiased_and_intervals_hold(trial, bank, guess):
    """The mean of 200 draws is the true gain, whatever was guessed, and nine of ten hold it.

    Gains that no change allows are cut, so that only gains below that are looked at for a bias.
    """
    outputs, held = trial.outputs, []
    args = (outputs, trial.runs, trial.guesses, trial.advice.title, 30)
    draws = [labeled(draw(*args, seed=seed), bank.labels) for seed in range(200)]
    for run in trial.runs:
        share = np.mean(run.after != outputs.before)
        own = trial.guesses[run.candidate.title].gain / share if guess is None else guess
        found = [measure(one, run.after, outputs.before, own) for one in draws]
        gain, gains = true_gain(run, outputs, bank.labels), np.array([one.gain for one in found])
        if gain < 0.5 * share:
            assert abs(gains.mean() - gain) < 4 * gains.std() / np.sqrt(200), run.candidate.title
        held.append(np.mean([one.low - 1e-9 <= gain <= one.high + 1e-9 for one in found]))
    assert np.mean(held) > 0.9
    assert min(held) > 0.8


def test_the_first_labels_are_a_draw_too(trial, bank):
    """Of each stratum as many, so that no stratum is without after as many labels as strata."""
    drawn = trial.draw(50)
    n = len(drawn.sizes)
    assert n == 10
    assert sorted(drawn.strata[:n].tolist()) == list(range(n))
    first = drawn.labeled({int(row): int(bank.labels[row]) for row in drawn.rows[:20]})
    one = trial.measured(first).estimates["prudent, one by one"]
    assert first.known == one.labels == 20
    assert one.high - one.low < 0.6


def test_more_labels_go_on_from_those_there(trial, bank):
    some = labeled(trial.draw(50), bank.labels)
    more = trial.measured(some).draw(60)
    assert set(some.rows) < set(more.rows)
    assert more.known == 50
    with pytest.raises(LamettaError, match="other methods were run by now"):
        replace(trial, labels=some, runs=trial.runs[:3]).draw(60)


def test_advice_follows_the_labels(bank):
    """Labels that say that the network is right in all it is asked turn any advice."""
    trial = try_methods(replace(bank, labels=None), METHODS, jobs=1)
    before = trial.outputs.before
    assert trial.advice.method == "prudent"
    wrong = trial.measured(labeled(trial.draw(50), before))
    assert wrong.advice.method == "source"
    assert "By 50 labels the gain is" in wrong.advice.reason
    best = next(run for run in trial.runs if run.candidate.method == "track")
    right = trial.measured(labeled(trial.draw(50), best.after))
    if np.mean(best.after != trial.watched.after) > 0.2:
        assert right.advice.method == "track"
    assert right.estimates["track, one by one"].gain > 0
    assert "by 50 labels" in right.table().footnote
    assert {row["labels"] for row in right.as_dict()["runs"]} == {50}


def test_another_class_is_wrong_for_all(trial):
    drawn = trial.draw(160)
    none = drawn.labeled(dict.fromkeys(drawn.rows.tolist(), ANOTHER))
    assert all(np.isclose(one.gain, 0) for one in trial.measured(none).estimates.values())


def test_a_run_that_the_draw_did_not_see_is_not_measured(trial, bank):
    some = replace(trial, runs=trial.runs[:2])
    drawn = some.draw(50)
    found = trial.measured(labeled(drawn, bank.labels)).estimates
    assert [one.labels for one in found.values()] == 2 * [len(drawn.rows)] + [0] * 6


def test_strata_without_labels_may_hold_anything():
    one = Draw(10, (), (5, 5), np.array([0, 9]), np.array([0, 1])).labeled({0: 1})
    found = measure(one, np.ones(10, int), np.zeros(10, int))
    assert (found.low, found.high) == (pytest.approx(-0.5, abs=0.6), 1.0)
    assert found.high - found.low >= 1


def test_labels_survive_their_file(trial, bank, tmp_path):
    drawn = trial.draw(12).labeled(
        {int(trial.draw(12).rows[0]): 3, int(trial.draw(12).rows[1]): -1}
    )
    file = tmp_path / "labels.json"
    file.write_text(json.dumps(drawn.as_dict()))
    again = read(file, trial.outputs)
    assert again.as_dict() == drawn.as_dict()
    assert again.labels[:3].tolist() == [3, ANOTHER, UNKNOWN]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "other"}, "must be from a page of lametta try --label"),
        ({"samples": 7}, "160 of them, got labels of 7"),
        ({"strata": [1000]}, "stratum of the labels must be below 1|no larger than the stream"),
        ({"drawn": None}, "cannot read"),
        (
            {"drawn": [{"row": 160, "stratum": 0, "label": 0}]},
            "row of the labels must be below 160",
        ),
        ({"drawn": [{"row": 0, "stratum": 0, "label": 4}]}, "label of the labels must be below 4"),
        ({"drawn": [{"row": 0, "stratum": 0, "key": "x.jpg"}]}, "row 0 is 'frame0' there"),
        ({"drawn": 2 * [{"row": 0, "stratum": 0}]}, "must have each row once"),
    ],
)
def test_files_that_are_refused(trial, tmp_path, change, message):
    file = tmp_path / "labels.json"
    file.write_text(json.dumps(trial.draw(12).as_dict() | change))
    with pytest.raises(LamettaError, match=message):
        read(file, trial.outputs)


def test_a_draw_must_be_of_a_sample(trial):
    with pytest.raises(LamettaError, match="n must be an integer >= 1"):
        trial.draw(0)


def test_nothing_to_draw():
    outputs = Outputs(np.eye(2), np.eye(2))
    run = Run(Candidate("lame", 64), np.array([0, 1]), np.ones(2), np.ones(2), 0.0)
    found = draw(outputs, [run], {"lame, batches of 64": Estimate(0, 0, 0)}, "", 5)
    assert len(found.rows) == 0
    assert measure(found, run.after, outputs.before).gain == 0


@pytest.mark.slow(4)
def test_a_browser_labels(browser, trial, bank, tmp_path):
    """One key a class, back, another, cannot tell; what is handed out is what was pressed."""
    assert isinstance(trial, Trial)
    drawn = trial.draw(8)
    page = trial.write(
        tmp_path / "try.html", to_label=drawn, pictures=lambda row: np.zeros((8, 8), np.uint8)
    )

    def press(tab, key):
        for kind in ("keyDown", "keyUp"):
            tab.send("Input.dispatchKeyEvent", type=kind, key=key)

    def handed_out(tab):
        text = "fetch(document.querySelector('.hand').href).then((one) => one.text())"
        (tmp_path / "labels.json").write_text(tab.evaluate(text))
        return read(tmp_path / "labels.json", trial.outputs)

    with chromium(browser) as tab:
        tab.go(page.as_uri())
        keys = [str(bank.labels[row] + 1) for row in drawn.rows]
        tab.evaluate("scrollTo({ top: 9e9, behavior: 'instant' })")
        press(tab, "1")  # of one who reads on
        tab.evaluate("document.querySelector('#label').scrollIntoView({ behavior: 'instant' })")
        assert handed_out(tab).known == 0
        for key in [keys[0], "4", "Backspace", *keys[1:5], "0", " ", keys[7], "z"]:
            press(tab, key)
        found = handed_out(tab)
        assert found.rows.tolist() == drawn.rows.tolist()
        wanted = bank.labels[drawn.rows].tolist()
        assert found.labels.tolist() == [*wanted[:5], ANOTHER, UNKNOWN, wanted[7]]
        tab.go(page.as_uri())  # loaded again: goes on with the one that is missing
        assert tab.evaluate("document.querySelector('.progress').textContent").startswith("7 of 8")
        button = f"#label .answers button:nth-child({wanted[6] + 1})"
        tab.evaluate(f"document.querySelector('{button}').click()")
        assert handed_out(tab).labels.tolist() == [*wanted[:5], ANOTHER, *wanted[6:]]
        for width in (1200, 390):
            tab.resize(width)
            wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert tab.evaluate(wide) == 0
        assert all(url.startswith(("file:", "data:", "blob:")) for url in tab.urls)
        assert tab.problems == []
