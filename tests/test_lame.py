import pickle
import re
from functools import cache

import array_api_strict
import jax
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lametta
from lametta import LamettaError, lame, lame_streams
from lametta._solvers import plain
from tests.conftest import (
    Library,
    energy_by_definition,
    knn_matrix,
    lame_by_definition,
    make_batch,
    softmax,
)

AFFINITIES = {
    "knn": lametta.knn(5),
    "knn reverse": lametta.knn(3, direction="reverse"),
    "knn symmetric": lametta.knn(3, symmetric=True),
    "rbf": lametta.rbf(5),
    "rbf scaled": lametta.rbf(5, row_sum=5.0),
    "linear": lametta.linear(),
}


@pytest.fixture(params=AFFINITIES.values(), ids=AFFINITIES)
def affinity(request):
    return request.param


def half_step(dtype):
    return {"float16": 2**-11, "bfloat16": 2**-8}[dtype]


# The equation. JAX compiles every operation for every shape: batches of 20 samples and 5 classes,
# where the size does not matter, spare most of that.


@cache
def solved(n, n_classes):
    features, probs = make_batch(n, n_classes, scale=4.0)
    return features, probs, lame_by_definition(probs, knn_matrix(features, 5), 400)


@pytest.mark.slow
@pytest.mark.parametrize("n_classes", [5, 300])
@pytest.mark.parametrize("n", [20, 90, 200])
def test_fixed_point_of_the_equation(library: Library, n, n_classes):
    features, probs, expected = solved(n, n_classes)
    result = lame(library.array(features), library.array(probs), max_iter=400, tol=1e-8)
    assert result.converged
    assert np.abs(library.numpy(result.probs) - expected).max() < 1e-6


def test_every_affinity_and_library_alike(library: Library, affinity):
    features, probs = make_batch(20, 5)
    expected = lame_by_definition(probs, affinity(features), 300)
    result = lame(library.array(features), library.array(probs), affinity=affinity, max_iter=300)
    assert np.abs(library.numpy(result.probs) - expected).max() < 2e-4
    energy = energy_by_definition(library.numpy(result.probs), probs, affinity(features))
    assert float(result.energy) == pytest.approx(energy, abs=1e-4)


@pytest.mark.parametrize("n_iter", [0, 1, 2, 7])
def test_tol_zero_runs_exactly_max_iter(library: Library, affinity, n_iter):
    features, probs = make_batch(20, 5)
    result = lame(
        library.array(features), library.array(probs), affinity=affinity, max_iter=n_iter, tol=0
    )
    expected = lame_by_definition(probs, affinity(features), n_iter)
    assert result.n_iter == n_iter
    assert not result.converged
    assert np.allclose(library.numpy(result.probs), expected, atol=1e-12)


@pytest.mark.parametrize("n_iter", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("n_classes", [5, 300])
def test_few_iterations(library: Library, n_classes, n_iter):
    features, probs = make_batch(20, n_classes, scale=3.0)
    result = lame(library.array(features), library.array(probs), max_iter=n_iter, tol=1e-7)
    expected = lame_by_definition(probs, knn_matrix(features, 5), n_iter)
    assert result.n_iter == n_iter
    assert not result.converged
    assert np.abs(library.numpy(result.probs) - expected).max() < 1e-6
    energy = energy_by_definition(expected, probs, knn_matrix(features, 5))
    assert float(result.energy) == pytest.approx(energy, abs=1e-4)


def test_weight_multiplies_the_affinity(library: Library):
    features, probs = make_batch(20, 5)
    expected = lame_by_definition(probs, 0.3 * knn_matrix(features, 5), 300)
    result = lame(library.array(features), library.array(probs), weight=0.3)
    assert np.abs(library.numpy(result.probs) - expected).max() < 1e-4


def test_strong_weight_does_not_overflow(library: Library):
    features, probs = make_batch(20, 5)
    result = lame(library.array(features, "float32"), library.array(probs, "float32"), weight=1e4)
    values = library.numpy(result.probs)
    assert np.allclose(values.sum(axis=1), 1, atol=1e-5)


def test_a_callable_that_returns_w(library: Library):
    features, probs = make_batch(20, 5)
    w = np.random.default_rng(0).random((20, 20))
    x, q = library.array(features), library.array(probs)
    result = lame(x, q, affinity=lambda x: library.array(w))
    assert np.abs(library.numpy(result.probs) - lame_by_definition(probs, w, 300)).max() < 1e-4


@pytest.mark.parametrize("direction", ["own", "reverse", "both"])
def test_large_batches_gather_neighbors(library: Library, direction, monkeypatch):
    features, probs = make_batch(20, 5)
    monkeypatch.setattr(plain, "LARGE_BATCH", 10)
    affinity = lametta.knn(5, direction=direction)
    x, q = library.array(features), library.array(probs)
    result = lame(x, q, affinity=affinity, tol=0, max_iter=30)
    w = knn_matrix(features, 5)
    w = {"own": w, "reverse": w.T, "both": (w + w.T) / 2}[direction]
    expected = lame_by_definition(probs, w, 30)
    assert np.allclose(library.numpy(result.probs), expected, atol=1e-10)


# Arrays in, the same kind of arrays out


def test_library_dtype_and_device_are_kept(library: Library):
    features, probs = make_batch(20, 5)
    expected = library.numpy(lame(library.array(features), library.array(probs)).probs)
    for dtype in ("float64", "float32", *library.halves):
        x, q = library.array(features, dtype), library.array(probs, dtype)
        result = lame(x, q)
        assert type(result.probs) is type(q)
        assert result.probs.dtype == q.dtype
        assert getattr(result.probs, "device", None) == getattr(q, "device", None)
        assert type(result.n_iter) is int
        assert type(result.converged) is bool
        step = half_step(dtype) if dtype in library.halves else 2e-5
        values = library.numpy(result.probs)
        assert np.abs(values - expected).max() < 12 * step
        assert np.abs(values.sum(axis=1) - 1).max() < 4 * step


def test_features_and_probs_may_differ_in_dtype(library: Library):
    features, probs = make_batch(20, 5)
    result = lame(library.array(features, "float64"), library.array(probs, "float32"))
    assert result.probs.dtype == library.array(probs, "float32").dtype


def test_inputs_are_not_changed(library: Library, affinity):
    # JAX's arrays cannot be changed at all, and would be compiled for once more.
    features, probs = make_batch(*((20, 5) if library.name == "jax" else (150, 100)))
    x, q = library.array(features), library.array(probs)
    lame(x, q, affinity=affinity)
    assert np.array_equal(library.numpy(x), features)
    assert np.array_equal(library.numpy(q), probs)


def test_strided_input():
    features, probs = make_batch(60, 100)
    expected = lame(features, probs).probs
    x, q = np.asfortranarray(features), np.repeat(probs, 2, axis=1)[:, ::2]
    assert np.allclose(lame(x, q).probs, expected, atol=1e-7)
    x, q = torch.tensor(x.T).T, torch.tensor(probs.T.copy()).T
    assert np.allclose(lame(x, q).probs, expected, atol=1e-7)


# Other ways to run it


@pytest.mark.slow
def test_under_jax_jit(affinity):
    features, probs = map(jax.numpy.asarray, make_batch(20, 5))

    @jax.jit
    def correct(x, q):
        return lame(x, q, affinity=affinity, max_iter=5, tol=0)

    expected, found = (f(features, probs) for f in (correct.__wrapped__, correct))
    assert np.allclose(found.probs, expected.probs, atol=1e-12)
    assert float(found.energy) == pytest.approx(float(expected.energy))


def test_under_jax_jit_tol_is_named():
    features, probs = map(jax.numpy.asarray, make_batch(20, 5))
    with pytest.raises(LamettaError, match="tol must be 0 under jax.jit"):
        jax.jit(lambda x, q: lame(x, q).probs)(features, probs)


@pytest.mark.slow
def test_torch_export(affinity):
    class Correct(torch.nn.Module):
        def forward(self, x, q):
            return lame(x, q, affinity=affinity, max_iter=3, tol=0).probs

    features, probs = map(torch.tensor, make_batch(16, 4))
    program = torch.export.export(Correct(), (features, probs))
    expected = lame(features, probs, affinity=affinity, max_iter=3, tol=0).probs
    assert torch.allclose(program.module()(features, probs), expected, atol=1e-12)


def test_torch_gradient():
    features, probs = map(torch.tensor, make_batch(16, 4))
    logits = torch.log(probs).requires_grad_()
    corrected = lame(features, torch.softmax(logits, dim=1))
    corrected.probs[:, 0].sum().backward()
    assert torch.isfinite(logits.grad).all()
    assert (logits.grad != 0).any()
    assert torch.allclose(corrected.probs, lame(features, probs).probs, atol=1e-4)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_torch_modes(mode):
    with mode():
        features, probs = map(torch.tensor, make_batch(16, 4))
        assert torch.isfinite(lame(features, probs).probs).all()


def test_result_unpacks_and_pickles():
    probs, n_iter, converged, energy = result = lame(*make_batch(16, 4))
    assert probs.shape == (16, 4)
    assert n_iter > 0
    assert converged
    assert float(energy) == float(pickle.loads(pickle.dumps(result)).energy)


# Properties


@st.composite
def batches(draw):
    """Features and probabilities, coarse ones at times: zeros and equal rows."""
    n, k, d = draw(st.integers(1, 12)), draw(st.integers(1, 6)), draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    decimals = draw(st.sampled_from([0, 1, 15]))
    features, logits = rng.uniform(-3, 3, size=(n, d)), rng.uniform(-8, 8, size=(n, k))
    return features.round(decimals), softmax(logits.round(decimals))


affinities = st.sampled_from(list(AFFINITIES.values()))


@given(batches(), affinities, st.floats(0, 3))
def test_rows_stay_on_the_simplex(batch, affinity, weight):
    probs = lame(*batch, affinity=affinity, weight=weight).probs
    assert (probs >= 0).all()
    assert np.allclose(probs.sum(axis=1), 1, atol=1e-9)


@given(batches(), affinities, st.floats(0, 3))
def test_log_probabilities_move_no_more_than_the_row_of_w(batch, affinity, weight):
    features, probs = batch
    w = weight * affinity(features)
    moved = np.log(lame(features, probs, affinity=affinity, weight=weight).probs) - np.log(probs)
    assert (abs(moved) <= abs(w).sum(axis=1, keepdims=True) + 1e-6).all()


def test_the_signed_sum_of_a_row_bounds_nothing():
    features = np.array([[1.0, 0.0], [1.0, 0.1], [-1.0, 0.0], [-1.0, 0.1]])
    probs = np.array([[0.6, 0.4], [0.6, 0.4], [0.4, 0.6], [0.4, 0.6]])
    moved = np.log(lame(features, probs, affinity=lametta.linear()).probs) - np.log(probs)
    sums = lametta.linear()(features).sum(axis=1, keepdims=True)
    assert (abs(sums) < 0.02).all()
    assert abs(moved).max() > 0.5


@given(batches())
def test_without_affinity_the_source_returns(batch):
    features, probs = batch
    for options in ({"weight": 0.0}, {"affinity": lambda x: np.zeros((len(x), len(x)))}):
        result = lame(features, probs, **options)
        assert np.allclose(result.probs, probs, atol=1e-12)
        assert result.converged
        assert abs(float(result.energy)) < 1e-9


@pytest.mark.slow
@given(batches(), st.integers(0, 2**32 - 1), st.floats(0.1, 4))
def test_energy_never_rises_for_positive_semidefinite_w(batch, seed, strength):
    features, probs = batch
    root = np.random.default_rng(seed).normal(size=(len(probs), len(probs)))
    w = strength * root @ root.T / len(probs)
    results = [lame(features, probs, affinity=lambda x: w, tol=0, max_iter=n) for n in range(12)]
    energies = np.array([float(result.energy) for result in results])
    assert (np.diff(energies) <= 1e-9 * (1 + abs(energies[:-1]))).all()
    assert energies[-1] == pytest.approx(
        energy_by_definition(results[-1].probs, probs, w), abs=1e-8
    )


@given(st.integers(0, 2**32 - 1), st.integers(2, 40), affinities)
def test_order_of_the_batch_plays_no_part(seed, n, affinity):
    rng = np.random.default_rng(seed)
    features, probs = make_batch(n, 5, seed=seed)
    order = rng.permutation(n)
    one = lame(features, probs, affinity=affinity, tol=0, max_iter=30).probs[order]
    other = lame(features[order], probs[order], affinity=affinity, tol=0, max_iter=30).probs
    assert np.allclose(one, other, atol=1e-8)
    one = lame(features, probs, affinity=affinity).probs[order]
    other = lame(features[order], probs[order], affinity=affinity).probs
    assert np.allclose(one, other, atol=1e-4)


@given(
    st.integers(1, 40),
    st.integers(1, 80),
    # Which of several equal samples are nearest is open, and so is what the transpose is made of.
    affinities.filter(
        lambda affinity: affinity not in (AFFINITIES["knn reverse"], AFFINITIES["knn symmetric"])
    ),
)
def test_a_batch_of_duplicates_gives_equal_rows(n, n_classes, affinity):
    features, probs = make_batch(1, n_classes)
    result = lame(np.repeat(features, n, 0), np.repeat(probs, n, 0), affinity=affinity).probs
    assert np.allclose(result, result[0], atol=1e-9)


@given(batches(), st.floats(-50, 50))
def test_a_constant_on_the_logits_changes_nothing(batch, constant):
    features, probs = batch
    logits = np.log(probs)
    one, other = (lame(features, softmax(x)).probs for x in (logits, logits + constant))
    assert np.allclose(one, other, atol=1e-6)


@given(st.integers(0, 2**32 - 1), st.sampled_from([1e-12, 1e-3, 7.0, 1e12]), affinities)
def test_scale_of_features_changes_nothing(seed, scale, affinity):
    features, probs = make_batch(10, 4, seed=seed)
    one, other = (lame(x, probs, affinity=affinity).probs for x in (features, scale * features))
    assert np.allclose(one, other, atol=1e-5)


# Edges


def spare_jax(library, affinity, n_classes):
    """Let JAX compile for five classes, except where more take another path: directed neighbors."""
    matters = n_classes > 5 and plain.is_directed_knn(affinity)
    return n_classes if matters or library.name != "jax" else 5


@pytest.mark.parametrize("n_classes", [3, 200])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 6])
def test_small_batches(library: Library, affinity, n, n_classes):
    n_classes = spare_jax(library, affinity, n_classes)
    features, probs = (array[:n] for array in make_batch(6, n_classes))
    result = lame(library.array(features), library.array(probs), affinity=affinity)
    values = library.numpy(result.probs)
    assert values.shape == (n, n_classes)
    assert np.allclose(values.sum(axis=1), 1)
    if affinity == lametta.knn(5):
        assert result.converged
        if n == 1:
            assert np.allclose(values, probs)


@pytest.mark.parametrize("n_classes", [3, 200])
def test_one_hot_and_tiny_probabilities(library: Library, affinity, n_classes):
    n_classes = spare_jax(library, affinity, n_classes)
    features, probs = make_batch(20, n_classes)
    one_hot = np.eye(n_classes)[probs.argmax(axis=1)]
    tiny = np.maximum(one_hot, 1e-30)
    for q in (one_hot, tiny):
        for dtype in ("float32", "float64"):
            x = library.array(features, dtype)
            values = library.numpy(lame(x, library.array(q, dtype), affinity=affinity).probs)
            assert np.isfinite(values).all()
            assert np.allclose(values.sum(axis=1), 1, atol=1e-5)
    assert np.allclose(library.numpy(lame(x, library.array(one_hot)).probs), one_hot)


def test_zero_features(library: Library, affinity):
    features, probs = make_batch(20, 5)
    features[::3] = 0
    x, q = library.array(features), library.array(probs)
    values = library.numpy(lame(x, q, affinity=affinity).probs)
    assert np.allclose(values.sum(axis=1), 1)


GOOD = make_batch(4, 3)


def spoil(array, value):
    array = array.copy()
    array[1, 1] = value
    return array


@pytest.mark.parametrize("affinity", [lametta.knn(5), lametta.rbf(5)], ids=["knn", "rbf"])
@pytest.mark.parametrize(
    ("features", "probs", "message"),
    [
        (spoil(GOOD[0], np.nan), GOOD[1], "features must be finite, got NaN"),
        (spoil(GOOD[0], np.inf), GOOD[1], "features must be finite, got infinity"),
        (GOOD[0], spoil(GOOD[1], np.nan), "probs must be finite, got NaN"),
        (GOOD[0], spoil(GOOD[1], -np.inf), "probs must be finite, got infinity"),
        (GOOD[0], spoil(GOOD[1], -0.5), "probs must be >= 0, got -0.5"),
        (GOOD[0], 2 * GOOD[1], "probs must have rows that sum to 1, got 2 in row"),
        (GOOD[0], GOOD[1][:3], "must have one row for each sample, got 4 and 3 rows"),
        (GOOD[0][0], GOOD[1], "features must be 2-D [N, d], got shape (16,)"),
        (GOOD[0], GOOD[1][:, :, None], "probs must be 2-D [N, K], got shape (4, 3, 1)"),
        (GOOD[0], GOOD[1][:, :0], "probs must have a column or more, got none: shape (4, 0)"),
        (GOOD[0], np.ones((4, 3), int), "probs must be of a floating dtype, got int64"),
        (GOOD[0] + 0j, GOOD[1], "features must be of a floating dtype, got complex128"),
    ],
)
def test_bad_arrays_are_named(features, probs, message, affinity):
    for convert in (np.asarray, torch.tensor, jax.numpy.asarray, array_api_strict.asarray):
        got = message.replace("int64", ".*int64").replace("complex128", ".*complex128")
        got = got.translate(str.maketrans({"[": r"\[", "]": r"\]"}))
        got = re.sub(r"shape \((.*)\)$", r"shape \\(\1\\)", got)
        with pytest.raises(LamettaError, match=got):
            lame(convert(features), convert(probs), affinity=affinity)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight": -1}, "weight must be a finite number >= 0 and <= 1e\\+06, got -1"),
        ({"weight": float("nan")}, "weight must be a finite number >= 0 and <= 1e\\+06, got nan"),
        ({"max_iter": -1}, "max_iter must be an integer >= 0, got -1"),
        ({"max_iter": 1.5}, "max_iter must be an integer >= 0, got 1.5"),
        ({"tol": -1e-9}, "tol must be a finite number >= 0, got -1e-09"),
        ({"affinity": lambda x: x}, r"affinity\(features\) must have shape \[N, N\] = \(4, 4\)"),
        ({"affinity": lambda x: [[0]]}, r"affinity\(features\) must be an array .* got list"),
        (
            {"affinity": lambda x: torch.zeros(4, 4)},
            r"probs and affinity\(features\) must come from one array library",
        ),
        ({"affinity": lambda x: np.full((4, 4), np.nan)}, r"affinity\(features\) must be finite"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(LamettaError, match=message):
        lame(*GOOD, **options)


def test_mixed_libraries_and_devices_are_named():
    features, probs = GOOD
    with pytest.raises(LamettaError, match="features from numpy and probs from torch"):
        lame(features, torch.tensor(probs))
    with pytest.raises(LamettaError, match="features from jax.* and probs from numpy"):
        lame(jax.numpy.asarray(features), probs)
    with pytest.raises(LamettaError, match="features must be an array .* got list"):
        lame(features.tolist(), probs)
    with pytest.raises(LamettaError, match="probs must have values, got a tensor on the meta"):
        lame(torch.tensor(features), torch.tensor(probs, device="meta"))


def test_the_error_is_a_value_error():
    assert issubclass(LamettaError, ValueError)


@pytest.mark.parametrize("convert", [np.asarray, torch.tensor, jax.numpy.asarray])
def test_nan_costs_its_own_stream_alone(convert):
    features, probs = map(np.stack, zip(*(make_batch(9, 4, seed=i) for i in range(3)), strict=True))
    expected = lame_streams(features, probs)
    features[1, 2, 3] = np.nan
    with pytest.warns(
        UserWarning, match="stream 1 is left out of this batch: features must be fin"
    ):
        found = lame_streams(convert(features), convert(probs))
    for stream in (0, 2):
        assert np.allclose(np.asarray(found.probs)[stream], expected.probs[stream], atol=1e-5)
    assert np.isnan(np.asarray(found.probs)[1]).all()
    assert np.asarray(found.converged).tolist() == [True, False, True]
    with pytest.raises(LamettaError, match="features must be finite, got NaN"):
        lame_streams(convert(features[1:2]), convert(probs[1:2]))


@pytest.mark.parametrize("direction", ["own", "reverse"])
def test_streams_are_corrected_each_for_itself(library, direction):
    options = {"affinity": lametta.knn(3, direction=direction)}
    batches = [make_batch(9, 4, seed=seed) for seed in range(3)]
    features, probs = (library.array(np.stack(a)) for a in zip(*batches, strict=True))
    result = lame_streams(features, probs, **options)
    ragged = lame_streams(features, probs, [9, 5, 0], **options)
    assert type(result.probs) is type(probs)
    for b, (x, q) in enumerate(batches):
        alone = lame(library.array(x), library.array(q), **options)
        np.testing.assert_allclose(
            library.numpy(result.probs)[b], library.numpy(alone.probs), atol=1e-12
        )
        assert int(result.n_iter[b]) == alone.n_iter
        assert bool(result.converged[b]) == alone.converged
        assert float(result.energy[b]) == pytest.approx(float(alone.energy), abs=1e-9)
    found = library.numpy(ragged.probs)
    alone = lame(library.array(batches[1][0][:5]), library.array(batches[1][1][:5]), **options)
    np.testing.assert_allclose(found[1, :5], library.numpy(alone.probs), atol=1e-12)
    np.testing.assert_array_equal(found[1, 5:], batches[1][1][5:])
    np.testing.assert_array_equal(found[2], batches[2][1])


@pytest.mark.parametrize(
    ("shapes", "lengths", "message"),
    [
        (((2, 3, 4), (2, 2, 5)), None, "[B, N, d] and [B, N, K]"),
        (((2, 3, 4), (3, 5)), None, "[B, N, d] and [B, N, K]"),
        (((0, 3, 4), (0, 3, 5)), None, "a stream or more, got none"),
        (((2, 3, 4), (2, 3, 5)), [3], "lengths must have one entry a stream, 2"),
        (((2, 3, 4), (2, 3, 5)), [3, 4], "lengths must lie in 0..3, got 4"),
        (((3, 4), (3, 5)), [3], "[B, N, d] and [B, N, K]"),
    ],
)
def test_streams_that_are_none(shapes, lengths, message):
    features, probs = (np.ones(shape) / shape[-1] for shape in shapes)
    with pytest.raises(LamettaError, match=re.escape(message)):
        lame_streams(features, probs, lengths)


def test_one_batch_and_several_streams_are_told_apart():
    with pytest.raises(LamettaError, match=re.escape("lame_streams takes several streams")):
        lame(np.ones((2, 3, 4)), np.ones((2, 3, 5)) / 5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"affinity": "knn"}, "affinity must be a callable from features [N, d] to W [N, N], got"),
        ({"affinity": lametta.knn}, "affinity must be a callable"),
        ({"weight": "a"}, "weight must be a finite number >= 0 and <= 1e+06, got 'a'"),
        ({"weight": None}, "weight must be a finite number >= 0 and <= 1e+06, got None"),
        ({"max_iter": 3.0}, "max_iter must be an integer >= 0, got 3.0"),
        ({"tol": True}, "tol must be a finite number >= 0, got True"),
    ],
)
def test_an_option_of_another_kind_is_named(options, message):
    features, probs = make_batch(6, 3)
    with pytest.raises(LamettaError, match=re.escape(message)):
        lame(features, probs, **options)


def test_masked_arrays_are_refused():
    features, probs = make_batch(6, 3)
    masked = np.ma.MaskedArray(features, mask=features > 1)
    with pytest.raises(LamettaError, match="features must be an ordinary array, got a masked one"):
        lame(masked, probs)


@pytest.mark.parametrize("dtype", [">f8", ">f4", np.longdouble])
def test_any_byte_order_and_length_is_computed_in_full(dtype):
    features, probs = make_batch(12, 3)
    found = lame(features.astype(dtype), probs.astype(dtype))
    assert found.probs.dtype == np.dtype(dtype)
    slack = 1e-6 if dtype == ">f4" else 1e-12
    assert np.abs(found.probs - lame(features, probs).probs).max() < slack


def test_no_weight_gives_nan():
    features, probs = (array.astype(np.float32) for array in make_batch(12, 3))
    for affinity in (lametta.knn(5), lametta.rbf(5), lametta.linear()):
        found = lame(features, probs, affinity=affinity, weight=1e6).probs
        assert np.isfinite(found).all()
        assert np.allclose(found.sum(axis=1), 1, atol=1e-5)
    with pytest.raises(LamettaError, match="weight must be a finite number >= 0 and <= 1e"):
        lame(features, probs, weight=1e300)


def test_a_batch_of_one_says_that_it_has_no_neighbors():
    features, probs = make_batch(6, 3)
    assert lametta.LAME().correct(features[:1], probs[:1]).info["neighbors"] == 0
    assert lametta.LAME().correct(features, probs).info["neighbors"] == 5
    assert lametta.LAME(lametta.linear()).correct(features, probs).info["neighbors"] == 5
