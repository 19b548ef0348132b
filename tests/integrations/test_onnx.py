"""ONNX graphs as models, held against NumPy."""

import threading

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import lametta
from lametta.integrations.onnx import OnnxModel
from tests.conftest import run_python, softmax
from tests.integrations.graphs import (
    FEATURES,
    RNG,
    SCORES,
    B,
    D,
    K,
    W,
    X,
    body,
    linear,
    node,
    save,
    value,
)

IMAGES = RNG.normal(size=(3, D, 5, 7)).astype(np.float32)
KERNEL = W.T[:, :, None, None]


def check(output, features=FEATURES, logits=SCORES, tol=1e-6):
    assert output.features.dtype == output.logits.dtype == np.float32
    np.testing.assert_allclose(output.features, features, rtol=0, atol=tol)
    np.testing.assert_allclose(output.logits, logits, rtol=0, atol=10 * tol)


def check_prototypes(model, x, tol=1e-5):
    """Those of a linear head make the logits of the features."""
    output = model(x)
    assert model.prototypes.weight.dtype == np.float32
    made = model.prototypes.logits(output.features)
    np.testing.assert_allclose(made, output.logits, rtol=0, atol=tol)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "net.onnx"


HEADS = {
    "gemm": ([node("Gemm", ["f", "w", "b"], ["y"])], {"w": W, "b": B}),
    "gemm, transposed": ([node("Gemm", ["f", "w", "b"], ["y"], transB=1)], {"w": W.T, "b": B}),
    "matmul and add": (
        [node("MatMul", ["f", "w"], ["z"]), node("Add", ["z", "b"], ["y"])],
        {"w": W, "b": B},
    ),
    "bias first": (
        [node("MatMul", ["f", "w"], ["z"]), node("Add", ["b", "z"], ["y"])],
        {"w": W, "b": B},
    ),
    "constants as nodes": (
        [
            node("Constant", [], ["w"], value=numpy_helper.from_array(W.T)),
            node("Transpose", ["w"], ["wt"]),
            node("Constant", [], ["b"], value=numpy_helper.from_array(B)),
            node("MatMul", ["f", "wt"], ["z"]),
            node("Add", ["z", "b"], ["y"]),
        ],
        {},
    ),
    "with a temperature": (
        [
            node("Gemm", ["f", "w", "b"], ["z"]),
            node("Constant", [], ["t"], value_float=0.5),
            node("Div", ["z", "t"], ["zt"]),
            node("Constant", [], ["u"], value_floats=[2.0] * K),
            node("Div", ["zt", "u"], ["y"]),
        ],
        {"w": W, "b": B},
    ),
    "half precision inside": (
        [
            node("Gemm", ["f", "w", "b"], ["z"]),
            node("Cast", ["z"], ["h"], to=TensorProto.DOUBLE),
            node("Identity", ["h"], ["y"]),
        ],
        {"w": W, "b": B},
    ),
}


@pytest.mark.parametrize("name", HEADS)
def test_heads(path, name):
    nodes, weights = HEADS[name]
    kind = TensorProto.DOUBLE if "inside" in name else TensorProto.FLOAT
    save(path, [body(), *nodes], weights, outputs=[value("y", ["n", K], kind)])
    model = OnnxModel(path)
    check(model(X))
    metadata = model.metadata
    assert (metadata.features, metadata.d, metadata.n_classes) == ("f", D, K)
    assert (metadata.batch, metadata.classes) == (None, None)
    assert [(i.name, i.shape, i.dtype) for i in metadata.inputs] == [("x", (None, D), "float32")]
    assert isinstance(model, lametta.types.Model)
    check_prototypes(model, X)


SCALE = np.array([2, 0.5, -1, 3], np.float32)


@pytest.mark.parametrize(
    ("nodes", "linear"),
    [
        ([node("Gemm", ["f", "w", "b"], ["y"], alpha=0.5, beta=2.0)], True),
        ([node("Gemm", ["f", "w", "one"], ["y"])], True),
        ([node("Gemm", ["f", "w"], ["z"]), node("Sub", ["z", "b"], ["y"])], True),
        ([node("Gemm", ["f", "w", "b"], ["z"]), node("Mul", ["s", "z"], ["y"])], True),
        ([node("Gemm", ["f", "w", "b"], ["z"]), node("Sub", ["b", "z"], ["y"])], False),
        ([node("Gemm", ["f", "w", "b"], ["z"]), node("Mul", ["z", "z"], ["y"])], False),
        ([node("Gemm", ["f", "w", "b"], ["z"]), node("Clip", ["z"], ["y"])], False),
        ([node("ReduceMax", ["x"], ["c"], axes=[1]), node("Gemm", ["f", "w", "c"], ["y"])], False),
    ],
    ids=["alpha and beta", "one bias", "sub", "mul", "minus", "square", "clip", "bias that varies"],
)
def test_prototypes_are_all_that_makes_the_logits(path, nodes, linear):
    weights = {"w": W, "b": B, "s": SCALE[None], "one": np.array([0.5], np.float32)}
    model = OnnxModel(save(path, [body(), *nodes], weights))
    model(X)
    if linear:
        check_prototypes(model, X)
    else:
        assert model.prototypes is None


def test_a_graph_that_is_its_head(path):
    save(path, [node("Gemm", ["x", "w", "b"], ["y"])], {"w": W, "b": B})
    check(OnnxModel(path)(X), X, X @ W + B)


SHAPE = np.array([-1, K])


@pytest.mark.parametrize(
    "after",
    [
        [node("Softmax", ["z"], ["y"], axis=1)],
        [node("LogSoftmax", ["z"], ["y"], axis=1)],
        [node("Softmax", ["z"], ["p"], axis=1), node("Log", ["p"], ["y"])],
        [node("Softmax", ["z"], ["p"], axis=1), node("Identity", ["p"], ["y"])],
        [node("Dropout", ["z"], ["p"]), node("Softmax", ["p"], ["y"], axis=1)],
    ],
    ids=lambda after: ", ".join(n.op_type for n in after),
)
def test_what_follows_the_head(path, after):
    model = OnnxModel(linear(path, *after))
    check(model(X))
    assert not model.probabilities
    check_prototypes(model, X)


def test_probabilities_that_cannot_be_undone(path):
    """A mean over places of softmaxes: its logarithm is all that there is."""
    nodes = [
        node("Conv", ["x", "w"], ["z"]),
        node("Softmax", ["z"], ["p"], axis=1),
        node("GlobalAveragePool", ["p"], ["q"]),
        node("Flatten", ["q"], ["y"]),
    ]
    model = OnnxModel(save(path, nodes, {"w": KERNEL}, x=("n", D, 5, 7)))
    places = np.einsum("ndhw,dk->nkhw", IMAGES, W)
    expected = np.log(softmax(places).mean(axis=(2, 3)))
    check(model(IMAGES), IMAGES.mean(axis=(2, 3)), expected)
    assert model.probabilities
    assert model.prototypes is None
    with pytest.raises(lametta.LamettaError, match="tensor of logits, got rows of sum 1"):
        OnnxModel(path, probabilities=False)(IMAGES)


def test_probabilities_by_argument(path):
    nodes = [
        body(),
        node("Gemm", ["f", "w", "b"], ["z"]),
        node("Exp", ["z"], ["e"]),
        node("ReduceSum", ["e"], ["s"], keepdims=1, noop_with_empty_axes=0),
        node("ReduceSum", ["e", "axes"], ["t"]),
        node("Div", ["e", "t"], ["y"]),
    ]
    del nodes[3]
    save(path, nodes, {"w": W, "b": B, "axes": np.array([1])})
    with pytest.raises(lametta.LamettaError, match="rows of sum 1.*probabilities=True"):
        OnnxModel(path, features="f")(X)
    check(OnnxModel(path, features="f", probabilities=True)(X), logits=np.log(softmax(SCORES)))
    sharp = X * 70 / abs(SCORES).max()
    sure = OnnxModel(path, features="f", probabilities=True)(sharp).logits
    assert np.isfinite(sure).all()
    assert sure.min() < -87  # where a probability is 0
    check(OnnxModel(path, logits="z")(X))
    with pytest.raises(lametta.LamettaError, match="tensor of probabilities, got others"):
        OnnxModel(path, logits="z", probabilities=True)(X)
    with pytest.raises(lametta.LamettaError, match="its last nodes are Div 'Div_y' <- .*Exp"):
        OnnxModel(path)


@pytest.mark.parametrize("squeezed", [False, True])
def test_convolution_over_pooled_places(path, squeezed):
    nodes = [
        node("GlobalAveragePool", ["x"], ["f"]),
        node("Conv", ["f", "w", "b"], ["z"]),
        node("Flatten", ["z"], ["y"]),
    ]
    if squeezed:
        nodes[2] = node("Squeeze", ["z", "axes"], ["y"])
    weights = {"w": KERNEL, "b": B, "axes": np.array([2, 3])}
    model = OnnxModel(save(path, nodes, weights, x=("n", D, 5, 7)))
    features = IMAGES.mean(axis=(2, 3))
    check(model(IMAGES), features, features @ W + B)
    assert (model.metadata.d, model.metadata.n_classes) == (D, K)
    check_prototypes(model, IMAGES)


def test_convolution_before_pooling(path):
    """As in SqueezeNet: the features are averaged over the places as the scores are."""
    nodes = [
        node("Conv", ["x", "w", "b"], ["z"]),
        node("Relu", ["z"], ["r"]),
        node("GlobalAveragePool", ["r"], ["p"]),
        node("Reshape", ["p", "shape"], ["y"]),
    ]
    weights = {"w": KERNEL, "b": B, "shape": SHAPE}
    model = OnnxModel(save(path, nodes, weights, x=("n", D, 5, 7)))
    places = np.einsum("ndhw,dk->nkhw", IMAGES, W) + B[:, None, None]
    expected = np.maximum(places, 0).mean(axis=(2, 3))
    check(model(IMAGES), IMAGES.mean(axis=(2, 3)), expected)
    assert model.prototypes is None  # after the ReLU nothing linear makes the logits
    del nodes[1]
    nodes[1].input[0] = "z"
    check_prototypes(OnnxModel(save(path, nodes, weights, x=("n", D, 5, 7))), IMAGES)


TOKENS = RNG.normal(size=(3, 7, D)).astype(np.float32)


def test_first_token(path):
    nodes = [
        body("x", "h"),
        node("Gather", ["h", "zero"], ["f"], axis=1),
        node("Gemm", ["f", "w", "b"], ["y"]),
    ]
    weights = {"w": W, "b": B, "zero": np.array(0)}
    model = OnnxModel(save(path, nodes, weights, x=("n", "t", D)))
    features = np.maximum(TOKENS[:, 0], 0)
    check(model(TOKENS), features, features @ W + B)
    # Named features with tokens are averaged.
    tokens = OnnxModel(path, features="h")
    check(tokens(TOKENS), np.maximum(TOKENS, 0).mean(1), features @ W + B)
    assert tokens.prototypes is None  # they are those of the first token
    check_prototypes(OnnxModel(path, features="f"), TOKENS)


def test_mean_of_tokens_after_the_head(path):
    nodes = [node("MatMul", ["x", "w"], ["z"]), node("ReduceMean", ["z"], ["y"], axes=[1])]
    nodes[1].attribute.append(onnx.helper.make_attribute("keepdims", 0))
    model = OnnxModel(save(path, nodes, {"w": W}, x=("n", "t", D)))
    check(model(TOKENS), TOKENS.mean(1), TOKENS.mean(1) @ W)
    check_prototypes(model, TOKENS)
    assert model.prototypes.bias is None


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_fixed_batch(path, batch, logged):
    shape = np.array([batch, K])
    nodes = [
        body(),
        node("Gemm", ["f", "w", "b"], ["z"]),
        node("Reshape", ["z", "shape"], ["y"]),
    ]
    save(path, nodes, {"w": W, "b": B, "shape": shape}, x=(batch, D))
    model = OnnxModel(path)
    assert f"takes batches of {batch} alone" in logged.getvalue()
    assert model.metadata.batch == batch
    check(model(X))
    check(model(X[:1]), FEATURES[:1], SCORES[:1])


def test_batch_of_one_that_is_squeezed(path):
    nodes = [node("Squeeze", ["z", "axes"], ["y"])]
    nodes = [body(), node("Gemm", ["f", "w", "b"], ["z"]), *nodes]
    save(path, nodes, {"w": W, "b": B, "axes": np.array([0])}, x=(1, D))
    check(OnnxModel(path)(X))


def test_half_precision(path):
    half = np.float16
    weights = {"w": W.astype(half), "b": B.astype(half)}
    nodes = [body(), node("Gemm", ["f", "w", "b"], ["y"])]
    save(path, nodes, weights, dtype=TensorProto.FLOAT16)
    model = OnnxModel(path)
    assert model.metadata.inputs[0].dtype == "float16"
    features = np.maximum(X.astype(half), 0).astype(np.float32)
    output = model(X)  # float32 is rounded to what the graph takes
    np.testing.assert_array_equal(output.features, features)
    np.testing.assert_allclose(output.logits, SCORES, atol=2e-2)
    assert output.logits.dtype == np.float32
    check_prototypes(model, X, tol=2e-2)


def test_binary(path):
    nodes = [body(), node("MatMul", ["f", "w"], ["z"]), node("Sigmoid", ["z"], ["y"])]
    model = OnnxModel(save(path, nodes, {"w": W[:, :1]}))
    logits = np.concatenate([np.zeros((5, 1)), FEATURES @ W[:, :1]], axis=1)
    check(model(X), logits=logits)
    assert model.metadata.n_classes == 2
    check_prototypes(model, X)
    with pytest.raises(lametta.LamettaError, match="Sigmoid over 4 classes"):
        OnnxModel(linear(path, node("Sigmoid", ["z"], ["y"])))


def test_external_data(path, tmp_path, monkeypatch):
    model = onnx.load(linear(path))
    path.unlink()
    onnx.save(model, path, save_as_external_data=True, location="weights", size_threshold=0)
    monkeypatch.chdir(tmp_path.parent)
    check(OnnxModel(path)(X))
    check(OnnxModel(path.relative_to(tmp_path.parent))(X))
    monkeypatch.chdir(tmp_path)
    check(OnnxModel("net.onnx")(X))
    check_prototypes(OnnxModel("net.onnx"), X)
    (tmp_path / "weights").unlink()
    with pytest.raises(lametta.LamettaError, match="External data"):
        OnnxModel(path)


def test_external_data_elsewhere_is_refused(path, tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    model = onnx.load(linear(path))
    onnx.save(model, path, save_as_external_data=True, location="weights", size_threshold=0)
    edited = onnx.load(path, load_external_data=False)
    for tensor in edited.graph.initializer:
        for entry in tensor.external_data:
            entry.value = "../weights" if entry.key == "location" else entry.value
    (inside / "net.onnx").write_bytes(edited.SerializeToString())
    with pytest.raises(lametta.LamettaError, match="escapes"):
        OnnxModel(inside / "net.onnx")


def test_several_outputs(path):
    more = [
        node("Softmax", ["z"], ["p"], axis=1),
        node("ArgMax", ["z"], ["label"], axis=1),
        node("Gemm", ["f", "w2"], ["other"]),
    ]
    nodes = [body(), node("Gemm", ["f", "w", "b"], ["z"]), *more]
    weights = {"w": W, "b": B, "w2": W[:, :2].copy()}
    label = value("label", None, TensorProto.INT64)
    save(path, nodes, weights, outputs=[label, value("p", None), value("z", None)])
    check(OnnxModel(path)(X))
    save(path, nodes, weights, outputs=[value("other", None), value("z", None)])
    with pytest.raises(lametta.LamettaError, match="logits must say which .* 'other', 'z'"):
        OnnxModel(path)
    check(OnnxModel(path, logits="z")(X))
    check(OnnxModel(path, logits="p")(X))
    check(OnnxModel(path, logits="other")(X), logits=FEATURES @ W[:, :2])
    nodes = [body(), node("Gemm", ["f", "w", "b"], ["logits"]), more[2]]
    save(path, nodes, weights, outputs=[value("other", None), value("logits", None)])
    check(OnnxModel(path)(X))


def test_several_heads(path):
    nodes = [
        body(),
        node("Gemm", ["f", "w"], ["u"]),
        node("Gemm", ["x", "w"], ["v"]),
        node("Add", ["u", "v"], ["y"]),
    ]
    save(path, nodes, {"w": W})
    with pytest.raises(
        lametta.LamettaError, match="'y' comes from several layers, .*'[fx]', '[fx]'"
    ):
        OnnxModel(path)
    check(OnnxModel(path, features="x")(X), X, X @ W + FEATURES @ W)


def test_several_inputs(path):
    inputs = [value("a", ["n", D]), value("b", ["n", D], TensorProto.INT64)]
    nodes = [
        node("Cast", ["b"], ["c"], to=TensorProto.FLOAT),
        node("Add", ["a", "c"], ["f"]),
        node("Gemm", ["f", "w"], ["y"]),
    ]
    model = OnnxModel(save(path, nodes, {"w": W}, x=inputs))
    ids = np.arange(5 * D, dtype=np.int32).reshape(5, D)
    check(model({"a": X, "b": ids}), X + ids, (X + ids) @ W, tol=1e-5)
    for x in (X, {"a": X}):
        with pytest.raises(lametta.LamettaError, match="a mapping with the tensors 'a', 'b', got"):
            model(x)
    with pytest.raises(lametta.LamettaError, match="got 5 of 'a' and 4 of 'b'"):
        model({"a": X, "b": ids[:4]})


def test_old_graphs_list_weights_as_inputs(path):
    inputs = [value("x", ["n", D]), value("w", [D, K]), value("b", [K])]
    save(path, [body(), node("Gemm", ["f", "w", "b"], ["y"])], {"w": W, "b": B}, x=inputs)
    model = OnnxModel(path)
    assert len(model.metadata.inputs) == 1
    check(model(X))
    check_prototypes(model, X)


def test_functions_of_the_model(path):
    linear(path)
    model = onnx.load(path)
    opsets = [onnx.helper.make_opsetid("", 17)]
    inner = [node("Gemm", ["i", "v", "u"], ["o"])]
    dense = onnx.helper.make_function("mine", "Dense", ["i", "v", "u"], ["o"], inner, opsets)
    model.functions.append(dense)
    model.opset_import.append(onnx.helper.make_opsetid("mine", 1))
    model.graph.node[1].op_type, model.graph.node[1].domain = "Dense", "mine"
    path.write_bytes(model.SerializeToString())
    check(OnnxModel(path)(X))
    check_prototypes(OnnxModel(path), X)


def test_names_that_are_taken(path):
    nodes = [
        node("Relu", ["x"], ["lametta.features"]),
        node("Gemm", ["lametta.features", "w", "b"], ["lametta.logits"]),
    ]
    save(path, nodes, {"w": W, "b": B}, outputs=[value("lametta.logits", None)])
    check(OnnxModel(path)(X))


def test_in_threads(path):
    model = OnnxModel(linear(path), threads=1)
    outputs = {}

    def call(i):
        for _ in range(20):
            outputs[i] = model(X[i:])

    threads = [threading.Thread(target=call, args=(i,)) for i in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(5):
        check(outputs[i], FEATURES[i:], SCORES[i:])


def test_corrected(path):
    model = OnnxModel(linear(path, node("Softmax", ["z"], ["y"])))
    adapter = lametta.Corrected(model, lametta.Prudent())
    got = [adapter.step(x[None]).probs for x in X]
    reference = lametta.Prudent()
    for i, probs in enumerate(got):
        output = model(X[i : i + 1])
        expected = reference.correct(output.features, softmax(output.logits)).probs
        np.testing.assert_allclose(probs, expected, atol=1e-6)
    assert probs.dtype == np.float32
    lametta.Source(model).step(X[:0])


def test_empty_batch(path):
    output = OnnxModel(linear(path))(X[:0])
    assert (output.features.shape, output.logits.shape) == ((0, D), (0, K))


@pytest.mark.slow
def test_torch_is_not_imported(path):
    linear(path)
    code = f"""
import sys, numpy as np
import lametta.integrations.onnx as o
assert "onnx" not in sys.modules and "onnxruntime" not in sys.modules
o.OnnxModel({str(path)!r})(np.zeros((1, {D}), np.float32))
assert "torch" not in sys.modules
"""
    assert run_python(code).stderr == ""
