"""OGA, against the numbers of its authors' code."""

import numpy as np
import pytest

from lametta import LamettaError
from lametta.correctors import OGA
from lametta.testing import check_corrector
from tests.correctors.golden import DTYPES, close, run, vectors, zero_shot

PUBLISHED = {
    "cap8": OGA(released=True),
    "cap20": OGA(20, released=True),
    "cap8_normmu": OGA(unit_means=True, released=True),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PUBLISHED)
def test_it_gives_its_authors_numbers(name, dtype):
    expected = vectors(f"oga_f64_{name}")
    found, states = run(PUBLISHED[name], zero_shot(dtype))
    close(found, expected["out"], dtype)
    for i, state in enumerate(states):
        filled = (state["entropy"] < np.log(10)).sum(axis=1)
        np.testing.assert_array_equal(filled, expected["memory_filled"][i].sum(axis=1))
        close(state["means"], expected["mu"][i], dtype)
        close(np.sort(state["entropy"]), np.sort(expected["memory_entropy"][i]), dtype)
        scale = np.abs(expected["precision"][i]).max()  # up to 4000
        close(state["precision"] / scale, expected["precision"][i] / scale, dtype)
    order, wanted = (
        np.argsort(x, axis=1)[..., None] for x in (state["entropy"], expected["memory_entropy"][-1])
    )
    close(
        np.take_along_axis(state["samples"], order, axis=1),
        np.take_along_axis(expected["memory_last"], wanted, axis=1),
        dtype,
    )


@pytest.mark.parametrize("name", PUBLISHED)
def test_in_half_precision_it_is_near(name):
    features, _, head = zero_shot(np.float16)
    expected = vectors(f"oga_fp16_{name}")
    probs = expected["zero_shot"] / expected["zero_shot"].sum(axis=1, keepdims=True)
    found, states = run(PUBLISHED[name], (features.astype(float), probs, head))
    np.testing.assert_allclose(found, expected["out"], atol=1e-3)
    np.testing.assert_allclose(states[-1]["means"], expected["mu"][-1], atol=1e-3)


def test_means_are_those_of_the_samples_that_a_class_has():
    found, states = run(OGA(), zero_shot())
    state, used = states[0], states[0]["entropy"] < np.log(10)
    count = used.sum(axis=1)
    assert ((count >= 2) & (count < 8)).any()
    for k in np.flatnonzero(count >= 2):
        np.testing.assert_allclose(state["means"][k], state["samples"][k][used[k]].mean(axis=0))
    assert not np.allclose(found, vectors("oga_f64_cap8")["out"], atol=1e-4)


@pytest.mark.parametrize("method", [OGA(1), OGA(2, released=True), OGA(30, tau=1.0)], ids=repr)
def test_it_keeps_the_contract(method):
    check_corrector(method)
    with pytest.raises(LamettaError, match="capacity must be an integer >= 1, got 0"):
        OGA(0)
