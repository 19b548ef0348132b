"""gRPC: the same protocol, as NVIDIA's and KServe's gRPC clients speak it, before the same server.

Each call becomes the request of the HTTP API that says the same, to the same application: so
limits, tokens, rates, deadlines, errors and metrics are those of HTTP, and there is nothing that
one of the two can and the other cannot.
"""

import asyncio
import logging
import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import grpc
import numpy as np
import orjson
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as pb

from lametta.serve.middleware import ASGIApp, Message, ServerLimits, Tokens
from lametta.serve.protocol import DTYPES, HEADER_LENGTH
from lametta.types import LamettaError

logger = logging.getLogger("lametta.serve")

_OVERHEAD = 2**16  # bytes of a message beside its tensors: names, shapes, parameters
_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
_FIELDS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


class GRPCServer:
    """A gRPC server before an application; `start` and `stop` it in the application's loop.

    Parameters
    ----------
    app : ASGI application
        What answers.
    host, port
        Where to listen; the system chooses a port for 0.
    limits : ServerLimits
        Those of the application, some of which gRPC keeps itself: the size of messages and heads,
        and how many calls there are at a time.
    """

    def __init__(self, app: ASGIApp, host: str, port: int, limits: ServerLimits) -> None:
        self.app, self.host, self.port, self.limits = app, host, port, limits
        self._server: Any = None

    async def start(self) -> None:
        """Listen."""
        limits = self.limits
        milliseconds = int(1000 * limits.patience)
        options = {
            "grpc.max_receive_message_length": limits.request.body + _OVERHEAD,
            "grpc.max_send_message_length": -1,
            "grpc.max_metadata_size": limits.head,
            "grpc.absolute_max_metadata_size": limits.head,
            "grpc.max_concurrent_streams": limits.queue,  # of a connection
            "grpc.server_handshake_timeout_ms": milliseconds,
            "grpc.max_connection_idle_ms": milliseconds,
            "grpc.so_reuseport": 0,  # a second server on the port is an error
        }
        # One place beyond the queue, whose refusal says how many wait.
        server = grpc.aio.server(
            options=list(options.items()), maximum_concurrent_rpcs=4 * limits.queue
        )
        server.add_generic_rpc_handlers((_Calls(self.app, limits).handler(),))
        host = f"[{self.host}]" if ":" in self.host else self.host
        try:
            self.port = server.add_insecure_port(f"{host}:{self.port}")
        except RuntimeError as error:
            raise LamettaError(f"could not listen on {host}:{self.port} for gRPC") from error
        await server.start()
        self._server = server
        logger.info("listening for gRPC", extra={"host": self.host, "grpc_port": self.port})

    async def stop(self) -> None:
        """Take no more calls, and answer those that are there."""
        if self._server is not None:
            await self._server.stop(self.limits.deadline + self.limits.patience)


class _Reply(NamedTuple):
    """What the application answered."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes

    @property
    def error(self) -> str:
        try:
            return str(orjson.loads(self.body)["error"])
        except (orjson.JSONDecodeError, KeyError):
            return self.body.decode(errors="replace")  # of another server's


class _Calls:
    """What each method does. Messages are read here, after it is known who sends them."""

    def __init__(self, app: ASGIApp, limits: ServerLimits) -> None:
        self._app, self._patience, self._pending = app, limits.patience, limits.pending
        self._unread = 0  # bytes of answers that clients have not taken yet
        self._host = (limits.hosts or ("localhost",))[0].encode()
        self._tokens = Tokens(limits.tokens)

    def handler(self) -> Any:
        """The methods by name; all of them as streams of bytes, which on the wire are the same."""
        calls = {"ModelInfer": self._infer_one, "ModelStreamInfer": self._infer_all}
        calls |= {name: partial(self._plain, *about) for name, about in _PLAIN.items()}
        behaviors = {name: grpc.stream_stream_rpc_method_handler(x) for name, x in calls.items()}
        return grpc.method_handlers_generic_handler(_SERVICE, behaviors)

    async def _check_token(self, context: Any) -> None:
        """Refuse who has no token before a message is read, which may be large."""
        if self._tokens and self._tokens.find(_authorization(context)) is None:
            refused = await self._ask(context, "GET", "/v2")
            await context.abort(_code(refused.status), refused.error)

    async def _read(self, context: Any, kind: Any, seconds: float | None) -> Any:
        """The next message of a call; None after the last."""
        try:
            async with asyncio.timeout(seconds):
                content = await context.read()
            return None if content is grpc.aio.EOF else kind.FromString(content)
        except TimeoutError:
            reason = grpc.StatusCode.DEADLINE_EXCEEDED, "the request took too long to come"
        except DecodeError:
            reason = grpc.StatusCode.INVALID_ARGUMENT, f"the message must be a {kind.__name__}"
        return await context.abort(*reason)

    async def _write(self, context: Any, message: Any) -> None:
        content = message.SerializeToString()
        self._unread += len(content)
        try:
            await context.write(content)
        except grpc.aio.InternalError:  # the client has gone
            logger.debug("an answer could not be sent")
        finally:
            self._unread -= len(content)

    async def _read_one(self, context: Any, kind: Any) -> Any:
        await self._check_token(context)
        if (message := await self._read(context, kind, self._patience)) is None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a message must come")
        return message

    async def _plain(self, path: str, kind: Any, reply: Any, _: Any, context: Any) -> None:
        """A call without tensors: a path, and a message of what is there."""
        if kind is not None:
            asked = await self._read_one(context, kind)
            path = path.format(model=_in_path(asked.name, asked.version))
        await self._write(context, await self._told(path, reply, context))

    async def _told(self, path: str, reply: Any, context: Any) -> Any:
        found = await self._ask(context, "GET", path)
        is_probe = reply in (pb.ServerLiveResponse, pb.ServerReadyResponse, pb.ModelReadyResponse)
        if is_probe and found.status in (200, 404, 503):
            key = "live" if reply is pb.ServerLiveResponse else "ready"
            return reply(**{key: found.status == 200})
        if found.status != 200:
            await context.abort(_code(found.status), found.error)
        said = orjson.loads(found.body)
        return reply(
            **{
                field.name: said[field.name]
                for field in reply.DESCRIPTOR.fields
                if field.name in said
            }
        )

    async def _infer_one(self, _: Any, context: Any) -> None:
        request = await self._read_one(context, pb.ModelInferRequest)
        status, answer = await self._infer(request, context)
        if status != 200:
            await context.abort(_code(status), answer)
        await self._write(context, answer)

    async def _infer_all(self, _: Any, context: Any) -> None:
        """Answer requests in their order; one that is wrong costs its own answer."""
        await self._check_token(context)
        while (request := await self._read(context, pb.ModelInferRequest, None)) is not None:
            status, answer = await self._infer(request, context)
            if status == 200:
                said = pb.ModelStreamInferResponse(infer_response=answer)
            else:
                failed = pb.ModelInferResponse(model_name=request.model_name, id=request.id)
                said = pb.ModelStreamInferResponse(error_message=answer, infer_response=failed)
            await self._write(context, said)

    async def _infer(self, request: Any, context: Any) -> tuple[int, Any]:
        """The status, and the answer or the reason why there is none."""
        if self._unread > self._pending:  # gRPC keeps them until they are taken or the client goes
            return 429, "the answers that clients have not read yet are too large together"
        try:
            header, tail = encode_request(request, context.time_remaining())
        except LamettaError as error:
            return 400, str(error)
        lengths = (HEADER_LENGTH, len(header)), ("Content-Length", len(header) + len(tail))
        headers = [(name.lower().encode(), b"%d" % length) for name, length in lengths]
        path = f"/v2/models/{_in_path(request.model_name, request.model_version)}/infer"
        reply = await self._ask(context, "POST", path, header + tail, headers)
        if reply.status != 200:
            return reply.status, reply.error
        length = int(reply.headers.get(HEADER_LENGTH.lower().encode(), len(reply.body)))
        return 200, decode_reply(orjson.loads(reply.body[:length]), reply.body[length:])

    async def _ask(
        self,
        context: Any,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> _Reply:
        """What the application answers to a request; the client is who it is to gRPC."""
        kind, _, address = context.peer().partition(":")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [
                (b"host", self._host),
                (b"authorization", _authorization(context).encode("latin-1", "replace")),
                *headers,
            ],
            "client": (address.rpartition(":")[0].strip("[]") or kind, 0),
        }
        status, told, parts = 0, {}, []

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            nonlocal status, told
            if message["type"] == "http.response.start":
                status, told = message["status"], dict(message.get("headers", ()))
            else:
                parts.append(message.get("body", b""))

        await self._app(scope, receive, send)
        return _Reply(status, told, b"".join(parts))


_SERVICE = "inference.GRPCInferenceService"
_PLAIN = {  # the path, the message that is read, where it says anything, and that of the answer
    "ServerLive": ("/v2/health/live", None, pb.ServerLiveResponse),
    "ServerReady": ("/v2/health/ready", None, pb.ServerReadyResponse),
    "ServerMetadata": ("/v2", None, pb.ServerMetadataResponse),
    "ModelReady": ("/v2/models/{model}/ready", pb.ModelReadyRequest, pb.ModelReadyResponse),
    "ModelMetadata": ("/v2/models/{model}", pb.ModelMetadataRequest, pb.ModelMetadataResponse),
}


def _authorization(context: Any) -> str:
    given = dict(context.invocation_metadata() or ()).get("authorization", "")
    return given if isinstance(given, str) else given.decode("latin-1")


def _in_path(name: str, version: str) -> str:
    # A name with a slash would be another path, and is no model's.
    name, version = name.replace("/", "\\"), version.replace("/", "\\")
    return f"{name}/versions/{version}" if version else name


def _code(status: int) -> grpc.StatusCode:
    return _CODES.get(status, grpc.StatusCode.INTERNAL)


def encode_request(request: Any, seconds: float | None = None) -> tuple[bytes, bytes]:
    """The JSON and the bytes of the HTTP request that says the same as a ``ModelInferRequest``.

    Parameters
    ----------
    request : ModelInferRequest
        Tensors are raw, all of them, or typed.
    seconds : float, optional
        That the client waits, which bound the request's own timeout.
    """
    raw = list(request.raw_input_contents)
    if raw and len(raw) != len(request.inputs):
        raise LamettaError(
            f"raw_input_contents must be as many as inputs, {len(request.inputs)}, got {len(raw)}"
        )
    inputs, tail = [], []
    for i, tensor in enumerate(request.inputs):
        if raw and tensor.HasField("contents"):
            raise LamettaError(
                f"input {tensor.name!r:.50} must have contents or raw ones, got both"
            )
        tail.append(raw[i] if raw else _typed(tensor))
        inputs.append(_entry(tensor) | {"shape": list(tensor.shape), "datatype": tensor.datatype})
        inputs[-1]["parameters"]["binary_data_size"] = len(tail[-1])
    parameters = _parameters(request.parameters)
    if seconds is not None:
        left = max(1e6 * seconds, 1.0)
        own = parameters.get("timeout", 0)
        is_number = isinstance(own, int | float) and not isinstance(own, bool) and own >= 0
        parameters["timeout"] = min(own or math.inf, left) if is_number else own
    said = {
        "id": request.id,
        "parameters": parameters | {"binary_data_output": True},
        "inputs": inputs,
        "outputs": [_entry(output) for output in request.outputs],
    }
    return orjson.dumps(said), b"".join(tail)


def _entry(tensor: Any) -> dict[str, Any]:
    return {"name": tensor.name, "parameters": _parameters(tensor.parameters)}


def _parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: getattr(x, x.WhichOneof("parameter_choice") or "string_param")
        for name, x in given.items()
    }


def _typed(tensor: Any) -> bytes:
    """The bytes of a tensor whose values come as numbers or elements of the message."""
    field, dtype = _FIELDS.get(tensor.datatype), DTYPES.get(tensor.datatype)
    if field is None or dtype is None:
        raise LamettaError(
            f"datatype of input {tensor.name!r:.50} must be one of {', '.join(_FIELDS)} where its "
            f"contents are not raw, got {tensor.datatype!r:.50}"
        )
    values = list(getattr(tensor.contents, field))
    if field == "bytes_contents":
        return b"".join(len(one).to_bytes(4, "little") + one for one in values)
    try:
        return np.array(values, dtype).tobytes()
    except OverflowError:
        raise LamettaError(
            f"contents of input {tensor.name!r:.50} must be in the range of {tensor.datatype}"
        ) from None


def decode_reply(said: Mapping[str, Any], tail: bytes) -> Any:
    """The ``ModelInferResponse`` that says the same as an HTTP reply, all of it binary."""
    answer = pb.ModelInferResponse(
        model_name=said["model_name"], model_version=said["model_version"], id=said.get("id", "")
    )
    for name, value in said.get("parameters", {}).items():
        _set(answer.parameters[name], value)
    start = 0
    for output in said["outputs"]:
        answer.outputs.add(name=output["name"], datatype=output["datatype"], shape=output["shape"])
        end = start + output["parameters"]["binary_data_size"]
        answer.raw_output_contents.append(tail[start:end])
        start = end
    return answer


def _set(parameter: Any, value: object) -> None:
    fields = {bool: "bool_param", int: "int64_param", float: "double_param"}
    field = fields.get(type(value), "string_param")
    if field == "int64_param" and not -(2**63) <= value < 2**63:  # type: ignore[operator]
        field = "uint64_param"
    setattr(parameter, field, "" if value is None else value)
