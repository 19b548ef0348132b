"""LAME as the nodes of an ONNX graph: `lametta.lame` with ``tol=0``, whatever N, d and K are."""

import math
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from lametta._checks import import_optional
from lametta.affinity import Affinity, knn, linear, rbf
from lametta.types import LamettaError

if TYPE_CHECKING:
    from onnx import NodeProto

Value: TypeAlias = str | np.generic | npt.NDArray[np.generic]
"""The name of a tensor, or a constant."""


class Nodes:
    """The nodes of a graph in the making: a call appends one and returns its output's name.

    Constants are nodes too, since old graphs expect initializers among their inputs. All nodes are
    valid from opset 11 on.
    """

    def __init__(self, opset: int, prefix: str) -> None:
        self._onnx = import_optional("onnx", "onnx", "export")
        self._opset, self._prefix = opset, prefix
        self.all: list[NodeProto] = []

    def __call__(self, kind: str, *inputs: Value, outputs: int = 1, **attributes: object) -> str:
        """Append a node; return the name of its last output."""
        names = [x if isinstance(x, str) else self._constant(x) for x in inputs]
        made = [f"{self._prefix}{len(self.all)}{'_' * i}" for i in range(outputs)]
        self.all.append(self._onnx.helper.make_node(kind, names, made, name=made[0], **attributes))
        return made[-1]

    def _constant(self, value: Value) -> str:
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


def add_lame(
    g: Nodes, features: str, probs: str, affinity: Affinity, weight: float, iterations: int
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


def _weights(g: Nodes, x: str, affinity: Affinity) -> str:
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


def _products(g: Nodes, rows: str) -> str:
    # Not MatMul: ONNX Runtime 1.22 fuses it with a Transpose, for which it lacks float64.
    return g("Gemm", rows, rows, transB=1)


def _lengths(g: Nodes, x: str, dtype: type[np.floating]) -> tuple[str, str]:
    """Length [N, 1] of each row, 1 for rows of zeros, and a mask of those rows."""
    return g.without_zeros(g("Sqrt", g.reduce("ReduceSum", g("Mul", x, x), [1])), dtype)


def _in_range(g: Nodes, x: str) -> tuple[str, str, str]:
    """Rows scaled so that their squares stay in range, and what `_lengths` returns for them.

    Scaling by powers of 2 rounds nothing, so that ties between neighbors are those of
    `lametta.lame`.
    """
    peak, _ = g.without_zeros(g.reduce("ReduceMax", g("Abs", x), [1]), np.float32)
    power = g("Floor", g("Mul", g("Log", peak), np.float32(1 / math.log(2))))
    x = g("Div", x, g("Pow", np.float32(2), power))
    return x, *_lengths(g, x, np.float32)


def _neighbors(g: Nodes, x: str, k: int) -> str:
    """W of `lametta.knn`, with the ties of NumPy's: the first of several comes first."""
    rows, lengths, zero = _in_range(g, x)
    closeness = g("Mul", _products(g, rows), g("Transpose", g("Reciprocal", lengths)))
    # A row of zeros is at distance 1 from other rows, as one at 60 degrees is, and nearer to other
    # rows of zeros.
    sixty = g("Mul", g("Mul", lengths, np.float32(0.5)), g("Transpose", zero))
    closeness = g("Add", closeness, sixty)
    closeness = g("Where", _itself(g, closeness), np.float32(-np.inf), closeness)
    index = g("TopK", closeness, g.count(x, -1, k), outputs=2, axis=1)
    return g("ScatterElements", g.filled(closeness, 0), index, g.filled(index, 1), axis=1)


def _gaussian(g: Nodes, x: str, k: int) -> str:
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


def _itself(g: Nodes, matrix: str) -> str:
    """Where a sample meets itself."""
    return g.cast(g("EyeLike", matrix), "BOOL")


def _with_row_sum(g: Nodes, w: str, row_sum: float | None, dtype: type[np.floating]) -> str:
    if row_sum is None:
        return w
    w = g("Relu", g("Where", _itself(g, w), dtype(0), w))
    total, _ = g.without_zeros(g.reduce("ReduceSum", w, [1]), dtype)
    return g("Mul", w, g("Div", dtype(row_sum), total))
