"""Quantized graphs, as ONNX Runtime's own tools make them."""

import numpy as np
import onnx
import pytest
from onnxruntime import quantization

from lametta.integrations.onnx import OnnxModel
from tests.integrations.graphs import FEATURES, RNG, SCORES, B, D, W, X, body, linear, node, save

IMAGES = RNG.normal(size=(4, D, 3, 5)).astype(np.float32)
KERNEL = W.T[:, :, None, None].copy()


class Reader(quantization.CalibrationDataReader):
    def __init__(self, x):
        self.samples = ({"x": row[None]} for row in x)

    def get_next(self):
        return next(self.samples, None)


def gemm(path):
    return linear(path), X, FEATURES, SCORES


def gemm_softmax(path):
    return linear(path, node("Softmax", ["z"], ["y"], axis=1)), X, FEATURES, SCORES


def matmul_add(path):
    nodes = [body(), node("MatMul", ["f", "w"], ["z"]), node("Add", ["z", "b"], ["y"])]
    return save(path, nodes, {"w": W, "b": B}), X, FEATURES, SCORES


def convolution(path):
    nodes = [
        node("GlobalAveragePool", ["x"], ["f"]),
        node("Conv", ["f", "w", "b"], ["z"]),
        node("Flatten", ["z"], ["y"]),
    ]
    features = IMAGES.mean(axis=(2, 3))
    save(path, nodes, {"w": KERNEL, "b": B}, x=("n", D, 3, 5))
    return path, IMAGES, features, features @ W + B


def convolution_before_pooling(path):
    nodes = [
        body(),
        node("Conv", ["f", "w", "b"], ["z"]),
        node("GlobalAveragePool", ["z"], ["p"]),
        node("Flatten", ["p"], ["y"]),
    ]
    features = np.maximum(IMAGES, 0).mean(axis=(2, 3))
    save(path, nodes, {"w": KERNEL, "b": B}, x=("n", D, 3, 5))
    return path, IMAGES, features, features @ W + B


@pytest.mark.filterwarnings("ignore")  # of the tools that quantize
@pytest.mark.parametrize("kind", ["dynamic", "QDQ", "QOperator"])
@pytest.mark.parametrize(
    "make", [gemm, gemm_softmax, matmul_add, convolution, convolution_before_pooling]
)
def test_quantized(tmp_path, make, kind):
    path, x, features, logits = make(tmp_path / "net.onnx")
    quantized = tmp_path / "quantized.onnx"
    if kind == "dynamic":
        quantization.quantize_dynamic(path, quantized)
    else:
        form = quantization.QuantFormat[kind]
        quantization.quantize_static(path, quantized, Reader(x), quant_format=form)
    kinds = {n.op_type for n in onnx.load(quantized).graph.node}
    assert any("Integer" in name or "Q" in name for name in kinds)
    model = OnnxModel(quantized)
    output = model(x)
    np.testing.assert_allclose(output.features, features, atol=0.01)
    np.testing.assert_allclose(output.logits, logits, atol=0.1)
    assert (model.metadata.d, model.metadata.n_classes) == (features.shape[1], logits.shape[1])
    if kind == "QDQ":  # dequantized weights, which are floating-point numbers again
        np.testing.assert_allclose(model.prototypes.logits(output.features), logits, atol=0.1)
    else:
        assert model.prototypes is None
