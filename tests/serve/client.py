"""A client of the server with nothing but a socket and NumPy, for load and kills.

It takes half the time of the standard library's, most of which goes into headers.
"""

import json
import socket
from typing import Any, NamedTuple

import numpy as np

_DATATYPES = {"float16": "FP16", "float32": "FP32", "float64": "FP64"}


class Reply(NamedTuple):
    """What came back: with 200 the probabilities, else the reason."""

    status: int
    probs: Any
    error: str
    retry_after: str | None


class Client:
    """A connection that is kept open; not for several threads.

    What the network does is raised as it is, `OSError`: whether the request was counted is not
    known then. The next one opens the connection again.
    """

    def __init__(self, port: int, timeout: float = 60) -> None:
        self._address, self._timeout = ("127.0.0.1", port), timeout
        self._socket: socket.socket | None = None

    def infer(
        self, features: Any, probs: Any, stream: str | int, name: str = "", model: str = "prudent"
    ) -> Reply:
        """Ask for a stream's corrected probabilities, in binary; ``name`` is the request's id."""
        tensors = {"features": features, "probs": probs}
        head = {
            "id": name,
            "parameters": {"sequence_id": stream},
            "inputs": [
                {
                    "name": name,
                    "shape": list(array.shape),
                    "datatype": _DATATYPES[array.dtype.name],
                    "parameters": {"binary_data_size": array.nbytes},
                }
                for name, array in tensors.items()
            ],
            "outputs": [{"name": "probs", "parameters": {"binary_data": True}}],
        }
        said = json.dumps(head).encode()
        body = b"".join((said, *(array.tobytes() for array in tensors.values())))
        try:
            status, headers, content = self._ask(f"/v2/models/{model}/infer", len(said), body)
        except BaseException:
            self.close()
            raise
        if headers.get("connection") == "close":
            self.close()
        if status != 200:
            again, reason = headers.get("retry-after"), content.decode()
            if reason.startswith("{"):  # what stands before the server may say it as text
                reason = json.loads(reason)["error"]
            return Reply(status, None, reason, again)
        length = int(headers["inference-header-content-length"])
        told = json.loads(content[:length])
        assert told.get("id", "") == name
        (output,) = told["outputs"]
        values = np.frombuffer(content[length:], probs.dtype).reshape(output["shape"])
        return Reply(200, values, "", None)

    def _ask(self, path: str, said: int, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """The status, headers and content of the answer to a body that begins with JSON."""
        if self._socket is None:
            self._socket = socket.create_connection(self._address, self._timeout)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        lengths = f"Content-Length: {len(body)}\r\nInference-Header-Content-Length: {said}"
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{lengths}\r\n\r\n"
        self._socket.sendall(head.encode() + body)
        came = b""
        while (end := came.find(b"\r\n\r\n")) < 0:
            came += self._receive()
        first, *lines = came[:end].decode("latin-1").lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        content = came[end + 4 :]
        if "content-length" not in headers:
            content = self._joined(content)
        else:
            while len(content) < int(headers["content-length"]):
                content += self._receive()
        return int(first.split()[1]), headers, content

    def _joined(self, rest: bytes) -> bytes:
        """The content that comes in chunks, as what stands before the server may send it."""
        content, size = b"", 1
        while size:
            while (end := rest.find(b"\r\n")) < 0:
                rest += self._receive()
            size = int(rest[:end], 16)
            while len(rest) < end + size + 4:
                rest += self._receive()
            content += rest[end + 2 : end + 2 + size]
            rest = rest[end + size + 4 :]
        return content

    def _receive(self) -> bytes:
        assert self._socket is not None
        came = self._socket.recv(2**16)
        if not came:
            raise ConnectionResetError("the server hung up")
        return came

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
