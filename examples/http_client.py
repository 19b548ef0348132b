"""The same with nothing but HTTP and JSON: any language can do this.

First ``lametta serve``, then ``python examples/http_client.py``.
"""

import argparse
import json
import random
import urllib.request


def ask(url: str, stream: str, features: list[float], logits: list[float]) -> dict[str, float]:
    """Correct one sample of a stream; what comes back are its outputs by name."""
    tensors = {"features": features, "logits": logits}
    inputs = [
        {"name": name, "shape": [1, len(row)], "datatype": "FP32", "data": row}
        for name, row in tensors.items()
    ]
    body = {
        "inputs": inputs,
        "outputs": [{"name": "label"}, {"name": "source_label"}],
        "parameters": {"sequence_id": stream},
    }
    request = urllib.request.Request(
        f"http://{url}/v2/models/prudent/infer",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},  # and "Authorization": "Bearer ..." with tokens
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return {output["name"]: output["data"][0] for output in json.load(answer)["outputs"]}


def main() -> None:
    parser = argparse.ArgumentParser(description="Two cameras' frames through the server.")
    parser.add_argument("--url", default="127.0.0.1:8000")
    url = parser.parse_args().url
    rng = random.Random(0)
    right = {"source_label": 0, "label": 0}
    n = 200
    for frame in range(n):
        for camera, label in (("door", frame // 25), ("yard", 9 - frame // 50)):
            features = [(i % 10 == label) + 0.5 * rng.gauss(0, 1) for i in range(20)]
            logits = [1.5 * features[i] + rng.gauss(0, 1) for i in range(10)]
            answer = ask(url, camera, features, logits)
            for name in right:
                right[name] += answer[name] == label
    print(
        f"right before {right['source_label'] / (2 * n):.0%}, after {right['label'] / (2 * n):.0%}"
    )


if __name__ == "__main__":
    main()
