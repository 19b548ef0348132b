"""LAME as an ONNX graph, held against the core."""

import json

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto
from onnxruntime import quantization

import lametta
from lametta import LamettaError, knn, lame, linear, rbf
from lametta.integrations.onnx import OnnxModel, export
from tests.conftest import make_batch, shared, softmax
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
    node,
    save,
    value,
)
from tests.integrations.graphs import (
    linear as linear_net,
)
from tests.integrations.test_onnx_quantized import Reader

AFFINITIES = [
    knn(5),
    knn(3, symmetric=True),
    knn(3, direction="reverse"),
    knn(3, direction="both"),
    knn(40),
    rbf(5),
    rbf(2, row_sum=5.0, symmetric=True),
    linear(),
    linear(row_sum=5.0),
]


def start(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])


def run(graph, **inputs):
    session = graph if isinstance(graph, onnxruntime.InferenceSession) else start(graph)
    corrected, label = session.run(["corrected", "label"], inputs)
    np.testing.assert_array_equal(label, corrected.argmax(axis=1))
    assert corrected.dtype == np.float32
    return corrected


def batch(*arguments, **options):
    return [array.astype(np.float32) for array in make_batch(*arguments, **options)]


def one_hot(features, probs):
    return features, np.eye(probs.shape[1], dtype=np.float32)[probs.argmax(axis=1)]


def duplicated(features, probs):
    return np.repeat(features, 3, axis=0), probs.repeat(3, axis=0)[::-1].copy()


def scaled(features, probs):
    """Lengths whose squares leave the range of float32, and two rows of zeros."""
    powers = np.float32(10) ** RNG.integers(-37, 37, size=(len(features), 1)).astype(np.float32)
    powers[[2, 7]] = 0
    return features * powers, probs


def counted(features, probs):
    """Small integers, so that many samples are equally near."""
    features = np.round(features).clip(-1, 1)
    features[:, 0] = 1  # rows of zeros are another case
    return features, probs


CASES = {
    "usual": batch(40, 5),
    "many classes": batch(30, 1000, scale=8.0),
    "one hot": one_hot(*batch(30, 6)),
    "duplicates": duplicated(*batch(8, 4)),
    "zeros and lengths": scaled(*batch(20, 4)),
    "ties": counted(*batch(40, 4, d=4)),
    "two": batch(2, 3),
    "one": batch(1, 3),
    "none": [array[:0] for array in batch(1, 3)],
    "one class": batch(6, 1),
    "one feature": batch(6, 3, d=1),
}


@pytest.fixture(scope="module", params=AFFINITIES, ids=repr)
def graph(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("graph") / "lame.onnx"
    export(path, affinity=request.param)
    return request.param, path, start(path)


@pytest.mark.parametrize("case", CASES)
def test_equal_to_the_core(graph, case):
    affinity, _, session = graph
    features, probs = CASES[case]
    expected = lame(features, probs, affinity=affinity, max_iter=20, tol=0).probs
    corrected = run(session, features=features, probs=probs)
    assert corrected.shape == probs.shape
    np.testing.assert_allclose(corrected, expected, rtol=0, atol=1e-5)
    if case == "usual":
        assert np.abs(corrected - probs).max() > 0.1


def test_a_bank_of_photographs(tmp_path):
    """500 images of 10 of ImageNet's 1000 classes, batches of one class and of all."""
    with np.load(shared("data", "banks", "imagenette_val500_lite0.npz")) as bank:
        features, logits = (bank[name].astype(np.float32) for name in ("features", "logits"))
    export(tmp_path / "lame.onnx")
    for rows in (slice(0, 64), slice(0, None, 8)):
        x, q = features[rows], softmax(logits[rows])
        expected = lame(x, q, max_iter=20, tol=0).probs
        corrected = run(tmp_path / "lame.onnx", features=x, probs=q)
        np.testing.assert_allclose(corrected, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("weight", "iterations"), [(0.3, 7), (0.0, 5), (1e6, 3), (1, 0), (2, 1)])
def test_options(tmp_path, weight, iterations):
    export(tmp_path / "lame.onnx", weight=weight, iterations=iterations)
    features, probs = CASES["usual"]
    expected = lame(features, probs, weight=weight, max_iter=iterations, tol=0).probs
    corrected = run(tmp_path / "lame.onnx", features=features, probs=probs)
    np.testing.assert_allclose(corrected, expected, rtol=0, atol=1e-5)


def test_a_standard_graph(graph):
    affinity, path, _ = graph
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    kinds = {node.op_type for node in model.graph.node}
    assert not kinds & {"Loop", "If", "Scan"}
    assert {node.domain for node in model.graph.node} == {""}
    assert [(o.domain, o.version) for o in model.opset_import] == [("", 17)]
    assert path.stat().st_size < 10_000
    shapes = {
        put.name: [side.dim_param for side in put.type.tensor_type.shape.dim]
        for put in (*model.graph.input, *model.graph.output)
    }
    assert shapes == {
        "features": ["N", "d"], "probs": ["N", "K"], "corrected": ["N", "K"], "label": ["N"]
    }  # fmt: skip
    (entry,) = model.metadata_props
    described = {"affinity": repr(affinity), "weight": 1.0, "iterations": 20}
    assert (entry.key, json.loads(entry.value)) == ("lametta.lame", described)


# Behind a model


@pytest.fixture
def path(tmp_path):
    return tmp_path / "net.onnx"


def check(path, x, *, tol=1e-5, inputs=None, **options):
    """A joined graph against the same model, corrected by the core."""
    target = path.with_name("joined.onnx")
    affinity = knn(2)
    export(target, model=path, affinity=affinity, iterations=10, **options)
    onnx.checker.check_model(onnx.load(target), full_check=True)
    core = lametta.LAME(affinity, max_iter=10, tol=0)
    expected = lametta.Corrected(OnnxModel(path, **options), core).step(x)
    corrected = run(target, **(inputs or {"x": x}))
    np.testing.assert_allclose(corrected, expected.probs, rtol=0, atol=tol)
    assert expected.info["changed"] > 0 or np.abs(expected.probs).max() < 1
    return onnx.load(target)


def opset(path, version):
    model = onnx.load(path)
    model.opset_import[0].version = version
    path.write_bytes(model.SerializeToString())


@pytest.mark.parametrize("version", [11, 13, 17, 18, 21])
@pytest.mark.parametrize("affinity", [knn(2), rbf(2, row_sum=2.0, symmetric=True), linear()])
def test_opsets(path, version, affinity):
    opset(linear_net(path), version)
    target = path.with_name("joined.onnx")
    export(target, model=path, affinity=affinity)
    onnx.checker.check_model(onnx.load(target), full_check=True)
    probs = np.exp(SCORES) / np.exp(SCORES).sum(axis=1, keepdims=True)
    expected = lame(FEATURES, probs, affinity=affinity, max_iter=20, tol=0).probs
    np.testing.assert_allclose(run(target, x=X), expected, rtol=0, atol=1e-5)


def test_an_old_opset_is_refused(path):
    opset(linear_net(path), 9)
    with pytest.raises(LamettaError, match="model must be of opset 11 or later, got 9: onnx.vers"):
        export(path.with_name("joined.onnx"), model=path)
    newer = onnx.version_converter.convert_version(onnx.load(path), 17)
    path.write_bytes(newer.SerializeToString())
    check(path, X)


@pytest.mark.parametrize(
    "after",
    [
        [],
        [node("Softmax", ["z"], ["y"], axis=1)],
        [node("LogSoftmax", ["z"], ["y"], axis=1)],
    ],
    ids=str,
)
def test_what_follows_the_head(path, after):
    joined = check(linear_net(path, *after), X)
    assert [put.name for put in joined.graph.input] == ["x"]
    assert [put.name for put in joined.graph.output] == ["corrected", "label"]


IMAGES = RNG.normal(size=(6, D, 5, 7)).astype(np.float32)
KERNEL = W.T[:, :, None, None]


def test_places_are_averaged_and_probabilities_kept(path):
    nodes = [
        node("Conv", ["x", "w"], ["z"]),
        node("Softmax", ["z"], ["p"], axis=1),
        node("GlobalAveragePool", ["p"], ["q"]),
        node("Flatten", ["q"], ["y"]),
    ]
    check(save(path, nodes, {"w": KERNEL}, x=("n", D, 5, 7)), IMAGES)
    nodes[3] = node("Identity", ["q"], ["y"])  # [N, K, 1, 1]
    check(save(path, nodes, {"w": KERNEL}, x=("n", D, 5, 7)), IMAGES)


def test_tokens_are_averaged(path):
    tokens = RNG.normal(size=(6, 7, D)).astype(np.float32)
    nodes = [node("MatMul", ["x", "w"], ["z"]), node("ReduceMean", ["z"], ["y"], axes=[1])]
    nodes[1].attribute.append(onnx.helper.make_attribute("keepdims", 0))
    check(save(path, nodes, {"w": W}, x=("n", "t", D)), tokens)
    nodes = [
        body("x", "h"),
        node("Gather", ["h", "zero"], ["f"], axis=1),
        node("Gemm", ["f", "w", "b"], ["y"]),
    ]
    weights = {"w": W, "b": B, "zero": np.array(0)}
    check(save(path, nodes, weights, x=("n", "t", D)), tokens, features="h")


@pytest.mark.parametrize("sigmoid", [True, False])
@pytest.mark.parametrize("squeezed", [True, False])
def test_binary(path, sigmoid, squeezed):
    nodes = [body(), node("MatMul", ["f", "w"], ["a"])]
    nodes.append(node("Sigmoid" if sigmoid else "Identity", ["a"], ["b"]))
    nodes.append(node("Squeeze", ["b", "axes"], ["y"]) if squeezed else node("Relu", ["b"], ["y"]))
    weights = {"w": W[:, :1], "axes": np.array([1])}
    joined = check(save(path, nodes, weights), X)
    assert joined.graph.output[0].type.tensor_type.shape.dim[1].dim_value == 2


def test_probabilities_by_argument(path):
    nodes = [
        body(),
        node("Gemm", ["f", "w", "b"], ["z"]),
        node("Exp", ["z"], ["e"]),
        node("ReduceSum", ["e", "axes"], ["t"]),
        node("Div", ["e", "t"], ["y"]),
    ]
    save(path, nodes, {"w": W, "b": B, "axes": np.array([1])})
    check(path, X, features="f", probabilities=True)
    check(path, X, logits="z")


def test_names_that_are_taken(path):
    """Also those that another export left, and those inside branches."""
    branch = onnx.helper.make_graph(
        [node("Identity", ["label"], ["inner"])], "branch", [], [value("inner", None)]
    )
    nodes = [
        node("Relu", ["x"], ["label"]),
        node("If", ["yes"], ["lametta.lame.1"], then_branch=branch, else_branch=branch),
        node("Gemm", ["lametta.lame.1", "w", "b"], ["corrected"]),
    ]
    weights = {"w": W, "b": B, "yes": np.array(True)}
    save(path, nodes, weights, outputs=[value("corrected", None)])
    check(path, X)
    inputs = [value("label", ("n", D))]
    save(path, [node("Gemm", ["label", "w", "b"], ["y"])], weights, x=inputs)
    with pytest.raises(LamettaError, match="model must have no input 'label'"):
        export(path.with_name("joined.onnx"), model=path)


@pytest.mark.filterwarnings("ignore")  # of the tools that quantize
@pytest.mark.parametrize("static", [False, True])
def test_quantized(path, static):
    quantized = path.with_name("quantized.onnx")
    if static:
        form = quantization.QuantFormat.QOperator
        quantization.quantize_static(linear_net(path), quantized, Reader(X), quant_format=form)
    else:
        quantization.quantize_dynamic(linear_net(path), quantized)
    check(quantized, X)


def test_half_precision(path):
    half = {"w": W.astype(np.float16), "b": B.astype(np.float16)}
    nodes = [body(), node("Gemm", ["f", "w", "b"], ["y"])]
    save(path, nodes, half, dtype=TensorProto.FLOAT16)
    check(path, X.astype(np.float16))


def test_fixed_batches(path):
    check(linear_net(path, x=(5, D)), X)
    linear_net(path, x=(1, D))
    with pytest.raises(LamettaError, match="model must take several samples at a time, got one"):
        export(path.with_name("joined.onnx"), model=path)


def test_old_graphs_list_weights_as_inputs(path):
    inputs = [value("x", ["n", D]), value("w", [D, K]), value("b", [K])]
    save(path, [body(), node("Gemm", ["f", "w", "b"], ["y"])], {"w": W, "b": B}, x=inputs)
    model = onnx.load(path)
    model.ir_version, model.opset_import[0].version = 3, 11
    path.write_bytes(model.SerializeToString())
    check(path, X)


def test_external_data_are_shared_in_a_folder_and_taken_into_another(path, tmp_path, monkeypatch):
    model = onnx.load(linear_net(path))
    path.unlink()
    onnx.save(model, path, save_as_external_data=True, location="weights", size_threshold=0)
    monkeypatch.chdir(tmp_path)
    export("near.onnx", model="net.onnx")
    near = onnx.load("near.onnx", load_external_data=False)
    assert {t.data_location for t in near.graph.initializer} == {TensorProto.EXTERNAL}
    other = tmp_path / "other"
    other.mkdir()
    export(other / "far.onnx", model=path)
    expected = run("near.onnx", x=X)
    (tmp_path / "weights").unlink()
    np.testing.assert_array_equal(run(other / "far.onnx", x=X), expected)


def test_too_much_for_one_file(path, tmp_path, monkeypatch):
    monkeypatch.setattr("lametta.integrations.onnx.exporter.MOST_BYTES", 100)
    with pytest.raises(LamettaError, match="path must be in the model's folder, to share its ext"):
        export(tmp_path / "joined.onnx", model=linear_net(path))


# Bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"iterations": -1}, "iterations must be an integer >= 0, got -1"),
        ({"iterations": 1001}, "iterations must be <= 1000, got 1001"),
        ({"weight": "strong"}, "weight must be a finite number >= 0 and <= 1e.06, got 'strong'"),
        ({"affinity": "knn"}, "affinity must be a callable"),
        ({"affinity": knn(5, method="faiss")}, "affinity must be an exact knn, an rbf or a linear"),
        ({"affinity": lambda x: x @ x.T}, "affinity must be an exact knn, an rbf or a linear"),
        ({"features": "f"}, "features must come with a model, got 'f'"),
        ({"probabilities": False}, "probabilities must come with a model, got False"),
        ({"model": "absent.onnx"}, "no such file: 'absent.onnx'"),
        ({"model": "net.onnx", "features": "g"}, "features must be the name of a tensor"),
        ({"model": "net.onnx", "probabilities": 1}, "probabilities must be True or False, got 1"),
        ({"model": "text.onnx"}, "model must be a classifier in ONNX's format"),
    ],
)
def test_what_cannot_be_exported(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    linear_net(tmp_path / "net.onnx")
    (tmp_path / "text.onnx").write_text("text")
    (tmp_path / "lame.onnx").write_text("old")
    with pytest.raises(LamettaError, match=message):
        export("lame.onnx", **options)
    assert (tmp_path / "lame.onnx").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 3


def test_where_to(path, tmp_path):
    linear_net(path)
    with pytest.raises(LamettaError, match="path must be a file, got .*, which is a folder"):
        export(tmp_path)
    with pytest.raises(LamettaError, match="no such folder: '.*absent'"):
        export(tmp_path / "absent" / "lame.onnx")
    with pytest.raises(LamettaError, match="path must be another file than model"):
        export(path, model=path)
