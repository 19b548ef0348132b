"""Small classifiers as ONNX files, and NumPy's answer to each."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

IR, OPSET = 9, 17
RNG = np.random.default_rng(0)
D, K = 6, 4
W = RNG.normal(size=(D, K)).astype(np.float32)
B = RNG.normal(size=K).astype(np.float32)
X = RNG.normal(size=(5, D)).astype(np.float32)


def node(kind, inputs, outputs, **attributes):
    return helper.make_node(kind, inputs, outputs, name=f"{kind}_{outputs[0]}", **attributes)


def value(name, shape, dtype=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def save(path, nodes, weights, x=("n", D), outputs=None, dtype=TensorProto.FLOAT, **metadata):
    """Write a graph with input x and, if nothing else is said, output y."""
    inputs = [value("x", x, dtype)] if isinstance(x, tuple) else x
    outputs = [value("y", None, dtype)] if outputs is None else outputs
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR)
    helper.set_model_props(model, metadata)
    path.write_bytes(model.SerializeToString())
    return path


def body(name="x", out="f"):
    """Something before the head, so that features differ from the input."""
    return node("Relu", [name], [out])


def linear(path, *more, **options):
    """Relu, then Gemm to z, then what is given, which has to make y."""
    nodes = [body(), node("Gemm", ["f", "w", "b"], ["z" if more else "y"]), *more]
    return save(path, nodes, {"w": W, "b": B}, **options)


FEATURES = np.maximum(X, 0)
SCORES = FEATURES @ W + B


def brightness(path):
    """A network of two classes, dark and bright, whose threshold is the middle."""
    nodes = [
        node("GlobalAveragePool", ["x"], ["p"]),
        node("Flatten", ["p"], ["f"]),
        node("Gemm", ["f", "w", "b"], ["y"]),
    ]
    weights = {"w": np.array([[-5, 5]] * 3, np.float32), "b": np.zeros(2, np.float32)}
    return save(path, nodes, weights, x=("n", 3, 8, 8))
