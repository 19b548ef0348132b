"""A request's bytes and a reply's, held against NVIDIA's own client."""

import json
import re
import tracemalloc
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lametta import LamettaError
from lametta.serve.protocol import BadRequest, InferRequest, RequestLimits, decode, encode
from tests.fuzz.hostile import changed, damaged, json_leaves

client = pytest.importorskip("tritonclient.http")
from tritonclient.http._utils import _get_inference_request  # noqa: E402
from tritonclient.utils import (  # noqa: E402
    deserialize_bytes_tensor,
    np_to_triton_dtype,
    triton_to_np_dtype,
)

LIMITS = RequestLimits(body=2_000_000, rows=64, columns=2000)
NUMBERS = {
    "BOOL": [True, False, True],
    "INT8": [-128, 0, 127],
    "INT16": [-(2**15), 0, 2**15 - 1],
    "INT32": [-(2**31), 0, 2**31 - 1],
    "INT64": [-(2**63), 0, 2**63 - 1],
    "UINT8": [0, 1, 255],
    "UINT16": [0, 1, 2**16 - 1],
    "UINT32": [0, 1, 2**32 - 1],
    "UINT64": [0, 1, 2**64 - 1],
    "FP16": [-65504.0, 6e-8, 0.1],
    "FP32": [-3.4028235e38, 1e-45, 0.1],
    "FP64": [-1.7976931348623157e308, 5e-324, 0.1],
}
ARRAYS = {name: np.array([v], triton_to_np_dtype(name)) for name, v in NUMBERS.items()}
ARRAYS["BYTES"] = np.array([["", "a cat", "\u00fcn\u00ef \U0001f384 \0"]], dtype=object)


def ask(arrays, binary=True, outputs=None, request_id="", sequence_id=0, **parameters):
    """The body that NVIDIA's client sends, and the length of its JSON."""
    binary = binary if isinstance(binary, dict) else dict.fromkeys(arrays, binary)
    inputs = []
    for name, array in arrays.items():
        tensor = client.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        inputs.append(tensor.set_data_from_numpy(array, binary_data=binary[name]))
    rest = (request_id, outputs, sequence_id, True, False, 0, None, parameters)
    return _get_inference_request(inputs, *rest)


def same(found, expected):
    if expected.dtype.kind in "OSU":
        expected = np.array(
            [x if isinstance(x, bytes) else x.encode() for x in expected.ravel()], object
        ).reshape(expected.shape)
        return found.dtype == expected.dtype and bool((found == expected).all())
    bits = np.ascontiguousarray(expected).tobytes()
    return (found.dtype, found.shape) == (expected.dtype, expected.shape) and (
        np.ascontiguousarray(found).tobytes() == bits
    )


def sent(tensor=None, tail=b"", **fields):
    """A body with one input, of which fields are as given; None leaves one out."""
    whole = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.0, 2.0]} | (tensor or {})
    whole = {key: value for key, value in whole.items() if value is not None}
    return json.dumps({"inputs": [whole], **fields}).encode() + tail


def refusal(body, header_length=None, limits=LIMITS):
    with pytest.raises(BadRequest) as caught:
        decode(body, header_length, limits)
    assert len(str(caught.value)) < 500
    return str(caught.value)


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
@pytest.mark.parametrize("datatype", ARRAYS)
def test_the_client_is_understood(datatype, binary):
    arrays = {"x": ARRAYS[datatype], "y": np.ones((2, 3), np.float32)}
    request = decode(*ask(arrays, binary), LIMITS)
    assert list(request.inputs) == ["x", "y"]
    assert all(same(request.inputs[name], array) for name, array in arrays.items())


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
@pytest.mark.parametrize("datatype", ARRAYS)
def test_the_client_understands(datatype, binary):
    outputs = {"x": ARRAYS[datatype], "label": np.array([3, 5])}
    body, length = encode("lame", "2", "7", outputs, None, binary, {"sequence_id": 9})
    result = client.InferResult.from_response_body(body, header_length=length)
    assert (length is not None) == binary
    head = {**result.get_response(), "outputs": None}
    assert head == {
        "model_name": "lame",
        "model_version": "2",
        "id": "7",
        "parameters": {"sequence_id": 9},
        "outputs": None,
    }
    assert result.get_output("x")["datatype"] == datatype
    assert result.get_output("label")["datatype"] == "INT64"
    found = {name: result.as_numpy(name) for name in outputs}
    if datatype == "BYTES" and not binary:
        found["x"] = np.array([x.encode() for x in found["x"].flat], object).reshape(1, 3)
    assert all(same(found[name], array) for name, array in outputs.items())


DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]


@st.composite
def tensors(draw):
    """Arrays by name, and which of them travel in binary."""
    arrays, binary = {}, {}
    for name in draw(
        st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=4, unique=True)
    ):
        shape = draw(hnp.array_shapes(max_dims=4, max_side=4))
        binary[name] = draw(st.booleans())
        if draw(st.integers(0, 4)) == 0:
            items = st.binary(max_size=5) if binary[name] else st.text(max_size=5)
            arrays[name] = draw(hnp.arrays(object, shape, elements=items))
        else:
            dtype = np.dtype(draw(st.sampled_from(DTYPES)))
            finite = {"allow_nan": binary[name], "allow_infinity": binary[name]}
            values = hnp.from_dtype(dtype, **(finite if dtype.kind == "f" else {}))
            arrays[name] = draw(hnp.arrays(dtype, shape, elements=values))
    return arrays, binary


@given(tensors())
def test_what_goes_in_comes_out(case):
    arrays, binary = case
    request = decode(*ask(arrays, binary), LIMITS)
    assert all(same(request.inputs[name], array) for name, array in arrays.items())
    body, length = encode("m", "1", "", request.inputs, binary, False, {})
    result = client.InferResult.from_response_body(body, header_length=length)
    for name, array in arrays.items():
        found = result.as_numpy(name)
        if array.dtype == object and not binary[name]:
            found = np.array([x.encode() for x in found.flat], object).reshape(array.shape)
        assert same(found, array)


def test_data_may_be_nested():
    cube = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    tensor = {"shape": [2, 3, 2], "data": cube.tolist()}
    assert same(decode(sent(tensor), None, LIMITS).inputs["x"], cube)


def test_what_is_null_is_not_there():
    request = decode(sent({"parameters": None}, id=None, outputs=None), None, LIMITS)
    assert (request.id, request.parameters, request.outputs) == ("", {}, None)


def test_the_request_says_who_and_what():
    outputs = [
        client.InferRequestedOutput("probs"),
        client.InferRequestedOutput("label", binary_data=False),
    ]
    arrays = {"probs": np.ones((1, 3), np.float32)}
    request = decode(*ask(arrays, True, outputs, "a7", "cam"), LIMITS)
    assert request.id == "a7"
    assert request.outputs == {"probs": True, "label": False}
    assert request.parameters == {
        "sequence_id": "cam",
        "sequence_start": True,
        "sequence_end": False,
    }


@pytest.mark.parametrize(
    ("default", "own", "expected"),
    [
        ({}, {}, False),
        ({"binary_data_output": True}, {}, True),
        ({"binary_data_output": True}, {"binary_data": False}, False),
        ({"binary_data_output": False}, {"binary_data": True}, True),
    ],
)
def test_an_output_says_more_than_the_request(default, own, expected):
    body = sent(parameters=default, outputs=[{"name": "label", "parameters": own}])
    assert decode(body, None, LIMITS).outputs == {"label": expected}


def test_only_what_is_wanted_is_sent():
    outputs = {"probs": np.ones((1, 3)), "label": np.array([1]), "entropy": np.array([0.5])}
    body, length = encode("m", "1", "", outputs, {"label": True, "entropy": False}, True, {})
    reply = json.loads(body[:length])
    assert [output["name"] for output in reply["outputs"]] == ["label", "entropy"]
    assert reply.keys() == {"model_name", "model_version", "outputs"}
    assert body[length:] == outputs["label"].tobytes()


def test_what_no_client_can_read_is_not_sent():
    with pytest.raises(LamettaError, match="got complex128"):
        encode("m", "1", "", {"x": np.ones(1, complex)}, None, True, {})
    with pytest.raises(BadRequest, match="output image is not text"):
        encode("m", "1", "", {"image": np.array([b"\xff"], object)}, None, False, {})


@pytest.mark.parametrize("binary", [True, False])
def test_any_layout_is_sent_in_row_major_order(binary):
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    layouts = {"rows": x, "columns": x.T, "every second": x.T[::2], "backwards": x[::-1]}
    body, length = encode("m", "1", "", layouts, None, binary, {})
    result = client.InferResult.from_response_body(body, header_length=length)
    assert all(same(result.as_numpy(name), array) for name, array in layouts.items())


def test_frames_with_the_same_json_have_their_own_values():
    """That JSON is read once, as long as it is read within the same limits."""
    for n in (1, 2):
        body, length = ask({"x": np.full((2, 3), n, np.float32)})
        assert length < 2**10
        request = decode(body, length, LIMITS)
        np.testing.assert_array_equal(request.inputs["x"], np.full((2, 3), n))
    with pytest.raises(BadRequest, match="at most 2 columns"):
        decode(body, length, RequestLimits(body=2_000_000, rows=64, columns=2))
    with pytest.raises(BadRequest, match="must hold 24 bytes"):
        decode(body[:-1], length, LIMITS)


def test_binary_tensors_are_views_unless_they_lie_askew():
    frame = np.random.default_rng(0).random((4, 25_000), dtype=np.float32)
    limits = RequestLimits(body=10**6, rows=4, columns=25_000)
    views = 0
    for padding in range(4):
        body, length = ask({"x": frame}, request_id="i" * (padding + 1))
        x = decode(body, length, limits).inputs["x"]
        views += np.shares_memory(x, np.frombuffer(body, np.uint8))
        assert x.flags.aligned
        assert not x.flags.writeable
        assert x.sum() == frame.sum()  # to the bit: NumPy sums in another order what lies askew
    assert views == 1
    body, length = ask({"x": frame.view(np.uint8)[:, :9]})
    image = decode(bytearray(body), length, limits).inputs["x"]
    assert not image.flags.writeable
    assert image.base is not None


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        ({"name": None}, r"name of inputs\[0\] must be a string, got nothing"),
        ({"name": 3}, "must be a string, got 3"),
        ({"name": ""}, "a name of its own, got ''"),
        ({"datatype": None}, "datatype of input 'x' must be a string, got nothing"),
        ({"datatype": "BF16"}, "datatype of input 'x' must be one of BOOL, .*got 'BF16'"),
        ({"datatype": "fp32"}, "got 'fp32'"),
        ({"shape": None}, "shape of input 'x' must be a list, got nothing"),
        ({"shape": 2}, "must be a list, got 2"),
        ({"shape": []}, r"1 to 8 integers >= 1, got \[\]"),
        ({"shape": [1] * 9}, r"1 to 8 integers >= 1, got \[1, 1, 1, 1, 1, 1, 1, 1, ...\]"),
        ({"shape": [-1, 2]}, r"got \[-1, 2\]"),
        ({"shape": [0, 2], "data": []}, r"got \[0, 2\]"),
        ({"shape": [True, 2]}, r"got \[True, 2\]"),
        ({"shape": [1.0, 2]}, r"got \[1.0, 2\]"),
        ({"shape": ["1", 2]}, r"got \['1', 2\]"),
        ({"shape": [[1], 2]}, r"got \[\[1\], 2\]"),
        ({"shape": [10**30]}, r"got \[1e\+30\]"),
        ({"shape": [65, 2]}, "at most 64 rows, got 65"),
        ({"shape": [1, 2001]}, "at most 2000 columns, got 2001"),
        ({"shape": [64, 2000, 2000]}, "at most 2000000 elements, got 256000000"),
        ({"shape": [2**63] * 8}, "at most 64 rows, got 9223372036854775808"),
        ({"shape": [1, 3]}, r"data of .* must be 3 values, flat or nested as \[1, 3\], got 2"),
        ({"data": None}, "data of input 'x' must be a list, got nothing"),
        ({"data": 1.0}, "must be a list, got 1.0"),
        ({"data": []}, "must be 2 values.*got 0"),
        ({"data": [[1.0], [2.0]]}, "got other lists"),
        ({"data": [[1.0, 2.0], [3.0, 4.0]]}, "got 4"),
        ({"data": [[1.0, 2.0], 3.0]}, "got other lists"),
        ({"data": [[[1.0, 2.0]]]}, "got other lists"),
        ({"data": [1.0, [2.0]]}, r"numbers for FP32, got \[2.0\]"),
        ({"data": [1.0, "2"]}, "numbers for FP32, got '2'"),
        ({"data": [1.0, None]}, "numbers for FP32, got nothing"),
        ({"data": [1.0, True]}, "numbers for FP32, got True"),
        ({"data": [1.0, 1e39]}, "in the range of FP32, got 1.0 to 1e\\+39"),
        ({"data": [1.0, -70000], "datatype": "FP16"}, "range of FP16, got -70000 to 1.0"),
        ({"data": [1, 2.0], "datatype": "INT32"}, "integers for INT32, got 2.0"),
        ({"data": [1, True], "datatype": "INT32"}, "integers for INT32, got True"),
        ({"data": [1, 256], "datatype": "UINT8"}, "range of UINT8, got 1 to 256"),
        ({"data": [-1, 2], "datatype": "UINT64"}, "range of UINT64, got -1 to 2"),
        ({"data": [1, 2**63], "datatype": "INT64"}, "range of INT64, got 1 to 9223372036854775808"),
        ({"data": [1, 0], "datatype": "BOOL"}, "true or false for BOOL, got 1"),
        ({"data": ["a", 0], "datatype": "BYTES"}, "strings for BYTES, got 0"),
        ({"parameters": []}, r"parameters of input 'x' must be an object, got \[\]"),
        ({"parameters": {"binary_data_size": [1]}}, "_size of input 'x' must be a string, number"),
        ({"parameters": {"binary_data_size": None}}, "got nothing"),
        (
            {"parameters": {"binary_size": 8}},
            "parameters of input 'x' must be among binary_data_size, got 'binary_size'; did you "
            "mean 'binary_data_size'",
        ),
        ({"parameters": {"content_type": "np"}}, "among binary_data_size, got 'content_type'$"),
        (
            {"dat": [1.0, 2.0]},
            "fields of input 'x' must be among .* got 'dat'; did you mean 'data'",
        ),
        ({"binary_data_size": 8}, "got 'binary_data_size', which belongs in its parameters"),
        ({"parameters": {"shared_memory_region": "r"}}, "shared_memory_region .* not supported"),
        ({"parameters": {"binary_data_size": 8}}, "either data or binary_data_size, got both"),
    ],
)
def test_a_wrong_input_is_named(tensor, message):
    assert re.search(message, refusal(sent(tensor)))


@pytest.mark.parametrize(
    ("tensor", "tail", "message"),
    [
        ({}, bytes(7), "must hold 8 bytes of input 'x' behind its JSON, got 7"),
        ({}, bytes(9), "must end with its last tensor, got 1 bytes more"),
        ({}, b"", "must hold 8 bytes of input 'x' behind its JSON, got 0"),
        ({"size": 4}, bytes(8), r"must be 8 for FP32 of shape \[1, 2\], got 4"),
        ({"size": 12}, bytes(12), r"must be 8 for FP32 of shape \[1, 2\], got 12"),
        ({"size": -8}, bytes(8), "binary_data_size of input 'x' must be 8 .*got -8"),
        ({"size": 8.0}, bytes(8), "got 8.0"),
        ({"size": "8"}, bytes(8), "got '8'"),
        ({"size": True, "datatype": "UINT8", "shape": [1]}, bytes(1), "must be 1 .*got True"),
        ({"size": 2, "datatype": "BOOL"}, b"\x01\x02", "bytes of 0 and 1 for BOOL, got 2"),
        ({"size": 4, "datatype": "BYTES"}, bytes(4), "8 or more for BYTES of shape .*got 4"),
        ({"datatype": "BYTES"}, b"\x01" + bytes(7), "2 elements, each behind its length"),
        ({"datatype": "BYTES"}, b"\xff" * 8, "do not add up"),
        ({"size": 9, "datatype": "BYTES"}, bytes(9), "do not add up"),
        ({"size": 9, "datatype": "BYTES"}, bytes(4) + b"\x02" + bytes(4), "do not add up"),
    ],
)
def test_a_binary_tensor_that_lies_is_named(tensor, tail, message):
    size = {"binary_data_size": tensor.get("size", 8)}
    given = {key: value for key, value in tensor.items() if key != "size"}
    head = sent({**given, "data": None, "parameters": size})
    assert re.search(message, refusal(head + tail, len(head)))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the request must be JSON"),
        (b"{", "the request must be JSON"),
        (b"\xff\xfe", "the request must be JSON"),
        (b"[" * 100_000, "depth limit"),
        (b'{"inputs": NaN}', "the request must be JSON"),
        (sent().replace(b"2.0", b"NaN"), "the request must be JSON"),
        (sent().replace(b"2.0", b"1e999"), "the request must be JSON"),
        (sent().replace(b'"x"', b'"\\ud800"'), "the request must be JSON"),
        (b"[]", r"must be a JSON object, got \[\]"),
        (b"{}", "inputs of the request must be a list, got nothing"),
        (b'{"inputs": {}}', "inputs of the request must be a list, got {}"),
        (b'{"inputs": []}', "at least one tensor"),
        (json.dumps({"inputs": [["y" * 60] * 8]}).encode(), r"an object, got \['yy.*\.\.\.$"),
        (b'{"inputs": [3]}', r"inputs\[0\] must be an object, got 3"),
        (b'{"inputs": ["' + b"x" * 10**6 + b'"]}', r"inputs\[0\] must be an object, got 'xx"),
        (sent().replace(b"}]", b"}, " + sent()[12:-2] + b"]"), r"name of inputs\[1\] .* got 'x'"),
        (sent(id=3), "id of the request must be a string, got 3"),
        (sent(parameters=[1]), "parameters of the request must be an object"),
        (sent(parameters={"x" * 10**6: {}}), r"parameters of the request must .* got 'xx.*xx'$"),
        (sent(parameters={"timeout": {}}), "must be a string, number or boolean, got {}"),
        (
            sent(parameters={"sequnce_id": 7}),
            "parameters of the request must be among sequence_id, .* got 'sequnce_id'; did you "
            "mean 'sequence_id'",
        ),
        (
            sent(sequence_id=7),
            "must be among .* got 'sequence_id', which belongs in its parameters",
        ),
        (sent(paramters={"sequence_id": 7}), "got 'paramters'; did you mean 'parameters'"),
        (sent(parameters={"priority": 1}), "priority of the request is not supported: requests"),
        (
            sent(outputs=[{"name": "probs", "parameters": {"binary": True}}]),
            "parameters of output 'probs' must be among binary_data, got 'binary'",
        ),
        (sent(outputs=[{"name": "probs", "data": []}]), "fields of output 'probs' must be among"),
        (sent(parameters={"binary_data_output": 1}), "binary_data_output .* true or false, got 1"),
        (sent(outputs={}), "outputs of the request must be a list, got {}"),
        (sent(outputs=["label"]), r"outputs\[0\] must be an object, got 'label'"),
        (sent(outputs=[{}]), r"name of outputs\[0\] must be a string"),
        (sent(outputs=[{"name": "a"}] * 2), r"name of outputs\[1\] must be .* got 'a'"),
        (sent(outputs=[{"name": "a", "parameters": {"binary_data": "no"}}]), "got 'no'"),
        (
            sent(outputs=[{"name": "probs", "parameters": {"classification": 3}}]),
            "parameter classification of output 'probs' is not supported",
        ),
        (sent(tail=b" " * LIMITS.body), "the body must have at most 2000000 bytes, got 20000"),
    ],
)
def test_a_wrong_request_is_named(body, message):
    assert re.search(message, refusal(body))


@pytest.mark.parametrize("length", [-1, -(10**30), 1000, 10**30])
def test_a_header_that_is_not_in_the_body_is_refused(length):
    assert "Inference-Header-Content-Length must be from 0" in refusal(sent(), length)


def test_a_header_that_ends_elsewhere_is_refused():
    body, length = ask({"x": ARRAYS["FP32"], "y": ARRAYS["BYTES"]})
    assert isinstance(decode(body, length, LIMITS), InferRequest)
    for other in {*range(len(body) + 1)} - {length}:
        refusal(body, other)


@pytest.mark.parametrize("binary", [True, False])
def test_a_body_that_was_cut_off_is_refused(binary):
    body, length = ask({"x": ARRAYS["FP32"], "y": ARRAYS["BYTES"], "z": ARRAYS["BOOL"]}, binary)
    for stop in range(len(body)):
        refusal(body[:stop], length)


def check(body, length):
    """Whether a body is read; if it is, as the standard library and NumPy read it."""
    try:
        request = decode(body, length, LIMITS)
    except BadRequest:
        refusal(body, length)
        return False
    head = json.loads(body[:length].decode())
    at = len(body) if length is None else length
    assert list(request.inputs) == [tensor["name"] for tensor in head["inputs"]]
    for tensor in head["inputs"]:
        dtype = triton_to_np_dtype(tensor["datatype"])
        if dtype is np.object_:
            dtype = bytes
        size = (tensor.get("parameters") or {}).get("binary_data_size")
        if size is None:
            data = tensor["data"]
            while dtype is bytes and data and isinstance(data[0], list):
                data = [*chain.from_iterable(data)]
            expected = np.array([x.encode() for x in data], object) if dtype is bytes else data
        elif dtype is bytes:
            expected = deserialize_bytes_tensor(body[at : at + size])
        else:
            expected = np.frombuffer(body[at : at + size], dtype)
        at += size or 0
        dtype = object if dtype is bytes else dtype
        assert same(
            request.inputs[tensor["name"]], np.array(expected, dtype).reshape(tensor["shape"])
        )
    assert at == len(body)
    assert request.parameters == (head.get("parameters") or {})
    names = [output["name"] for output in head.get("outputs") or []]
    assert list(request.outputs or {}) == names
    return True


WHOLE = {name: ARRAYS[name] for name in ("FP32", "UINT8", "BYTES", "BOOL")}
OUTPUTS = [client.InferRequestedOutput("probs"), client.InferRequestedOutput("label", False)]
BODY, LENGTH = ask(WHOLE, {"FP32": True, "UINT8": False, "BYTES": True, "BOOL": True}, OUTPUTS, "7")
LEAVES = json_leaves | st.sampled_from(
    [
        *("FP16", "FP64", "UINT8", "BYTES", "probs", 3, 8, 12, 2**63 - 1, -(2**63), [1, 3], [3]),
        *([3, 1], [10**6] * 2, [2**62] * 4, [[0, 1, 255]], {"binary_data_size": 12}, 1e39, 300),
        *({"binary_data_size": 2**63 - 1}, {"binary_data": True}, [0.5] * 3, ["a"] * 3, [None] * 3),
    ]
)


@pytest.mark.slow
@settings(max_examples=400)
@given(changed(json.loads(BODY[:LENGTH]), LEAVES), st.sampled_from([0, 0, 0, -1, 1]))
def test_changed_json_is_right_or_refused(head, off):
    text = json.dumps(head).encode()
    check(text + BODY[LENGTH:], len(text) + off)


@pytest.mark.slow
@settings(max_examples=400)
@given(damaged(BODY), st.sampled_from([LENGTH, LENGTH, None]))
def test_damaged_bytes_are_right_or_refused(body, length):
    check(body, length)


@given(st.binary(max_size=100), st.none() | st.integers(-1, 101))
def test_random_bytes_are_refused(body, length):
    assert not check(body, length)


def test_a_whole_body_is_right():
    assert check(BODY, LENGTH)


@pytest.mark.parametrize(
    "tensor",
    [
        {"shape": [10**6, 10**6]},
        {"shape": [10**6, 10**6], "data": None, "parameters": {"binary_data_size": 4 * 10**12}},
        {"shape": [10**6, 10**6], "datatype": "BYTES"},
        {
            "shape": [10**12],
            "datatype": "BYTES",
            "data": None,
            "parameters": {"binary_data_size": 9},
        },
    ],
)
def test_a_claim_costs_no_memory(tensor):
    body = sent(tensor)
    for limits in (LIMITS, RequestLimits(10**18, 10**12, 10**12)):
        assert peak(body, limits) < 100_000


@pytest.mark.parametrize(
    "inputs",
    [
        b"[],",
        b'{"":0},',
        b"[" * 1000 + b"]" * 1000 + b",",
        b'{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": ["%s", 1]},' % (b"x" * 50_000),
    ],
    ids=["lists", "objects", "nested lists", "a long string among numbers"],
)
def test_json_costs_no_more_than_the_limits_say(inputs):
    body = b'{"inputs": [' + inputs * (100_000 // len(inputs) + 1) + b"0]}"
    assert peak(body, LIMITS) < 45 * len(body)


def peak(body, limits):
    """Bytes that a refusal takes at most."""
    tracemalloc.start()
    try:
        refusal(body, None, limits)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
