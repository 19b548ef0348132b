"""`lametta.lame` inside JAX's transformations, held against the core on NumPy."""

import jax
import numpy as np
import pytest

import lametta
from lametta import LamettaError, knn, lame, rbf
from tests.conftest import make_batch

pytestmark = pytest.mark.slow
# JAX compiles for every shape and every number of updates: few of both spare most of that.
N_ITER = 3
AFFINITIES = [knn(5), rbf(5, row_sum=5.0)]
BATCHES = [
    tuple(array.astype(np.float32) for array in make_batch(12, 4, seed=seed)) for seed in range(3)
]


def edges(features, probs):
    """A zero row, a duplicate, a one-hot row."""
    features, probs = features.copy(), probs.copy()
    features[3], features[5], probs[2] = 0, features[6], np.eye(4)[0]
    return features, probs


def core(features, probs, affinity=AFFINITIES[0]):
    return lame(features, probs, affinity=affinity, max_iter=N_ITER, tol=0)


def stacked(batches):
    return tuple(jax.numpy.asarray(np.stack(arrays)) for arrays in zip(*batches, strict=True))


@pytest.mark.parametrize("affinity", AFFINITIES, ids=repr)
def test_jit_of_vmap(affinity):
    batches = [*BATCHES, edges(*BATCHES[0])]

    @jax.jit
    @jax.vmap
    def correct(features, probs):
        return core(features, probs, affinity)

    result = correct(*stacked(batches))
    assert isinstance(result, lametta.LameResult)
    assert result.probs.dtype == np.float32
    for i, batch in enumerate(batches):
        expected = core(*batch, affinity)
        np.testing.assert_allclose(result.probs[i], expected.probs, rtol=0, atol=1e-5)
        assert float(result.energy[i]) == pytest.approx(float(expected.energy), abs=1e-4)
    assert result.n_iter.tolist() == [N_ITER] * 4
    assert result.converged.tolist() == [False] * 4


def test_what_comes_out_of_jit():
    corrector = lametta.LAME(max_iter=N_ITER, tol=0)

    @jax.jit
    def correct(features, probs):
        return core(features, probs), corrector.correct(features, probs).probs

    expected = core(*BATCHES[0])
    result, probs = correct(*BATCHES[0])
    np.testing.assert_allclose(result.probs, expected.probs, rtol=0, atol=1e-5)
    np.testing.assert_allclose(probs, expected.probs, rtol=0, atol=1e-5)
    assert (result.n_iter.shape, int(result.n_iter)) == ((), N_ITER)
    assert (result.converged.shape, bool(result.converged)) == ((), False)
    assert result.energy.shape == ()


def test_one_of_the_arrays_may_be_known_when_it_is_traced():
    features, probs = map(jax.numpy.asarray, BATCHES[0])
    expected = core(*BATCHES[0]).probs
    for given in (
        jax.jit(lambda q: core(features, q).probs)(probs),
        jax.jit(lambda x: core(x, probs).probs)(features),
    ):
        np.testing.assert_allclose(given, expected, rtol=0, atol=1e-5)
    unknown = features.at[0, 0].set(np.nan)
    with pytest.raises(LamettaError, match="features must be finite, got NaN"):
        jax.jit(lambda q: core(unknown, q).probs)(probs)


@pytest.mark.parametrize("n", [0, 1])
def test_batches_of_none_and_one(n):
    features, probs = (array[:n] for array in BATCHES[0])
    result = jax.jit(jax.vmap(core))(features[None], probs[None])
    np.testing.assert_allclose(result.probs, probs[None], atol=1e-6)


def test_a_tolerance_needs_values():
    message = "tol must be 0 under jax.jit and jax.vmap, got a traced array"
    with pytest.raises(LamettaError, match=message):
        jax.jit(lame)(*BATCHES[0])
    with pytest.raises(LamettaError, match=message):
        jax.vmap(lame)(*stacked(BATCHES))


def test_gradient():
    features, probs = edges(*(array.astype(np.float64) for array in BATCHES[0]))

    def first(probs):
        return core(features, probs).probs[0, 0]

    known = jax.numpy.asarray(features)
    slope = jax.jit(jax.grad(lambda q: core(known, q).probs[0, 0]))(probs)
    assert np.isfinite(slope).all()
    step = np.zeros_like(probs)
    step[0, 1] = 1e-6
    expected = (first(probs + step) - first(probs - step)) / 2e-6
    assert abs(expected) > 1e-3
    assert float(slope[0, 1]) == pytest.approx(expected, rel=1e-4)
