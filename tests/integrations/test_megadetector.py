"""Results of camera traps: sequences, probabilities, and all that stays as it is."""

import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from lametta import LAME, ClassMap, LamettaError, Prudent
from lametta.correctors import Average, Track
from lametta.integrations._json_spans import parse, replaced
from lametta.integrations._sequences import sequences
from lametta.integrations._spread import spread
from lametta.integrations.megadetector import Results, correct

NAMES = {"0": "fox", "4": "elk", "7": "wolf", "10": "bear"}
COLUMN = {category: place for place, category in enumerate(NAMES)}


def image(file, *lists, **fields):
    detections = [
        {"category": "1", "conf": 0.9, "bbox": [0, 0.5, 1, 0.25], "classifications": listed}
        for listed in lists
    ]
    return {"file": file, "detections": detections, **fields}


def results(*images):
    return {"classification_categories": NAMES, "images": list(images)}


def burst(n=5, seed=0, **fields):
    """Images of one sequence, each with the best three of four classes."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(n):
        q = rng.dirichlet(np.ones(4) / 2).round(3)
        best = np.argsort(-q)[:3]
        listed = [[list(NAMES)[k], float(q[k])] for k in best]
        time = f"2024-05-01 08:00:{2 * i:02d}"
        found.append(image(f"door/{i}.jpg", listed, datetime=time, **fields))
    return found


def rows(images):
    return np.array(
        [
            spread(4, [COLUMN[name] for name, _ in one], [share for _, share in one])
            for found in images
            for one in [found["detections"][0]["classifications"]]
        ]
    )


def lists(document):
    return [
        detection.get("classifications")
        for found in document["images"]
        for detection in found["detections"]
    ]


# What is corrected


@pytest.mark.parametrize(
    ("corrector", "passes"), [(Track(), 1), (Track(), 2), (Average(), 3), (LAME(), 1), (LAME(), 2)]
)
def test_equals_the_core(corrector, passes):
    images = burst()
    found = correct(results(*images), corrector, passes=passes, batch_size=2)
    q = rows(images)
    for _ in range(passes):  # what was given remembers nothing of it
        parts = [corrector.correct(np.sqrt(q[i : i + 2]), q[i : i + 2]).probs for i in (0, 2, 4)]
    for row, listed in zip(np.concatenate(parts), lists(found.document), strict=True):
        assert [COLUMN[name] for name, _ in listed] == np.argsort(-row, kind="stable")[:3].tolist()
        assert [share for _, share in listed] == [
            round(float(x), 4) for x in np.sort(row)[::-1][:3]
        ]
    assert (found.detections, found.streams) == (5, 1)
    changed = np.concatenate(parts).argmax(axis=1) != q.argmax(axis=1)
    assert found.changed == changed.sum()


def test_streams_are_not_mixed():
    one, other = burst(seed=1), burst(seed=2)
    for member in other:
        member["file"] = member["file"].replace("door", "yard")
    mixed = [member for pair in zip(one, other, strict=True) for member in pair]
    together = lists(correct(results(*mixed), Track()).document)
    assert together[::2] == lists(correct(results(*one), Track()).document)
    assert together[1::2] == lists(correct(results(*other), Track()).document)


def test_order_is_time():
    images = burst()
    forward = lists(correct(results(*images), Track(), passes=1).document)
    backward = lists(correct(results(*images[::-1]), Track(), passes=1).document)
    assert backward == forward[::-1]


def test_frames_of_a_video_are_a_sequence():
    listed = [one["detections"][0]["classifications"] for one in burst()]
    video = image("door/film.mp4", *listed, frame_rate=5, frames_processed=[0, 1, 2, 3, 4])
    for frame, detection in zip([3, 1, 0, 2, 4], video["detections"], strict=True):
        detection["frame_number"] = frame
    images = burst()
    found = lists(correct(results(video, image("door/1.jpg")), Track(), passes=1).document)
    ordered = [images[i] for i in (2, 1, 3, 0, 4)]
    for i, member in enumerate(ordered):
        member["datetime"] = f"2024-05-01 08:00:0{i}"
    expected = lists(correct(results(*ordered), Track(), passes=1).document)
    assert [found[i] for i in (2, 1, 3, 0, 4)] == expected


def test_a_class_map_pools_first():
    document = results(*burst())
    document["classification_category_descriptions"] = {
        "0": "animalia;carnivora;canidae;vulpes",
        "4": "animalia;artiodactyla",
        "7": "animalia;carnivora;canidae;canis",
        "10": "animalia;carnivora;ursidae",
    }
    classes = ClassMap({"canine": [0, 2], "other": [1, 3]}, n_source=4, pooling="sum")
    found = correct(document, Average(), passes=1, class_map=classes).document
    assert found["classification_categories"] == {"0": "canine", "1": "other"}
    assert found["classification_category_descriptions"] == {
        "0": "animalia;carnivora;canidae",
        "1": "animalia",
    }
    pooled = classes.pool_probs(rows(document["images"]))
    means = np.cumsum(pooled, axis=0) / np.arange(1, 6)[:, None]
    for mean, listed in zip(means, lists(found), strict=True):
        assert {int(name): share for name, share in listed} == pytest.approx(
            dict(enumerate(mean)), abs=1e-4
        )
    small = ClassMap([0, 1, 0, 0, 0])
    with pytest.raises(LamettaError, match="class_map must be of the 4 categories"):
        correct(document, Average(), class_map=small)


def test_probabilities_of_classes_that_are_not_listed():
    assert np.allclose(spread(4, [1, 2], [0.5, 0.2]), [0.15, 0.5, 0.2, 0.15])
    assert np.allclose(spread(4, [1], [0.1]), 0.25)  # the likeliest cannot be less likely
    assert np.allclose(spread(2, [0, 1], [0.7, 0.301]), np.array([0.7, 0.301]) / 1.001)
    assert np.allclose(spread(3, [0], [0.0]), 1 / 3)
    assert spread(3, [0, 1], [1.0, 0.001]).sum() == pytest.approx(1)


# Sequences


def streams(*images, by="sequence", gap=60):
    return sequences(dict(enumerate(images)), by, gap)


def test_sequences_by_time():
    times = ["2024:05:01 10:00:00", "2024-05-01T10:02:00", "2024-05-01 10:00:50", "2024-05-02"]
    images = [{"file": rf"a\b\{i}.jpg", "datetime": time} for i, time in enumerate(times)]
    assert streams(*images) == [[0, 2], [1], [3]]
    assert streams(*images, gap=90) == [[0, 2, 1], [3]]
    assert streams(*images, by="location") == [[0, 2, 1, 3]]


def test_sequences_by_name():
    ids = [("x", 2), ("y", 1), ("x", 1), ("y", 0)]
    images = [{"file": f"{i}", "seq_id": one, "frame_num": n} for i, (one, n) in enumerate(ids)]
    assert streams(*images) == [[2, 0], [3, 1]]
    images[0]["location"] = 7  # the same name at another place
    assert streams(*images) == [[0], [3, 1], [2]]


def test_sequences_without_times():
    images = [{"file": f"{folder}/{i}.jpg"} for i, folder in enumerate("abab")]
    assert streams(*images) == streams(*images, by="location") == [[0, 2], [1, 3]]
    images[0]["datetime"] = "2024-05-01 10:00:00"  # of one alone
    assert streams(*images) == [[0, 2], [1, 3]]
    with pytest.raises(LamettaError, match=r"images\[1\].datetime must be a time as .*'noon'"):
        streams(images[0], {"file": "b", "datetime": "noon"})


def test_is_timed(tmp_path):
    path = tmp_path / "in.json"
    empty = {"file": "none.jpg", "detections": []}
    for images, expected in (
        ([*burst(), empty], True),
        ([*burst(), image("a", [["0", 1]])], False),
    ):
        path.write_text(json.dumps(results(*images)))
        assert Results.read(path).is_timed is expected


# What stays

TEXT = """\ufeff{ "info": {"format_version" : "1.6",
  "unknown": [1.500, 1e-5, "\\u00e9 \\"classifications\\":"]},
 "detection_categories": {"1": "animal"},
\t"classification_categories": {"0": "fox", "1": "elk"},
 "images": [
  {"file": "a/1.jpg", "exif": {"ISO": 1E3},
   "detections": [
    {
     "category": "1",
     "conf": 0.9260,
     "classifications": [
      ["0", 0.90],
      ["1", 0.10]
     ],
     "bbox": [0.0, 0.27620, 1, 0.2]
    },
    {"category": "2", "conf": 0.06}]},
  {"file": "a/2.jpg", "detections": [{"classifications":[["1",0.6],["0",0.4]],"more":null}]},
  {"file": "a/3.jpg", "detections": [], "failure": null},
  {"file": "a/4.jpg", "failure": "Failure image access", "detections": null},
  {"file": "a/5.jpg", "failure": "x"},
  {"file": "b/1.jpg", "detections": [{"classifications": [["0", 0.800], ["1", 0.200]]}]}
 ], "more": {"images": [{"classifications": 3.10}]}
}\r
"""


@pytest.fixture
def given(tmp_path):
    (tmp_path / "in.json").write_bytes(TEXT.encode())
    return Results.read(tmp_path / "in.json")


def test_bytes_that_do_not_change_are_kept(given, tmp_path):
    found = correct(given.document, Average(), passes=1)
    assert given.document == json.loads(TEXT[1:])
    given.write(tmp_path / "out.json", found.document)
    # The first of a stream is the source's, and so is the only one of b/.
    new = '"classifications":[["0", 0.65], ["1", 0.35]], "source_classifications": '
    expected = TEXT.replace('"classifications":[["1",0.6]', new + '[["1",0.6]')
    assert (tmp_path / "out.json").read_bytes() == expected.encode()
    assert json.loads(expected[1:]) == found.document
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.json", "out.json"]


def test_source_in_the_style_of_the_file(given, tmp_path):
    found = correct(given.document, Average(), passes=2)
    given.write(tmp_path / "out.json", found.document)
    text = (tmp_path / "out.json").read_bytes().decode()
    assert (
        '     "classifications": [["0", 0.7333], ["1", 0.2667]],\n'
        '     "source_classifications": [\n      ["0", 0.90],\n'
    ) in text
    assert json.loads(text[1:]) == found.document
    again = Results.read(tmp_path / "out.json")
    twice = correct(again.document, Track()).document
    sources = [
        detection.get("source_classifications")
        for member in twice["images"]
        for detection in member.get("detections") or ()
    ]
    assert sources == [[["0", 0.9], ["1", 0.1]], None, [["1", 0.6], ["0", 0.4]], None]


def test_source_can_be_dropped(given, tmp_path):
    found = correct(given.document, Average(), keep_source=False)
    given.write(tmp_path / "out.json", found.document)
    assert b"source_" not in (tmp_path / "out.json").read_bytes()


def test_keys_of_a_class_map_are_written(given, tmp_path):
    classes = ClassMap({"deer": [1], "fox": [0]})
    found = correct(given.document, Prudent(), class_map=classes)
    given.write(tmp_path / "out.json", found.document)
    text = (tmp_path / "out.json").read_bytes().decode()
    assert '\t"classification_categories": {"0": "deer", "1": "fox"},\n' in text
    assert json.loads(text[1:]) == found.document


def test_spans_agree_with_json():
    values = [None, True, -1.5e3, '\\ " é', [], {}, [[]], {"a": {"b": [{"c": 1}, 2]}}]
    for value in [*values, values, {"x": values}]:
        for indent in (None, 2):
            text = json.dumps(value, indent=indent)
            paths = ("a", "b", -1, "c"), ("x",), ("x", -1, "a")
            found, spans = parse(text, *paths)
            assert found == value
            for span in spans.values():
                json.loads(text[span.start : span.end])
            assert replaced(text, []) == text


# What is refused


@pytest.mark.parametrize(
    "text",
    ["", "{", '{"images"', '{"images": [', '{"images": [{"file": 1]}', "{} 1", '{"a" 1}', "{1"],
)
def test_no_json(text, tmp_path):
    (tmp_path / "in.json").write_text(text)
    with pytest.raises(LamettaError, match=r"in\.json must be JSON, got what is none"):
        Results.read(tmp_path / "in.json")


def test_no_object(tmp_path):
    (tmp_path / "in.json").write_text("[]")
    with pytest.raises(LamettaError, match=r"in\.json must hold a JSON object, got a list"):
        Results.read(tmp_path / "in.json")
    (tmp_path / "in.json").write_bytes(b'{"images": "\xff"}')
    with pytest.raises(LamettaError, match="must be JSON, got what is none: 'utf-8'"):
        Results.read(tmp_path / "in.json")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "images must be a list, got nothing"),
        (results({"detections": []}), r"images\[0\] must be an object with a text as file"),
        (results({"file": "a", "detections": {}}), r"images\[0\].detections must be a list or n"),
        (results({"file": "a", "detections": [3]}), r"images\[0\].detections\[0\] must be an obj"),
        ({"images": [image("a", [["0", 1]])]}, "must be a category of classification_categories"),
        (results(image("a"), image("b", [["0", 0.5], ["9", 0.5]])), r"images\[1\].detections\[0\]"
         r".classifications\[1\] must be a category of classification_categories, got '9'"),
        (results(image("a", [["0", "x"]])), r"classifications\[0\] must have a conf in 0..1, got"),
        (results(image("a", [["0", 1.5]])), r"classifications\[0\] must have a conf in 0..1, got"),
        (results(image("a", [["0"]])), r"classifications\[0\] must be \[category, conf\], got"),
        (results(image("a", "x")), r"classifications must be a list, got text"),
        (results(image("a", [["0", 0.5], ["0", 0.5]])), "must list each category once"),
        ({"images": [], "classification_categories": []}, "classification_categories must be an"),
    ],
)  # fmt: skip
def test_bad_documents(document, message):
    with pytest.raises(LamettaError, match=message):
        correct(document, Track())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "camera"}, "by must be one of 'sequence', 'location', got 'camera'"),
        ({"gap": -1}, "gap must be a finite number >= 0, got -1"),
        ({"passes": 0}, "passes must be an integer >= 1, got 0"),
        ({"batch_size": -1}, "batch_size must be an integer >= 0, got -1"),
        ({"keep_source": 1}, "keep_source must be True or False, got 1"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(LamettaError, match=message):
        correct(results(), Track(), **options)


def test_nothing_to_correct():
    document = results(image("a"), {"file": "b", "failure": "x"})
    found = correct(document, Track())
    assert found.document == document
    assert (found.detections, found.streams, found.changed) == (0, 0, 0)


@pytest.mark.slow
def test_the_benchmark_compares_ways(monkeypatch, capsys):
    folder = Path(__file__).parents[2] / "benchmarks"
    monkeypatch.setattr(sys, "argv", ["camera_traps.py", "--quick"])
    monkeypatch.syspath_prepend(folder)
    runpy.run_path(folder / "camera_traps.py", run_name="__main__")
    scores = dict(
        line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:]
    )
    assert float(scores["track, by sequence, twice"]) > float(scores["source"]) + 20
