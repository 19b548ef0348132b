"""A client of the server with nothing but the standard library and NumPy, for load and kills."""

import http.client
import json
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

    What the network does is raised as it is, `OSError` or `http.client.HTTPException`: whether the
    request was counted is not known then. The next one opens the connection again.
    """

    def __init__(self, port: int, timeout: float = 60) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)

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
        headers = {"Inference-Header-Content-Length": str(len(said))}
        try:
            self._connection.request("POST", f"/v2/models/{model}/infer", body, headers)
            response = self._connection.getresponse()
            content = response.read()
        except BaseException:
            self.close()
            raise
        if response.status != 200:
            again, reason = response.headers["Retry-After"], content.decode()
            if reason.startswith("{"):  # what stands before the server may say it as text
                reason = json.loads(reason)["error"]
            return Reply(response.status, None, reason, again)
        length = int(response.headers["Inference-Header-Content-Length"])
        told = json.loads(content[:length])
        assert told.get("id", "") == name
        (output,) = told["outputs"]
        values = np.frombuffer(content[length:], probs.dtype).reshape(output["shape"])
        return Reply(200, values, "", None)

    def close(self) -> None:
        self._connection.close()
