"""OnnxModel: an ONNX classifier as a Model, run by ONNX Runtime; export of LAME."""

import ast
import json
import logging
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from lametta._checks import check_flag, check_integer
from lametta._files import PathLike
from lametta.integrations.onnx.exporter import export
from lametta.integrations.onnx.graph import find_head, with_outputs
from lametta.integrations.onnx.images import are_images, images_for
from lametta.integrations.onnx.prototypes import find_prototypes
from lametta.integrations.onnx.runtime import (
    Floats,
    Input,
    Provider,
    check_logits,
    columns,
    fixed_batch,
    inputs_of,
    load_graph,
    matrix,
    onnx_errors,
    pooled,
    reason,
    session,
    width,
)
from lametta.types import LamettaError, Output

__all__ = ["Input", "Metadata", "OnnxModel", "export"]

_Feeds: TypeAlias = dict[str, npt.NDArray[np.generic]]

_MOST_NAMES = 2**20  # characters of all names of classes
_TEXT = r"""(?:'(?:[^'\\\n]|\\.)*+'|"(?:[^"\\\n]|\\.)*+")"""
# A list of texts, or texts by number, as Python prints them: nothing is nested, and nothing named.
_FLAT = re.compile(rf"[\[{{](?:\s*+(?:\d{{1,9}}\s*+:\s*+)?{_TEXT}\s*+(?:,|(?=[\]}}])))*+\s*+[\]}}]")


@dataclass(frozen=True)
class Metadata:
    """Metadata of an ONNX model, read from its file.

    Attributes
    ----------
    inputs : tuple of Input
        What the graph takes.
    features, logits : str
        The names of their tensors in the graph.
    d, n_classes : int or None
        How many features and classes there are; None where the graph leaves that open.
    classes : tuple of str or None
        The names of the classes, if the file has them under ``classes``, ``names`` or ``id2label``,
        as JSON or as Python prints a list or a dict of texts.
    batch : int or None
        The only number of samples that the graph takes; None where it takes any.

    Examples
    --------
    >>> pixels = Input("pixels", (None, 3, 224, 224), "float32")
    >>> Metadata((pixels,), "pooled", "logits", 1280, 1000).batch is None
    True
    """

    inputs: tuple[Input, ...]
    features: str
    logits: str
    d: int | None
    n_classes: int | None
    classes: tuple[str, ...] | None = None
    batch: int | None = None


class OnnxModel:
    """A classifier in an ONNX file that gives its features beside its logits, as float32.

    The features are what goes into the head: the last Gemm, MatMul or 1x1 Conv with constant
    weights before the output, quantized or not. They become a second output of the graph, so that
    a batch costs one ordinary run. Where the output is a softmax, the logits are what goes into it;
    features with places or tokens are averaged over them. Calls from several threads are fine.

    Parameters
    ----------
    path : path
        The ``.onnx`` file; files of external data lie beside it.
    features, logits : str, optional
        Names of tensors in the graph, if the ones above are not found or not the right ones.
        ``logits`` may also name the output of a softmax.
    probabilities : bool, optional
        Whether the outputs are probabilities; by default, a softmax in the graph tells.
    providers : sequence of str or of (str, options), optional
        ONNX Runtime's execution providers, by default CUDA's where there is one, then the CPU's.
    threads : int, optional
        Threads for one run; by default as many as there are cores.
    preprocess : mapping, optional
        How images become tensors: any of ``size``, ``crop``, ``mean``, ``std``, ``scale``,
        ``layout``, ``interpolation`` and ``bgr``, each as in `lametta.preprocess.Preprocess`
        (``size`` is its ``resize``). What is left out is taken from the file's metadata
        (``lametta.mean`` and so on, as JSON), then from the graph's input, then from what is usual
        for ImageNet.
    max_pixels : float
        How many pixels the images of a call may have together, as they are decoded or, if that is
        more, resized.

    Attributes
    ----------
    metadata : Metadata
        What is known of the model before it runs.
    probabilities : bool
        Whether the outputs are probabilities.
    prototypes : Prototypes or None
        The weights and biases of the head, where a linear layer makes the logits; None where it is
        quantized to integers, or where the graph does more, such as a ReLU after it.

    Notes
    -----
    A graph of a fixed batch size, often 1, is run as often as needed, and the logger ``lametta``
    says so.

    Examples
    --------
    >>> model = OnnxModel("resnet50.onnx")  # doctest: +SKIP
    >>> output = model([Path("swan.jpg").read_bytes()])  # doctest: +SKIP
    >>> output.features.shape, output.logits.shape  # doctest: +SKIP
    ((1, 2048), (1, 1000))
    """

    def __init__(
        self,
        path: PathLike,
        *,
        features: str | None = None,
        logits: str | None = None,
        probabilities: bool | None = None,
        providers: Sequence[Provider] | None = None,
        threads: int | None = None,
        preprocess: Mapping[str, object] | None = None,
        max_pixels: float = math.inf,
    ) -> None:
        if probabilities is not None:
            check_flag("probabilities", probabilities)
        if threads is not None:
            check_integer("threads", threads, 1)
        self.path, self.max_pixels = Path(path), max_pixels
        with onnx_errors(self.path):
            model = load_graph(self.path)
            head = find_head(model, features, logits)
            self._names = with_outputs(model, head)
            self._session = session(model, self.path.parent, providers, threads)
            known = {entry.key: entry.value for entry in model.metadata_props}
            inputs = inputs_of(self._session)
            self._images = images_for(inputs, known, preprocess)
            shapes = [output.shape or [] for output in self._session.get_outputs()]
            self._columns = columns(shapes[1], head.n_classes)
            batch = fixed_batch(inputs)
            if probabilities is not None:
                head = replace(head, probabilities=probabilities)
            self.prototypes = find_prototypes(model, head, self.path.parent)
        self._channels_first = head.channels_first
        self.probabilities = head.probabilities
        self._is_checked = False  # that outputs are logits or probabilities, as expected
        n_classes = 2 if self._columns == 1 else self._columns
        self.metadata = Metadata(
            inputs,
            head.features[0],
            head.logits[0],
            head.d or width(shapes[0]),
            n_classes,
            _classes(known, n_classes),
            batch,
        )
        if batch is not None:
            logging.getLogger("lametta").warning(
                "%s takes batches of %d alone, and is run as often as that needs", self.path, batch
            )

    def __call__(self, x: object, /) -> Output:
        """Return features [N, d] and logits [N, K] of a batch.

        The batch is a tensor as the graph takes it, or a mapping of names to tensors where it takes
        several; or images: uint8 [N, H, W, 3], or a sequence of JPEG or PNG files' bytes.
        """
        feeds = self._feeds(x)
        n = len(next(iter(feeds.values())))
        if n == 0:
            return self._nothing()
        batch = self.metadata.batch
        if batch is None or batch == n:
            features, logits = self._run(feeds, n)
        else:
            parts = [self._run(part, batch) for part in _parts(feeds, n, batch)]
            features, logits = (np.concatenate(part)[:n] for part in zip(*parts, strict=True))
        return Output(features, self._as_logits(logits))

    def _run(self, feeds: _Feeds, n: int) -> tuple[Floats, Floats]:
        try:
            features, logits = self._session.run(self._names, feeds)
        except Exception as error:  # of ONNX Runtime's own kinds, with no common base
            raise LamettaError(f"x must be what the graph can run: {reason(error)}") from error
        return pooled(features, n, self._channels_first), matrix(logits, n, self._columns)

    def _feeds(self, x: object) -> _Feeds:
        given = self._by_input(x)
        feeds = {one.name: self._tensor(one, given[one.name]) for one in self.metadata.inputs}
        if len({len(tensor) for tensor in feeds.values()}) != 1:
            got = " and ".join(f"{len(tensor)} of {name!r}" for name, tensor in feeds.items())
            raise LamettaError(f"x must have as many samples in each tensor, got {got}")
        return feeds

    def _by_input(self, x: object) -> Mapping[str, object]:
        """What is for each input; where there is one alone, it needs no name."""
        names = [input_.name for input_ in self.metadata.inputs]
        given = x if isinstance(x, Mapping) else {names[0]: x} if len(names) == 1 else {}
        if set(given) != set(names):
            got = ", ".join(map(repr, given)) or type(x).__name__
            wanted = ", ".join(map(repr, names))
            raise LamettaError(f"x must be a mapping with the tensors {wanted}, got {got}")
        return given

    def _tensor(self, input_: Input, x: object) -> npt.NDArray[np.generic]:
        if isinstance(x, bytes | bytearray | memoryview):
            x = [x]
        if not are_images(x, takes_pixels=input_.dtype == "uint8"):
            return input_.tensor(x)
        if self._images is None:
            raise LamettaError(
                f"x must be {input_} for the graph's input {input_.name!r}, got images"
            )
        return self._images(x, np.dtype(input_.dtype), self.max_pixels)

    def _as_logits(self, logits: Floats) -> Floats:
        if logits.shape[1] == 1:  # of a binary classifier
            other = 1 - logits if self.probabilities else np.zeros_like(logits)
            logits = np.concatenate([other, logits], axis=1)
        if not self._is_checked:
            check_logits(logits, self.probabilities)
            self._is_checked = True
        if self.probabilities:
            logits = np.log(np.maximum(logits, np.finfo(np.float32).tiny))
        return logits

    def _nothing(self) -> Output:
        d, n_classes = self.metadata.d, self.metadata.n_classes
        if d is None or n_classes is None:
            raise LamettaError("x must hold a sample, since the graph leaves open what it gives")
        return Output(np.zeros((0, d), np.float32), np.zeros((0, n_classes), np.float32))


def _parts(feeds: _Feeds, n: int, batch: int) -> Iterator[_Feeds]:
    """Cut a batch into parts of a fixed size; copies of the last sample fill up the last part."""
    for start in range(0, n, batch):
        rows = np.minimum(np.arange(start, start + batch), n - 1)
        yield {name: x[rows] for name, x in feeds.items()}


def _classes(known: Mapping[str, str], n_classes: int | None) -> tuple[str, ...] | None:
    """The names of classes in a file's metadata, as a list or by their index."""
    for key in ("lametta.classes", "classes", "names", "id2label"):
        names = _read(known.get(key, ""))
        if isinstance(names, dict):
            by_index = {str(i): name for i, name in names.items()}
            names = [by_index.get(str(i)) for i in range(len(names))]
        fits = isinstance(names, list) and n_classes in (None, len(names))
        if fits and all(isinstance(name, str) for name in names):
            return tuple(names)
    return None


def _read(text: str) -> Any:
    """What JSON says, or Python's notation of a list or a dict of texts alone; else None."""
    if not isinstance(text, str) or len(text) > _MOST_NAMES:  # bytes that are no UTF-8 stay bytes
        return None
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    if _FLAT.fullmatch(text):
        with suppress(SyntaxError, ValueError), warnings.catch_warnings(action="ignore"):
            return ast.literal_eval(text)
    return None
