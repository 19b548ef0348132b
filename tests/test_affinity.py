import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lametta
from lametta import LamettaError, _neighbors
from lametta.affinity import Neighbors, knn, scenes
from tests.conftest import Library, knn_matrix, make_batch

# JAX compiles every operation for every shape: 20 samples, where the size does not matter.


def features_of(n=20, d=16, seed=0):
    return make_batch(n, 4, d, seed)[0]


@pytest.mark.parametrize("k", [1, 3, 5, 20])
def test_knn_marks_the_nearest(library: Library, k):
    x = features_of(30)
    w = lametta.knn(k)(library.array(x))
    assert np.array_equal(library.numpy(w), knn_matrix(x, k))


def test_knn_in_blocks_is_the_same(monkeypatch):
    x = features_of(40)
    whole = lametta.knn(5)(x)
    monkeypatch.setattr("lametta._neighbors._BLOCK", 7 * 40)
    assert np.array_equal(lametta.knn(5)(x), whole)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_a_sample_is_never_its_own_neighbor(library: Library, k):
    x = np.repeat(features_of(3), [3, 2, 1], axis=0)
    w = library.numpy(lametta.knn(k)(library.array(x)))
    assert (np.diag(w) == 0).all()
    assert (w.sum(axis=1) == k).all()
    # The nearest neighbor of a duplicate is its twin.
    assert w[0, 1] + w[0, 2] == min(k, 2)
    assert w[3, 4] == w[4, 3] == 1


def test_symmetric_is_the_mean_with_the_transpose(library: Library):
    x = features_of()
    w = library.numpy(lametta.knn(3, symmetric=True)(library.array(x)))
    directed = knn_matrix(x, 3)
    assert np.array_equal(w, (directed + directed.T) / 2)


@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.integers(1, 9))
def test_reverse_is_the_formula_that_the_paper_prints(seed, n, k):
    x = features_of(n, seed=seed)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    distance = np.linalg.norm(unit[:, None] - unit, axis=-1)
    np.fill_diagonal(distance, np.inf)
    w = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            # w(i, j) = 1 if i is among the k nearest neighbors of j.
            w[i, j] = i in np.argsort(distance[j], kind="stable")[: min(k, n - 1)]
    assert np.array_equal(lametta.knn(k, direction="reverse")(x), w)
    assert np.array_equal(lametta.knn(k)(x), w.T)
    assert np.array_equal(lametta.knn(k, direction="both")(x), (w + w.T) / 2)
    assert np.array_equal(lametta.knn(k, symmetric=True)(x), (w + w.T) / 2)


def test_directions_in_every_library(library: Library):
    x = features_of()
    own = knn_matrix(x, 3)
    for direction, w in (("own", own), ("reverse", own.T), ("both", (own + own.T) / 2)):
        found = lametta.knn(3, direction=direction)(library.array(x))
        assert np.array_equal(library.numpy(found), w)


def test_zero_rows_are_at_distance_one_from_the_others(library: Library):
    x = np.array([[0.0, 0.0], [1.0, 0.0], [-0.6, 0.8]])
    w = library.numpy(lametta.knn(1)(library.array(x)))
    assert w[1, 0] == w[2, 0] == 1  # 1 and 2 are farther apart than that
    w = library.numpy(lametta.knn(1)(library.array(np.vstack([x, 0 * x[:1]]))))
    assert w[0, 3] == w[3, 0] == 1  # two zero rows are at distance 0


@pytest.mark.parametrize("affinity", [lametta.knn(3), lametta.rbf(3), lametta.linear()])
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1e3, 1e30])
def test_scale_of_features_plays_no_part(library: Library, affinity, scale):
    x = features_of().astype(np.float32)
    w = library.numpy(affinity(library.array(x, "float32")))
    scaled = library.numpy(affinity(library.array(x * np.float32(scale), "float32")))
    assert np.allclose(w, scaled, atol=2e-5)


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("link", [0.01, 0.8])
def test_scenes_by_definition(library: Library, copies, link):
    x = np.repeat(features_of(20 // copies), copies, axis=0)
    x += np.random.default_rng(1).normal(size=x.shape) / 50
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    distance = 1 - unit @ unit.T
    reach = link * np.median(distance[np.triu_indices(len(x), 1)])
    marks = knn_matrix(x, 4)
    expected = np.zeros_like(marks)
    for i, row in enumerate(marks):
        company = [*np.flatnonzero(row), i]
        for j in company[:-1]:
            expected[i, j] = 1 / sum(distance[other, j] <= reach for other in company)
    found = library.numpy(scenes(4, link=link)(library.array(x)))
    assert np.allclose(found, expected, atol=1e-6)
    assert (found == marks).all() == (copies == 1 and link == 0.01)


def test_scenes_of_one_thing_pull_as_one_neighbor_does(library: Library):
    w = library.numpy(scenes(3)(library.array(np.ones((6, 4)))))
    assert np.allclose(w.sum(axis=1), 3 / 4)
    for n in (0, 1):
        assert not library.numpy(scenes()(library.array(np.ones((n, 4))))).any()


@pytest.mark.parametrize("n", [2, 8, 64])
def test_identical_frames_make_no_frame_certain(n):
    features, probs = np.ones((n, 4)), np.array([[0.6, 0.4]] * n)
    plain, once = (
        lametta.LAME(affinity).correct(features, probs).probs[:, 0].max()
        for affinity in (lametta.knn(5), scenes(5))
    )
    assert once < 0.7
    assert n == 2 or plain > 0.9


def test_rbf_by_definition(library: Library):
    x = features_of()
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    distance = np.linalg.norm(unit[:, None] - unit, axis=-1)
    width = np.mean([np.sort(np.delete(distance[i], i))[3 - 1] for i in range(len(x))])
    expected = np.exp(-(distance**2) / (2 * width**2))
    assert np.allclose(library.numpy(lametta.rbf(3)(library.array(x))), expected, atol=1e-12)


def test_rbf_of_duplicates_is_finite(library: Library):
    w = library.numpy(lametta.rbf(2)(library.array(np.ones((6, 4)))))
    assert np.allclose(w, 1)


def test_rbf_of_one_and_of_none(library: Library):
    assert library.numpy(lametta.rbf(5)(library.array(np.ones((1, 4))))) == [[1.0]]
    assert lametta.rbf(5)(library.array(np.ones((0, 4)))).shape == (0, 0)


def test_linear_by_definition(library: Library):
    x = features_of()
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    assert np.allclose(library.numpy(lametta.linear()(library.array(x))), unit @ unit.T)


@pytest.mark.parametrize("affinity", [lametta.rbf(3, row_sum=5.0), lametta.linear(row_sum=5.0)])
@pytest.mark.parametrize("n", [20, 40])
def test_row_sums_do_not_grow_with_the_batch(library: Library, affinity, n):
    w = library.numpy(affinity(library.array(features_of(n))))
    assert np.allclose(w.sum(axis=1), 5)
    assert (np.diag(w) == 0).all()
    assert (w >= 0).all()


def test_row_sum_of_a_sample_alone_is_zero():
    assert lametta.rbf(3, row_sum=5.0)(np.ones((1, 4))) == [[0.0]]


def test_symmetric_acts_after_row_sum():
    x = features_of(10)
    w = lametta.rbf(3, row_sum=5.0)(x)
    assert not np.allclose(w, w.T)
    assert np.allclose(lametta.rbf(3, row_sum=5.0, symmetric=True)(x), (w + w.T) / 2)


def test_dtype_of_the_features_is_kept(library: Library):
    for dtype in ("float32", "float64", *library.halves):
        x = library.array(features_of(), dtype)
        for affinity in (lametta.knn(3), lametta.rbf(3), lametta.linear()):
            assert affinity(x).dtype == x.dtype


def test_affinities_show_and_compare_what_they_were_given():
    assert repr(lametta.knn(3)) == ("knn(k=3, direction='own', symmetric=False, method='exact')")
    assert lametta.rbf(3, row_sum=2.0) == lametta.rbf(3, row_sum=2.0) != lametta.rbf(4)


def test_neighbors_multiply_like_the_matrix(library: Library):
    x = features_of()
    z = library.array(make_batch(20, 5)[1])
    neighbors = Neighbors(lametta.knn(4).neighbors(library.array(x)).index, 0.5)
    dense = neighbors.dense(z.dtype)
    assert np.array_equal(library.numpy(dense), knn_matrix(x, 4) / 2)
    assert np.allclose(library.numpy(neighbors @ z), library.numpy(dense @ z))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lametta.knn(0), "k must be an integer >= 1, got 0"),
        (lambda: lametta.knn(2.5), "k must be an integer >= 1, got 2.5"),
        (lambda: lametta.knn(True), "k must be an integer >= 1, got True"),
        (lambda: lametta.knn(direction="of"), "direction must be one of 'own', 'reverse', 'both'"),
        (
            lambda: lametta.knn(direction="reverse", symmetric=True),
            "symmetric must be False where direction is 'reverse', got True",
        ),
        (lambda: scenes(0), "k must be an integer >= 1, got 0"),
        (lambda: scenes(link=0), "link must be a finite number > 0, got 0"),
        (lambda: lametta.rbf(-1), "k must be an integer >= 1, got -1"),
        (lambda: lametta.rbf(row_sum=0.0), "row_sum must be a finite number > 0, got 0.0"),
        (lambda: lametta.linear(row_sum=float("nan")), "row_sum must be .* got nan"),
        (lambda: lametta.knn()(np.ones(3)), r"features must be 2-D \[N, d\], got shape \(3,\)"),
        (lambda: lametta.knn()(np.ones((3, 2), int)), "features must be of a floating dtype"),
        (lambda: lametta.rbf()([[1.0]]), "features must be an array .* got list"),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises(lametta.LamettaError, match=message):
        make()


@pytest.mark.slow
@pytest.mark.parametrize("codes", [128, 5])
def test_faiss_finds_nearly_all_neighbors_and_never_the_sample_itself(codes, monkeypatch):
    pytest.importorskip("faiss")
    monkeypatch.setattr(_neighbors, "_FEW_SAMPLES", 100)
    monkeypatch.setattr(_neighbors, "_CLUSTERS_SEARCHED", 16)
    monkeypatch.setattr(_neighbors, "_MAX_CODES", codes)  # 5: entries are padded to a multiple
    monkeypatch.setattr(_neighbors, "_QUERY_BLOCK", 1000)
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(40, 24))
    x = (centers[rng.integers(40, size=3000)] + 0.5 * rng.normal(size=(3000, 24))).astype("f4")
    exact = knn(5).neighbors(x).index
    found = knn(5, method="faiss").neighbors(x).index
    assert found.shape == exact.shape
    assert not (found == np.arange(3000)[:, None]).any()
    assert all(len(set(row)) == 5 for row in found.tolist())
    recall = np.mean([len(set(a) & set(b)) / 5 for a, b in zip(exact, found, strict=True)])
    assert recall > 0.9


@pytest.mark.parametrize("n", [1, 2, 3, 7, 100])
def test_faiss_on_few_samples_is_exact(n):
    pytest.importorskip("faiss")
    x = np.random.default_rng(0).normal(size=(n, 4))
    exact, found = (knn(5, method=m).neighbors(x).index for m in ("exact", "faiss"))
    np.testing.assert_array_equal(np.sort(exact, axis=1), np.sort(found, axis=1))


def test_faiss_looks_at_all_where_the_nearest_clusters_hold_too_few(monkeypatch):
    pytest.importorskip("faiss")
    monkeypatch.setattr(_neighbors, "_FEW_SAMPLES", 100)
    monkeypatch.setattr(_neighbors, "_CLUSTERS_SEARCHED", 1)
    x = features_of(800).astype("f4")
    found = knn(60, method="faiss").neighbors(x).index
    assert ((found >= 0) & (found != np.arange(800)[:, None])).all()
    assert all(len(set(row)) == 60 for row in found.tolist())


@pytest.mark.parametrize("direction", ["own", "reverse", "both"])
def test_faiss_gives_what_exact_neighbors_give(library, direction):
    pytest.importorskip("faiss")
    features, probs = make_batch(80, 5)
    x, q = library.array(features), library.array(probs)
    exact, found = (
        lametta.lame(x, q, affinity=knn(5, method=m, direction=direction)).probs
        for m in ("exact", "faiss")
    )
    assert type(found) is type(q)
    np.testing.assert_allclose(library.numpy(found), library.numpy(exact), atol=1e-4)


def test_faiss_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(LamettaError, match="pip install faiss-cpu"):
        knn(method="faiss").neighbors(np.eye(4))
    with pytest.raises(LamettaError, match="method must be one of 'exact', 'faiss', got 'annoy'"):
        knn(method="annoy")
