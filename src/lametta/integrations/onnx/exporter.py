"""Export of LAME as ONNX nodes, alone or behind a classifier."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from lametta._checks import check_flag, check_integer, import_optional
from lametta._files import PathLike, atomic_write, check_destination
from lametta._lame import check_options
from lametta.affinity import Affinity, knn, linear, rbf
from lametta.integrations.onnx.graph import find_head, free_prefix, with_outputs
from lametta.integrations.onnx.runtime import (
    CPU,
    MOST_BYTES,
    columns,
    fixed_batch,
    inputs_of,
    load_graph,
    onnx_errors,
    pooled_axes,
    session,
)
from lametta.types import LamettaError

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

_Side: TypeAlias = int | str | None  # of a shape
_Value: TypeAlias = str | np.generic | npt.NDArray[np.generic]  # a tensor's name, or a constant

_OPSET, _IR = 17, 8  # of LAME alone; ONNX Runtime knows them since 1.12
_OLDEST_OPSET = 11
_MOST_ITERATIONS = 1000  # each is three nodes
_OUTPUTS = ("corrected", "label")


def export(
    path: PathLike,
    *,
    affinity: Affinity = knn(5),
    weight: float = 1.0,
    iterations: int = 20,
    model: PathLike | None = None,
    features: str | None = None,
    logits: str | None = None,
    probabilities: bool | None = None,
) -> None:
    """Write LAME as an ONNX graph, alone or behind a classifier's.

    The graph computes `lametta.lame` with ``max_iter=iterations, tol=0`` in float32, for batches of
    any size. Alone, its inputs are ``features`` [N, d] and ``probs`` [N, K]. Behind a model, its
    inputs are the model's, and features and probabilities come from there, as `OnnxModel` finds
    them. The outputs are ``corrected`` [N, K], the corrected probabilities, and ``label`` [N],
    their classes.

    Parameters
    ----------
    path : path
        The file to write. One that exists is replaced, whole or not at all.
    affinity : knn, rbf or linear
        As for `lametta.lame`.
    weight : float
        Factor on W.
    iterations : int
        How many updates the graph makes, up to 1000.
    model : path, optional
        The ``.onnx`` file of a classifier. Its external data are copied into the new file, or
        shared with it if both are in one folder.
    features, logits, probabilities
        As for `OnnxModel`, of the model.

    Examples
    --------
    >>> from lametta.integrations.onnx import export
    >>> export("lame.onnx", affinity=knn(3))  # doctest: +SKIP
    >>> export("corrected.onnx", model="resnet50.onnx")  # doctest: +SKIP
    """
    check_options(affinity, weight, 0, 0)
    check_integer("iterations", iterations, 0)
    if iterations > _MOST_ITERATIONS:
        raise LamettaError(f"iterations must be <= {_MOST_ITERATIONS}, got {iterations}")
    target = Path(path)
    check_destination("path", target)
    named = {"features": features, "logits": logits, "probabilities": probabilities}
    lame = _Lame(affinity, float(weight), int(iterations))
    if model is None:
        for name, given in named.items():
            if given is not None:
                raise LamettaError(f"{name} must come with a model, got {given!r}")
        made = _alone(lame)
    else:
        if probabilities is not None:
            check_flag("probabilities", probabilities)
        file = Path(model)
        if target.exists() and file.exists() and target.samefile(file):
            raise LamettaError(f"path must be another file than model, got {target} for both")
        with onnx_errors(file, "model"):
            made = _behind(file, target.parent, features, logits, probabilities, lame)
    with atomic_write(target) as temporary:
        temporary.write_bytes(made.SerializeToString())


class _Lame(NamedTuple):
    """Options of LAME as a graph computes it."""

    affinity: Affinity
    weight: float
    iterations: int


class _Nodes:
    """The nodes of a graph in the making: a call appends one and returns its output's name.

    Constants are nodes too, since old graphs expect initializers among their inputs. All nodes are
    valid from opset 11 on.
    """

    def __init__(self, opset: int, prefix: str) -> None:
        self._onnx = import_optional("onnx", "onnx", "export")
        self._opset, self._prefix = opset, prefix
        self.all: list[NodeProto] = []

    def __call__(self, kind: str, *inputs: _Value, outputs: int = 1, **attributes: object) -> str:
        """Append a node; return the name of its last output."""
        names = [x if isinstance(x, str) else self._constant(x) for x in inputs]
        made = [f"{self._prefix}{len(self.all)}{'_' * i}" for i in range(outputs)]
        self.all.append(self._onnx.helper.make_node(kind, names, made, name=made[0], **attributes))
        return made[-1]

    def _constant(self, value: _Value) -> str:
        return self("Constant", value=self._onnx.numpy_helper.from_array(np.asarray(value)))

    def reduce(self, kind: str, x: str, axes: list[int], *, keep: bool = True) -> str:
        """Append a reduction, whose axes became an input with opset 13 or 18."""
        if self._opset >= (13 if kind == "ReduceSum" else 18):
            return self(kind, x, np.array(axes), keepdims=int(keep))
        return self(kind, x, axes=axes, keepdims=int(keep))

    def cast(self, x: str, kind: str) -> str:
        """Append a Cast to FLOAT, DOUBLE, BOOL or INT64."""
        return self("Cast", x, to=getattr(self._onnx.TensorProto, kind))

    def without_zeros(self, x: str, dtype: type[np.floating]) -> tuple[str, str]:
        """Append what replaces 0 by 1; return the result, and a mask with 1 where it did so."""
        kind = "DOUBLE" if dtype is np.float64 else "FLOAT"
        zero = self.cast(self("Equal", x, dtype(0)), kind)
        return self("Add", x, zero), zero

    def count(self, rows: str, add: int, most: int) -> str:
        """Append the number of rows plus ``add``, clipped to 0..``most``, as an int64 [1]."""
        n = self("Gather", self("Shape", rows), np.array([0]))
        n = self.cast(self("Add", n, np.array([add])), "FLOAT")  # old Clips take no integers
        return self.cast(self("Clip", n, np.float32(0), np.float32(most)), "INT64")

    def filled(self, like: str, value: float) -> str:
        """Append a float32 tensor of one value, in the shape of another."""
        tensor = self._onnx.numpy_helper.from_array(np.array([value], np.float32))
        return self("ConstantOfShape", self("Shape", like), value=tensor)


def _alone(lame: _Lame) -> "ModelProto":
    onnx = import_optional("onnx", "onnx", "export")
    value, kind = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    inputs = [value("features", kind, ["N", "d"]), value("probs", kind, ["N", "K"])]
    graph = onnx.helper.make_graph([], "lame", inputs, [])
    opsets = [onnx.helper.make_opsetid("", _OPSET)]
    model: ModelProto = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=_IR)
    model.producer_name = "lametta"
    _add(model, _Nodes(_OPSET, "lametta."), "features", "probs", lame, ("N", "K"))
    return model


def _behind(
    path: Path,
    folder: Path,
    features: str | None,
    logits: str | None,
    probabilities: bool | None,
    lame: _Lame,
) -> "ModelProto":
    model = load_graph(path, "model")
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
    if opset < _OLDEST_OPSET:
        raise LamettaError(
            f"model must be of opset {_OLDEST_OPSET} or later, got {opset}: "
            f"onnx.version_converter.convert_version(model, {_OPSET}) makes it so"
        )
    head = find_head(model, features, logits)
    names = with_outputs(model, head)
    _rename(model)
    started = session(model, path.parent, CPU, 1)
    if fixed_batch(inputs_of(started)) == 1:
        raise LamettaError("model must take several samples at a time, got one of batches of 1")
    shapes = [output.shape or [] for output in started.get_outputs()]
    n_columns = columns(shapes[1], head.n_classes)
    g = _Nodes(opset, free_prefix(model, "lametta.lame."))
    x = _pooled(g, names[0], len(shapes[0]), head.channels_first)
    if probabilities is None:
        probabilities = head.probabilities
    q = _probs(g, names[1], n_columns, probabilities)
    n = next((input_.shape[0] for input_ in started.get_inputs() if input_.shape), None)
    del model.graph.output[:]
    _add(model, g, x, q, lame, (n, 2 if n_columns == 1 else n_columns))
    _include_external_data(model, path.parent, folder)
    session(model, path.parent, CPU, 1)  # raises if the graph does not run
    return model


def _include_external_data(model: "ModelProto", source: Path, folder: Path) -> None:
    """Take external data into a model that will lie in another folder than they do."""
    if folder.resolve() != source.resolve():
        helper = import_optional("onnx.external_data_helper", "onnx", "export")
        helper.load_external_data_for_model(model, str(source))
    if (size := model.ByteSize()) > MOST_BYTES:
        raise LamettaError(
            f"path must be in the model's folder, to share its external data, got another and "
            f"{size} bytes, where a file has {MOST_BYTES} at most"
        )


def _rename(model: "ModelProto") -> None:
    """Rename tensors of the model that are called as the new outputs will be."""
    weights = {tensor.name for tensor in model.graph.initializer}
    for input_ in model.graph.input:
        if input_.name in _OUTPUTS and input_.name not in weights:
            raise LamettaError(f"model must have no input {input_.name!r}, as an output is called")
    _rename_in(model.graph, {name: f"lametta.model.{name}" for name in _OUTPUTS})


def _rename_in(graph: "GraphProto", names: Mapping[str, str]) -> None:
    for node in graph.node:
        for tensors in (node.input, node.output):
            tensors[:] = [names.get(name, name) for name in tensors]
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _rename_in(inner, names)
    for tensor in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        tensor.name = names.get(tensor.name, tensor.name)


def _pooled(g: _Nodes, features: str, n_axes: int, channels_first: bool | None) -> str:
    """Features [N, d], as `lametta.integrations.onnx.runtime.pooled` makes them."""
    if n_axes < 2:
        raise LamettaError("features must name a tensor [N, d, ...], got one of unknown shape")
    if n_axes == 2:
        return features
    return g.reduce("ReduceMean", features, list(pooled_axes(n_axes, channels_first)), keep=False)


def _probs(g: _Nodes, logits: str, n_columns: int | None, probabilities: bool) -> str:
    """Probabilities [N, K]: the softmax of the logits of `lametta.integrations.onnx.OnnxModel`."""
    if n_columns is None:
        logits = g("Flatten", logits, axis=1)
    else:
        logits = g("Reshape", logits, np.array([-1, n_columns]))
    if n_columns == 1:  # of a binary classifier
        other = g("Sub", np.float32(1), logits) if probabilities else g.filled(logits, 0)
        logits = g("Concat", other, logits, axis=1)
    if probabilities:
        return g("Max", logits, np.finfo(np.float32).tiny)
    return g("Softmax", logits, axis=1)


def _add(
    model: "ModelProto", g: _Nodes, x: str, q: str, lame: _Lame, shape: tuple[_Side, _Side]
) -> None:
    """Append LAME and its outputs to a model, and LAME's options to the metadata."""
    onnx = import_optional("onnx", "onnx", "export")
    z = _add_lame(g, x, q, *lame)
    corrected, label = _OUTPUTS
    model.graph.node.extend(g.all)
    model.graph.node.append(onnx.helper.make_node("Identity", [z], [corrected]))
    model.graph.node.append(onnx.helper.make_node("ArgMax", [z], [label], axis=1, keepdims=0))
    value, kinds = onnx.helper.make_tensor_value_info, onnx.TensorProto
    model.graph.output.append(value(corrected, kinds.FLOAT, shape))
    model.graph.output.append(value(label, kinds.INT64, shape[:1]))
    described = {**lame._asdict(), "affinity": repr(lame.affinity)}
    model.metadata_props.add(key="lametta.lame", value=json.dumps(described))


def _add_lame(
    g: _Nodes, features: str, probs: str, affinity: Affinity, weight: float, iterations: int
) -> str:
    """Append ``iterations`` updates z <- softmax(log q + W z); features and probs are float32.

    The updates stand one after another: three nodes each take less room than a Loop around them,
    and engines without control flow run them too.
    """
    w = _weights(g, features, affinity)
    if weight != 1:
        w = g("Mul", w, np.float32(weight))
    log_q = g("Log", probs)
    z = g("Div", probs, g.reduce("ReduceSum", probs, [1]))
    for _ in range(iterations):
        z = g("Softmax", g("Add", log_q, g("MatMul", w, z)), axis=1)
    return z


def _weights(g: _Nodes, x: str, affinity: Affinity) -> str:
    """W [N, N] in float32."""
    if isinstance(affinity, knn) and affinity.method == "exact":
        w = _neighbors(g, x, affinity.k)
        if affinity.direction == "reverse":
            w = g("Transpose", w)
    elif isinstance(affinity, rbf):
        w = _with_row_sum(g, _gaussian(g, x, affinity.k), affinity.row_sum, np.float64)
        w = g.cast(w, "FLOAT")
    elif isinstance(affinity, linear):
        rows, lengths, _ = _in_range(g, x)
        rows = g("Div", rows, lengths)
        w = _with_row_sum(g, _products(g, rows), affinity.row_sum, np.float32)
    else:
        raise LamettaError(f"affinity must be an exact knn, an rbf or a linear, got {affinity!r}")
    symmetric = affinity.is_symmetric if isinstance(affinity, knn) else affinity.symmetric
    return g("Mul", g("Add", w, g("Transpose", w)), np.float32(0.5)) if symmetric else w


def _products(g: _Nodes, rows: str) -> str:
    # Not MatMul: ONNX Runtime 1.22 fuses it with a Transpose, for which it lacks float64.
    return g("Gemm", rows, rows, transB=1)


def _lengths(g: _Nodes, x: str, dtype: type[np.floating]) -> tuple[str, str]:
    """Length [N, 1] of each row, 1 for rows of zeros, and a mask of those rows."""
    return g.without_zeros(g("Sqrt", g.reduce("ReduceSum", g("Mul", x, x), [1])), dtype)


def _in_range(g: _Nodes, x: str) -> tuple[str, str, str]:
    """Rows scaled so that their squares stay in range, and what `_lengths` returns for them.

    Scaling by powers of 2 rounds nothing, so that ties between neighbors are those of
    `lametta.lame`.
    """
    peak, _ = g.without_zeros(g.reduce("ReduceMax", g("Abs", x), [1]), np.float32)
    power = g("Floor", g("Mul", g("Log", peak), np.float32(1 / math.log(2))))
    x = g("Div", x, g("Pow", np.float32(2), power))
    return x, *_lengths(g, x, np.float32)


def _neighbors(g: _Nodes, x: str, k: int) -> str:
    """W of `lametta.knn`, with the ties of NumPy's: the first of several comes first."""
    rows, lengths, zero = _in_range(g, x)
    similarity = g("Mul", _products(g, rows), g("Transpose", g("Reciprocal", lengths)))
    # A row of zeros is at distance 1 from other rows, as one at 60 degrees is, and nearer to other
    # rows of zeros.
    sixty = g("Mul", g("Mul", lengths, np.float32(0.5)), g("Transpose", zero))
    similarity = g("Add", similarity, sixty)
    similarity = g("Where", _itself(g, similarity), np.float32(-np.inf), similarity)
    index = g("TopK", similarity, g.count(x, -1, k), outputs=2, axis=1)
    return g("ScatterElements", g.filled(similarity, 0), index, g.filled(index, 1), axis=1)


def _gaussian(g: _Nodes, x: str, k: int) -> str:
    """W of `lametta.rbf`, in float64 as there, which has room for the squares of float32."""
    rows = g.cast(x, "DOUBLE")
    rows = g("Div", rows, _lengths(g, rows, np.float64)[0])
    square = g.reduce("ReduceSum", g("Mul", rows, rows), [1])
    twice = g("Mul", _products(g, rows), np.float64(2))
    square = g("Sub", g("Add", square, g("Transpose", square)), twice)
    square = g("Where", _itself(g, square), np.float64(0), g("Relu", square))
    # The k + 1 smallest of each row, of which the first is the sample itself.
    g("TopK", square, g.count(x, 0, k + 1), outputs=2, axis=1, largest=0)
    nearest = g.all[-1].output[0]
    width = g.reduce("ReduceMean", g("Sqrt", g.reduce("ReduceMax", nearest, [1])), [0])
    width = g("Max", width, np.float64(1e-6))
    return g("Exp", g("Div", square, g("Mul", g("Mul", width, width), np.float64(-2))))


def _itself(g: _Nodes, matrix: str) -> str:
    """Where a sample meets itself."""
    return g.cast(g("EyeLike", matrix), "BOOL")


def _with_row_sum(g: _Nodes, w: str, row_sum: float | None, dtype: type[np.floating]) -> str:
    if row_sum is None:
        return w
    w = g("Relu", g("Where", _itself(g, w), dtype(0), w))
    total, _ = g.without_zeros(g.reduce("ReduceSum", w, [1]), dtype)
    return g("Mul", w, g("Div", dtype(row_sum), total))
