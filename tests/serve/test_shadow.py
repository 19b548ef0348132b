"""Shadow mode: answers are the network's own, and what the correction would have said is shown."""

import numpy as np
import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from lametta.cli import app
from lametta.correctors import Average
from lametta.correctors.base import StatefulCorrector
from lametta.serve.config import ServerConfig
from lametta.serve.protocol import StoreError
from lametta.serve.stores.memory import MemoryStore
from tests.conftest import make_batch

NAMES = ["ant", "bee", "cicada", "<b>fly</b>", "=1+1", "flea"]


def _ask(client, features, probs, stream="door", model="average", **more):
    inputs = [
        {"name": name, "shape": list(x.shape), "datatype": "FP64", "data": x.ravel().tolist()}
        for name, x in (("features", features), ("probs", probs))
    ]
    body = {"inputs": inputs, "parameters": {"sequence_id": stream}, **more}
    return client.post(f"/v2/models/{model}/infer", json=body)


def _outputs(answer):
    assert answer.status_code == 200, answer.text
    return {one["name"]: one["data"] for one in answer.json()["outputs"]}


@pytest.fixture
def played():
    """A server that was asked for two streams, and what a loop over both finds."""
    client = TestClient(ServerConfig({"average": "average"}, shadow=True, names=NAMES).app())
    lost, gained, changed = np.zeros(6, int), np.zeros(6, int), {}
    for i, stream in enumerate(("door", "yard")):
        own = Average()
        features, probs = make_batch(60, 6, 7, seed=i, scale=1.0)
        for x, q in zip(features[:, None], probs[:, None], strict=True):
            answer = _ask(client, x, q, stream)
            outputs = _outputs(answer)
            assert outputs["probs"] == q[0].tolist()
            assert outputs["label"] == outputs["source_label"] == [int(q.argmax())]
            assert outputs["changed"] == [0]
            assert answer.json()["parameters"]["shadow"] is True
            before, after = int(q.argmax()), int(own.correct(x, q).probs.argmax())
            if before != after:
                lost[before] += 1
                gained[after] += 1
                changed[stream] = changed.get(stream, 0) + 1
    return client, lost, gained, changed


def test_where_they_differ_is_in_the_status(played):
    client, lost, gained, changed = played
    (model,) = client.get("/status.json").json()["models"]
    shadow = model["shadow"]
    assert (shadow["samples"], shadow["changed"], shadow["failed"]) == (120, lost.sum(), 0)
    assert shadow["changed"] > 0
    for one in shadow["classes"]:
        label = one["class"]
        assert (one["lost"], one["gained"]) == (lost[label], gained[label])
    assert sum(one["lost"] for one in shadow["classes"]) == lost.sum()
    assert {one["id"]: one["changed"] for one in shadow["streams"] if one["changed"]} == changed
    assert [one["samples"] for one in shadow["streams"]] == [60, 60]
    last = shadow["last"][-1]
    assert last["source"] != last["corrected"]
    assert last["stream"] in changed


def test_the_report_shows_it(played, tmp_path):
    client, lost, _, changed = played
    (tmp_path / "status.json").write_bytes(client.get("/status.json").content)
    done = CliRunner().invoke(app, ["report", str(tmp_path / "status.json")])
    assert done.exit_code == 0, done.output
    assert "Where corrections would have differed" in done.output
    tables = tmp_path / "report" / "tables"
    assert f"| average | 120 | {lost.sum()} |" in (tables / "shadow.md").read_text()
    streams = (tables / "shadow_average_streams.csv").read_text().splitlines()[1:]
    assert {line.split(",")[0]: int(line.split(",")[2]) for line in streams if line} | changed == {
        line.split(",")[0]: int(line.split(",")[2]) for line in streams if line
    }
    page = (tmp_path / "report" / "shadow.html").read_text()
    assert "average, by class" in page
    assert "<b>fly</b>" not in page
    assert "\n=1+1" not in (tables / "shadow_average_classes.csv").read_text()
    page = str(tmp_path / "shadow.html")
    done = CliRunner().invoke(app, ["report", str(tmp_path / "status.json"), "-o", page])
    assert done.exit_code == 2
    assert "--output must be a folder, in which the page goes" in " ".join(done.stderr.split())
    assert not (tmp_path / "shadow.html").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "RESULTS must be a folder or what /status.json of a server gave"),
        ("[", "must have JSON files"),
        ('{"models": 3, "classes": null}', "KeyError|TypeError|a list was expected, got int"),
        ('{"models": [{"name": "a", "shadow": null}], "classes": null}', "not in shadow mode"),
        (
            '{"models": [{"name": "a", "shadow": {"samples": "x"}}], "classes": null}',
            "RESULTS must",
        ),
        (None, "no such file"),
    ],
)
def test_what_is_no_status(content, message, tmp_path):
    path = tmp_path / "status.json"
    if content is not None:
        path.write_text(content)
    done = CliRunner().invoke(app, ["report", str(path)])
    assert done.exit_code == 2
    assert any(one in " ".join(done.stderr.split()) for one in message.split("|"))


class Broken(StatefulCorrector):
    def init_state(self, d, k):
        return {"n": np.zeros(1)}

    def update(self, state, features, probs):
        raise RuntimeError("broken")


def test_a_correction_that_fails_harms_nobody(monkeypatch, caplog):
    client = TestClient(ServerConfig({"average": Broken()}, shadow=True).app())
    features, probs = make_batch(2, 5, 7)
    assert _outputs(_ask(client, features, probs))["probs"] == probs.ravel().tolist()

    def fail(*_, **__):
        raise StoreError("it cannot be reached")

    other = TestClient(ServerConfig({"average": "average"}, shadow=True).app())
    monkeypatch.setattr(MemoryStore, "commit", fail)
    assert _outputs(_ask(other, features, probs))["probs"] == probs.ravel().tolist()
    for one in (client, other):
        assert 'lametta_shadow_failures_total{model="average"} 1.0' in one.get("/metrics").text
        (model,) = one.get("/status.json").json()["models"]
        assert model["shadow"]["failed"] == 1
    wrong = probs.copy()
    wrong[0, 0] = 7
    assert _ask(other, features, wrong).status_code == 400  # as ever


def test_streams_go_on_where_the_shadow_ends(monkeypatch):
    """The memory that was built in shadow mode is that of the corrector."""
    features, probs = make_batch(10, 5, 7)
    own, store = Average(), MemoryStore()
    monkeypatch.setattr(ServerConfig, "open_store", lambda _: store)
    for shadow, part in ((True, slice(0, 5)), (False, slice(5, 10))):
        client = TestClient(ServerConfig({"average": "average"}, shadow=shadow).app())
        answer = _outputs(_ask(client, features[part], probs[part]))["probs"]
        expected = own.correct(features[part], probs[part]).probs
    assert answer == expected.ravel().tolist()


def test_without_it_there_is_none():
    client = TestClient(ServerConfig({"average": "average"}).app())
    answer = _ask(client, *make_batch(2, 5, 7))
    assert "shadow" not in answer.json()["parameters"]
    assert client.get("/status.json").json()["models"][0]["shadow"] is None
