"""gRPC beside HTTP, by NVIDIA's client unchanged: the same answers, and the same limits."""

import asyncio
import queue
import threading
import time

import grpc
import httpx2
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub
from tritonclient.utils import InferenceServerException

from lametta import Prudent
from lametta.correctors import Average
from lametta.serve.config import ServerConfig
from lametta.serve.grpc import _Calls, decode_reply, encode_request
from lametta.serve.middleware import ServerLimits
from tests.conftest import make_batch
from tests.serve.server import serving

pytestmark = pytest.mark.slow(3)

TOKEN = "a-token-of-enough-letters"
AUTH = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens.write_text(TOKEN)
    options = ("--token-file", tokens, "--max-body", "1M", "--deadline", "5", "--patience", "2")
    options = (*options, "--grpc-port", 0)
    slow = "slow=python:tests.serve.test_deadlines:Slow"
    names = ("--corrector", "prudent", "--corrector", "average", "--corrector", slow)
    with serving(*options, *names) as server:
        yield server


def _port(server):
    return next(line["grpc_port"] for line in server.log() if "grpc_port" in line)


@pytest.fixture(scope="module")
def client(server):
    with triton.InferenceServerClient(f"127.0.0.1:{_port(server)}") as client:
        yield client


@pytest.fixture
def stub(server):
    with grpc.insecure_channel(f"127.0.0.1:{_port(server)}") as channel:
        yield GRPCInferenceServiceStub(channel)


def tensors(**arrays):
    inputs = []
    for name, array in arrays.items():
        kind = {"f": "FP32" if array.itemsize == 4 else "FP64", "i": "INT64", "O": "BYTES"}
        inputs.append(triton.InferInput(name, array.shape, kind[array.dtype.kind]))
        inputs[-1].set_data_from_numpy(array)
    return inputs


def infer(client, features, probs, model="prudent", headers=AUTH, **more):
    given = tensors(features=features, probs=probs)
    return client.infer(model, given, headers=headers, **more)


def refusal(call):
    with pytest.raises(InferenceServerException) as caught:
        call()
    return caught.value.status().removeprefix("StatusCode."), caught.value.message()


def test_what_is_there(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("prudent", headers=AUTH)
    assert client.is_model_ready("prudent", "1", headers=AUTH)
    assert not client.is_model_ready("prudnet", headers=AUTH)
    about = client.get_server_metadata(headers=AUTH)
    assert (about.name, list(about.extensions)) == ("lametta", ["binary_tensor_data", "sequence"])
    model = client.get_model_metadata("prudent", headers=AUTH)
    assert list(model.versions) == ["1"]
    assert [one.name for one in model.inputs] == ["features", "probs", "logits"]
    assert list(model.outputs[0].shape) == [-1, -1]


@pytest.mark.parametrize("stream", [7, "door"])
def test_streams_are_those_of_http_to_the_bit(client, server, stream):
    features, probs = (x.astype(np.float32) for x in make_batch(12, 5, 7))
    own = Prudent()
    for i, (x, q) in enumerate(zip(features[:, None], probs[:, None], strict=True)):
        expected = own.correct(x, q).probs
        if i % 2:
            inputs = [
                {"name": name, "shape": list(a.shape), "datatype": "FP32", "data": a.tolist()}
                for name, a in (("features", x), ("probs", q))
            ]
            body = {"inputs": inputs, "parameters": {"sequence_id": stream}}
            url = f"{server.url}/v2/models/prudent/infer"
            answer = httpx2.post(url, json=body, headers=AUTH, timeout=60).json()
            found = np.array(answer["outputs"][0]["data"], np.float32)
            assert found.tolist() == expected[0].tolist()
        else:
            result = infer(client, x, q, sequence_id=stream, request_id=str(i))
            np.testing.assert_array_equal(result.as_numpy("probs"), expected)
            answer = result.get_response()
            assert answer.id == str(i)
            said = answer.parameters["sequence_id"]
            assert stream in (said.int64_param, said.string_param)
            assert 0 <= answer.parameters["trust"].double_param <= 1


def test_a_stream_of_requests_is_answered_in_order(client):
    """ModelStreamInfer: one that is wrong costs its own answer."""
    features, probs = make_batch(6, 5, 7)
    probs[3] = np.nan
    answers: queue.Queue = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)), headers=AUTH)
    for i in range(6):
        given = tensors(features=features[i : i + 1], probs=probs[i : i + 1])
        client.async_stream_infer("average", given, request_id=str(i), sequence_id="in order")
    found = [answers.get(timeout=60) for _ in range(6)]
    client.stop_stream()
    own = Average()
    for i, (result, error) in enumerate(found):
        if i == 3:
            assert "probs" in error.message()
            continue
        assert error is None
        expected = own.correct(features[i : i + 1], probs[i : i + 1]).probs
        np.testing.assert_array_equal(result.as_numpy("probs"), expected)


def test_several_streams_are_one_request(client):
    features, probs = make_batch(4, 5, 7)
    names = np.array([b"w", b"x", b"y", b"w"], object)
    given = tensors(features=features, probs=probs, sequence_id=names)
    result = client.infer("average", given, headers=AUTH)
    assert result.as_numpy("status").tolist() == 4 * [200]
    assert result.as_numpy("error").tolist() == 4 * [b""]
    np.testing.assert_allclose(result.as_numpy("probs")[:3], probs[:3], atol=1e-12)
    np.testing.assert_allclose(result.as_numpy("probs")[3], probs[[0, 3]].mean(axis=0), atol=1e-12)


def test_who_may_ask(client):
    batch = make_batch(1, 5, 7)
    for headers in ({}, {"authorization": "Bearer of-another-token"}):
        code, message = refusal(lambda headers=headers: infer(client, *batch, headers=headers))
        assert (code, message) == ("UNAUTHENTICATED", "a bearer token is needed")
        found = refusal(lambda headers=headers: client.get_model_metadata("prudent", "", headers))
        assert found[0] == "UNAUTHENTICATED"
    stub = GRPCInferenceServiceStub(client._channel)
    answers = stub.ModelStreamInfer(iter([pb.ModelInferRequest(model_name="prudent")]))
    with pytest.raises(grpc.RpcError) as caught:
        next(answers)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def raw_call(stub_channel, method, *messages, metadata=()):
    """The code and the message with which a call of bytes, or of no message at all, is refused."""
    call = stub_channel.stream_stream(f"/inference.GRPCInferenceService/{method}")
    with pytest.raises(grpc.RpcError) as caught:
        list(call(waiting(*messages), metadata=metadata, timeout=60))
    return caught.value.code().name, caught.value.details()


def waiting(*messages):
    """They come, and then nothing does, nor an end."""
    yield from messages
    threading.Event().wait(20)


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer", "ModelMetadata"])
def test_messages_are_read_when_it_is_known_who_sends_them(server, method):
    """Each took up to --max-body without a token; what was none of them, a traceback in the log."""
    kind = {"ModelMetadata": "ModelMetadataRequest"}.get(method, "ModelInferRequest")
    token = [("authorization", f"Bearer {TOKEN}")]
    with grpc.insecure_channel(f"127.0.0.1:{_port(server)}") as channel:
        refused = "UNAUTHENTICATED", "a bearer token is needed"
        assert raw_call(channel, method, b"garbage") == refused
        assert raw_call(channel, method) == refused  # at once
        found = raw_call(channel, method, b"garbage", metadata=token)
        assert found == ("INVALID_ARGUMENT", f"the message must be a {kind}")
        if method != "ModelStreamInfer":  # which waits for frames
            found = raw_call(channel, method, metadata=token)
            assert found == ("DEADLINE_EXCEEDED", "the request took too long to come")
    assert not [line for line in server.log() if line["level"] == "error"]


def test_what_is_wrong_is_said_as_by_http(client):
    batch = make_batch(1, 5, 7)
    for call, code, message in (
        (lambda: infer(client, *batch, model="x"), "NOT_FOUND", "model must be one of"),
        (lambda: infer(client, *batch, model="a/b"), "NOT_FOUND", "model must be one of"),
        (lambda: infer(client, *batch, sequence_id="x" * 257), "INVALID_ARGUMENT", "at most 256"),
        (lambda: infer(client, *batch, parameters={"odd": 1}), "INVALID_ARGUMENT", "got 'odd'"),
        (lambda: infer(client, *batch, priority=3), "INVALID_ARGUMENT", "priority"),
        (
            lambda: infer(client, *batch, outputs=[triton.InferRequestedOutput("probz")]),
            "INVALID_ARGUMENT",
            "outputs of the request",
        ),
    ):
        found = refusal(call)
        assert found[0] == code, found
        assert message in found[1]


def test_deadlines(client):
    """The server's own, the request's, and that of the call, which is over when it says."""
    features, probs = make_batch(400, 5, 7)  # 8 s
    for more, most in (({}, 8), ({"timeout": 200_000}, 4), ({"client_timeout": 0.3}, 4)):
        begun = time.monotonic()
        late = {"sequence_id": "late", **more}
        code, _ = refusal(lambda late=late: infer(client, features, probs, "slow", **late))
        assert code == "DEADLINE_EXCEEDED"
        assert time.monotonic() - begun < most
    for _ in range(200):  # until it is not busy
        try:
            last = infer(client, features[:1], probs[:1], "slow", sequence_id="late")
            break
        except InferenceServerException:
            time.sleep(0.05)
    np.testing.assert_allclose(last.as_numpy("probs"), probs[:1], atol=1e-12)  # unchanged


def test_sizes_are_bounded(client, stub):
    batch = np.ones((1, 2**18)), np.ones((1, 2))  # 2 MiB
    assert refusal(lambda: infer(client, *batch))[0] == "RESOURCE_EXHAUSTED"
    token = [("authorization", f"Bearer {TOKEN}")]
    bomb = pb.ModelInferRequest(model_name="prudent", raw_input_contents=[bytes(2**26)])
    for call in (
        lambda: stub.ModelInfer(bomb, metadata=token, compression=grpc.Compression.Gzip),
        lambda: stub.ServerLive(pb.ServerLiveRequest(), metadata=[("a", "x" * 2**15)]),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            call()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    wide = np.ones((1, 2)), np.ones((1, 70_000))
    code, message = refusal(lambda: infer(client, *wide))
    assert code == "INVALID_ARGUMENT"
    assert "65536 columns" in message


class Context:
    """A call whose client takes its answer when ``taken`` is set."""

    def __init__(self, request, taken):
        self.request, self.taken, self.answer = request.SerializeToString(), taken, None

    def invocation_metadata(self):
        return ()

    def peer(self):
        return "ipv4:127.0.0.1:7"

    def time_remaining(self):
        return None

    async def read(self):
        return self.request

    async def write(self, answer):
        await self.taken.wait()
        self.answer = answer

    async def abort(self, code, message):
        raise RuntimeError(code.name, message)


def test_answers_that_nobody_reads_are_bounded():
    """gRPC itself would keep any number of them."""
    limits = ServerLimits(pending=2**19)
    calls = _Calls(ServerConfig({"average": "average"}, limits=limits).app(), limits)
    inputs = tensors(features=np.ones((64, 1)), probs=np.full((64, 512), 1 / 512))  # 256 KiB
    request = pb.ModelInferRequest(
        model_name="average",
        inputs=[one._get_tensor() for one in inputs],
        raw_input_contents=[one._get_content() for one in inputs],
    )

    async def play():
        taken, at_once = asyncio.Event(), asyncio.Event()
        at_once.set()
        deaf, tasks, unread = [], [], 0
        while unread <= limits.pending:
            deaf.append(Context(request, taken))
            tasks.append(asyncio.create_task(calls._infer_one(None, deaf[-1])))
            while calls._unread == unread:
                await asyncio.sleep(0.001)
            unread = calls._unread
        with pytest.raises(RuntimeError, match="RESOURCE_EXHAUSTED.*have not read yet"):
            await calls._infer_one(None, Context(request, at_once))
        taken.set()
        await asyncio.gather(*tasks)
        keen = Context(request, at_once)
        await calls._infer_one(None, keen)
        return len(deaf), {len(one.answer) for one in (*deaf, keen)}

    n_deaf, sizes = asyncio.run(play())
    assert n_deaf == 2
    assert len(sizes) == 1


def test_calls_are_counted(client, server):
    infer(client, *make_batch(1, 5, 7), sequence_id=99)
    late = {"sequence_id": "counted", "timeout": 100_000}
    refusal(lambda: infer(client, *make_batch(20, 5, 7), "slow", **late))  # 0.4 s
    text = httpx2.get(f"{server.url}/metrics", headers=AUTH).text
    assert 'lametta_requests_total{code="200",model="prudent"}' in text
    assert 'lametta_requests_total{code="504",model="slow"}' in text


def _typed(name, datatype, shape, **contents):
    tensor = pb.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape)
    for field, values in contents.items():
        getattr(tensor.contents, field).extend(values)
    return tensor


def test_typed_contents(stub):
    request = pb.ModelInferRequest(model_name="average")
    request.inputs.extend(
        [
            _typed("features", "FP32", [2, 1], fp32_contents=[1, 2]),
            _typed("probs", "FP64", [2, 2], fp64_contents=[0.25, 0.75, 0.5, 0.5]),
            _typed("sequence_id", "BYTES", [2], bytes_contents=[b"t", b"u"]),
            _typed("sequence_start", "BOOL", [2], bool_contents=[True, False]),
        ]
    )
    token = [("authorization", f"Bearer {TOKEN}")]
    answer = stub.ModelInfer(request, metadata=token)
    probs = np.frombuffer(
        dict(zip([one.name for one in answer.outputs], answer.raw_output_contents, strict=True))[
            "probs"
        ]
    )
    assert probs.tolist() == [0.25, 0.75, 0.5, 0.5]
    for wrong, message in (
        (_typed("features", "FP16", [1, 1]), "where its contents are not raw, got 'FP16'"),
        (_typed("features", "UINT8", [1], uint_contents=[300]), "in the range of UINT8"),
        (_typed("features", "FP32", [5, 1], fp32_contents=[1]), "binary_data_size of input"),
    ):
        request.inputs[0].CopyFrom(wrong)
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(request, metadata=token)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert message in caught.value.details()
    request.raw_input_contents.append(b"")
    with pytest.raises(grpc.RpcError, match="raw_input_contents must be as many as inputs, 4"):
        stub.ModelInfer(request, metadata=token)


def test_the_timeout_is_the_shorter_of_two():
    request = pb.ModelInferRequest()
    for own, seconds, expected in ((None, 2.0, 2e6), (10, 2.0, 10), (10**9, 2.0, 2e6)):
        if own is not None:
            request.parameters["timeout"].int64_param = own
        header, _ = encode_request(request, seconds)
        assert f'"timeout":{expected}' in header.decode()


def test_parameters_of_answers():
    said = {"model_name": "m", "model_version": "1", "outputs": []}
    told = {"big": 2**63, "less": -1, "share": 0.5, "yes": True, "name": "a", "none": None}
    found = decode_reply({**said, "parameters": told}, b"").parameters
    assert found["big"].uint64_param == 2**63
    assert found["less"].int64_param == -1
    assert found["share"].double_param == 0.5
    assert found["yes"].bool_param is True
    assert (found["name"].string_param, found["none"].string_param) == ("a", "")
