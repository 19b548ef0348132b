"""Streams of a dataset, without a cluster; tests/serve/test_ray.py has one."""

from types import SimpleNamespace

import numpy as np
import pytest

import lametta.ray
from lametta import LamettaError, Streams, correctors
from tests.conftest import make_batch


class Dataset:
    """What of a Ray Data dataset is used, in this process and at once."""

    def __init__(self, columns, known=True):
        self.columns, self.known = columns, known

    def schema(self, fetch_if_missing=True):
        assert not fetch_if_missing  # nothing may be computed yet
        return SimpleNamespace(names=list(self.columns)) if self.known else None

    def groupby(self, key):
        self.key = key
        return self

    def map_groups(self, step, batch_format):
        assert batch_format == "numpy"
        ids = self.columns[self.key]
        parts = []
        for one in dict.fromkeys(ids.tolist()):
            mine = {name: values[ids == one] for name, values in self.columns.items()}
            for values in mine.values():
                values.flags.writeable = False
            parts.append(step(mine))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def frames(n=60, n_classes=5, dtype="float32"):
    features, probs = (x.astype(dtype) for x in make_batch(n, n_classes, d=8))
    rng = np.random.default_rng(1)
    return {
        "camera": rng.choice(["door", "yard", "roof"], n),
        "time": rng.permutation(n).astype("datetime64[s]"),
        "features": features,
        "probs": probs,
        "logits": np.log(probs),
        "note": np.array([{"row": i} for i in range(n)], object),
    }


@pytest.mark.parametrize(
    ("corrector", "batch_size"),
    [("prudent", 1), (correctors.Prudent(), 7), (correctors.Average(), 1), (correctors.LAME(), 16)],
)
@pytest.mark.parametrize("source", ["probs", "logits"])
def test_each_stream_is_corrected_as_by_streams(corrector, batch_size, source):
    columns = frames()
    given = {"logits": "logits"} if source == "logits" else {}
    got = lametta.ray.correct(Dataset(columns), corrector=corrector, batch_size=batch_size, **given)
    streams = Streams(correctors.Prudent() if corrector == "prudent" else corrector)
    seen = 0
    for camera in dict.fromkeys(columns["camera"].tolist()):
        rows = np.flatnonzero(columns["camera"] == camera)
        rows = rows[np.argsort(columns["time"][rows])]
        mine = got["camera"] == camera
        np.testing.assert_array_equal(got["time"][mine], columns["time"][rows])
        assert [note["row"] for note in got["note"][mine]] == rows.tolist()
        features, probs = columns["features"][rows], columns["probs"][rows]
        if source == "logits":
            e = np.exp(columns["logits"][rows] - columns["logits"][rows].max(1, keepdims=True))
            probs = e / e.sum(1, keepdims=True)
        for start in range(0, len(rows), batch_size):
            cut = slice(start, start + batch_size)
            expected = streams.correct(features[cut], probs[cut], camera).probs
            np.testing.assert_array_equal(got["probs"][mine][cut], expected)
            np.testing.assert_array_equal(got["label"][mine][cut], expected.argmax(1))
            np.testing.assert_array_equal(got["source_label"][mine][cut], probs[cut].argmax(1))
        seen += len(rows)
    assert seen == len(got["probs"]) == len(columns["time"])
    assert got["probs"].dtype == columns["probs"].dtype


def test_without_a_corrector_it_is_prudent():
    default, named = (
        lametta.ray.correct(Dataset(frames()), **given)["probs"]
        for given in ({}, {"corrector": "prudent"})
    )
    np.testing.assert_array_equal(default, named)


def test_lame_with_one_sample_at_a_time_is_warned_of():
    with pytest.warns(UserWarning, match="LAME gets one sample at a time"):
        lametta.ray.correct(Dataset(frames()), corrector="lame")


def test_what_the_corrector_remembers_does_not_count():
    used = correctors.Average()
    used.correct(np.ones((3, 8)), np.full((3, 5), 0.2))
    state = used.state_dict()
    got = lametta.ray.correct(Dataset(frames()), corrector=used)
    np.testing.assert_array_equal(
        got["probs"],
        lametta.ray.correct(Dataset(frames()), corrector=correctors.Average())["probs"],
    )
    np.testing.assert_equal(used.state_dict(), state)


def test_columns_of_lists_are_vectors_if_all_are_of_one_length():
    columns = frames()
    expected = lametta.ray.correct(Dataset(columns))["probs"]
    lists = np.empty(len(columns["time"]), object)
    lists[:] = list(columns["features"])
    np.testing.assert_array_equal(
        lametta.ray.correct(Dataset({**columns, "features": lists}))["probs"], expected
    )


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("argument", ["stream", "order", "features", "probs", "logits"])
def test_a_column_that_is_not_there_is_named(argument, known):
    columns = frames()
    if argument == "stream" and not known:
        pytest.skip("Ray Data says so itself")
    with pytest.raises(LamettaError, match=f"^{argument} must be a column of .*got 'tim'.*'time'"):
        lametta.ray.correct(Dataset(columns, known), **{argument: "tim"})


def _ragged(column):
    ragged = np.empty(len(column), object)
    ragged[:] = [row[: 1 + i % 2] for i, row in enumerate(column)]
    return ragged


@pytest.mark.parametrize(
    ("column", "change", "message"),
    [
        (
            "time",
            lambda x: x.astype("int64") // 2,
            "time must be another in every row, got \\d+ twice",
        ),
        (
            "time",
            lambda x: np.where(x.astype(int) < 5, np.nan, x.astype(float)),
            "time must be there in every row, got NaN",
        ),
        (
            "time",
            lambda x: np.array([None, *x[1:].astype(int)], object),
            "time must have values that can be",
        ),
        ("features", lambda x: x[:, 0], "features must have a vector .* got float32 of shapes"),
        ("features", lambda x: x[:, None], "features must have a vector .* \\(1, 8\\)"),
        ("features", lambda x: x.astype(int), "features must have a vector .* got int64"),
        ("features", _ragged, "features must have a vector .* object of shapes \\(1,\\), \\(2,\\)"),
        ("features", lambda x: x * np.nan, "features must be finite"),
        ("probs", lambda x: x[:, 0], "probs must have a vector"),
        ("probs", lambda x: 2 * x, "probs must"),
    ],
)
def test_what_is_wrong_in_a_stream_is_said_with_its_id(column, change, message):
    columns = frames()
    columns[column] = change(columns[column])
    with pytest.raises(LamettaError, match=f"^stream (door|yard|roof): .*{message}"):
        lametta.ray.correct(Dataset(columns))


def test_logits_that_are_no_numbers_are_refused():
    columns = frames()
    columns["logits"][3, 2] = np.inf
    with pytest.raises(LamettaError, match="logits must be finite, got NaN or infinity"):
        lametta.ray.correct(Dataset(columns), logits="logits")


def test_a_sample_without_a_stream_is_refused():
    columns = frames()
    columns["camera"] = np.array([None] * len(columns["time"]), object)
    with pytest.raises(LamettaError, match="camera must be there in every row, got None"):
        lametta.ray.correct(Dataset(columns))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be an integer >= 1"),
        ({"corrector": correctors.Prudent}, "corrector must have correct and reset"),
    ],
)
def test_options_are_checked_at_once(options, message):
    with pytest.raises(LamettaError, match=message):
        lametta.ray.correct(Dataset(frames()), **options)


def test_other_things_are_no_datasets():
    with pytest.raises(LamettaError, match="dataset must be a ray.data.Dataset, got list"):
        lametta.ray.correct([{"camera": 1}])
