"""LAME as an ONNX file, alone or behind a classifier's own graph."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from lametta._checks import check_flag, check_integer, import_optional
from lametta._files import PathLike, atomic_write
from lametta._lame import check_options
from lametta.affinity import Affinity, knn
from lametta.integrations._onnx_graph import find_head, free_prefix, with_outputs
from lametta.integrations._onnx_lame import Nodes, add_lame
from lametta.integrations._onnx_outputs import columns, pooled_axes
from lametta.integrations._onnx_session import (
    MOST_BYTES,
    fixed_batch,
    inputs_of,
    parsed,
    reading,
    session,
)
from lametta.types import LamettaError

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto

_Side: TypeAlias = int | str | None  # of a shape

_OPSET, _IR = 17, 8  # of LAME alone; ONNX Runtime knows them since 1.12
_OLDEST_OPSET = 11
_MOST_ITERATIONS = 1000  # each is three nodes
_OUTPUTS = ("corrected", "label")
_CPU = ("CPUExecutionProvider",)


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
    if target.is_dir() or not target.parent.is_dir():
        raise LamettaError(f"path must be a file in a folder that exists, got {target}")
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
        with reading(file, "model"):
            made = _behind(file, target.parent, features, logits, probabilities, lame)
    with atomic_write(target) as temporary:
        temporary.write_bytes(made.SerializeToString())


class _Lame(NamedTuple):
    """What a graph is to compute."""

    affinity: Affinity
    weight: float
    iterations: int


def _alone(lame: _Lame) -> "ModelProto":
    onnx = import_optional("onnx", "onnx", "export")
    value, kind = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    inputs = [value("features", kind, ["N", "d"]), value("probs", kind, ["N", "K"])]
    graph = onnx.helper.make_graph([], "lame", inputs, [])
    opsets = [onnx.helper.make_opsetid("", _OPSET)]
    model: ModelProto = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=_IR)
    model.producer_name = "lametta"
    _add(model, Nodes(_OPSET, "lametta."), "features", "probs", lame, ("N", "K"))
    return model


def _behind(
    path: Path,
    folder: Path,
    features: str | None,
    logits: str | None,
    probabilities: bool | None,
    lame: _Lame,
) -> "ModelProto":
    model = parsed(path, "model")
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
    if opset < _OLDEST_OPSET:
        raise LamettaError(
            f"model must be of opset {_OLDEST_OPSET} or later, got {opset}: "
            f"onnx.version_converter.convert_version(model, {_OPSET}) makes it so"
        )
    head = find_head(model, features, logits)
    names = with_outputs(model, head)
    _rename(model)
    started = session(model, path.parent, _CPU, 1)
    if fixed_batch(inputs_of(started)) == 1:
        raise LamettaError("model must take several samples at a time, got one of batches of 1")
    shapes = [output.shape or [] for output in started.get_outputs()]
    n_columns = columns(shapes[1], head.n_classes)
    g = Nodes(opset, free_prefix(model, "lametta.lame."))
    x = _pooled(g, names[0], len(shapes[0]), head.channels_first)
    if probabilities is None:
        probabilities = head.probabilities
    q = _probs(g, names[1], n_columns, probabilities)
    n = next((put.shape[0] for put in started.get_inputs() if put.shape), None)
    del model.graph.output[:]
    _add(model, g, x, q, lame, (n, 2 if n_columns == 1 else n_columns))
    if folder.resolve() != path.parent.resolve():
        helper = import_optional("onnx.external_data_helper", "onnx", "export")
        helper.load_external_data_for_model(model, str(path.parent))
    if (size := model.ByteSize()) > MOST_BYTES:
        raise LamettaError(
            f"path must be in the model's folder, to share its external data, got another and "
            f"{size} bytes, where a file has {MOST_BYTES} at most"
        )
    session(model, path.parent, _CPU, 1)  # raises if the graph does not run
    return model


def _rename(model: "ModelProto") -> None:
    """Rename tensors of the model that are called as the new outputs will be."""
    weights = {tensor.name for tensor in model.graph.initializer}
    for put in model.graph.input:
        if put.name in _OUTPUTS and put.name not in weights:
            raise LamettaError(f"model must have no input {put.name!r}, as an output is called")
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


def _pooled(g: Nodes, features: str, n_axes: int, channels_first: bool | None) -> str:
    """Features [N, d], as `lametta.integrations._onnx_outputs.pooled` makes them."""
    if n_axes < 2:
        raise LamettaError("features must name a tensor [N, d, ...], got one of unknown shape")
    if n_axes == 2:
        return features
    return g.reduce("ReduceMean", features, list(pooled_axes(n_axes, channels_first)), keep=False)


def _probs(g: Nodes, logits: str, n_columns: int | None, probabilities: bool) -> str:
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
    model: "ModelProto", g: Nodes, x: str, q: str, lame: _Lame, shape: tuple[_Side, _Side]
) -> None:
    """Append LAME and its outputs to a model, and LAME's options to the metadata."""
    onnx = import_optional("onnx", "onnx", "export")
    z = add_lame(g, x, q, *lame)
    corrected, label = _OUTPUTS
    model.graph.node.extend(g.all)
    model.graph.node.append(onnx.helper.make_node("Identity", [z], [corrected]))
    model.graph.node.append(onnx.helper.make_node("ArgMax", [z], [label], axis=1, keepdims=0))
    value, kinds = onnx.helper.make_tensor_value_info, onnx.TensorProto
    model.graph.output.append(value(corrected, kinds.FLOAT, shape))
    model.graph.output.append(value(label, kinds.INT64, shape[:1]))
    described = {**lame._asdict(), "affinity": repr(lame.affinity)}
    model.metadata_props.add(key="lametta.lame", value=json.dumps(described))
