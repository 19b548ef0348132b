"""T3A of CONTRIBUTING.md, against the numbers of its authors' code."""

import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from lametta import LamettaError
from lametta.testing import check_corrector
from lametta.types import Prototypes
from tests.conftest import shared

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def method():
    """The class, as it stands in the diff."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (body,) = re.findall(r"\+\+\+ b/src/lametta/correctors/t3a\.py\n@@.*\n((?:\+.*\n)+)", text)
    module = types.ModuleType("proof_t3a")
    sys.modules[module.__name__] = module  # so that what it defines pickles
    exec(re.sub(r"^\+", "", body, flags=re.MULTILINE), vars(module))
    yield module.T3A
    del sys.modules[module.__name__]


@pytest.mark.parametrize("keep", [1, 20])
def test_t3a_keeps_the_contract(method, keep):
    check_corrector(method(keep))
    with pytest.raises(LamettaError, match="keep must be an integer >= 1, got 0"):
        method(0)


@pytest.mark.parametrize("keep", [1, 5, 20])
def test_t3a_gives_its_authors_numbers(method, keep):
    files = [
        shared("golden", "field", f"{name}.npz") for name in ("clip_problem", f"t3a_orig_m{keep}")
    ]
    with np.load(files[0]) as problem, np.load(files[1]) as published:
        given = Prototypes(problem["W"], problem["b"])
        features, expected = problem["features_raw"], dict(published)
    one = method(keep)
    one.use(given)
    for i, start in enumerate(range(0, 200, 32)):
        batch = slice(start, start + 32)
        found = one.correct(features[batch], _softmax(given.logits(features[batch]))).probs
        np.testing.assert_allclose(found, _softmax(expected["out"][batch]), atol=1e-13)
        state, n = one.state_dict(), expected["n_supports"][i]
        used = state["entropy"] < np.finfo(float).max
        np.testing.assert_allclose(
            state["entropy"][used], expected["support_entropy"][i, :n], atol=1e-13
        )
        np.testing.assert_array_equal(np.nonzero(used)[0], expected["support_label"][i, :n])
        rows = expected["support_feature"][i, :n]
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        np.testing.assert_allclose(state["samples"][used], rows, atol=1e-13)


def _softmax(logits):
    exp = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exp / exp.sum(axis=1, keepdims=True)
