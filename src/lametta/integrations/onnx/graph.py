"""Finding the classifier head in an ONNX graph, and making its input an output."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from lametta._checks import ONE_OF_SEVERAL, did_you_mean, import_optional
from lametta.types import LamettaError

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

# Operators that make logits from features.
_DENSE = {"Gemm", "MatMul", "FusedGemm", "FusedMatMul", "MatMulInteger", "QLinearMatMul", "QGemm"}
_CONVOLUTIONS = {"Conv", "FusedConv", "ConvInteger", "QLinearConv"}
_QUANTIZED = ("QLinearMatMul", "QGemm", "QLinearConv")  # scale and zero point follow the data
_INTEGER = ("MatMulInteger", "ConvInteger")
# Layers after the head that leave each class where it is.
_SHAPES = {"Identity", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Dropout"}
_SHAPES |= {"QuantizeLinear", "DequantizeLinear", "Clip", "Log"}
_SOFTMAX = {"Softmax", "LogSoftmax", "QLinearSoftmax", "Sigmoid", "QLinearSigmoid"}
_POOLS = {"GlobalAveragePool", "AveragePool", "ReduceMean", "Relu"}
_POOLS |= {"QLinearGlobalAveragePool", "QLinearAveragePool", "QLinearReduceMean"}
_ARITHMETIC = {"Add", "Sub", "Mul", "Div", "Sum", "BiasAdd", "QLinearAdd", "QLinearMul"}
_CONSTANTS = {"Identity", "Cast", "DequantizeLinear", "QuantizeLinear", "Transpose"}


@dataclass(frozen=True)
class Head:
    """The tensors of features and logits; a quantized one comes with scale and zero point."""

    features: tuple[str, ...]
    logits: tuple[str, ...]
    channels_first: bool | None = None  # of features with more than two axes; None: unknown
    probabilities: bool = False  # whether the tensor of logits holds probabilities
    d: int | None = None  # as the weights say
    n_classes: int | None = None


class _Path(NamedTuple):
    """The nodes on the way back from an output, and which of them may be heads."""

    heads: "list[NodeProto]"
    nodes: "list[NodeProto]"


def find_head(model: "ModelProto", features: str | None, logits: str | None) -> Head:
    """Find the head, as `lametta.integrations.onnx.OnnxModel` describes it."""
    graph = Graph(model)
    for argument, name in (("features", features), ("logits", logits)):
        if name is not None:
            graph.check_tensor(argument, name)
    outputs = [output.name for output in model.graph.output]
    if logits is not None or "logits" in outputs:
        outputs = [logits or "logits"]
    if features is not None and len(outputs) == 1:
        return graph.head(outputs[0], features)
    head = _only_head(graph, outputs, argument="features" if features is None else "logits")
    if features is not None:
        head = replace(head, features=(features,), channels_first=None, d=None)
    return head


def _only_head(graph: "Graph", outputs: list[str], argument: str) -> Head:
    """The one head behind any of the outputs; ``argument`` is the one to name where none is."""
    found, problems = {}, []
    for output in outputs:
        try:
            found[output] = graph.head(output, None)
        except LamettaError as error:
            problems.append(str(error))
    if not found and argument == "logits":
        raise LamettaError(f"logits must name one of {', '.join(map(repr, outputs))}, got None")
    if not found:
        raise LamettaError(
            "features must name the tensor that goes into the head, got None, and no head was "
            f"found: {'; '.join(problems[:3]) or 'the graph has no outputs'}"
        )
    if len(set(found.values())) > 1:
        raise LamettaError(
            "logits must say which of the graph's outputs are the class scores, got None and "
            f"several that could be: {', '.join(map(repr, found))}"
        )
    return next(iter(found.values()))


def with_outputs(model: "ModelProto", head: Head) -> tuple[str, str]:
    """Make features and logits, as float32, the only outputs; return their names."""
    onnx = import_optional("onnx", "onnx", "OnnxModel")
    prefix, names = free_prefix(model, "lametta."), []
    del model.graph.output[:]
    for wanted, tensors in (("features", head.features), ("logits", head.logits)):
        name, last = f"{prefix}{wanted}", tensors[0]
        if len(tensors) > 1:
            last = f"{name}.wide"
            model.graph.node.append(onnx.helper.make_node("DequantizeLinear", tensors, [last]))
        to = onnx.TensorProto.FLOAT
        model.graph.node.append(onnx.helper.make_node("Cast", [last], [name], to=to))
        model.graph.output.append(onnx.ValueInfoProto(name=name))  # its type will be inferred
        names.append(name)
    return names[0], names[1]


def free_prefix(model: "ModelProto", prefix: str) -> str:
    """A prefix that no tensor's name begins with: the one given, or a longer one."""
    taken = [name for node in model.graph.node for name in node.output]
    taken += [tensor.name for tensor in (*model.graph.input, *model.graph.initializer)]
    while any(name.startswith(prefix) for name in taken):
        prefix += "_"
    return prefix


class Graph:
    """Which node makes each tensor, and which tensors are constants."""

    def __init__(self, model: "ModelProto") -> None:
        self.makers = {name: node for node in model.graph.node for name in node.output if name}
        self.constants = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
        self.inputs = [
            input_.name for input_ in model.graph.input if input_.name not in self.constants
        ]

    def check_tensor(self, argument: str, name: str) -> None:
        known = [*self.makers, *self.inputs]
        if name not in known:
            raise LamettaError(
                f"{argument} must be the name of a tensor in the graph, got {name!r}"
                f"{did_you_mean(name, known) or f'; the last are {known[-5:]}'}"
            )

    def head(self, output: str, features: str | None) -> Head:
        """The head behind an output, or the features that are named."""
        path = self._path(output)
        logits = self._logits(output)
        kinds = {node.op_type for node in path.nodes}
        mixed = logits == (output,) and bool(kinds & _SOFTMAX) and not kinds & {"Log", "LogSoftmax"}
        if features is not None:
            return Head((features,), logits, probabilities=mixed)
        heads = {self._data(node): node for node in path.heads}
        if len(heads) != 1:
            raise LamettaError(self._described(output, path))
        data, node = next(iter(heads.items()))
        n_classes, d = self.widths(node) or (None, None)
        if n_classes != 1 and kinds & {"Sigmoid", "QLinearSigmoid"}:
            raise LamettaError(
                f"{output!r} comes from a Sigmoid over {n_classes} classes, which do not exclude "
                f"each other as those of a Softmax do; {ONE_OF_SEVERAL}"
            )
        return Head(data, logits, node.op_type in _CONVOLUTIONS, mixed, d, n_classes)

    def _path(self, output: str) -> _Path:
        path, waiting, seen = _Path([], []), [output], set()
        while waiting:
            name = waiting.pop()
            node = self.makers.get(name)
            if name in seen or node is None:  # a broken graph may have a circle
                continue
            seen.add(name)
            path.nodes.append(node)
            if node.op_type in _DENSE | _CONVOLUTIONS and self._data(node) and self.widths(node):
                path.heads.append(node)
            elif node.op_type in _SHAPES | _SOFTMAX | _POOLS:
                waiting.extend(node.input[:1])
            elif node.op_type in _ARITHMETIC:
                waiting.extend(n for n in node.input if n and self.shape(n) is None)
        return path

    def _logits(self, output: str) -> tuple[str, ...]:
        """The input of the softmax that an output comes from, or the output itself."""
        for node in self._chain(output, _SHAPES | _SOFTMAX):
            if node.op_type in _SOFTMAX:
                return tuple(node.input[: 3 if node.op_type.startswith("QLinear") else 1])
        return (output,)

    def _chain(self, name: str, kinds: Iterable[str]) -> "Iterator[NodeProto]":
        """Walk back from a tensor along first inputs, as long as the nodes are of these kinds."""
        for _ in range(len(self.makers)):
            node = self.makers.get(name)
            if node is None or node.op_type not in kinds or not node.input:
                return
            yield node
            name = node.input[0]

    def _data(self, node: "NodeProto") -> tuple[str, ...]:
        """What goes into a head; () if the graph has it only as integers of unknown scale."""
        if node.op_type in _QUANTIZED:
            return tuple(node.input[:3])
        if node.op_type in _INTEGER:
            before = self.makers.get(node.input[0]) if node.input else None
            quantizes = before is not None and before.op_type.endswith("QuantizeLinear")
            return tuple(before.input[:1]) if before is not None and quantizes else ()
        return tuple(node.input[:1])

    def widths(self, node: "NodeProto") -> tuple[int, int] | None:
        """Classes and features of a head, by its weights; None if it cannot be one."""
        place = 3 if node.op_type in _QUANTIZED else 1  # of the weights, among the inputs
        shape = self.shape(node.input[place]) if place < len(node.input) else None
        if shape is None or min(shape, default=0) < 1:
            return None
        if node.op_type in _CONVOLUTIONS:
            fits = len(shape) > 2 and set(shape[2:]) == {1} and _integer(node, "group", 1) == 1
            return (shape[0], shape[1]) if fits else None
        if len(shape) != 2 or _integer(node, "transA", 0):
            return None
        return (shape[0], shape[1]) if _integer(node, "transB", 0) else (shape[1], shape[0])

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a constant, dequantized or transposed or not; None for other tensors."""
        nodes = list(self._chain(name, _CONSTANTS))
        first = nodes[-1].input[0] if nodes else name
        shape = self.constants.get(first)
        maker = self.makers.get(first)
        if shape is None and maker is not None and maker.op_type == "Constant":
            shape = _constant_shape(maker)
        for node in reversed(nodes):
            if shape is not None and node.op_type == "Transpose":
                shape = _transposed(shape, node)
        return shape

    def _described(self, output: str, path: _Path) -> str:
        if len(path.heads) > 1:
            tensors = ", ".join(repr(self._data(node)[0]) for node in path.heads[:5])
            return f"{output!r} comes from several layers, with inputs {tensors}"
        last = " <- ".join(f"{node.op_type} {node.name!r}" for node in path.nodes[:6])
        return (
            f"{output!r} was expected to come from a Gemm, a MatMul or a 1x1 Conv with constant "
            f"weights, and its last nodes are {last or 'none'}"
        )


def _integer(node: "NodeProto", name: str, default: int) -> int:
    return next((found.i for found in node.attribute if found.name == name), default)


def _transposed(shape: tuple[int, ...], node: "NodeProto") -> tuple[int, ...] | None:
    given = next((list(found.ints) for found in node.attribute if found.name == "perm"), None)
    order = list(range(len(shape)))[::-1] if given is None else given
    fits = sorted(order) == list(range(len(shape)))
    return tuple(shape[axis] for axis in order) if fits else None


def _constant_shape(node: "NodeProto") -> tuple[int, ...] | None:
    for attribute in node.attribute:
        if attribute.name == "value":
            return tuple(attribute.t.dims)
        if attribute.name in ("value_float", "value_int"):
            return ()
        if attribute.name in ("value_floats", "value_ints"):
            return (len(attribute.floats) or len(attribute.ints),)
    return None
