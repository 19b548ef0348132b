"""A camera's frames through the server, with NVIDIA's client (``pip install tritonclient[http]``).

First ``lametta serve``, then ``python examples/triton_client.py``.
"""

import argparse

import numpy as np
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput


def camera(n: int = 200, n_classes: int = 10, d: int = 32) -> tuple[np.ndarray, ...]:
    """Features, predictions and labels of a made-up camera that sees one thing after another."""
    rng = np.random.default_rng(0)
    labels = np.repeat(rng.integers(n_classes, size=n // 20), 20)
    centers = rng.normal(size=(n_classes, d))
    features = centers[labels] + 0.7 * rng.normal(size=(n, d))
    scores = np.exp(0.1 * features @ centers.T + rng.normal(size=(n, n_classes)))
    probs = scores / scores.sum(axis=1, keepdims=True)
    return features.astype(np.float32), probs.astype(np.float32), labels


def main() -> None:
    parser = argparse.ArgumentParser(description="A camera's frames through the server.")
    parser.add_argument("--url", default="127.0.0.1:8000")
    client = InferenceServerClient(parser.parse_args().url)
    features, probs, labels = camera()
    found = []
    for i in range(len(labels)):
        inputs = []
        for name, row in (("features", features[i : i + 1]), ("probs", probs[i : i + 1])):
            inputs.append(InferInput(name, row.shape, "FP32").set_data_from_numpy(row))
        answer = client.infer(
            "prudent",
            inputs,
            outputs=[InferRequestedOutput("label")],
            sequence_id="camera-1",  # whose memory: each camera has its own
            sequence_start=i == 0,
            request_id=str(i),  # sent again after a failure, it counts once
        )
        found.append(answer.as_numpy("label")[0])
    before, after = (probs.argmax(axis=1) == labels).mean(), (np.array(found) == labels).mean()
    print(f"right before {before:.0%}, after {after:.0%}")


if __name__ == "__main__":
    main()
