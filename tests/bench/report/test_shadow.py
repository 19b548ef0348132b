"""What a shadow saw in Python, as the report of a server's reads it."""

import json

import numpy as np
import pytest

import lametta
from lametta.bench.report.shadow import read_status, status, tables
from lametta.types import LamettaError


def fed(corrector, ids=()):
    rng = np.random.default_rng(0)
    for i in range(60):
        labels = np.full(4, i // 20)
        features = np.eye(3)[labels] + 0.2 * rng.normal(size=(4, 3))
        probs = np.exp(np.eye(3)[labels] + rng.normal(size=(4, 3)))
        corrector.correct(features, probs / probs.sum(axis=1, keepdims=True), *ids)
    return corrector


def test_the_report_reads_a_shadow(tmp_path):
    shadow = fed(lametta.Shadow(lametta.LAME()))
    seen = shadow.differences
    assert seen.changed > 10
    file = tmp_path / "status.json"
    file.write_text(json.dumps(status(shadow, "door", ["ant", "bee", "cat"])))
    found = {table.name: table.data for table in tables(read_status(file))}
    assert found["shadow"].row(0)[:3] == ("door", 240, seen.changed)
    assert "shadow_door_streams" not in found
    assert len(found["shadow_door_last"]) == len(seen.last())
    assert set(found["shadow_door_last"]["network"]) <= {"ant", "bee", "cat"}


def test_streams_are_counted_by_themselves(tmp_path):
    streams = fed(lametta.Streams(lametta.Shadow(lametta.LAME())), [["a", "a", "b", "b"]])
    file = tmp_path / "status.json"
    file.write_text(json.dumps(status(streams)))
    one = read_status(file)["models"]["shadow"]
    own = {name: streams[name].differences for name in ("a", "b")}
    assert {row["id"]: row["changed"] for row in one["streams"]} == {
        name: seen.changed for name, seen in own.items()
    }
    assert one["changed"] == sum(seen.changed for seen in own.values()) > 0
    lost = sum(row["lost"] for row in one["classes"])
    assert lost == one["changed"] == sum(row["gained"] for row in one["classes"])


def test_another_corrector_is_refused():
    streams = fed(lametta.Streams(lametta.Prudent()), [["a"] * 4])
    with pytest.raises(LamettaError, match="must be a Shadow, or Streams of Shadow"):
        status(streams)
