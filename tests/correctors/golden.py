"""The small problem of the golden vectors of output-only methods, and runs over it."""

from functools import cache

import numpy as np

from lametta.types import Prototypes
from tests.conftest import shared

DTYPES = (np.float64, np.float32)
TOLERANCE = {np.float64: 1e-6, np.float32: 1e-4}


@cache
def vectors(name):
    """What a published implementation gave, by name."""
    with np.load(shared("golden", "field", f"{name}.npz")) as stored:
        return dict(stored)


def softmax(logits):
    exp = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exp / exp.sum(axis=1, keepdims=True)


def linear(dtype=np.float64):
    """Features with lengths of their own, their probabilities, and the linear head."""
    problem = vectors("clip_problem")
    head, features = Prototypes(problem["W"], problem["b"]), problem["features_raw"]
    return features.astype(dtype), softmax(head.logits(features)).astype(dtype), head


def zero_shot(dtype=np.float64):
    """Features of length 1, probabilities of CLIP's kind, and its head: texts times 100."""
    problem = vectors("clip_problem")
    arrays = problem["features"].astype(dtype), problem["zero_shot_probs"].astype(dtype)
    return *arrays, Prototypes(100 * problem["prototypes"])


def run(corrector, problem, size=32):
    """The answers, and the state after each batch."""
    features, probs, head = problem
    corrector.reset()
    if {"prototypes"} & {*corrector.needs, *corrector.takes}:
        corrector.use(head)
    answers, states = [], []
    for start in range(0, len(features), size):
        batch = slice(start, start + size)
        answers.append(corrector.correct(features[batch], probs[batch]).probs)
        states.append(corrector.state_dict())
    return np.concatenate(answers), states


def close(found, expected, dtype):
    """Assert that arrays are equal, as far as the dtype allows."""
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE[dtype])
