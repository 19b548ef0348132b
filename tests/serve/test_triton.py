"""NVIDIA's own client, as it is on PyPI, talks to the server."""

from itertools import count

import numpy as np
import pytest

import lametta
from lametta import LAME, Prudent
from tests.conftest import make_batch
from tests.serve.server import serving

triton = pytest.importorskip("tritonclient.http")
from tritonclient.utils import InferenceServerException, np_to_triton_dtype  # noqa: E402

pytestmark = pytest.mark.slow
TOKEN = "a token of the tests, 32 letters"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
DTYPES = {"FP16": "float16", "FP32": "float32", "FP64": "float64"}
_streams = count(10**9)  # none that a test names itself


@pytest.fixture(scope="module")
def server():
    with serving("--corrector", "prudent", "--corrector", "fast=lame:k=3") as server:
        yield server


@pytest.fixture
def client(server):
    with triton.InferenceServerClient(server.host, concurrency=4) as client:
        yield client


def tensors(binary=True, **arrays):
    """The inputs of a request."""
    made = []
    for name, array in arrays.items():
        tensor = triton.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
        made.append(tensor.set_data_from_numpy(array, binary_data=binary))
    return made


def wanted(binary, *names):
    return [triton.InferRequestedOutput(name, binary_data=binary) for name in names]


def frames(n=6, dtype="float32", rows=1, seed=0):
    features, probs = make_batch(n * rows, 5, 7, seed)
    parts = (np.split(array.astype(dtype), n) for array in (features, probs))
    return list(zip(*parts, strict=True))


def test_the_server_says_who_it_is(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.get_server_metadata() == {
        "name": "lametta",
        "version": lametta.__version__,
        "extensions": ["binary_tensor_data", "sequence"],
    }


@pytest.mark.parametrize("version", ["", "1"])
@pytest.mark.parametrize("model", ["prudent", "fast"])
def test_models_say_what_they_are(client, model, version):
    assert client.is_model_ready(model, version)
    about = client.get_model_metadata(model, version)
    assert (about["name"], about["versions"], about["platform"]) == (model, ["1"], "lametta")
    names = {kind: [tensor["name"] for tensor in about[kind]] for kind in ("inputs", "outputs")}
    assert names["inputs"] == ["features", "probs", "logits"]
    features, probs = frames(1)[0]
    result = client.infer(model, tensors(features=features, probs=probs), version)
    for tensor in about["outputs"]:
        array = result.as_numpy(tensor["name"])
        assert result.get_output(tensor["name"])["datatype"] == tensor["datatype"]
        assert array.ndim == len(tensor["shape"])
    assert len(result.get_response()["outputs"]) == len(names["outputs"])
    assert result.get_response()["model_name"] == model
    assert result.get_response()["model_version"] == "1"


@pytest.mark.parametrize("binary_out", [True, False])
@pytest.mark.parametrize(
    ("datatype", "binary_in"),  # the client sends no FP16 in JSON
    [("FP16", True), ("FP32", True), ("FP64", True), ("FP32", False), ("FP64", False)],
)
def test_tensors_go_both_ways_to_the_bit(client, datatype, binary_in, binary_out):
    own, stream = Prudent(), next(_streams)
    for i, (features, probs) in enumerate(frames(5, DTYPES[datatype], rows=3)):
        expected = own.correct(features, probs)
        result = client.infer(
            "prudent",
            tensors(binary_in, features=features, probs=probs),
            outputs=wanted(binary_out, "probs", "label", "source_label", "entropy"),
            sequence_id=stream,
            request_id="i" * i,  # so that tensors begin at any byte
        )
        found = result.as_numpy("probs")
        if not binary_out:  # the client reads FP16 in JSON as well
            found = found.astype(expected.probs.dtype)
        np.testing.assert_array_equal(found, expected.probs, strict=True)
        assert result.get_output("probs")["datatype"] == datatype
        labels = [result.as_numpy(name) for name in ("label", "source_label")]
        np.testing.assert_array_equal(labels[0], expected.probs.argmax(axis=1))
        np.testing.assert_array_equal(labels[1], probs.argmax(axis=1))
        assert result.as_numpy("entropy").tolist() == [expected.info["entropy"]]
        told = result.get_response()["parameters"]
        assert told.pop("sequence_id") == stream
        assert {name: expected.info[name] for name in told} == told
        assert {"trust", "novelty", "absent", "evidence"} <= told.keys()


def test_all_outputs_come_where_none_is_named(client):
    features, probs = frames(1, rows=4)[0]
    result = client.infer("fast", tensors(features=features, probs=probs))
    expected = LAME(lametta.knn(3)).correct(features, probs)
    np.testing.assert_array_equal(result.as_numpy("probs"), expected.probs, strict=True)
    for signal in ("entropy", "diversity", "changed"):
        assert result.as_numpy(signal).tolist() == [expected.info[signal]]


def test_only_the_outputs_that_are_named_come(client):
    features, probs = frames(1)[0]
    outputs = [*wanted(True, "label"), *wanted(False, "changed")]
    result = client.infer("fast", tensors(features=features, probs=probs), outputs=outputs)
    assert [output["name"] for output in result.get_response()["outputs"]] == ["label", "changed"]
    assert result.as_numpy("probs") is None


@pytest.mark.parametrize("dtype", DTYPES.values())
def test_logits_are_as_good_as_probs(client, dtype):
    own, stream = Prudent(), next(_streams)
    for features, probs in frames(4, dtype):
        logits = (3 * np.log(probs) + 7).astype(dtype)
        result = client.infer(
            "prudent", tensors(features=features, logits=logits), sequence_id=stream
        )
        scores = np.exp((logits - logits.max()).astype(np.float64))
        expected = own.correct(features, scores / scores.sum())
        np.testing.assert_allclose(result.as_numpy("probs"), expected.probs, rtol=1e-4)
        assert result.as_numpy("source_label") == logits.argmax()


@pytest.mark.parametrize("stream", [7, 2**63, "7", "a camera", "ü/🎄\0", "x" * 256])
def test_sequences_are_streams(client, stream):
    """Twice, with others in between: a start begins a stream anew, and so does an end."""
    requests = frames(6)
    expected = [Prudent().correct(*requests[0]), *_alone(requests[1:4]), *_alone(requests[4:])]
    for _ in range(2):
        for i, (features, probs) in enumerate(requests):
            given = tensors(features=features, probs=probs)
            sequence = {"sequence_start": i in (0, 1), "sequence_end": i in (3, 5)}
            result = client.infer("prudent", given, sequence_id=stream, **sequence)
            assert result.get_response()["parameters"]["sequence_id"] == stream
            np.testing.assert_array_equal(result.as_numpy("probs"), expected[i].probs)
            client.infer("prudent", given, sequence_id=next(_streams))
            client.infer("prudent", given)


def _alone(requests):
    own = Prudent()
    return [own.correct(*request) for request in requests]


def test_a_number_and_its_digits_are_two_streams(client):
    requests, stream = frames(6), 10**6
    for (features, probs), expected in zip(requests, _alone(requests), strict=True):
        for one in (stream, str(stream)):
            given = tensors(features=features, probs=probs)
            result = client.infer("prudent", given, sequence_id=one)
            np.testing.assert_array_equal(result.as_numpy("probs"), expected.probs)


def test_a_request_with_an_id_may_come_again(client):
    requests, stream = frames(6), next(_streams)
    for i, ((features, probs), expected) in enumerate(zip(requests, _alone(requests), strict=True)):
        for _ in range(3):
            result = client.infer(
                "prudent",
                tensors(features=features, probs=probs),
                request_id=f"request {i}",
                sequence_id=stream,
            )
            assert result.get_response()["id"] == f"request {i}"
            np.testing.assert_array_equal(result.as_numpy("probs"), expected.probs)


def test_requests_may_be_under_way_at_once(client):
    streams = {next(_streams): frames(5, seed=seed) for seed in range(4)}
    expected = {stream: _alone(requests) for stream, requests in streams.items()}
    for i in range(5):
        under_way = {
            stream: client.async_infer(
                "prudent",
                tensors(features=requests[i][0], probs=requests[i][1]),
                sequence_id=stream,
            )
            for stream, requests in streams.items()
        }
        for stream, answer in under_way.items():
            found = answer.get_result().as_numpy("probs")
            np.testing.assert_array_equal(found, expected[stream][i].probs)


GOOD = frames(1)[0]
REFUSED = {
    "model": ({"model_name": "nope"}, "404", "model must be one of prudent, fast, got 'nope'"),
    "version": ({"model_version": "2"}, "404", "version of prudent must be 1, got '2'"),
    "inputs": ({"inputs": tensors(features=GOOD[0])}, "400", "inputs must be features, and probs"),
    "integers": (
        {"inputs": tensors(features=GOOD[0].astype("int32"), probs=GOOD[1])},
        "400",
        r"features must be \[N, columns\] of FP16, FP32 or FP64, got int32",
    ),
    "no probabilities": (
        {"inputs": tensors(features=GOOD[0], probs=GOOD[1] + 1)},
        "400",
        "probs must",
    ),
    "nan": ({"inputs": tensors(features=GOOD[0] * np.nan, probs=GOOD[1])}, "400", "must be finite"),
    "output": ({"outputs": wanted(True, "lable")}, "400", "outputs .* 'lable'.*'label'"),
    "classes": ({"inputs": tensors(features=GOOD[0], probs=GOOD[1][:, :2])}, "400", "probs must"),
    "one class": (
        {"inputs": tensors(features=GOOD[0], probs=np.ones_like(GOOD[1][:, :1]))},
        "400",
        "probs must have a column for each of two classes or more",
    ),
    "parameter": (
        {"parameters": {"sequnce_id": 7}},
        "400",
        "parameters of the request .* got 'sequnce_id'; did you mean 'sequence_id'",
    ),
    "priority": ({"priority": 1}, "400", "priority of the request is not supported"),
    "class count": (
        {"outputs": [triton.InferRequestedOutput("probs", class_count=3)]},
        "400",
        "classification of output 'probs' is not supported",
    ),
    "other sizes": (
        {"inputs": tensors(features=GOOD[0][:, :2], probs=GOOD[1])},
        "400",
        r"features must have 7 columns as before in this stream, got 2; sequence_start begins",
    ),
    "long id": ({"sequence_id": "x" * 257}, "400", "at most 256 characters"),
    "compression": ({"request_compression_algorithm": "gzip"}, "415", "must not be compressed"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_says_why_and_counts_nothing(client, case):
    changes, status, message = REFUSED[case]
    stream, requests = next(_streams), frames(5)
    for (features, probs), expected in zip(requests, _alone(requests), strict=True):
        given = {"inputs": tensors(features=features, probs=probs), "sequence_id": stream}
        result = client.infer("prudent", **given)
        np.testing.assert_array_equal(result.as_numpy("probs"), expected.probs)
        with pytest.raises(InferenceServerException, match=message) as error:
            client.infer(**{"model_name": "prudent", **given, **changes})
        assert error.value.status() == status
        assert "Traceback" not in str(error.value)


def test_a_deadline_is_kept(client):
    features, probs = frames(1)[0]
    with pytest.raises(InferenceServerException, match="deadline") as error:
        client.infer("prudent", tensors(features=features, probs=probs), timeout=1)  # microsecond
    assert error.value.status() == "504"
    client.infer("prudent", tensors(features=features, probs=probs), timeout=60_000_000)


def test_a_token_is_a_header(tmp_path):
    (tmp_path / "tokens").write_text(TOKEN + "\n")
    features, probs = frames(1)[0]
    given = tensors(features=features, probs=probs)
    with (
        serving("--token-file", tmp_path / "tokens") as server,
        triton.InferenceServerClient(server.host) as client,
    ):
        assert client.is_server_live()
        for headers in (None, {"Authorization": "Bearer another token, 32 letters.."}):
            with pytest.raises(InferenceServerException, match="token is needed") as error:
                client.infer("prudent", given, headers=headers)
            assert error.value.status() == "401"
        result = client.infer("prudent", given, headers=HEADERS)
        expected = Prudent().correct(features, probs)
        np.testing.assert_array_equal(result.as_numpy("probs"), expected.probs)
        assert client.get_model_metadata("prudent", headers=HEADERS)["name"] == "prudent"
