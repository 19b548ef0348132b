"""Results of camera traps: sequences, probabilities, and all that stays as it is."""

import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from lametta import LAME, ClassMap, LamettaError, Prudent
from lametta._arrays import from_top_k
from lametta.correctors import Average, Track
from lametta.integrations._json_spans import parse, replaced
from lametta.integrations.megadetector import (
    Corrected,
    CorrectionResult,
    Results,
    as_bank,
    correct,
    sequences,
    track_boxes,
)

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
            from_top_k(4, [COLUMN[name] for name, _ in one], [share for _, share in one])
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


@pytest.mark.parametrize("by", ["animal", "sequence", "location"])
@pytest.mark.parametrize("corrector", [Track(), Average(), LAME(), Prudent()])
def test_equals_the_core(corrector, by):
    images = burst()
    found = correct(results(*images), corrector, by=by, batch_size=2)
    corrector.reset()
    q = rows(images)
    parts = [corrector.correct(np.sqrt(q[i : i + 2]), q[i : i + 2]).probs for i in (0, 2, 4)]
    if by != "location" and getattr(corrector, "causal", False):
        parts = [np.tile(parts[-1], (5, 1))]  # one answer for all
    for row, listed in zip(np.concatenate(parts), lists(found.document), strict=True):
        assert [COLUMN[name] for name, _ in listed] == np.argsort(-row, kind="stable")[:3].tolist()
        shares = [share for _, share in listed]
        assert shares == pytest.approx(np.sort(row)[::-1][:3], abs=1e-4)  # of four digits
    assert (found.detections, found.streams) == (5, 1)
    changed = np.concatenate(parts).argmax(axis=1) != q.argmax(axis=1)
    assert found.changed == changed.sum()


@pytest.mark.parametrize("by", ["animal", "sequence", "location"])
def test_a_bank_holds_what_a_corrector_sees(by):
    """Corrected stream by stream, its rows are what the file gets."""
    pond = [{**one, "file": f"pond/{i}.jpg"} for i, one in enumerate(burst(4, seed=1))]
    document = results(*burst(), *pond)
    document["images"][1]["detections"][0]["conf"] = 0.3  # which votes less
    document["images"][2]["detections"][0]["conf"] = 0.1  # and not at all
    bank, found = as_bank(document, by=by), correct(document, LAME(), by=by, batch_size=0)
    assert len(bank) == 8
    assert bank.header["classes"] == list(NAMES.values())
    assert "door/2.jpg" not in bank.keys
    files = [one["file"] for one in document["images"]]
    listed = dict(zip(files, lists(found.document), strict=True))
    for group in dict.fromkeys(bank.groups):
        rows = np.flatnonzero(bank.groups == group)
        q = np.exp(bank.logits[rows].astype(float))
        assert np.allclose(bank.features[rows] ** 2, q)
        after = LAME().correct(bank.features[rows], q).probs
        for row, place in zip(after, rows, strict=True):
            (name, share), *_ = listed[bank.keys[place]]
            assert COLUMN[name] == row.argmax()
            assert share == pytest.approx(row.max(), abs=1e-4)


def test_a_bank_needs_two_species():
    document = {"classification_categories": {"0": "fox", "1": "blank"}, "images": []}
    with pytest.raises(LamettaError, match="must have two species or more, got fox, blank"):
        as_bank(document)


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
    forward = lists(correct(results(*images), Track(3), by="location").document)
    backward = lists(correct(results(*images[::-1]), Track(3), by="location").document)
    assert backward == forward[::-1]


def test_frames_of_a_video_are_a_sequence():
    listed = [one["detections"][0]["classifications"] for one in burst()]
    video = image("door/film.mp4", *listed, frame_rate=5, frames_processed=[0, 1, 2, 3, 4])
    for frame, detection in zip([3, 1, 0, 2, 4], video["detections"], strict=True):
        detection["frame_number"] = frame
    images = burst()
    found = lists(correct(results(video, image("door/1.jpg")), LAME(), batch_size=2).document)
    ordered = [images[i] for i in (2, 1, 3, 0, 4)]
    for i, member in enumerate(ordered):
        member["datetime"] = f"2024-05-01 08:00:0{i}"
    expected = lists(correct(results(*ordered), LAME(), batch_size=2).document)
    assert [found[i] for i in (2, 1, 3, 0, 4)] == expected


def test_a_class_map_pools_first():
    document = results(*burst())
    document["classification_category_descriptions"] = {
        "0": "animalia;carnivora;canidae;vulpes",
        "4": "animalia;artiodactyla",
        "7": "animalia;carnivora;canidae;canis",
        "10": "animalia;carnivora;ursidae",
    }
    classes = ClassMap({"canine": [0, 2], "others": [1, 3]}, n_source=4, pooling="sum")
    found = correct(document, Average(), by="location", class_map=classes).document
    assert found["classification_categories"] == {"0": "canine", "1": "others"}
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
    assert np.allclose(from_top_k(4, [1, 2], [0.5, 0.2]), [0.15, 0.5, 0.2, 0.15])
    assert np.allclose(from_top_k(4, [1], [0.1]), 0.25)  # the likeliest cannot be less likely
    assert np.allclose(from_top_k(2, [0, 1], [0.7, 0.301]), np.array([0.7, 0.301]) / 1.001)
    assert np.allclose(from_top_k(3, [0], [0.0]), 1 / 3)
    assert from_top_k(3, [0, 1], [1.0, 0.001]).sum() == pytest.approx(1)


# Who votes


def seen(at, *detections):
    """An image of one sequence, with detections of a category, its share, conf and left edge."""
    return {
        "file": f"door/{at}.jpg",
        "datetime": f"2024-05-01 08:00:{at:02d}",
        "detections": [
            {"category": "1", "conf": conf, "bbox": [x, 0.2, 0.2, 0.2], "classifications": [one]}
            for *one, conf, x in detections
        ],
    }


def best(document, *, names=NAMES):
    return [[names[one[0][0]] for one in lists({"images": [i]})] for i in document["images"]]


def test_unsure_detections_do_not_outvote_a_sure_one():
    unsure = [("0", 0.99, 0.01, 0.2 * i) for i in range(3)]
    document = results(seen(0, ("4", 0.9, 0.95, 0.1), *unsure), seen(1, ("4", 0.7, 0.9, 0.1)))
    for by in ("animal", "sequence", "location"):
        found = correct(document, by=by)
        assert best(found.document) == [["elk", "fox", "fox", "fox"], ["elk"]]
        kept, given = (one["images"][0]["detections"][1:] for one in (found.document, document))
        assert kept == given
        assert (found.detections, found.unsure) == (5, 3)
    assert best(correct(document, by="sequence", confidence=0).document)[0][0] == "elk"


def test_votes_are_weighed_by_confidence():
    listed = [("0", 0.7, 0.2, 0.1), ("4", 0.7, 0.9, 0.1), ("0", 0.7, 0.2, 0.1)]
    document = results(*(seen(i, one) for i, one in enumerate(listed)))
    for corrector in ("track", "average", "product"):
        assert best(correct(document, corrector).document) == [["elk"]] * 3
    for image in document["images"]:
        image["detections"][0]["conf"] = 0.5
    assert best(correct(document).document) == [["fox"]] * 3


def test_two_species_in_one_image_stay_two():
    fox, elk = ("0", 0.9, 0.9, 0.1), ("4", 0.8, 0.9, 0.6)
    images = [seen(0, fox, elk), seen(1, elk, fox), seen(2, fox, ("0", 0.5, 0.8, 0.62))]
    found = correct(results(*images))
    assert best(found.document) == [["fox", "elk"], ["elk", "fox"], ["fox", "elk"]]
    assert found.streams == 2
    flat = correct(results(*images), by="sequence").document
    assert best(flat) == [["fox", "fox"]] * 3
    person = seen(3, ("7", 0.9, 0.9, 0.1))
    person["detections"][0]["category"] = "2"
    assert best(correct(results(images[0], person)).document)[1] == ["wolf"]


def test_animals_are_told_apart_by_their_boxes():
    def moments(*lefts):
        return [
            {(i, j): (x, 0, x + 0.2, 0.2) for j, x in enumerate(own)} for i, own in enumerate(lefts)
        ]

    assert track_boxes(moments([0.1], [0.7], [0.4])) == [[(0, 0), (1, 0), (2, 0)]]
    # The nearest of two; a place that is empty for a moment; one that walks while one stays.
    assert track_boxes(moments([0, 0.5], [0.4, 0.1])) == [[(0, 0), (1, 1)], [(0, 1), (1, 0)]]
    assert track_boxes(moments([0, 0.5], [0], [0.5])) == [[(0, 0), (1, 0)], [(0, 1), (2, 0)]]
    assert track_boxes(moments([0, 0.3], [0, 0.8])) == [[(0, 0), (1, 0)], [(0, 1), (1, 1)]]
    # Which of two went on cannot be told, nor whether one that comes was there before.
    assert track_boxes(moments([0, 0.3], [0.7])) == [[(0, 0)], [(0, 1)], [(1, 0)]]
    assert track_boxes(moments([0], [0, 0.5])) == [[(0, 0), (1, 0)], [(1, 1)]]
    assert len(track_boxes(moments([0, 0.5], *[[0]] * 9, [0, 0.5]))) == 2
    assert len(track_boxes(moments([0, 0.5], *[[0]] * 10, [0, 0.5]))) == 3  # too long ago
    unknown = [{(0, 0): None, (0, 1): None}, {(1, 0): None}]
    assert track_boxes(unknown) == [[(0, 0)], [(0, 1)], [(1, 0)]]
    assert track_boxes([]) == [[]]


def test_categories_that_say_nothing_do_not_vote():
    names = {"0": "fox", "4": "elk", "7": "Blank", "10": "unknown"}
    blank = ("7", 0.99, 0.9, 0.1)
    images = [seen(0, ("0", 0.6, 0.9, 0.1)), seen(1, blank), seen(2, blank), seen(3, blank)]
    document = results(*images) | {"classification_categories": names}
    assert correct(document).document == document  # one fox is not enough
    images.append(seen(4, ("0", 0.6, 0.9, 0.1)))
    document = results(*images) | {"classification_categories": names}
    assert best(correct(document).document, names=names) == [["fox"]] * 5
    for options in ({"by": "location"}, {"corrector": "lame"}):  # no answer for all of a stream
        kept = best(correct(document, **options).document, names=names)
        assert kept == [["fox"], ["Blank"], ["Blank"], ["Blank"], ["fox"]]
    voted = correct(document, "average", ignore=()).document
    assert best(voted, names=names) == [["Blank"]] * 5
    assert correct(document, ignore={"fox", "elk", "blank", "unknown"}).document == document


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
  {"file": "a/2.jpg", "detections": [{"conf":0.926,"classifications":[["1",0.6],["0",0.4]]}]},
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
    found = correct(given.document, Average(), by="location")
    assert given.document == json.loads(TEXT[1:])
    given.write(tmp_path / "out.json", found.document)
    # The first of a stream is the source's, and so is the only one of b/.
    new = '"classifications":[["0", 0.65], ["1", 0.35]], "source_classifications": '
    expected = TEXT.replace('"classifications":[["1",0.6]', new + '[["1",0.6]')
    assert (tmp_path / "out.json").read_bytes() == expected.encode()
    assert json.loads(expected[1:]) == found.document
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.json", "out.json"]


def test_source_in_the_style_of_the_file(given, tmp_path):
    found = correct(given.document, Average(), by="sequence")
    given.write(tmp_path / "out.json", found.document)
    text = (tmp_path / "out.json").read_bytes().decode()
    assert (
        '     "classifications": [["0", 0.65], ["1", 0.35]],\n'
        '     "source_classifications": [\n      ["0", 0.90],\n'
    ) in text
    assert json.loads(text[1:]) == found.document
    again = Results.read(tmp_path / "out.json")
    twice = correct(again.document, Track(), by="sequence").document
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
    with pytest.raises(LamettaError, match=r"in\.json' is not valid JSON: "):
        Results.read(tmp_path / "in.json")


def test_no_object(tmp_path):
    (tmp_path / "in.json").write_text("[]")
    with pytest.raises(LamettaError, match=r"in\.json must hold a JSON object, got a list"):
        Results.read(tmp_path / "in.json")
    (tmp_path / "in.json").write_bytes(b'{"images": "\xff"}')
    with pytest.raises(LamettaError, match="is not valid JSON: 'utf-8'"):
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
        (results({"file": "a", "detections": [{"classifications": [["0", 1]], "conf": "x"}]}),
         r"images\[0\].detections\[0\].conf must be a number in 0..1, got 'x'"),
        (results({"file": "a", "detections": [{"classifications": [["0", 1]], "bbox": [1, 2]}]}),
         r"images\[0\].detections\[0\].bbox must be \[left, top, width, height\], got \[1, 2\]"),
        ({"predictions": [{"filepath": "a.jpg"}]}, "got the predictions of SpeciesNet's own layou"),
    ],
)  # fmt: skip
def test_bad_documents(document, message):
    with pytest.raises(LamettaError, match=message):
        correct(document, Track())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "camera"}, "by must be one of 'animal', 'sequence', 'location', got 'camera'"),
        ({"gap": -1}, "gap must be a finite number >= 0, got -1"),
        ({"confidence": 15}, "confidence must be a finite number >= 0 and <= 1, got 15"),
        ({"corrector": "trak"}, "corrector must be one of .*, got 'trak'; did you mean 'track'"),
        ({"corrector": "tent"}, "corrector must see outputs alone, got 'tent'"),
        ({"batch_size": -1}, "batch_size must be an integer >= 0, got -1"),
        ({"keep_source": 1}, "keep_source must be True or False, got 1"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(LamettaError, match=message):
        correct(results(), **options)


def test_nothing_to_correct():
    document = results(image("a"), {"file": "b", "failure": "x"})
    found = correct(document, Track())
    assert found.document == document
    assert (found.detections, found.unsure, found.streams, found.changed) == (0, 0, 0, 0)


def test_what_is_written_is_valid_to_megadetectors_own_tools(tmp_path):
    tools = pytest.importorskip(
        "megadetector.postprocessing.validate_batch_results",
        reason="megadetector-utils is not installed",
    )
    images = [*burst(), {"file": "door/9.jpg", "failure": "x", "detections": None}]
    document = results(*images) | {"info": {"format_version": "1.6"}}
    document["detection_categories"] = {"1": "animal"}
    (tmp_path / "in.json").write_text(json.dumps(document))
    given = Results.read(tmp_path / "in.json")
    classes = ClassMap({"canine": [0, 2], "others": [1, 3]}, n_source=4, pooling="sum")
    for options in ({}, {"keep_source": False}, {"class_map": classes}):
        given.write(tmp_path / "out.json", correct(document, **options).document)
        found = tools.validate_batch_results(str(tmp_path / "out.json"))["validation_results"]
        assert (found["errors"], found["warnings"]) == ([], [])
        assert sum(found["classification_category_id_to_count"].values()) > 5


@pytest.mark.slow
def test_the_benchmark_compares_ways(monkeypatch, capsys):
    folder = Path(__file__).parents[2] / "benchmarks"
    monkeypatch.setattr(sys, "argv", ["camera_traps.py", "--quick"])
    monkeypatch.syspath_prepend(folder)
    runpy.run_path(folder / "camera_traps.py", run_name="__main__")
    lines = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    every, mixed = ({way: float(x.split(" / ")[i]) for way, x in lines} for i in (0, 1))
    assert every["**track, by animal**"] > every["source"] + 15
    assert mixed["**track, by animal**"] > mixed["track, by sequence"] + 15


def test_the_name_that_it_had_before():
    assert Corrected is CorrectionResult
