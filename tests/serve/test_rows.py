"""Several streams in one request: each is as by a request of its own."""

import time

import numpy as np
import pytest
import tritonclient.http as triton
from starlette.testclient import TestClient

from lametta.correctors import Average, Memory
from lametta.correctors.base import StatefulCorrector
from lametta.serve.config import ServerConfig
from lametta.serve.middleware import ServerLimits
from lametta.serve.protocol import StoreError
from lametta.serve.stores.memory import MemoryStore
from tests.conftest import make_batch
from tests.serve.server import serving

DATATYPES = {"f": "FP64", "i": "INT64", "u": "UINT32", "b": "BOOL", "O": "BYTES"}


def _tensor(name, array):
    kind = DATATYPES[array.dtype.kind]
    return {"name": name, "shape": list(array.shape), "datatype": kind, "data": array.tolist()}


def _body(features, probs, parameters=None, wanted=(), name="", **sequence):
    given = {"features": features, "probs": probs}
    given |= {key: np.asarray(value) for key, value in sequence.items()}
    given = {k: x.astype(object) if x.dtype.kind == "U" else x for k, x in given.items()}
    body = {"inputs": [_tensor(*one) for one in given.items()], "parameters": parameters or {}}
    if wanted:
        body["outputs"] = [{"name": one} for one in wanted]
    return {**body, "id": name}


def _ask(client, *arrays, model="average", **more):
    answer = client.post(f"/v2/models/{model}/infer", json=_body(*arrays, **more))
    assert answer.status_code == 200, answer.text
    outputs = {one["name"]: np.array(one["data"]) for one in answer.json()["outputs"]}
    if "probs" in outputs:
        outputs["probs"] = outputs["probs"].astype(float).reshape(len(arrays[0]), -1)
    return outputs


@pytest.fixture
def client():
    return TestClient(ServerConfig({"average": "average", "prudent": "prudent"}).app())


@pytest.mark.parametrize("ids", [["a", "b", "", "a", "c", ""], [1, 2, 0, 1, 3, 0]])
@pytest.mark.parametrize("model", ["average", "prudent"])
def test_rows_are_as_by_requests_of_their_own(client, ids, model):
    other = TestClient(ServerConfig({model: model}).app())
    for seed in range(3):
        features, probs = make_batch(6, 5, 7, seed=seed)
        together = _ask(client, features, probs, model=model, sequence_id=ids)
        for one in dict.fromkeys(ids):
            rows = [row for row, stream in enumerate(ids) if stream == one]
            alone = {"sequence_id": one} if one else {}
            apart = _ask(other, features[rows], probs[rows], alone, model=model)
            np.testing.assert_array_equal(together["probs"][rows], apart["probs"])
            for name in ("label", "source_label"):
                np.testing.assert_array_equal(together[name][rows], apart[name])
            np.testing.assert_array_equal(together["entropy"][rows], apart["entropy"][0])
        assert together["status"].tolist() == 6 * [200]
        assert together["error"].tolist() == 6 * [""]


def test_a_stream_is_the_same_by_tensor_and_by_parameter(client):
    features, probs = make_batch(2, 5, 7)
    _ask(client, features[:1], probs[:1], {"sequence_id": "door"})
    both = _ask(client, features[1:], probs[1:], sequence_id=["door"])
    np.testing.assert_allclose(both["probs"][0], probs.mean(axis=0), atol=1e-12)


def test_streams_begin_and_end(client):
    features, probs = make_batch(4, 5, 7)
    flags = {"sequence_start": [False, True], "sequence_end": [True, False]}
    _ask(client, features[:2], probs[:2], sequence_id=["a", "b"], **flags)
    third = _ask(client, features[2:], probs[2:], sequence_id=["a", "b"])
    np.testing.assert_allclose(third["probs"][0], probs[2], atol=1e-12)  # a had ended
    np.testing.assert_allclose(third["probs"][1], probs[[1, 3]].mean(axis=0), atol=1e-12)


def test_each_stream_has_its_own_error(client):
    features, probs = make_batch(4, 5, 7)
    ids = ["a", "b", "a", "x" * 200]
    _ask(client, features, probs, sequence_id=ids)
    wrong = probs.copy()
    wrong[1] = 3.0
    mixed = _ask(client, features, wrong, sequence_id=ids)
    assert mixed["status"].tolist() == [200, 400, 200, 200]
    assert "probs" in mixed["error"][1]
    assert mixed["error"][[0, 2, 3]].tolist() == ["", "", ""]
    assert np.isnan(mixed["probs"][1]).all()
    assert mixed["label"][1] == mixed["source_label"][1] == -1
    after = _ask(client, features[:2], probs[:2], sequence_id=ids[:2])
    np.testing.assert_allclose(after["probs"][1], probs[1], atol=1e-12)  # as it was
    mean = np.concatenate([probs[[0, 2, 0, 2, 0]]]).mean(axis=0)
    np.testing.assert_allclose(after["probs"][0], mean, atol=1e-12)


def test_a_request_that_comes_again_counts_once_for_each_stream(client, monkeypatch):
    """Also where it was answered for some streams alone: the others are computed now."""
    features, probs = make_batch(3, 5, 7)
    again = {"sequence_id": ["a", "b", "c"], "name": "7"}
    commit = MemoryStore.commit

    def broken(self, stream, *rest, **more):
        if stream.endswith('"b"'):
            raise StoreError("it cannot be reached")
        return commit(self, stream, *rest, **more)

    monkeypatch.setattr(MemoryStore, "commit", broken)
    app = ServerConfig({"average": "average"}, store="memory").app()
    client = TestClient(app)
    first = _ask(client, features, probs, **again)
    assert first["status"].tolist() == [200, 503, 200]
    monkeypatch.setattr(MemoryStore, "commit", commit)
    for _ in range(2):
        second = _ask(client, features, probs, **again)
        np.testing.assert_allclose(second["probs"], probs, atol=1e-12)
    last = _ask(client, features[::-1], probs[::-1], sequence_id=["a", "b", "c"])
    np.testing.assert_allclose(last["probs"], (probs + probs[::-1]) / 2, atol=1e-12)


class Slow(Average):
    def update(self, state, features, probs):
        time.sleep(0.05)
        return super().update(state, features, probs)


def test_who_comes_after_the_deadline_is_told_so():
    """What was committed is answered, and the rest is unchanged."""
    n = 60
    features, probs = make_batch(n, 5, 7)
    limits = ServerLimits(deadline=0.5)
    client = TestClient(ServerConfig({"average": Slow()}, limits=limits).app())
    ids = [f"s{i}" for i in range(n)]
    begun = time.monotonic()
    found = _ask(client, features, probs, sequence_id=ids)
    assert time.monotonic() - begun < n * 0.05
    done = int((found["status"] == 200).sum())
    assert 0 < done < n
    assert found["status"].tolist() == done * [200] + (n - done) * [504]
    late = _ask(client, features[-1:], probs[-1:], sequence_id=ids[-1:])
    np.testing.assert_allclose(late["probs"], probs[-1:], atol=1e-12)


class Broken(StatefulCorrector):
    def init_state(self, d, k):
        return {"n": np.zeros(1)}

    def update(self, state, features, probs):
        if features[0, 0] < 0:
            raise RuntimeError("a secret of ours")
        return probs, {}


def test_what_fails_says_nothing_of_why():
    client = TestClient(ServerConfig({"average": Broken()}).app())
    features, probs = make_batch(2, 5, 7)
    features[:, 0] = 1, -1
    found = _ask(client, features, probs, sequence_id=[1, 2])
    assert found["status"].tolist() == [200, 500]
    assert found["error"].tolist() == ["", "internal error"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"sequence_id": [1]}, "sequence_id must have a value for each of the 2 rows"),
        ({"sequence_id": [1.0, 2.0]}, "sequence_id must be integers or BYTES, got float64"),
        ({"sequence_id": ["x" * 257, "b"]}, "sequence_id must have at most 256 characters"),
        ({"sequence_start": [True, False]}, "sequence_start must come with a tensor sequence_id"),
        (
            {"sequence_id": [1, 2], "parameters": {"sequence_id": 1}},
            "sequence_id must be a parameter or a tensor, got both",
        ),
        (
            {"sequence_id": [1, 2], "parameters": {"sequence_start": True}},
            "sequence_start must be a tensor where sequence_id is one",
        ),
        ({"sequence_id": [1, 2], "sequence_end": [1, 0]}, "sequence_end must be BOOL, got int64"),
        (
            {"sequence_id": [1, 1], "sequence_start": [False, True]},
            "sequence_start must be of the first row of stream 1",
        ),
        (
            {"sequence_id": [1, 1], "sequence_end": [True, False]},
            "and sequence_end of the last",
        ),
        (
            {"sequence_id": [1, 0], "sequence_end": [True, True]},
            "sequence_start and sequence_end must come with a sequence_id",
        ),
        ({"wanted": ["error"], "parameters": {"sequence_id": 1}}, "outputs of the request must be"),
    ],
)
def test_what_is_wrong_with_all_is_refused(client, more, message):
    answer = client.post("/v2/models/average/infer", json=_body(*make_batch(2, 5, 7), **more))
    assert answer.status_code == 400
    assert message in answer.json()["error"]


def test_outputs_that_are_asked_for(client):
    batch = make_batch(2, 5, 7)
    found = _ask(client, *batch, sequence_id=[[1], [2]], wanted=["error", "label"])
    assert list(found) == ["error", "label"]


def test_the_client_of_nvidia_has_them_too():
    """Binary tensors, 64 cameras at once."""
    features, probs = (x.astype(np.float32) for x in make_batch(64, 5, 7))
    names = np.array([f"camera-{i}".encode() for i in range(64)], object)
    inputs = []
    for name, array in {"features": features, "probs": probs, "sequence_id": names}.items():
        kind = "BYTES" if array.dtype == object else "FP32"
        inputs.append(triton.InferInput(name, array.shape, kind))
        inputs[-1].set_data_from_numpy(array)
    with (
        serving("--corrector", "memory") as server,
        triton.InferenceServerClient(server.host) as client,
    ):
        for _ in range(2):
            result = client.infer("memory", inputs)
    assert (result.as_numpy("status") == 200).all()
    alone = [Memory() for _ in range(64)]
    for _ in range(2):
        expected = [
            one.correct(x[None], q[None]).probs[0]
            for one, x, q in zip(alone, features, probs, strict=True)
        ]
    np.testing.assert_array_equal(result.as_numpy("probs"), expected)
