"""What the paths take and give, as OpenAPI says it and as the models' metadata do."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lametta.serve.protocol import DTYPES, datatype_of
from lametta.serve.service import LABELS, NAMES, SIGNALS, Service

HEADER_LENGTH = "Inference-Header-Content-Length"

_ERROR = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
_FLAG = {"type": "boolean"}


def _known(**properties: Mapping[str, object]) -> dict[str, object]:
    """An object with these properties alone."""
    return {"type": "object", "additionalProperties": False, "properties": properties}


_NAME = {"type": "string", "minLength": 1}
_SHAPE = {"type": "array", "items": {"type": "integer", "minimum": 1}}
_DATATYPE = {"type": "string", "enum": list(DTYPES)}
_ID = {"type": "string"}
_STREAM = {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 256}]}
_INPUT = {
    **_known(
        name=_NAME,
        shape=_SHAPE,
        datatype=_DATATYPE,
        parameters=_known(binary_data_size={"type": "integer", "minimum": 0}),
        data={"type": "array"},
    ),
    "required": ["name", "shape", "datatype"],
}
_WANTED = {**_known(name=_NAME, parameters=_known(binary_data=_FLAG)), "required": ["name"]}
_REQUEST = {
    **_known(
        id=_ID,
        parameters=_known(
            sequence_id=_STREAM,
            sequence_start=_FLAG,
            sequence_end=_FLAG,
            timeout={"type": "number", "minimum": 0, "description": "Microseconds."},
            binary_data_output=_FLAG,
        ),
        inputs={"type": "array", "minItems": 1, "items": _INPUT},
        outputs={"type": "array", "items": _WANTED},
    ),
    "required": ["inputs"],
}
_OUTPUT = {
    "type": "object",
    "required": ["name", "shape", "datatype"],
    "properties": {
        "name": _NAME,
        "shape": _SHAPE,
        "datatype": _DATATYPE,
        "parameters": {"type": "object"},
        "data": {"type": "array"},
    },
}
_REPLY = {
    "type": "object",
    "required": ["model_name", "model_version", "outputs"],
    "properties": {
        "model_name": {"type": "string"},
        "model_version": {"type": "string"},
        "id": _ID,
        "parameters": {
            "type": "object",
            "description": "The request's sequence_id, and what the corrector says of itself.",
            "properties": {"sequence_id": _STREAM},
            "additionalProperties": {"type": ["number", "null"]},
        },
        "outputs": {"type": "array", "items": _OUTPUT},
    },
}
_BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


def _path(
    summary: str, content: Mapping[str, object], *errors: int, **more: object
) -> dict[str, Any]:
    """The options of a route, with all of its answers: FastAPI would guess others."""
    from fastapi import Response

    known = {
        400: "What is wrong with the request.",
        401: "A bearer token is needed.",
        404: "There is no such model or version.",
        408: "The request took too long to come.",
        413: "The body is too large.",
        415: "The body is compressed.",
        429: "Too many requests or streams at once; Retry-After says when to try again.",
        500: "The corrector gave no probabilities.",
        503: "The store of the streams' states cannot be reached.",
        504: "The answer would have come after the deadline.",
    }
    error = {"application/json": {"schema": _ERROR}}
    answers = {code: {"description": known[code], "content": error} for code in errors}
    return {
        "summary": summary,
        "response_class": Response,
        "responses": {200: {"description": summary, "content": content}, **answers},
        **more,
    }


def _json(schema: Mapping[str, object]) -> dict[str, object]:
    return {"application/json": {"schema": schema}}


_OBJECT = _json({"type": "object"})
SERVER = _path("The server's name, version and extensions.", _OBJECT, 401, 429)
HEALTH = _path("Whether the server lives, or is ready.", _OBJECT, 503)
MODEL = _path("What a model takes and gives.", _OBJECT, 401, 404, 429, 503)
METRICS = _path("Metrics for Prometheus.", {"text/plain": {}}, 401, 429)
STATUS = _path("The numbers of the live page.", _OBJECT, 401, 429)
_MODEL, _VERSION = (
    {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
    for name in ("model", "version")
)
_HEADER_LENGTH = {
    "name": HEADER_LENGTH,
    "in": "header",
    "required": False,
    "description": "Bytes of JSON at the start of a body with binary tensors.",
    "schema": {"type": "integer", "minimum": 0},
}


def _infer(*parameters: Mapping[str, object]) -> dict[str, Any]:
    body = {"required": True, "content": _json(_REQUEST) | _BYTES}
    return _path(
        "Correct the next samples of a stream, or a batch that stands alone.",
        _json(_REPLY) | _BYTES,
        *(400, 401, 404, 408, 413, 415, 429, 500, 503, 504),
        openapi_extra={"requestBody": body, "parameters": [*parameters, _HEADER_LENGTH]},
    )


INFER, INFER_VERSION = _infer(_MODEL), _infer(_MODEL, _VERSION)


def inputs_of(service: Service) -> Sequence[Mapping[str, object]]:
    """The inputs in a model's metadata."""
    if service.network is not None:
        return [
            {
                "name": put.name,
                "datatype": datatype_of(np.empty(0, put.dtype)),
                "shape": [-1, *(-1 if side is None else side for side in put.shape[1:])],
            }
            for put in service.network.metadata.inputs
        ]
    return [
        {"name": name, "datatype": "FP32", "shape": [-1, -1]}
        for name in ("features", "probs", "logits")
    ]


def outputs_of(service: Service) -> Sequence[Mapping[str, object]]:
    """The outputs in a model's metadata."""
    labels = [{"name": name, "datatype": "INT64", "shape": [-1]} for name in LABELS]
    if service.names is not None:
        labels += [{"name": name, "datatype": "BYTES", "shape": [-1]} for name in NAMES]
    signals = [{"name": name, "datatype": "FP64", "shape": [1]} for name in SIGNALS]
    return [{"name": "probs", "datatype": "FP32", "shape": [-1, -1]}, *labels, *signals]
