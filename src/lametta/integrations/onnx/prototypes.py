"""Prototypes of an ONNX graph: the weights of its head, where that is a linear layer."""

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lametta._checks import import_optional
from lametta.integrations.onnx.graph import Graph, Head, free_prefix
from lametta.integrations.onnx.runtime import CPU, Floats, session
from lametta.types import Prototypes

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

_LINEAR = {"Gemm", "MatMul", "Conv"}
_SYMMETRIC = {"Add", "Mul"}  # whose operands may change places
_ARITHMETIC = {"Sub", "Div", *_SYMMETRIC}
# Layers through which logits go as they are, but for rounding, or as a mean over places or tokens.
_NEUTRAL = {"Identity", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Dropout"}
_NEUTRAL |= {"QuantizeLinear", "DequantizeLinear", "GlobalAveragePool", "ReduceMean"}


def find_prototypes(model: "ModelProto", head: Head, folder: Path) -> Prototypes | None:
    """Read the weights and biases that make logits of features; None if no linear layer does.

    What the graph adds to logits or multiplies them by, such as a temperature, is part of them.
    """
    graph = Graph(model)
    nodes = _linear_path(graph, head)
    constants = _constants(model, graph, nodes, folder)
    if not nodes or constants is None:
        return None
    weight, bias = _layer(nodes[0], constants)
    for node in nodes[1:]:
        weight, bias = _after(node, constants, weight, bias)
    if len(weight) == 1:  # of a binary classifier, whose other logit is 0
        weight, bias = (np.concatenate([np.zeros_like(x), x]) for x in (weight, bias))
    adds = len(nodes[0].input) > 2 or any(node.op_type in ("Add", "Sub") for node in nodes[1:])
    return Prototypes(np.ascontiguousarray(weight), bias if adds else None)


def _linear_path(graph: Graph, head: Head) -> "list[NodeProto]":
    """The layer that features go into, and the arithmetic on its logits; [] if there is more."""
    if head.probabilities:
        return []
    after: list[NodeProto] = []
    name: str | None = head.logits[0]
    for _ in graph.makers:  # a broken graph may have a circle
        node = graph.makers.get(name or "")
        if node is None:
            break
        if node.op_type in _LINEAR and tuple(node.input[:1]) == head.features:
            return [node, *reversed(after)] if _fits(graph, node, after) else []
        if node.op_type in _ARITHMETIC:
            after.append(node)
        name = _variable(graph, node)
    return []


def _variable(graph: Graph, node: "NodeProto") -> str | None:
    """The logits that a node passes on, or computes with and a constant; None if there are more."""
    if node.op_type in _NEUTRAL:
        return next(iter(node.input), None)
    if node.op_type not in _ARITHMETIC:
        return None
    variable = [name for name in node.input if graph.shape(name) is None]
    places = node.input if node.op_type in _SYMMETRIC else node.input[:1]
    return variable[0] if len(variable) == 1 and variable[0] in places else None


def _fits(graph: Graph, node: "NodeProto", after: "list[NodeProto]") -> bool:
    """Whether biases and factors are numbers, or a number for each class."""
    widths, biases = graph.widths(node), [graph.shape(name) for name in node.input[2:] if name]
    factors = [graph.shape(name) for one in after for name in one.input]
    sizes = {math.prod(shape) for shape in (*biases, *factors) if shape is not None}
    return widths is not None and None not in biases and sizes <= {1, widths[0]}


def _constants(
    model: "ModelProto", graph: Graph, nodes: "list[NodeProto]", folder: Path
) -> dict[str, Floats] | None:
    """The constants that nodes take, which may be dequantized or transposed; None if they vary."""
    onnx = import_optional("onnx", "onnx", "OnnxModel")
    names = {name for node in nodes for name in node.input if graph.shape(name) is not None}
    needed = _needed(graph, names)
    if not needed or needed - graph.makers.keys() - graph.constants.keys():
        return None
    small, prefix = onnx.ModelProto(ir_version=max(model.ir_version, 4)), free_prefix(model, "_")
    small.opset_import.extend(model.opset_import)
    small.graph.name = "constants"
    small.graph.initializer.extend(t for t in model.graph.initializer if t.name in needed)
    small.graph.node.extend(node for node in model.graph.node if needed & set(node.output))
    for name in names:
        cast = onnx.helper.make_node("Cast", [name], [prefix + name], to=onnx.TensorProto.FLOAT)
        small.graph.node.append(cast)
        small.graph.output.append(onnx.ValueInfoProto(name=prefix + name))
    return dict(zip(names, session(small, folder, CPU, 1).run(None, {}), strict=True))


def _needed(graph: Graph, names: Collection[str]) -> set[str]:
    """The names of all tensors that make some."""
    needed, waiting = set[str](), set(names)
    while waiting:
        needed |= waiting
        makers = [graph.makers[name] for name in waiting if name in graph.makers]
        waiting = {name for node in makers for name in node.input if name} - needed
    return needed


def _layer(node: "NodeProto", constants: Mapping[str, Floats]) -> tuple[Floats, Floats]:
    """The weights [K, d] and biases [K] of a linear layer."""
    known = {attribute.name: attribute for attribute in node.attribute}
    alpha, beta = (known[name].f if name in known else 1.0 for name in ("alpha", "beta"))
    weight = constants[node.input[1]]
    if node.op_type == "Conv":
        weight = weight.reshape(weight.shape[:2])
    elif "transB" not in known or not known["transB"].i:
        weight = weight.T
    bias = np.zeros(len(weight), np.float32)
    if len(node.input) > 2 and node.input[2]:
        bias = bias + np.float32(beta) * constants[node.input[2]].ravel()
    return np.float32(alpha) * weight, bias


def _after(
    node: "NodeProto", constants: Mapping[str, Floats], weight: Floats, bias: Floats
) -> tuple[Floats, Floats]:
    """Weights and biases of a layer whose logits a node then adds a constant to, say."""
    (other,) = (constants[name].ravel() for name in node.input if name in constants)
    match node.op_type:
        case "Add":
            return weight, bias + other
        case "Sub":
            return weight, bias - other
        case "Mul":
            return weight * other[:, None], bias * other
        case _:
            return weight / other[:, None], bias / other
