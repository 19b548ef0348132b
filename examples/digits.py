"""LAME on scikit-learn's digits: a small network, three shifts, three orders of the stream.

The network is trained once on clean digits and never touched again. It then meets a stream of
digits it has not seen, clean or shifted, and LAME corrects its predictions batch by batch.
"""

import warnings
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

import lametta

BATCH_SIZE = 64


def train(images: Any, labels: Any) -> MLPClassifier:
    network = MLPClassifier((128,), max_iter=300, random_state=0)
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        return network.fit(images, labels)


class Network:
    """A trained network as a `lametta.Model`: images to features and logits."""

    def __init__(self, network: MLPClassifier) -> None:
        self.network = network

    def __call__(self, images: Any) -> lametta.Output:
        (w_in, w_out), (b_in, b_out) = self.network.coefs_, self.network.intercepts_
        features = np.maximum(images @ w_in + b_in, 0)
        return lametta.Output(features=features, logits=features @ w_out + b_out)


def shifts(images: Any, rng: np.random.Generator) -> dict[str, Any]:
    dark = images * 0.45
    return {
        "clean": images,
        "noise": np.clip(images + rng.normal(scale=0.35, size=images.shape), 0, 1),
        "dark": np.clip(dark + rng.normal(scale=0.08, size=images.shape), 0, 1),
    }


def orders(labels: Any, rng: np.random.Generator) -> dict[str, Any]:
    # Runs of one class with a length of their own, as a camera would see them.
    runs = rng.geometric(1 / 20, size=len(labels)).cumsum()
    drawn = rng.integers(10, size=len(labels))
    bursts = np.concatenate(
        [
            rng.choice(np.flatnonzero(labels == digit), size=size)
            for digit, size in zip(drawn, np.diff(runs, prepend=0), strict=True)
        ]
    )
    return {
        "i.i.d.": rng.permutation(len(labels)),
        "bursts of a class": bursts[: len(labels)],
        "sorted by class": np.argsort(labels, kind="stable"),
    }


def accuracy(adapter: lametta.Adapter, images: Any, labels: Any) -> float:
    hits = 0
    for start in range(0, len(labels), BATCH_SIZE):
        batch = slice(start, start + BATCH_SIZE)
        hits += (adapter.step(images[batch]).probs.argmax(axis=1) == labels[batch]).sum()
    return 100 * hits / len(labels)


def main() -> None:
    digits = load_digits()
    known, images, known_labels, labels = train_test_split(
        digits.data / 16, digits.target, test_size=0.6, random_state=0
    )
    model = Network(train(known, known_labels))
    source, corrected = lametta.Source(model), lametta.Corrected(model, lametta.LAME())

    print(f"{len(labels)} digits in batches of {BATCH_SIZE}; accuracy in percent\n")
    print(f"{'shift':<8}{'stream':<20}{'source':>8}{'LAME':>8}{'gain':>8}")
    for shift, shifted in shifts(images, np.random.default_rng(0)).items():
        for order, index in orders(labels, np.random.default_rng(1)).items():
            before = accuracy(source, shifted[index], labels[index])
            after = accuracy(corrected, shifted[index], labels[index])
            print(f"{shift:<8}{order:<20}{before:>8.1f}{after:>8.1f}{after - before:>+8.1f}")
    print("\nLAME gains where samples that come together belong together; i.i.d. it can lose.")


if __name__ == "__main__":
    main()
