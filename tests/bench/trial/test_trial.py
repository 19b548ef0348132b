"""A trial of a small stream whose truth is known."""

import json
import re
import time
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save_file
from starlette.testclient import TestClient

import lametta
from lametta.bench.trial import Outputs, Trial, store, try_methods
from lametta.bench.trial.gains import Estimate, estimate
from lametta.bench.trial.runs import Candidate, candidates, run_all, run_one
from lametta.bench.trial.stream import domains, kinship, look, neighbors
from lametta.data import Bank
from lametta.serve.config import ServerConfig
from lametta.types import LamettaError
from tests.serve.chromium import chromium

METHODS = ["prudent", "lame", "memory", "smoothing", "track", "prior_correction", "cofa"]


def made_bank(order="runs", groups=None, seed=0):
    """Four classes, in runs or shuffled, and a network that is right in two thirds."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(4), 40)
    labels = rng.permutation(labels) if order == "shuffled" else labels
    features = np.eye(4, 8)[labels] + 0.25 * rng.normal(size=(160, 8))
    logits = 2 * np.eye(4)[labels] + 1.3 * rng.normal(size=(160, 4))
    arrays = (features.astype(np.float32), logits.astype(np.float32), labels)
    keys = tuple(f"frame{i}" for i in range(160))
    return Bank(*arrays, groups, keys, {"classes": ["ant", "bee", "cat", "dog"]})


@pytest.fixture(scope="module")
def trial():
    return try_methods(made_bank(), METHODS, jobs=1)


def test_runs_are_what_the_corrector_says(trial):
    """The oracle is the corrector itself, called by hand."""
    outputs = trial.outputs
    runs = {run.candidate: run for run in trial.runs}
    lame = runs[Candidate("lame", 64)]
    by_hand = [
        lametta.lame(outputs.features[i : i + 64], outputs.probs[i : i + 64]).probs
        for i in (0, 64, 128)
    ]
    assert (lame.after == np.concatenate(by_hand).argmax(axis=1)).all()
    prudent, one_by_one = lametta.Prudent(), []
    for x, q in zip(outputs.features, outputs.probs, strict=True):
        one_by_one.append(prudent.correct(x[None], q[None]).probs[0])
    found = runs[Candidate("prudent", 1)]
    assert np.allclose(found.confidence, np.max(one_by_one, axis=1))
    kept = np.array(one_by_one)[np.arange(160), outputs.before]
    assert np.allclose(found.kept, kept)
    assert found.scores["accuracy"] == np.mean(found.after == outputs.labels)


def test_labels_change_nothing_but_scores():
    bank = made_bank()
    with_labels = try_methods(bank, ["prudent", "lame"], jobs=1)
    without = try_methods(replace(bank, labels=None), ["prudent", "lame"], jobs=1)
    for one, other in zip(with_labels.runs, without.runs, strict=True):
        assert (one.after == other.after).all()
        assert not other.scores
    assert with_labels.estimates == without.estimates
    assert with_labels.advice == without.advice


def test_groups_are_kept_apart():
    groups = np.repeat(["b", "a"], 80)
    outputs = Outputs.of(made_bank(groups=groups))
    both = run_one(outputs, Candidate("average", 1, causal=True), np.inf)
    alone = [
        run_one(Outputs(outputs.features[rows], outputs.probs[rows]), both.candidate, np.inf)
        for rows in (slice(0, 80), slice(80, 160))
    ]
    assert (both.after == np.concatenate([run.after for run in alone])).all()
    right = both.after == outputs.labels
    assert both.scores["worst_group"] == min(right[:80].mean(), right[80:].mean())


def test_causal_methods_run_once_and_others_twice():
    found, left = candidates(Outputs.of(made_bank()))
    ways = [one.batch_size for one in found if one.method == "prudent"]
    assert ways == [1, 64]
    assert [one.batch_size for one in found if one.method == "memory"] == [1]
    assert [one.batch_size for one in found if one.method == "lame"] == [64]
    assert found[0].method == "prudent"
    assert left["t3a"].startswith("needs prototypes")
    assert left["tent"] == "adapts the network itself"


def test_however_causal_methods_are_cut(trial):
    """Larger batches are for speed alone."""
    one = Candidate("memory", 1, causal=True)
    cut = [run_one(trial.outputs, one, np.inf, size) for size in (1, 64)]
    assert (cut[0].after == cut[1].after).all()


@pytest.mark.slow(3)
def test_processes_give_the_same(trial):
    bank = made_bank()
    found = [Candidate("lame", 64), Candidate("average", 1, causal=True)]
    outputs = Outputs.of(bank)
    runs = {r.candidate: r for r in run_all(outputs, found, deadline=np.inf, jobs=2, size=64)}
    for one in found:
        assert (runs[one].after == run_one(outputs, one, np.inf).after).all()


def test_the_budget_holds_and_the_same_call_goes_on(tmp_path):
    file = tmp_path / "results.safetensors"
    bank = made_bank()
    late = list(run_all(Outputs.of(bank), [Candidate("lame", 64)], deadline=0, jobs=1, size=64))
    assert late == []
    first = try_methods(bank, ["lame"], results=file, jobs=1)
    calls = []
    second = try_methods(
        bank, ["lame", "average"], results=file, jobs=1, progress=lambda *x: calls.append(x)
    )
    assert calls == [(2, 2, "average, one by one")]  # lame was there
    assert (second.runs[0].after == first.runs[0].after).all()
    assert second.runs[0].scores == first.runs[0].scores
    # Another bank begins anew.
    other = try_methods(made_bank(seed=1), ["lame"], results=file, jobs=1)
    assert (other.runs[0].after != first.runs[0].after).any()


def test_what_was_not_done_in_time_is_named():
    begun = time.perf_counter()
    trial = try_methods(made_bank(), ["prudent", "lame"], budget=1e-9, jobs=1)
    assert time.perf_counter() - begun < 20
    assert trial.runs == ()
    assert "out of time" in trial.left["prudent, one by one"]
    assert trial.advice.method == "source"
    assert len(trial.outputs) <= 160


def test_of_a_stream_too_long_for_the_budget_the_first_samples_are_taken():
    rng = np.random.default_rng(0)
    arrays = (rng.normal(size=(4000, d)).astype(np.float32) for d in (4, 3))
    trial = try_methods(Bank(*arrays), ["average"], budget=0.1, jobs=1)
    assert (len(trial.outputs), trial.available) == (1000, 4000)
    assert "the 3,000 samples after the first 1,000" in trial.left


def test_a_file_of_the_user_is_not_overwritten(tmp_path):
    file = tmp_path / "mine.safetensors"
    save_file({"x": np.ones(3)}, file)
    before = file.read_bytes()
    with pytest.raises(LamettaError, match="must be one of lametta try"):
        try_methods(made_bank(), ["lame"], results=file, jobs=1)
    assert file.read_bytes() == before


def test_store_keeps_runs_as_they_are(trial, tmp_path):
    wanted = store.fingerprint(trial.outputs, 64)
    store.write(tmp_path / "x.safetensors", wanted, trial.runs)
    again = store.read(tmp_path / "x.safetensors", wanted)
    for one, other in zip(trial.runs, again, strict=True):
        assert one.candidate == other.candidate
        assert (one.after == other.after).all()
        assert one.series.keys() == other.series.keys()
        assert all((one.series[name] == other.series[name]).all() for name in one.series)
    assert store.read(tmp_path / "x.safetensors", "another") == []


def test_kinship_against_brute_force():
    outputs = Outputs.of(made_bank())
    unit = outputs.features / np.linalg.norm(outputs.features, axis=1, keepdims=True)
    cosines = unit @ unit.T - 3 * np.eye(160)
    near, before = np.argsort(-cosines)[:, :5], outputs.before
    shares = np.bincount(before) / 160
    beyond = ((before[near] == before[:, None]).mean() - (shares**2).sum()) / (
        1 - (shares**2).sum()
    )
    assert np.isclose(kinship(outputs), min(1, beyond / outputs.probs.max(axis=1).mean() ** 2))
    assert neighbors(outputs, [5], k=3) == [np.argsort(-cosines[5])[:3].tolist()]


def test_nothing_is_advised_where_each_class_comes_once():
    """Thirty classes, each once, a network that is right and sure: any change would be wrong."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(60, 40)).astype(np.float32)
    logits = (8 * np.eye(60) + rng.normal(size=(60, 60))).astype(np.float32)
    trial = try_methods(Bank(features, logits, np.arange(60)), METHODS, jobs=1)
    assert trial.look.kinship < 0.1
    assert trial.advice.method == "source"
    assert all(one.verdict == "cannot tell" or one.gain == 0 for one in trial.estimates.values())


def test_an_estimate_lies_within_what_the_changes_allow(trial):
    for run in trial.runs:
        one = trial.estimates[run.candidate.title]
        changed = np.mean(run.after != trial.outputs.before)
        assert -changed <= one.low <= one.gain <= one.high <= changed
    alone = estimate(trial.outputs, trial.runs[0], [], kinship=1.0)
    changed = np.mean(trial.runs[0].after != trial.outputs.before)
    assert (alone.low, alone.high) == (-changed, changed)  # no panel, no interval


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(0.1, 0.2, "helps"), (-0.2, -0.1, "hurts"), (-1, 1, "cannot tell")]
)
def test_verdict(low, high, verdict):
    assert Estimate((low + high) / 2, low, high).verdict == verdict


def test_advice_takes_prudent_where_classes_come_in_runs(trial):
    assert trial.advice.method == "prudent"
    assert "lametta.Prudent()" in trial.advice.code
    assert trial.gain(trial.shown) > 0.1
    grouped = try_methods(made_bank(groups=np.repeat(["a", "b"], 80)), METHODS, jobs=1)
    assert "lametta.Streams(lametta.Prudent())" in grouped.advice.code


@pytest.mark.parametrize(
    ("groups", "stream"), [(None, "camera-1"), (np.repeat(['the "old" gate', "b"], 80), None)]
)
def test_a_shadow_server_is_told_whose_each_request_is(groups, stream):
    """By what the server reads: requests without a stream would stand alone, and change nothing."""
    watch = try_methods(made_bank(groups=groups), METHODS, jobs=1).advice.watch
    parameters = json.loads(re.search(r'"parameters": (\{.*\});', watch)[1])
    assert parameters == {"sequence_id": stream or groups[0]}
    assert watch.startswith("lametta serve --shadow --corrector prudent  #")

    bank = made_bank()
    app = ServerConfig({"prudent": lametta.Prudent()}, store="memory").app()
    with TestClient(app, base_url="http://localhost") as client:
        for alone, known in (({}, None), (parameters, parameters["sequence_id"])):
            reply = client.post(
                "/v2/models/prudent/infer",
                json={
                    "parameters": alone,
                    "inputs": [
                        {"name": name, "shape": [1, x.size], "datatype": "FP32", "data": x.tolist()}
                        for name, x in (("features", bank.features[0]), ("logits", bank.logits[0]))
                    ],
                },
            ).json()
            assert reply.get("parameters", {}).get("sequence_id") == known


def test_advice_takes_nothing_where_there_is_no_order():
    trial = try_methods(made_bank("shuffled"), METHODS, jobs=1)
    prudent = trial.watched
    assert trial.advice.method == "source" or trial.gain(trial.shown) > -0.01
    assert np.mean(prudent.after != trial.outputs.before) < 0.05


def test_look(trial):
    outputs = trial.outputs
    found = look(outputs, trial.watched)
    before = outputs.before
    assert found.stays == np.mean(before[1:] == before[:-1])
    pairs = before[:, None] == before
    assert np.isclose(found.stays_by_chance, pairs[~np.eye(160, dtype=bool)].mean())
    assert found.order in {"classes", "none", "something else"}
    unordered = replace(found, by_classes=0.0, by_other=0.0, copies=0.1)
    assert "found no order" in unordered.sentences()[2]
    assert "averages near-copies" in replace(unordered, copies=0.9).sentences()[2]


def test_where_domains_begin():
    """Features that are moved three times, of shuffled classes; none where nothing moves."""
    rng = np.random.default_rng(0)
    labels = rng.integers(4, size=800)
    features = np.eye(4, 8)[labels] + 0.25 * rng.normal(size=(800, 8))
    probs = np.eye(4)[labels] * 0.9 + 0.025
    assert domains(Outputs(features, probs)) == []
    moved = features + 0.4 * rng.normal(size=(4, 8)).repeat(200, axis=0)
    found = domains(Outputs(moved, probs))
    assert len(found) == 3
    assert np.allclose(found, [200, 400, 600], atol=5)
    groups = np.repeat(["a", "b"], 400)
    assert np.allclose(domains(Outputs(moved, probs, groups=groups)), [200, 600], atol=5)
    assert domains(Outputs(features[:99], probs[:99])) == []


def test_where_scenes_begin(tmp_path):
    """Near-copies of five pictures, forty of each; the page says where."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(5, 16)).repeat(40, axis=0) + 0.01 * rng.normal(size=(200, 16))
    bank = Bank(features.astype(np.float32), rng.normal(size=(200, 3)).astype(np.float32))
    trial = try_methods(bank, ["prudent"], jobs=1)
    assert trial.begins == {"scene": [0, 40, 80, 120, 160]}
    text = trial.write(tmp_path / "x.html").read_text()
    assert "Where another scene begins: samples 1, 41, 81, 121, 161." in text
    assert "another scene begins</small><svg" in text


def test_page(trial, tmp_path):
    page = trial.write(tmp_path / "try.html", title="<my> stream", command=["lametta", "try"])
    text = page.read_text()
    assert "&lt;my&gt; stream" in text
    assert not re.search(r'(src|href)="(?!data:|#)', text)  # nothing is loaded
    assert text.count("<svg") >= 4
    assert "frame" in text
    assert trial.advice.headline.split(";")[0] in text


def test_pictures_are_in_the_page(trial, tmp_path):
    asked = []

    def picture(row):
        asked.append(row)
        return np.full((3, 8, 8), row % 255, np.uint8)

    text = trial.write(tmp_path / "try.html", pictures=picture).read_text()
    assert text.count("data:image/jpeg") == len(asked) > 0


@pytest.mark.slow(4)
def test_a_browser_shows_the_page(browser, tmp_path):
    """Wide and on a telephone, light and dark; nothing is asked of anyone else."""
    bank = made_bank(groups=np.repeat(["a", "b"], 80))
    trial = try_methods(bank, METHODS, jobs=1)
    page = trial.write(tmp_path / "try.html", pictures=lambda row: np.zeros((8, 8), np.uint8))
    with chromium(browser) as tab:
        backs = set()
        for width in (1200, 390):
            for scheme in ("light", "dark"):
                tab.resize(width)
                tab.prefer(prefers_color_scheme=scheme)
                tab.go(page.as_uri())
                tab.wait("document.documentElement.dataset.ready === 'yes'")
                wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
                assert tab.evaluate(wide) == 0
                backs.add(tab.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert len(backs) == 2
        loaded = "performance.getEntriesByType('resource').map((one) => one.name)"
        assert all(name.startswith("data:") for name in tab.evaluate(loaded))
        pictures = "[...document.images].every((one) => one.naturalWidth > 0)"
        assert tab.evaluate(pictures)
        links = "[...document.querySelectorAll('nav a')].map((a) => a.getAttribute('href'))"
        for link in tab.evaluate(links):
            assert tab.evaluate(f"document.querySelector('{link}') !== null")
        assert tab.problems == []


def test_errors():
    with pytest.raises(LamettaError, match="bank must hold a sample"):
        try_methods(Bank(np.ones((0, 2)), np.ones((0, 2))))
    with pytest.raises(LamettaError, match="budget must be"):
        try_methods(made_bank(), budget=0)
    with pytest.raises(LamettaError, match="did you mean 'prudent'"):
        try_methods(made_bank(), ["prudnt"])


def test_as_dict_is_json(trial):
    found = json.loads(json.dumps(trial.as_dict()))
    assert found["advice"]["method"] == trial.advice.method
    assert len(found["runs"]) == len(trial.runs)
    assert isinstance(trial, Trial)


def test_notebooks_show_advice_and_table(trial):
    shown = trial._repr_markdown_()
    assert trial.advice.headline in shown
    assert "| lame, batches of 64 |" in shown


def test_progress_shows_a_bar_on_the_error_stream(capsys):
    try_methods(made_bank(), ["lame", "average"], jobs=1, progress=True)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert re.search(r"trying .* 2/2", printed.err)
    try_methods(made_bank(), ["lame"], jobs=1, progress=False)
    assert capsys.readouterr().err == ""
