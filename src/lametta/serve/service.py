"""Inference of one decoded request: model, session, outputs; model metadata."""

import base64
import json
import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lametta._arrays import check_classes, probabilities, to_numpy
from lametta._checks import check_choice, is_number
from lametta._locks import interruptible
from lametta.integrations.onnx import OnnxModel
from lametta.serve.monitoring import Monitor
from lametta.serve.protocol import (
    BadRequest,
    Deadline,
    DeadlineError,
    HTTPError,
    InferReply,
    InferRequest,
    NotFoundError,
    datatype_of,
    refuse,
)
from lametta.serve.rows import ROW_OUTPUTS, SEQUENCE, Answer, Part, check_id, join, split
from lametta.serve.sessions import Samples, SessionManager
from lametta.signals import signals
from lametta.types import LamettaError, Prediction

logger = logging.getLogger("lametta.serve")

VERSION = "1"  # of every model: a corrector has no weights that could change
SIGNALS = ("entropy", "diversity", "changed")  # of a request, as `lametta.signals` has them
LABELS = ("label", "source_label")
NAMES = ("label_name", "source_label_name")  # where the server knows the names of classes
_FLOATS = "FP16, FP32 or FP64"


@dataclass
class Service:
    """The models of a server: correctors, each with its streams.

    Parameters
    ----------
    sessions : mapping of str to SessionManager
        The correctors by name.
    monitor : Monitor
        What watches them.
    deadline : float
        Seconds after which no answer is worth anything.
    network : OnnxModel, optional
        What predicts; without it, requests bring features and predictions.
    names : sequence of str, optional
        The names of the classes, which every request must have as many of.
    shadow : bool
        Whether the network's own probabilities are the answer, and corrections only recorded.
    """

    sessions: Mapping[str, SessionManager]
    monitor: Monitor
    deadline: float
    network: OnnxModel | None = None
    names: Sequence[str] | None = None
    shadow: bool = False
    _lonely: set[str] = field(default_factory=set, init=False, repr=False)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of all outputs."""
        return ("probs", *LABELS, *(() if self.names is None else NAMES), *SIGNALS)

    def find(self, name: str) -> SessionManager:
        """The model of a name."""
        if name not in self.sessions:
            known = ", ".join(self.sessions)
            raise NotFoundError(f"model must be one of {known}, got {name[:100]!r}")
        return self.sessions[name]

    def metadata(self, name: str) -> dict[str, object]:
        """What a model takes and gives, as the protocol says it."""
        if self.network is None:
            inputs = [_tensor(one, "FP32", -1, -1) for one in ("features", "probs", "logits")]
        else:
            inputs = [
                _tensor(
                    put.name,
                    datatype_of(np.empty(0, put.dtype)),
                    *(-1, *(-1 if side is None else side for side in put.shape[1:])),
                )
                for put in self.network.metadata.inputs
            ]
        outputs = [_tensor("probs", "FP32", -1, -1)]
        outputs += [_tensor(one, "INT64", -1) for one in LABELS]
        if self.names is not None:
            outputs += [_tensor(one, "BYTES", -1) for one in NAMES]
        outputs += [_tensor(one, "FP64", -1) for one in SIGNALS]
        about = {"name": name, "versions": [VERSION], "platform": "lametta"}
        return {**about, "inputs": inputs, "outputs": outputs}

    def infer(self, name: str, deadline: Deadline, request: InferRequest) -> InferReply:
        """Answer a request to a model, within the deadline and the request's own timeout."""
        self.find(name)
        deadline.shorten(_timeout(request))
        deadline.check("the request waited until its deadline")
        parts = split(request)
        if request.outputs is not None:  # refused before the stream moves on
            known = self.outputs if parts is None else (*self.outputs, *ROW_OUTPUTS)
            for wanted in request.outputs:
                check_choice("outputs of the request", wanted[:100], known)
        if parts is not None:
            return InferReply(name, VERSION, self._infer_parts(name, deadline, request, parts), {})
        stream, start, end = _sequence(request)
        samples = Samples(*self._inputs(request.inputs, deadline), request.id, start, end)
        outputs, told = self._correct(name, deadline, stream, samples)
        if stream is not None:  # else a client could not tell that its request stood alone
            told = {"sequence_id": stream, **told}
        return InferReply(name, VERSION, outputs, told)

    def is_at_hand(self, name: str, request: InferRequest) -> bool:
        """Whether no state has to be loaded first, which may be any amount of work."""
        stream = request.parameters.get("sequence_id")
        return SEQUENCE[0] not in request.inputs and self.find(name).is_at_hand(_key(stream))

    def _infer_parts(
        self, name: str, deadline: Deadline, request: InferRequest, parts: Sequence[Part]
    ) -> dict[str, NDArray[np.generic]]:
        """The outputs of a request of several streams, one after another."""
        inputs = {key: array for key, array in request.inputs.items() if key not in SEQUENCE}
        if self.network is not None:  # which sees all rows at once
            seen = self._inputs(inputs, deadline)
            inputs = dict(zip(("features", "probs"), seen, strict=True))
        n = sum(len(part.rows) for part in parts)
        for key, array in inputs.items():
            if len(array) != n:
                raise BadRequest(f"{key} must have {n} rows, as sequence_id, got {len(array)}")
        answers = []
        for part in parts:
            own = {key: array[part.rows] for key, array in inputs.items()}
            answers.append(self._infer_part(name, deadline, request.id, part, own))
        return join(parts, answers)

    def _infer_part(
        self,
        name: str,
        deadline: Deadline,
        request_id: str,
        part: Part,
        inputs: Mapping[str, NDArray[np.generic]],
    ) -> Answer:
        try:
            features, probs = self._given(inputs)
            samples = Samples(features, probs, request_id, part.start, part.end)
            outputs, _ = self._correct(name, deadline, part.stream, samples)
        except LamettaError as error:
            return Answer(error.status if isinstance(error, HTTPError) else 400, {}, str(error))
        except Exception:
            logger.exception("a stream of a request failed")
            return Answer(500, {}, "internal error")
        n = len(part.rows)
        shaped = {key: np.repeat(x, n) if key in SIGNALS else x for key, x in outputs.items()}
        return Answer(200, shaped)

    def _correct(
        self, name: str, deadline: Deadline, stream: str | int | None, samples: Samples
    ) -> tuple[dict[str, NDArray[np.generic]], dict[str, object]]:
        """The outputs for the next samples of a stream, and what the corrector says of itself."""
        manager, probs = self.find(name), samples.probs
        if self.names is not None and probs.shape[1] != len(self.names):
            raise BadRequest(
                f"probs or logits must have {len(self.names)} columns, as many as the server has "
                f"names of classes, got {probs.shape[1]}"
            )
        began = time.perf_counter()
        try:
            with _said_to_clients:
                prediction = manager.correct(samples, _key(stream), deadline)
        except Exception as error:
            if not self.shadow or _is_clients(error):
                raise
            logger.warning("a correction failed in shadow mode: %s", error)
            self.monitor.record_failure(name)
            return self._outputs(probs, _as_it_came(samples))
        seconds = time.perf_counter() - began
        if len(probs) == 1 and not manager.stateful and name not in self._lonely:
            self._check_company(name, probs, prediction)
        shown = None if stream is None else str(stream)
        self.monitor.record_answer(name, shown, probs, prediction, seconds)
        return self._outputs(probs, _as_it_came(samples) if self.shadow else prediction)

    def _check_company(
        self, name: str, source: NDArray[np.floating], prediction: Prediction
    ) -> None:
        """Log once if a model leaves a single sample as it was, since it needs others beside it."""
        if np.allclose(to_numpy(prediction.probs), source):
            self._lonely.add(name)
            logger.warning(
                "%s leaves single samples as they are: it corrects the samples of a request by "
                "each other; send several, or serve a method with memory, such as prudent",
                name,
            )

    def _inputs(
        self, inputs: Mapping[str, NDArray[np.generic]], deadline: Deadline
    ) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        """Features [N, d] and the source's probabilities [N, K]."""
        if self.network is None:
            return self._given(inputs)
        with interruptible(deadline.check):
            return _predicted(self.network, inputs)

    def _given(
        self, inputs: Mapping[str, NDArray[Any]]
    ) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        """What a request brings where no network predicts here."""
        known = {"features", "probs", "logits"}
        if "features" not in inputs or not known.issuperset(inputs) or len(inputs) != 2:
            listed = ", ".join(name[:50] for name in list(inputs)[:5])
            images = any(array.dtype.kind in "Ou" for array in inputs.values())
            hint = "; images are for a server that was started with --model" if images else ""
            raise BadRequest(f"inputs must be features, and probs or logits, got {listed}{hint}")
        for name, array in inputs.items():
            if array.dtype.kind != "f" or array.ndim != 2:
                raise BadRequest(
                    f"{name} must be [N, columns] of {_FLOATS}, got {array.dtype} of shape "
                    f"{array.shape}"
                )
        if "probs" in inputs:
            check_classes("probs", inputs["probs"])
            return inputs["features"], inputs["probs"]
        return inputs["features"], probabilities("logits", inputs["logits"])

    def _outputs(
        self, source: NDArray[np.floating], prediction: Prediction
    ) -> tuple[dict[str, NDArray[np.generic]], dict[str, object]]:
        """The outputs, and what else the corrector says of itself."""
        probs = to_numpy(prediction.probs)
        labels = probs.argmax(axis=1), source.argmax(axis=1)
        outputs = {"probs": probs, LABELS[0]: labels[0], LABELS[1]: labels[1]}
        if self.names is not None:
            named = np.array(self.names, object)
            outputs |= zip(NAMES, (named[label] for label in labels), strict=True)
        told: dict[str, object] = {name: float(x) for name, x in prediction.info.items()}
        if self.shadow:
            told["shadow"] = True
        for name in SIGNALS:
            outputs[name] = np.array([told.pop(name, np.nan)])
        return outputs, told


def _key(stream: object) -> str | None:
    """The name of a stream among those of its model; None where a request stands alone."""
    # As JSON, so that 1 and "1" are two; most are integers, for which this takes far less.
    return None if not stream else str(stream) if isinstance(stream, int) else json.dumps(stream)


def _as_it_came(samples: Samples) -> Prediction:
    """What the network said, as an answer."""
    probs = samples.probs
    return Prediction(probs, samples.features, dict(signals(probs, probs)))


def _is_clients(error: Exception) -> bool:
    """Whether a request is at fault, or late: then it is refused in shadow mode too."""
    ours = isinstance(error, HTTPError) and not isinstance(error, DeadlineError)
    return isinstance(error, LamettaError) and not ours


def _tensor(name: str, datatype: str, *shape: int) -> dict[str, object]:
    """An input or output in a model's metadata; -1 is a dimension of any size."""
    return {"name": name, "datatype": datatype, "shape": shape}


def _predicted(
    network: OnnxModel, inputs: Mapping[str, NDArray[np.generic]]
) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """Features and probabilities from the network, of tensors as its graph takes them or images."""
    x: object = inputs
    if len(network.metadata.inputs) == len(inputs) == 1:
        (x,) = inputs.values()  # whatever the client calls it
        if x.dtype == object:
            x = [_file(content) for content in x.ravel().tolist()]  # a row each
    with _said_to_clients:
        output = network(x)
    return to_numpy(output.features), probabilities("logits", to_numpy(output.logits))


def _file(content: bytes) -> bytes:
    """The bytes of an image file. No JPEG or PNG file is text, so text is one in base64."""
    try:
        text = content.decode()
    except UnicodeDecodeError:  # with the first byte
        return content
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        refuse("image files", "binary BYTES or, in JSON, base64 and nothing else", text)


class _SaidToClients:
    """Say in errors what a client can send: it knows of no ``x`` and cannot call ``reset()``."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, LamettaError):
            said = re.sub("^x ", "inputs ", str(error)).replace("reset()", "sequence_start")
            raise type(error)(said) from error


_said_to_clients = _SaidToClients()


def _sequence(request: InferRequest) -> tuple[str | int | None, bool, bool]:
    """The stream that a request belongs to, whether it begins and whether it ends."""
    stream = check_id(request.parameters.get("sequence_id"))
    start, end = _flag(request, "sequence_start"), _flag(request, "sequence_end")
    if stream is None and (start or end):
        raise BadRequest("sequence_start and sequence_end must come with a sequence_id")
    return stream, start, end


def _flag(request: InferRequest, name: str) -> bool:
    flag = request.parameters.get(name, False)
    if not isinstance(flag, bool):
        raise BadRequest(f"{name} must be true or false, got {flag!r:.50}")
    return flag


def _timeout(request: InferRequest) -> float:
    """Seconds that the client is ready to wait; the protocol has microseconds."""
    given = request.parameters.get("timeout")
    if given is None:
        return float("inf")
    if not is_number(given) or given < 0:
        raise BadRequest(f"timeout must be microseconds, got {given!r:.50}")
    return float(given) / 1e6 or float("inf")
