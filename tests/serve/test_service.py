"""What is served, and what answers say beside the corrected probabilities."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from starlette.testclient import TestClient

from lametta import LAME, Prediction, Prudent, Streams, knn
from lametta.correctors import Average
from lametta.serve.config import CorrectorSpec, ServerConfig
from lametta.serve.monitoring import Monitor
from lametta.serve.protocol import Deadline, InferRequest
from lametta.serve.service import Service
from lametta.serve.sessions import SessionManager
from lametta.serve.stores.memory import MemoryStore
from lametta.types import LamettaError
from tests.conftest import make_batch
from tests.integrations import graphs
from tests.serve.client import Client
from tests.serve.server import serving

NAMES = ["ant", "bee", "cicada", "dragonfly", "earwig"]


def _ask(client, features, probs, model="prudent", wanted=(), **parameters):
    inputs = [
        {"name": name, "shape": list(x.shape), "datatype": "FP64", "data": x.ravel().tolist()}
        for name, x in (("features", features), ("probs", probs))
    ]
    body = {"inputs": inputs, "parameters": parameters}
    if wanted:
        body["outputs"] = [{"name": name} for name in wanted]
    return client.post(f"/v2/models/{model}/infer", json=body)


def _outputs(answer):
    assert answer.status_code == 200, answer.text
    return {output["name"]: output["data"] for output in answer.json()["outputs"]}


def test_correctors_come_by_name_or_as_objects():
    mine = Average()
    config = ServerConfig(
        {"prudent": "prudent", "fast": CorrectorSpec("lame", {"k": 3}), "mine": mine}
    )
    client = TestClient(config.app())
    features, probs = make_batch(6, 5, 7)
    for model, own in {"prudent": Prudent(), "fast": LAME(knn(3)), "mine": Average()}.items():
        for _ in range(2):
            answer = _outputs(_ask(client, features, probs, model, sequence_id=1))
            expected = own.correct(features, probs).probs
            np.testing.assert_array_equal(answer["probs"], expected.ravel())
    assert mine.state_dict() == {}  # streams have copies


@pytest.mark.parametrize(
    ("corrector", "message"),
    [
        ("lama", "correctors must be one of .* did you mean 'lame'"),
        (LAME, "correctors must have correct and reset, got the class LAME"),
        (Streams(Prudent()), "correctors must be for one stream"),
        (CorrectorSpec(Prudent(), {"k": 3}), "options must be those of a method given by its name"),
    ],
)
def test_what_is_no_corrector(corrector, message):
    with pytest.raises(LamettaError, match=message):
        ServerConfig({"it": corrector}).app()


def test_names_of_classes_are_in_answers_metadata_and_status():
    client = TestClient(ServerConfig({"prudent": "prudent"}, names=NAMES).app())
    features, probs = make_batch(4, 5, 7)
    answer = _outputs(_ask(client, features, probs, sequence_id="door"))
    assert answer["label_name"] == [NAMES[label] for label in answer["label"]]
    assert answer["source_label_name"] == [NAMES[label] for label in probs.argmax(axis=1)]
    outputs = client.get("/v2/models/prudent").json()["outputs"]
    assert [output["name"] for output in outputs] == list(answer)
    assert client.get("/status.json").json()["classes"] == NAMES
    only = _outputs(_ask(client, features, probs, wanted=["label_name"]))
    assert list(only) == ["label_name"]
    refused = _ask(client, features, probs[:, :4] / probs[:, :4].sum(1, keepdims=True))
    assert refused.status_code == 400
    assert refused.json()["error"] == (
        "probs or logits must have 5 columns, as many as the server has names of classes, got 4"
    )


def test_without_names_there_are_none():
    client = TestClient(ServerConfig({"prudent": "prudent"}).app())
    features, probs = make_batch(4, 5, 7)
    assert "label_name" not in _outputs(_ask(client, features, probs))
    assert _ask(client, features, probs, wanted=["label_name"]).status_code == 400


def test_names_are_those_of_the_model_unless_others_are_given(tmp_path):
    path = graphs.linear(tmp_path / "net.onnx", classes='["a", "b", "c", "d"]')
    for given, expected in ((None, ["a", "b", "c", "d"]), (("e", "f", "g", "h"), [*"efgh"])):
        client = TestClient(ServerConfig({"prudent": "prudent"}, model=path, names=given).app())
        assert client.get("/status.json").json()["classes"] == expected
    with pytest.raises(LamettaError, match="names must be those of the model's 4 classes, got 2"):
        ServerConfig({"prudent": "prudent"}, model=path, names=["a", "b"]).app()
    with pytest.raises(LamettaError, match="names must be a sequence of text, got 'abcd'"):
        ServerConfig({"prudent": "prudent"}, names="abcd").app()


def test_lame_with_one_sample_at_a_time_is_logged_once(logged):
    client = TestClient(ServerConfig({"lame": "lame", "prudent": "prudent"}).app())
    features, probs = make_batch(4, 5, 7)
    _ask(client, features, probs, "lame")
    assert logged.getvalue() == ""
    for model in ("prudent", "lame", "lame"):
        assert _ask(client, features[:1], probs[:1], model).status_code == 200
    assert (
        logged.getvalue().count("lame leaves single samples as they are: it corrects the samples")
        == 1
    )


@pytest.mark.slow
def test_warnings_are_lines_of_the_log():
    features, probs = make_batch(3, 5, 7)
    with serving("--corrector", "both=memory+lame") as server:
        client = Client(server.port)
        for i in range(3):
            row = slice(i, i + 1)
            assert client.infer(features[row], probs[row], "door", model="both").status == 200
        client.close()
        warned = [line for line in server.log() if line["logger"] == "py.warnings"]
    (line,) = warned
    assert "LAME gets one sample at a time" in line["message"]


def test_a_sample_that_is_not_finite_costs_its_own_stream_alone():
    """Streams that come at once: one of them sends NaN now and then, which it is told."""
    client = TestClient(ServerConfig({"prudent": "prudent"}).app())
    streams = {name: [make_batch(1, 5, 7, 31 * i + name) for i in range(6)] for name in range(4)}
    alone = {name: Prudent() for name in streams}

    def step(i, name):
        features, probs = streams[name][i]
        bad = name == 2 and i % 2 == 1
        given = features * np.nan if bad else features
        inputs = {"features": given.astype("<f8"), "probs": probs.astype("<f8")}
        head, tail = _binary(inputs, name)
        headers = {"Inference-Header-Content-Length": str(len(head))}
        return bad, client.post("/v2/models/prudent/infer", content=head + tail, headers=headers)

    for i in range(6):
        with ThreadPoolExecutor(4) as threads:
            answers = dict(zip(streams, threads.map(partial(step, i), streams), strict=True))
        for name, (bad, answer) in answers.items():
            if bad:
                assert (answer.status_code, answer.json()["error"]) == (
                    400,
                    "features must be finite, got NaN",
                )
                continue
            expected = alone[name].correct(*streams[name][i]).probs
            np.testing.assert_array_equal(_outputs(answer)["probs"], expected.ravel())


class Trusting:
    """A corrector of somebody who checks nothing: it answers with the mean so far."""

    def __init__(self):
        self.reset()

    def correct(self, features, probs, /):
        self.total = self.total + probs.mean(axis=0) * features.sum() / features.sum()
        return Prediction(np.tile(self.total / self.total.sum(), (len(probs), 1)), features)

    def reset(self):
        self.total = np.zeros(5)

    def state_dict(self):
        return {"total": self.total}

    def load_state_dict(self, state, /):
        self.total = state["total"]


def test_a_corrector_that_answers_nan_costs_that_request_alone():
    client = TestClient(ServerConfig({"prudent": Trusting()}).app())
    features, probs = make_batch(2, 5, 7)
    own = Trusting()
    for i in range(4):
        for stream in (0, 1):
            bad = stream == i % 2 == 1
            given = features * np.nan if bad else features
            head, tail = _binary({"features": given, "probs": probs}, stream)
            headers = {"Inference-Header-Content-Length": str(len(head))}
            answer = client.post("/v2/models/prudent/infer", content=head + tail, headers=headers)
            if bad:
                assert answer.status_code == 500
                assert "probabilities that are not finite" in answer.json()["error"]
            else:
                expected = own.correct(features, probs).probs.ravel()
                np.testing.assert_allclose(_outputs(answer)["probs"], expected)


def test_a_corrector_that_returns_a_bare_array_is_named_as_the_cause():
    class Bare:
        def correct(self, features, probs):
            return probs

        def reset(self): ...

    client = TestClient(ServerConfig({"bare": Bare()}).app())
    features, probs = make_batch(2, 5, 7)
    head, tail = _binary({"features": features, "probs": probs}, 0)
    headers = {"Inference-Header-Content-Length": str(len(head))}
    answer = client.post("/v2/models/bare/infer", content=head + tail, headers=headers)
    assert answer.status_code == 500
    assert "the corrector gave ndarray, no Prediction" in answer.json()["error"]


def _binary(inputs, stream):
    tensors = [
        {
            "name": name,
            "shape": list(x.shape),
            "datatype": "FP64",
            "parameters": {"binary_data_size": x.nbytes},
        }
        for name, x in inputs.items()
    ]
    head = {"inputs": tensors, "parameters": {"sequence_id": stream + 1}}
    return json.dumps(head).encode(), b"".join(x.tobytes() for x in inputs.values())


def test_a_service_sees_arrays_alone():
    sessions = {"prudent": SessionManager(Prudent(), "prudent", MemoryStore())}
    service = Service(sessions, Monitor(list(sessions)), deadline=60.0)
    corrector = Prudent()
    for i in range(3):
        features, probs = make_batch(4, 5, 7, seed=i)
        inputs = {"features": features, "probs": probs}
        request = InferRequest("", inputs, {"sequence_id": 7}, None)
        reply = service.infer("prudent", Deadline(60.0), request)
        expected = corrector.correct(features, probs)
        assert (reply.outputs["probs"] == expected.probs).all()
        assert (reply.outputs["source_label"] == probs.argmax(axis=1)).all()
        assert (reply.model, reply.parameters["sequence_id"]) == ("prudent", 7)
    with pytest.raises(LamettaError, match="waited until its deadline"):
        service.infer("prudent", Deadline(60.0, time.monotonic() - 61), request)
