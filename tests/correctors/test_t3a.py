"""T3A, against the numbers of its authors' code and of another."""

import numpy as np
import pytest

from lametta import LamettaError
from lametta.correctors import T3A
from lametta.testing import check_corrector
from tests.correctors.golden import DTYPES, close, linear, run, softmax, vectors

PUBLISHED = {
    "t3a_orig_m1": T3A(1),
    "t3a_orig_m5": T3A(5),
    "t3a_orig_m20": T3A(),
    "t3a_orig_mminus1": T3A(200, released=True),  # no class has more
    "t3a_neo_minus1": T3A(-1),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PUBLISHED)
def test_it_gives_its_authors_numbers(name, dtype):
    expected, method = vectors(name), PUBLISHED[name]
    found, states = run(method, linear(dtype))
    close(found, softmax(expected["out"]), dtype)
    for i, n in enumerate(expected.get("n_supports", ())):
        state = states[i]
        used = state["entropy"] < np.finfo(float).max
        close(state["entropy"][used], expected["support_entropy"][i, :n], dtype)
        np.testing.assert_array_equal(np.nonzero(used)[0], expected["support_label"][i, :n])
        rows = expected["support_feature"][i, :n]
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        close(state["samples"][used], rows, dtype)


@pytest.mark.parametrize("method", [T3A(1), T3A(-1), T3A(7, released=True)], ids=repr)
def test_it_keeps_the_contract(method):
    check_corrector(method)


def test_the_scale_makes_answers_sharper_and_changes_no_class():
    plain, _ = run(T3A(), linear())
    sharp, _ = run(T3A(scale=3.0), linear())
    np.testing.assert_allclose(sharp, softmax(3 * np.log(plain)))


def test_what_is_refused():
    with pytest.raises(LamettaError, match="keep must be an integer >= 1, got 0"):
        T3A(0)
    with pytest.raises(LamettaError, match="keep must be a number of supports with released"):
        T3A(-1, released=True)
    one, two = T3A(5), T3A(6)
    run(one, linear())
    two.use(linear()[2])
    with pytest.raises(LamettaError, match=r"state\['samples'\] must be .* \(10, 6, 32\)"):
        two.load_state_dict(one.state_dict())
