"""The reduced iteration against the plain one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lametta
from lametta import _host
from lametta.affinity import Neighbors

from .conftest import energy_by_definition, knn_matrix, lame_by_definition, shared, softmax


def peaked_batch(n, n_classes, seed):
    """Like a network's output: some classes that compete, and a little on every other."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(5, size=n)
    features = np.abs(rng.normal(size=(5, 12))[labels] + 0.6 * rng.normal(size=(n, 12)))
    logits = rng.normal(size=(n, n_classes))
    logits[:, :5] += 5
    logits[np.arange(n), labels] += 4
    return features, softmax(logits)


def tail_of(probs, w, tol):
    head = _host._split(probs, w @ probs, tol)
    return probs.shape[1] - (probs.shape[1] if head is None else len(head))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_classes", [100, 1000])
@pytest.mark.parametrize("n", [16, 64, 200])
def test_the_tail_is_within_its_bound(n, n_classes, dtype):
    features, probs = peaked_batch(n, n_classes, seed=0)
    w = knn_matrix(features, 5)
    tol = 1e-5
    assert tail_of(probs, w, tol) >= n_classes // 2, "this batch is meant to have a tail"
    # One update at a time, each from where the exact iteration stands: no drift to hide behind.
    for n_iter in (1, 2, 3):
        values = lametta.lame(features.astype(dtype), probs.astype(dtype), max_iter=n_iter, tol=tol)
        exact = lame_by_definition(probs, w, n_iter)
        assert np.abs(values.probs - exact).max() < 2 * tol * n_iter
        assert np.allclose(values.probs.sum(axis=1), 1, atol=1e-6)
        energy = energy_by_definition(exact, probs, w)
        assert float(values.energy) == pytest.approx(energy, rel=1e-5, abs=n * tol)


@given(st.integers(0, 2**32 - 1), st.integers(2, 150), st.floats(0.1, 3), st.integers(1, 9))
def test_the_first_order_bound_holds(seed, n, weight, k):
    features, probs = peaked_batch(n, 150, seed)
    w = weight * knn_matrix(features, k)
    tol = 1e-4
    first = w @ probs
    head = _host._split(probs, first, tol)
    tail = np.setdiff1d(np.arange(150), np.arange(150) if head is None else head)
    z = probs
    for _ in range(6):
        a = w @ z
        norm = (probs * np.exp(a)).sum(axis=1)
        # What the docstring promises: exponents stay near the first, and the sum is known.
        assert (a[:, tail] <= 1.43 * first[:, tail] + 1e-12).all()
        z = probs * np.exp(a) / norm[:, None]
        exact = (probs * np.exp(w @ z))[:, tail].sum(axis=1)
        linear = probs[:, tail] * (1 + w @ (probs / norm[:, None]))[:, tail]
        assert (np.abs(exact - linear.sum(axis=1)) <= 8 * tol).all()


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 160),
    st.sampled_from([2, 30, 65, 120]),
    st.integers(1, 9),
)
def test_reduced_and_plain_iteration_agree(seed, n, n_classes, k):
    features, probs = peaked_batch(n, max(n_classes, 5), seed)
    w = knn_matrix(features, k)
    solution = _host.solve(probs, Neighbors(lametta.knn(k).neighbors(features).index), 60, 1e-7)
    assert np.abs(solution.z - lame_by_definition(probs, w, solution.n_iter)).max() < 1e-4
    if solution.converged:
        after = lame_by_definition(probs, w, solution.n_iter + 1)
        assert np.abs(solution.z - after).max() < 1e-4


def test_resting_samples_are_left_alone(monkeypatch):
    features, probs = peaked_batch(300, 20, seed=1)
    sizes = []
    multiply = Neighbors.__matmul__
    monkeypatch.setattr(
        Neighbors, "__matmul__", lambda w, z: sizes.append(len(w.index)) or multiply(w, z)
    )
    result = lametta.lame(features, probs, tol=1e-6)
    assert result.converged
    assert min(sizes) < 150, "later updates must be of few samples"
    assert sizes[-2] == 300, "the last one must be of all"


BANKS = ["imagenette_val500_lite0", "tinyimagenet_1010_lite0", "imagenet_one_per_class_lite0"]


@pytest.mark.parametrize("n", [64, 256])
@pytest.mark.parametrize("bank", BANKS)
def test_real_networks(bank, n):
    with np.load(shared("data", "banks", f"{bank}.npz")) as data:
        order = np.random.default_rng(0).permutation(len(data["labels"]))[:n]
        features, logits = (data[key][order].astype(np.float32) for key in ("features", "logits"))
    probs = softmax(logits)
    result = lametta.lame(features, probs)
    exact = lame_by_definition(probs.astype(float), knn_matrix(features, 5), result.n_iter)
    assert np.abs(result.probs - exact).max() < 1e-4
    assert np.array_equal(result.probs.argmax(axis=1), exact.argmax(axis=1))
