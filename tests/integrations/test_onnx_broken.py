"""Files that are no ONNX model, or broken, or not a classifier: an error that says so."""

import json
import logging
from contextlib import suppress

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lametta import LamettaError
from lametta.integrations.onnx import OnnxModel, runtime
from tests.integrations.graphs import RNG, B, D, K, W, X, body, linear, node, save, value

SMALL = np.zeros((2, 3, 8, 8), np.float32)
NAMES = ["ant", "bee", "cat", "dog"]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "net.onnx"


def whole(path):
    """A graph with most of what is looked at."""
    nodes = [
        node("Conv", ["x", "k"], ["c"], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"]),
        node("GlobalAveragePool", ["r"], ["g"]),
        node("Flatten", ["g"], ["f"]),
        node("Transpose", ["wt"], ["w"], perm=[1, 0]),
        node("MatMul", ["f", "w"], ["m"]),
        node("Add", ["m", "b"], ["z"]),
        node("Reshape", ["z", "shape"], ["s"]),
        node("Softmax", ["s"], ["y"], axis=1),
    ]
    kernel = RNG.normal(size=(D, 3, 3, 3)).astype(np.float32)
    weights = {"k": kernel, "wt": W.T.copy(), "b": B, "shape": np.array([-1, K])}
    metadata = {"names": json.dumps(NAMES), "lametta.crop": "8"}
    return save(path, nodes, weights, x=("n", 3, 8, 8), **metadata)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    logging.getLogger("lametta").disabled = True
    yield whole(tmp_path_factory.mktemp("onnx") / "whole.onnx").read_bytes()
    logging.getLogger("lametta").disabled = False


def works_or_says_why(path, content):
    path.write_bytes(content)
    with suppress(LamettaError):
        output = OnnxModel(path, threads=1)(SMALL)
        assert output.features.ndim == output.logits.ndim == 2
        assert len(output.features) == len(output.logits) == 2
        assert output.features.dtype == output.logits.dtype == np.float32


FUZZ = settings(
    max_examples=200,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.slow
@FUZZ
@given(share=st.floats(0, 1))
def test_truncated(path, data, share):
    works_or_says_why(path, data[: int(share * len(data))])


@pytest.mark.slow
@FUZZ
@given(
    flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=3)
)
def test_flipped(path, data, flips):
    broken = bytearray(data)
    for place, byte in flips:
        broken[place % len(broken)] = byte
    works_or_says_why(path, bytes(broken))


KINDS = ["Conv", "Gemm", "MatMulInteger", "QLinearMatMul", "QGemm", "QLinearConv", "ConvInteger"]
KINDS += ["Softmax", "QLinearSoftmax", "Sigmoid", "Constant", "Transpose", "Identity", "If", ""]
TENSORS = ["x", "k", "c", "r", "f", "w", "wt", "m", "b", "z", "s", "y", "", "absent"]
NUMBERS = [-(2**63), -1, 0, 1, 3, 2**16 + 1, 2**31, 2**63 - 1]


@pytest.mark.slow
@FUZZ
@given(
    edits=st.lists(
        st.tuples(
            st.integers(0, 8),
            st.sampled_from(["kind", "input", "output", "attribute", "dims", "side"]),
            st.sampled_from(KINDS),
            st.sampled_from(TENSORS),
            st.sampled_from(NUMBERS),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_whole_files_of_broken_graphs(path, data, edits):
    model = onnx.ModelProto.FromString(data)
    graph = model.graph
    for place, what, kind, tensor, number in edits:
        at = graph.node[place]
        if what == "kind":
            at.op_type = kind
        elif what in ("input", "output"):
            tensors = at.input if what == "input" else at.output
            tensors[:] = [*tensors, tensor] if number == 0 else [*tensors[:-1], tensor][:number]
        elif what == "attribute":
            for attribute in at.attribute:
                attribute.i = number
                attribute.ints[:] = [number, *attribute.ints[1:]][: abs(number)]
        elif what == "dims":
            graph.initializer[place % 4].dims[:] = [number, place]
        else:
            graph.input[0].type.tensor_type.shape.dim[place % 4].dim_value = number
    works_or_says_why(path, model.SerializeToString())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no graph"),
        (b"not a model at all", "must be a classifier in ONNX's format"),
        (b"PK\x03\x04", "must be a classifier in ONNX's format"),
        (b'{"graph": {}}', "must be a classifier in ONNX's format"),
    ],
)
def test_no_model(path, content, message):
    path.write_bytes(content)
    with pytest.raises(LamettaError, match=message):
        OnnxModel(path)


def test_no_file(path, tmp_path, monkeypatch):
    for absent in (path, tmp_path):
        with pytest.raises(LamettaError, match="no such file: '.*'$"):
            OnnxModel(absent)
    monkeypatch.setattr(runtime, "MOST_BYTES", 100)
    with pytest.raises(LamettaError, match="at most 100 bytes, .* external data"):
        OnnxModel(linear(path))


def test_no_head(path):
    nodes = [body(), node("Gemm", ["f", "w"], ["m"]), node("Tanh", ["m"], ["y"])]
    save(path, nodes, {"w": W})
    message = "'y' was expected to come from a Gemm, .* last nodes are Tanh 'Tanh_y'"
    with pytest.raises(LamettaError, match=message):
        OnnxModel(path)
    save(
        path, [node("MatMul", ["x", "x2"], ["y"])], {}, x=[value("x", [2, 2]), value("x2", [2, 2])]
    )
    with pytest.raises(LamettaError, match="constant weights, .* MatMul 'MatMul_y'"):
        OnnxModel(path)
    kernel = RNG.normal(size=(K, 3, 3, 3)).astype(np.float32)
    save(path, [node("Conv", ["x", "w"], ["y"])], {"w": kernel}, x=("n", 3, 8, 8))
    with pytest.raises(LamettaError, match="a 1x1 Conv"):
        OnnxModel(path)


def test_circles(path):
    nodes = [node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"])]
    save(path, nodes, {}, outputs=[value("b", None)])
    with pytest.raises(LamettaError, match="last nodes are Relu 'Relu_b' <- Add 'Add_a'$"):
        OnnxModel(path)
    nodes = [node("Identity", ["a"], ["b"]), node("Identity", ["b"], ["a"])]
    nodes += [node("MatMul", ["x", "a"], ["c"])]
    save(path, nodes, {}, outputs=[value("c", None)])
    with pytest.raises(LamettaError, match="last nodes are MatMul 'MatMul_c'$"):
        OnnxModel(path)


def test_scores_of_every_place(path):
    kernel = RNG.normal(size=(K, 3, 1, 1)).astype(np.float32)
    save(path, [node("Conv", ["x", "w"], ["y"])], {"w": kernel}, x=("n", 3, "h", "w"))
    with pytest.raises(LamettaError, match=r"logits must be \[2, 4\], got shape \(2, 4, 8, 8\)"):
        OnnxModel(path)(SMALL)
    save(path, [node("Conv", ["x", "w"], ["y"])], {"w": kernel}, x=("n", 3, 8, 8))
    with pytest.raises(LamettaError, match="logits must have 4 columns, .* got 256"):
        OnnxModel(path)


def test_features_of_another_length(path):
    nodes = [
        node("Transpose", ["x"], ["t"]),
        node("Relu", ["x"], ["f"]),
        node("Gemm", ["f", "w"], ["y"]),
    ]
    save(path, nodes, {"w": W})
    with pytest.raises(LamettaError, match=r"a row for each of 5 samples, got \(6, 5\)"):
        OnnxModel(path, features="t")(X)


def test_logits_that_lie_across(path):
    linear(path, node("Transpose", ["z"], ["y"]))
    with pytest.raises(LamettaError, match=r"logits must be \[5, 4\], got shape \(4, 5\)"):
        OnnxModel(path, features="f")(X)


def test_names_of_tensors(path):
    linear(path)
    with pytest.raises(LamettaError, match="features must be the name of a tensor .* got 'g'"):
        OnnxModel(path, features="g")
    with pytest.raises(LamettaError, match=r"logits must be .* the last are \['f', 'y', 'x'\]"):
        OnnxModel(path, logits="scores")


def test_arguments(path):
    linear(path)
    with pytest.raises(LamettaError, match="threads must be an integer >= 1, got 0"):
        OnnxModel(path, threads=0)
    with pytest.raises(LamettaError, match="probabilities must be True or False"):
        OnnxModel(path, probabilities="yes")
    for wrong in ("CPUExecutionProvider", []):
        with pytest.raises(LamettaError, match="providers must be a sequence of names, got"):
            OnnxModel(path, providers=wrong)
    with pytest.raises(LamettaError, match="providers must be one of .* mean 'CPUExecutionP"):
        OnnxModel(path, providers=["CPUExecutionProvidr"])
    model = OnnxModel(path, providers=["CPUExecutionProvider"], threads=3)
    assert model._session.get_session_options().intra_op_num_threads == 3
    assert model._session.get_providers() == ["CPUExecutionProvider"]
    model(X)
    OnnxModel(path, providers=[("CPUExecutionProvider", {})])(X)


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, bool, object, "<U3"])
def test_types_of_tensors(path, dtype):
    with pytest.raises(LamettaError, match=r"x must be float32 \[N, 6\] for the graph's input 'x'"):
        OnnxModel(linear(path))(np.zeros((2, D), dtype))


def test_numbers_that_do_not_fit(path):
    nodes = [node("Cast", ["x"], ["f"], to=1), node("MatMul", ["f", "w"], ["y"])]
    inputs = [value("x", ["n", D], onnx.TensorProto.INT8)]
    model = OnnxModel(save(path, nodes, {"w": W}, x=inputs))
    assert model(np.ones((2, D), int)).logits.shape == (2, K)
    with pytest.raises(LamettaError, match="x must fit into int8"):
        model(np.full((2, D), 300))


def test_inputs_of_graphs(path):
    """None at all, one with any number of axes, and one that is no tensor of numbers."""
    linear(path, x=[value("x", None)])
    model = OnnxModel(path)
    assert str(model.metadata.inputs[0]) == "float32 [N, ...]"
    assert model(X).logits.shape == (5, K)
    with pytest.raises(LamettaError, match=r"x must be float32 \[N, ...\] .* got float64 \[\]"):
        model(1.0)
    with pytest.raises(LamettaError, match="what the graph can run: "):
        model(X[:, 1:])
    nodes = [node("Identity", ["c"], ["f"]), node("MatMul", ["f", "w"], ["y"])]
    save(path, nodes, {"w": W, "c": X}, x=[])
    with pytest.raises(LamettaError, match="must take a tensor, got one without inputs"):
        OnnxModel(path)
    nodes = [node("Cast", ["x"], ["f"], to=1), node("MatMul", ["f", "w"], ["y"])]
    save(path, nodes, {"w": W}, x=[value("x", ["n", D], onnx.TensorProto.STRING)])
    with pytest.raises(LamettaError, match=r"tensors of numbers, got 'x' of tensor\(string\)"):
        OnnxModel(path)
    pixels = [value("x", ["n", 3, 2, 1], onnx.TensorProto.INT32)]
    save(
        path,
        [nodes[0], node("Flatten", ["f"], ["g"]), node("MatMul", ["g", "w"], ["y"])],
        {"w": W},
        x=pixels,
    )
    with pytest.raises(LamettaError, match="got images"):
        OnnxModel(path)([np.zeros((2, 1, 3), np.uint8)])


def test_huge_fixed_batch(path):
    linear(path, x=(2**40, D))
    with pytest.raises(LamettaError, match="batches must be of 65536 at most"):
        OnnxModel(path)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"names": json.dumps(NAMES)}, tuple(NAMES)),
        ({"classes": json.dumps({str(i): name for i, name in enumerate(NAMES)})}, tuple(NAMES)),
        ({"names": "{0: 'ant', 1: 'bee', 2: 'cat', 3: 'dog'}"}, tuple(NAMES)),  # as Ultralytics
        ({"names": str(NAMES)}, tuple(NAMES)),
        ({"names": str([*NAMES[:3], """d'"\\g"""])}, (*NAMES[:3], """d'"\\g""")),
        ({"id2label": json.dumps(dict(enumerate(NAMES)))}, tuple(NAMES)),
        ({"names": "?", "id2label": str(dict(enumerate(NAMES)))}, tuple(NAMES)),
        ({"names": "{1: 'ant', 2: 'bee', 3: 'cat', 4: 'dog'}"}, None),
        ({"names": "{'ant', 'bee', 'cat', 'dog'}"}, None),
        ({"names": "['ant', 'bee', 'cat', 'd' 'og']"}, None),
        ({"names": "['ant', 'bee', 'cat', '\\x']"}, None),
        ({"names": "['ant', 'bee', 'cat', str(4)]"}, None),
        ({"names": "['ant', 'bee', 'cat', ['dog']]"}, None),
        ({"names": "[" * 10**5 + "'ant'"}, None),
        ({"names": "['ant'" + " " * 10**6}, None),
        ({"names": json.dumps([*NAMES[:3], "d" * 2**20])}, None),
        ({"names": "__import__('os').abort()"}, None),
        ({"names": json.dumps(NAMES[:3])}, None),
        ({"names": json.dumps([1, 2, 3, 4])}, None),
        ({"names": "[" * 10**5}, None),
        ({"names": "4"}, None),
        ({"classes": "?", "names": json.dumps(NAMES)}, tuple(NAMES)),
    ],
)
def test_names_of_classes(path, metadata, expected):
    assert OnnxModel(linear(path, **metadata)).metadata.classes == expected
