"""Tracked detections of the real ``supervision``, against the core called by hand."""

import csv
import importlib
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from lametta import LamettaError, Prudent, Streams
from lametta.correctors import Average, Track
from lametta.integrations.supervision import ClassSmoother
from lametta.taxonomy import Taxonomy
from tests.conftest import make_batch

K = 4


def sv():
    """The library, loaded where it is used: that takes a process most of a second."""
    return importlib.import_module("supervision")


def frame(ids, classes=None, confidence=None, **fields):
    n = len(ids)
    return sv().Detections(
        xyxy=np.arange(4.0 * n).reshape(n, 4),
        tracker_id=np.array(ids, dtype=int),
        class_id=None if classes is None else np.array(classes, dtype=int),
        confidence=None if confidence is None else np.array(confidence, dtype=float),
        **fields,
    )


def video(n_frames=12, n_tracks=3):
    """Frames of several tracks, each with probabilities and features for its detections."""
    features, probs = make_batch(n_frames * n_tracks, K)
    shape = n_frames, n_tracks, -1
    return features.reshape(shape), probs.reshape(shape)


@pytest.mark.parametrize("corrector", [Track(), Average(), Prudent()])
def test_equals_the_core_bit_for_bit(corrector):
    features, probs = video()
    smoother = ClassSmoother(K, corrector)
    tracks = [type(corrector)() for _ in range(3)]
    order = np.random.default_rng(0)
    for x, q in zip(features, probs, strict=True):
        shown = order.permutation(3)[: order.integers(1, 4)]
        data = {"class_probs": q[shown], "features": x[shown]}
        found = smoother.update_with_detections(frame(shown, q[shown].argmax(1), data=data))
        expected = [tracks[i].correct(x[i][None], q[i][None]).probs[0] for i in shown]
        assert np.array_equal(found.class_id, np.argmax(expected, axis=1))
        assert np.array_equal(found.confidence, np.max(expected, axis=1))
        assert np.array_equal(found.tracker_id, shown)


def test_class_and_confidence_are_spread_over_the_rest():
    smoother, streams = ClassSmoother(K), Streams(Track())
    for one, share in [(1, 0.7), (1, 0.4), (2, 0.9), (3, 0.1)]:
        found = smoother.update_with_detections(frame([5], [one], [share]))
        row = np.full((1, K), (1 - share) / (K - 1))
        row[0, one] = share
        # A class is named because none is likelier.
        row = np.full((1, K), 0.25) if share < 0.25 else row / row.sum()
        expected = streams.correct(row, row, 5).probs
        assert found.class_id == expected.argmax()
        assert found.confidence == expected.max()


def test_probabilities_may_be_given_beside():
    _, probs = video()
    beside, inside = ClassSmoother(K), ClassSmoother(K)
    for q in probs.astype(np.float32):
        a = beside.update_with_detections(frame([1, 2, 3]), probs=q)
        b = inside.update_with_detections(frame([1, 2, 3], data={"class_probs": q}))
        assert np.array_equal(a.confidence, b.confidence)
        assert a.confidence.dtype == np.float32
        assert np.array_equal(a.data["source_class_id"], q.argmax(axis=1))
        assert np.array_equal(a.data["source_confidence"], q.max(axis=1))


def test_all_else_is_kept():
    masks = np.random.default_rng(0).random((3, 5, 5)) > 0.5
    data = {"class_name": np.array(["cat", "dog", "cat"]), "speed": [1.5, 2.5, 3.5]}
    given = frame([4, -1, 9], [0, 1, 0], [0.9, 0.8, 0.7], mask=masks, data=data)
    given.metadata["camera"] = "door"
    smoother = ClassSmoother(K)
    smoother.update_with_detections(frame([4], [1], [0.99], data={"class_name": np.array(["dog"])}))
    kept = {name: value.copy() for name, value in vars(given).items()}
    found = smoother.update_with_detections(given)
    assert found.class_id.tolist() == [1, 1, 0]
    assert found.data["class_name"].tolist() == ["dog", "dog", "cat"]
    assert found.data["source_class_id"].tolist() == [0, 1, 0]
    assert found.data["source_confidence"].tolist() == [0.9, 0.8, 0.7]
    assert found.data["source_class_name"].tolist() == ["cat", "dog", "cat"]
    assert found.confidence[1] == 0.8  # of no track
    assert found.data["speed"] == [1.5, 2.5, 3.5]
    assert found.metadata == {"camera": "door"}
    for name in ("xyxy", "mask", "tracker_id"):
        assert np.array_equal(getattr(found, name), kept[name])
    assert given == sv().Detections(**kept)  # what was given is as it was
    assert len(found[found.class_id == 1]) == 2
    assert len(sv().Detections.merge([found, found])) == 6


def test_names():
    named = ClassSmoother(3, class_names=["ant", "bee", "cow"])
    unnamed = ClassSmoother(3)
    probs = np.array([[0.2, 0.7, 0.1]])
    given = frame([1], [0], [0.2], data={"class_name": ["ant"]})
    assert named.update_with_detections(given, probs=probs).data["class_name"] == ["bee"]
    assert unnamed.update_with_detections(given, probs=probs).data["class_name"] == ["1"]
    with pytest.raises(LamettaError, match="class_names must be 3 names, got 1"):
        ClassSmoother(3, class_names=["ant"])


def test_frames_with_nothing_to_correct():
    smoother = ClassSmoother(K)
    strangers = frame([-1, -1], [0, 1], [0.5, 0.5])
    found = smoother.update_with_detections(strangers)
    assert found.class_id.tolist() == [0, 1]
    assert found.confidence.tolist() == [0.5, 0.5]
    assert strangers.data == {}
    nobody = sv().Detections(xyxy=np.zeros((1, 4)), class_id=np.array([1]))
    with pytest.warns(UserWarning, match="detections have no tracker_id"):
        found = smoother.update_with_detections(nobody)
    assert found.class_id.tolist() == [1]
    assert found.data == {"source_class_id": np.array([1])}
    assert smoother.update_with_detections(sv().Detections.empty()).is_empty()
    assert smoother.update_with_detections(frame([])).is_empty()
    assert smoother.tracks == []


@pytest.mark.parametrize("named", [np.array, list])
@pytest.mark.parametrize("with_probs", [False, True])
def test_results_of_all_frames_can_be_merged(named, with_probs):
    smoother, merged = ClassSmoother(K), []
    for ids in ([-1, -1], [3, -1], [], [-1, 3]):
        names = named(["cat", "dog"][: len(ids)])
        probs = np.array([[0.1, 0.7, 0.1, 0.1], [0.6, 0.2, 0.1, 0.1]])[: len(ids)]
        own = [] if with_probs else [[1, 0][: len(ids)], [0.9, 0.8][: len(ids)]]
        given = frame(ids, *own, data={"class_name": names, "class_probs": probs})
        merged.append(smoother.update_with_detections(given))
    every = sv().Detections.merge(merged)
    assert len(every) == 6
    source = [0.7, 0.6] * 3 if with_probs else [0.9, 0.8] * 3
    assert np.allclose(every.data["source_confidence"], source)
    assert every.data["source_class_id"].tolist() == [1, 0] * 3
    assert list(every.data["source_class_name"]) == ["cat", "dog"] * 3


def test_the_detectors_own_answers_survive_a_second_smoother():
    twice = ClassSmoother(K), ClassSmoother(K)
    for one, share in [(1, 0.9), (2, 0.6), (2, 0.7)]:
        found = frame([5], [one], [share])
        for smoother in twice:
            found = smoother.update_with_detections(found)
        assert found.data["source_class_id"].tolist() == [one]
        assert found.data["source_confidence"].tolist() == [share]
        assert found.confidence != share or share == 0.9


def test_tracks_that_disappear():
    smoother = ClassSmoother(K, lost=3)
    smoother.update_with_detections(frame([1, 2], [0, 0], [0.9, 0.9]))
    for _ in range(3):
        smoother.update_with_detections(frame([2], [0], [0.9]))
    assert smoother.tracks == [1, 2]
    found = smoother.update_with_detections(frame([1, 2], [1, 1], [0.7, 0.7]))
    assert found.class_id.tolist() == [0, 0]  # seen again in time
    for _ in range(4):
        smoother.update_with_detections(sv().Detections.empty())
    assert smoother.tracks == []
    found = smoother.update_with_detections(frame([1], [1], [0.7]))
    assert found.class_id.tolist() == [1]  # another object with the number of an old one
    smoother.reset()
    assert smoother.tracks == []
    assert ClassSmoother(K, most=1).update_with_detections(frame([1, 2], [0, 0], [1, 1]))


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ([[1]], {}, "detections must have class_id or probs, got neither"),
        ([[1], [1]], {}, "detections must have confidence or probs, got neither"),
        ([[1], [K], [0.5]], {}, r"detections.class_id must lie in 0\.\.3, got 4"),
        ([[1], [1], [1.5]], {}, "detections.confidence must be a finite number"),
        ([[1]], {"probs": np.ones((1, 3)) / 3}, "probs must have 4 columns, got 3"),
        ([[1]], {"probs": np.ones((2, K)) / K}, "probs must be floats with a row for each"),
        ([[1]], {"probs": np.ones((1, K))}, "probs must have rows that sum to 1"),
        ([[1], [1], [1.0]], {"features": [["a"]]}, "features must be floats with a row"),
    ],
)
def test_bad_detections(given, options, message):
    smoother = ClassSmoother(K)
    with pytest.raises(LamettaError, match=message):
        smoother.update_with_detections(frame(*given), **options)
    assert smoother.tracks == []


def test_bad_options():
    with pytest.raises(LamettaError, match="n_classes must be an integer >= 2, got 1"):
        ClassSmoother(1)
    with pytest.raises(LamettaError, match="lost must be an integer >= 1, got 0"):
        ClassSmoother(2, lost=0)
    with pytest.raises(LamettaError, match="corrector must have correct and reset, got int"):
        ClassSmoother(2, 3)
    with pytest.raises(LamettaError, match="corrector must be one of .* did you mean 'track'"):
        ClassSmoother(2, "trak")


def test_a_corrector_by_name():
    _, probs = video()
    named, made = ClassSmoother(K, "average"), ClassSmoother(K, Average())
    for q in probs:
        a, b = (one.update_with_detections(frame([1, 2, 3]), probs=q) for one in (named, made))
        assert np.array_equal(a.confidence, b.confidence)
    assert ClassSmoother(K) == ClassSmoother(K, "track")
    alone = ClassSmoother(K, "lame")  # of which each track has one row a frame
    alone.update_with_detections(frame([1, 2, 3]), probs=probs[0])
    with pytest.warns(UserWarning, match="LAME gets one sample"):
        alone.update_with_detections(frame([1, 2, 3]), probs=probs[1])


@pytest.mark.slow
def test_the_benchmark_compares_the_usual_rules(monkeypatch, capsys, tmp_path):
    root, table = Path(__file__).parents[2], tmp_path / "table.csv"
    monkeypatch.setattr(sys, "argv", ["tracks.py", "--quick", "--csv", str(table)])
    monkeypatch.syspath_prepend(root / "benchmarks")
    runpy.run_path(root / "benchmarks" / "tracks.py", run_name="__main__")
    titles, *rows = table.read_text().splitlines()
    assert titles == (root / "docs" / "tables" / "tracks.csv").read_text().splitlines()[0]
    assert rows[-1].startswith(',"long, wrong beginning",57.6,0.0,')
    printed = capsys.readouterr().out
    assert "| made up | long, wrong beginning (21) | 57.6 | 0.0 |" in printed
    assert "track is not behind the best usual rule in 4 of 4 lines" in printed


@pytest.mark.slow
def test_the_benchmark_counts_changes_of_class(monkeypatch, tmp_path):
    root, table = Path(__file__).parents[2], tmp_path / "table.csv"
    argv = ["tracks.py", "--quick", "--tracks", "42", "--switch", "--csv", str(table)]
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.syspath_prepend(root / "benchmarks")
    runpy.run_path(root / "benchmarks" / "tracks.py", run_name="__main__")
    titles, *rows = csv.reader(table.read_text().splitlines())
    assert titles == (root / "docs" / "tables" / "switches.csv").read_text().split("\n")[0].split(
        ","
    )
    for row in rows:
        changes = [float(cell.split("(")[1].strip(")")) for cell in row[2:]]
        assert changes == sorted(changes, reverse=True)
    assert rows


def test_a_track_with_nan_stays_as_it_is_alone():
    smoother, probs = ClassSmoother(3), np.array([[0.1, 0.2, 0.7], [0.6, 0.3, 0.1]])
    frame = sv().Detections(
        xyxy=np.zeros((2, 4)),
        class_id=np.array([2, 0]),
        confidence=np.array([0.7, 0.6]),
        tracker_id=np.array([4, 5]),
    )
    smoother.update_with_detections(frame, probs=probs)
    broken = np.array([[0.2, 0.2, 0.6], [np.nan, 0.3, 0.1]])
    with pytest.warns(UserWarning, match="stream 5 is left out"):
        found = smoother.update_with_detections(frame, probs=broken)
    assert found.class_id.tolist() == [2, 0]
    assert found.confidence[1] == 0.6
    assert found.data["source_confidence"][1] == 0.6


def test_detections_are_named_at_the_level_that_is_sure():
    taxonomy = Taxonomy(["animal;cat;lion", "animal;cat;tiger", "animal;dog"])
    smoother = ClassSmoother(n_classes=3, taxonomy=taxonomy)
    probs = np.array([[0.5, 0.45, 0.05], [0.4, 0.2, 0.4]])
    detections = sv().Detections(
        xyxy=np.zeros((2, 4)),
        class_id=probs.argmax(1),
        confidence=probs.max(1),
        tracker_id=np.array([1, -1]),  # the other is of no track
    )
    smoothed = smoother.update_with_detections(detections, probs=probs)
    assert smoothed.data["taxon"].tolist() == ["cat", "animal"]
    np.testing.assert_allclose(smoothed.data["taxon_confidence"], [0.95, 1])
    empty = smoother.update_with_detections(sv().Detections.empty())
    assert empty.data["taxon"].tolist() == []
    with pytest.raises(LamettaError, match="taxonomy must have 4 classes, got 3"):
        ClassSmoother(n_classes=4, taxonomy=taxonomy)


def test_a_lost_track_goes_on_under_another_id():
    def seen(ids, probs, boxes):
        detections = sv().Detections(
            xyxy=np.array(boxes, float), class_id=np.zeros(len(ids), int), tracker_id=np.array(ids)
        )
        smoothed = smoother.update_with_detections(detections, probs=np.array(probs))
        return smoothed.class_id.tolist()

    sure, unsure = [0.05, 0.9, 0.05, 0.0], [0.4, 0.3, 0.3, 0.0]
    near, far = [[0, 0, 10, 10]], [[50, 50, 60, 60]]
    for reattach, answers in ((None, [0, 0]), (0.5, [1, 0])):
        smoother = ClassSmoother(n_classes=4, reattach=reattach)
        for _ in range(5):
            seen([1], [sure], near)
        assert seen([2, 3], [unsure, unsure], [[1, 0, 11, 10], *far]) == answers
    assert smoother.tracks == [1, 3]
    assert seen([1, 2], [sure, unsure], [*near, *near]) == [1, 0]  # both are there: two objects
    assert sorted(smoother.tracks) == [1, 2, 3]
    smoother.reset()
    assert seen([9], [unsure], near) == [0]
    with pytest.raises(LamettaError, match="reattach must be"):
        ClassSmoother(n_classes=4, reattach=2)


def test_a_track_keeps_its_class_until_another_is_that_much_likelier():
    def classes(smoother, rows, track=1):
        found = [
            smoother.update_with_detections(frame([track], [0], [1]), probs=np.array([row]))
            for row in rows
        ]
        return [one.class_id.item() for one in found], [one.confidence.item() for one in found]

    rows = [[0.5, 0.3, 0.2], [0.4, 0.5, 0.1], [0.3, 0.5, 0.2], [0.4, 0.5, 0.1], [0.5, 0.4, 0.1]]
    assert classes(ClassSmoother(3, Track(memory=1)), rows)[0] == [0, 1, 1, 1, 0]
    smoother = ClassSmoother(3, Track(memory=1), switch=1.5, most=2)  # which answers by each frame
    found, confidence = classes(smoother, rows)
    assert found == [0, 0, 1, 1, 1]
    assert confidence == pytest.approx([0.5, 0.4, 0.5, 0.5, 0.4])
    assert classes(smoother, rows[-1:], track=2)[0] == [0]  # a track of its own
    assert classes(smoother, rows[1:2])[0] == [1]
    assert classes(smoother, rows[-1:])[0] == [1]
    classes(smoother, rows[:1], track=2)
    classes(smoother, rows[:1], track=3)  # the first is forgotten now
    assert classes(smoother, rows[-1:])[0] == [0]
    smoother.reset()
    assert classes(smoother, rows[3:4])[0] == [1]
    smoother = ClassSmoother(3, switch=1.5, lost=1)
    classes(smoother, rows[2:3])
    for _ in range(2):
        smoother.update_with_detections(frame([]), probs=np.empty((0, 3)))
    assert (smoother._classes, smoother.tracks) == ({}, [])
    with pytest.raises(LamettaError, match="switch must be"):
        ClassSmoother(3, switch=0.9)
