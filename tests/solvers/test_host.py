"""The reduced iteration against the plain one."""

import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lametta
from lametta._solvers import host
from lametta._solvers.host import Buffers
from lametta.affinity import Neighbors
from tests.conftest import (
    energy_by_definition,
    knn_matrix,
    lame_by_definition,
    make_batch,
    shared,
    softmax,
)


def peaked_batch(n, n_classes, seed):
    """Like a network's output: some classes that compete, and a little on every other."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(5, size=n)
    features = np.abs(rng.normal(size=(5, 12))[labels] + 0.6 * rng.normal(size=(n, 12)))
    logits = rng.normal(size=(n, n_classes))
    logits[:, :5] += 5
    logits[np.arange(n), labels] += 4
    return features, softmax(logits)


def one_update(z, q, w):
    z = q * np.exp(w @ z)
    return z / z.sum(axis=1, keepdims=True)


def neighbors(features, k, weight=1.0):
    return Neighbors(lametta.knn(k).neighbors(features).index, weight)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_classes", [100, 1000])
@pytest.mark.parametrize("n", [16, 64, 200])
def test_the_tail_is_right_in_the_end(n, n_classes, dtype):
    features, probs = peaked_batch(n, n_classes, seed=0)
    w, tol = knn_matrix(features, 5), 1e-5
    head = host.choose_head(probs, neighbors(features, 5))
    assert len(head) <= 10, "this batch is meant to have a tail"
    result = lametta.lame(features.astype(dtype), probs.astype(dtype), tol=tol)
    assert result.converged
    assert np.abs(one_update(result.probs, probs, w) - result.probs).max() < 5 * tol
    assert np.abs(result.probs - lame_by_definition(probs, w, 300)).max() < 1e-4
    assert np.allclose(result.probs.sum(axis=1), 1, atol=1e-6)
    energy = energy_by_definition(result.probs, probs, w)
    assert float(result.energy) == pytest.approx(energy, rel=1e-6, abs=4 * tol * n)


@pytest.mark.slow
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 160),
    st.sampled_from([5, 30, 65, 120, 300]),
    st.integers(1, 9),
    st.floats(0.1, 3),
    st.sampled_from([1e-4, 1e-6]),
)
def test_at_rest_an_exact_update_moves_nothing(seed, n, n_classes, k, weight, tol):
    features, probs = peaked_batch(n, n_classes, seed)
    w = weight * knn_matrix(features, k)
    solution = host.iterate(probs, neighbors(features, k, weight), 100, tol, Buffers())
    assert np.allclose(solution.z.sum(axis=1), 1, atol=1e-9)
    if solution.converged:
        # The last update moved at most tol, and was within 4 tol of the exact one.
        assert np.abs(one_update(solution.z, probs, w) - solution.z).max() <= 5 * tol
        energy = energy_by_definition(solution.z, probs, w)
        assert float(solution.energy) == pytest.approx(energy, abs=4 * tol * n)


@given(st.integers(0, 2**32 - 1), st.integers(2, 60), st.floats(0.1, 3))
def test_the_bound_of_the_tail_holds(seed, n, weight):
    rng = np.random.default_rng(seed)
    features, probs = peaked_batch(n, 120, seed)
    w = weight * knn_matrix(features, 5)
    head = np.arange(5)
    rest_of = host.Tail(probs, neighbors(features, 5, weight), head, Buffers())
    norm = 1 + rng.random(n)
    for limit in (np.inf, 0.1, 0.01):
        rest_of.limit = limit
        rest_of.refresh(norm)
        rest = np.flatnonzero(rest_of.member)
        assert (rest_of.top[rest] <= limit).all()
        norm = norm * np.exp(rng.normal(scale=0.3, size=n))
        # The tail's z follow the norms; their exponents, and so the mass, move with them.
        z = rest_of.scaled[:, rest] / norm[:, None]
        exact = (probs[:, rest] * np.exp(w @ z)).sum(axis=1)
        wrong = np.abs(exact - rest_of.mass) / norm
        assert (wrong <= rest_of.error_bound(norm) + 1e-12).all()


def test_a_tail_that_is_not_right_is_refreshed_again(monkeypatch):
    features, probs = peaked_batch(64, 300, seed=4)
    probs[:, 5:30] *= 20  # classes between likely and unlikely
    probs /= probs.sum(axis=1, keepdims=True)
    # The first refresh sends none of them to the head.
    monkeypatch.setattr(host, "_MAX_EXPONENT", 1.0)
    monkeypatch.setattr(host, "_LIKELY", 1.0)
    monkeypatch.setattr(host, "_MAX_FIRST_ERROR", 1.0)
    refreshes, refresh = [], host.Tail.refresh
    monkeypatch.setattr(
        host.Tail, "refresh", lambda self, norm: refreshes.append(norm) or refresh(self, norm)
    )
    solution = host.iterate(probs, neighbors(features, 5), 200, 1e-6, Buffers())
    assert solution.converged
    assert len(refreshes) > 1
    moved = one_update(solution.z, probs, knn_matrix(features, 5)) - solution.z
    assert np.abs(moved).max() <= 5e-6


@given(
    st.integers(0, 2**32 - 1),
    st.integers(2, 120),
    st.sampled_from([5, 65, 300]),
    st.integers(1, 9),
    st.floats(0.1, 10),
    st.integers(0, 60),
)
def test_max_iter_gives_the_updates_of_the_equation(seed, n, n_classes, k, weight, max_iter):
    features, probs = peaked_batch(n, n_classes, seed)
    w = neighbors(features, k, min(weight, 50 / k))
    solution = host.iterate(probs, w, max_iter, 1e-5, Buffers())
    exact = lame_by_definition(probs, w.dense(float), max_iter)
    assert np.abs(solution.z - exact).max() < (1e-3 if solution.converged else 1e-9)
    assert np.allclose(solution.z.sum(axis=1), 1, atol=1e-9)
    assert solution.converged or solution.n_iter == max_iter


def test_a_strong_run_cut_short_is_repeated_with_nothing_spared():
    """Weight 9.3 and 30 updates: the quick path alone would be off by tenths."""
    features, probs = peaked_batch(80, 300, seed=3)
    w = neighbors(features, 5, 9.3)
    solution = host.iterate(probs, w, 30, 1e-12, Buffers())
    assert not solution.converged
    assert np.abs(solution.z - lame_by_definition(probs, w.dense(float), 30)).max() < 1e-9


def test_a_signal_handler_may_call_it_too():
    """What interrupts a call must not write to the call's memory."""
    features, probs = peaked_batch(64, 300, seed=4)
    expected = lametta.lame(features, probs).probs
    other = peaked_batch(64, 300, seed=5)
    interrupted, update = [], host._ActiveSet.update

    def interrupt(part, *z):
        if not interrupted:
            interrupted.append(True)
            lametta.lame(*other)
        return update(part, *z)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host._ActiveSet, "update", interrupt)
        found = lametta.lame(features, probs).probs
    assert interrupted
    assert np.array_equal(found, expected)


def test_without_rest_the_updates_are_those_of_the_equation():
    features, probs = peaked_batch(50, 200, seed=2)
    w = knn_matrix(features, 5)
    for max_iter in (1, 2, 5, 20):
        result = lametta.lame(features, probs, max_iter=max_iter, tol=1e-12)
        assert result.n_iter == max_iter
        assert np.allclose(result.probs, lame_by_definition(probs, w, max_iter), atol=1e-12)


def test_resting_samples_are_left_alone(monkeypatch):
    features, probs = peaked_batch(300, 20, seed=1)
    sizes, update = [], host._ActiveSet.update
    monkeypatch.setattr(
        host._ActiveSet, "update", lambda part, *z: sizes.append(len(part.mass)) or update(part, *z)
    )
    result = lametta.lame(features, probs, tol=1e-6)
    assert result.converged
    assert min(sizes) < 150, "later updates must be of few samples"
    assert sizes[-1] == 300, "the last one must be of all"


@pytest.mark.slow
@pytest.mark.parametrize("correct", [lametta.lame, lametta.Windowed(size=8).correct])
def test_flags_that_products_leave_are_no_warnings(correct, monkeypatch):
    """OpenBLAS may set one where nothing is wrong: `lametta._arrays.finite_products` says when."""
    product, made = np.dot, []

    def flagged(*arrays, **options):
        made.append(np.sqrt(np.float32(-1)))  # of which NumPy would warn
        return product(*arrays, **options)

    monkeypatch.setattr(np, "dot", flagged)
    correct(*(array.astype(np.float32) for array in make_batch(20, 5)))
    assert made


def test_calls_share_memory_and_nothing_else():
    """Results stay as they are while other batches, sizes and dtypes are solved."""
    batches = [
        (batch[0].astype(dtype), batch[1].astype(dtype))
        for n in (64, 7, 200)
        for n_classes in (30, 300)
        for dtype in (np.float32, np.float64)
        for batch in [peaked_batch(n, n_classes, seed=n)]
    ]
    results = [lametta.lame(*batch) for batch in batches]
    copies = [result.probs.copy() for result in results]
    with ThreadPoolExecutor(4) as pool:
        others = list(pool.map(lambda batch: lametta.lame(*batch), 20 * batches))
    for result, copy in zip(results, copies, strict=True):
        assert np.array_equal(result.probs, copy)
    for result, other in zip(20 * results, others, strict=True):
        assert np.array_equal(result.probs, other.probs)
        assert result.energy == other.energy


def test_no_matrix_of_all_samples_is_made():
    """Not even where no class is likely, so that the head is empty."""
    n = 4000
    index = np.random.default_rng(0).integers(n, size=(n, 5))
    probs = np.full((n, 200), 0.005)
    assert len(host.choose_head(probs, Neighbors(index))) == 0
    tracemalloc.start()
    solution = host.iterate(probs, Neighbors(index), 100, 1e-5, Buffers())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * n * n / 2
    assert np.allclose(solution.z, probs)


BANKS = ["imagenette_val500_lite0", "tinyimagenet_1010_lite0", "imagenet_one_per_class_lite0"]


@pytest.mark.slow
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
