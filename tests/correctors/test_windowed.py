"""A window that moves by one sample, against LAME on that window by definition."""

from dataclasses import dataclass

import numpy as np
import pytest

import lametta
from lametta import LAME, LamettaError, Prediction, Windowed, knn, methods, rbf
from lametta.correctors import Average, windowed
from lametta.testing import check_corrector
from tests.conftest import knn_matrix, lame_by_definition, shared, softmax


def stream(n, n_classes, seed=0, likely=5, d=12):
    """Some classes that compete, one after the other, and a little on every other class."""
    rng, likely = np.random.default_rng(seed), min(likely, n_classes)
    labels = np.minimum(np.arange(n) * likely // n, likely - 1)
    labels = np.where(rng.random(n) < 0.3, rng.integers(likely, size=n), labels)
    features = np.abs(rng.normal(size=(likely, d))[labels] + 0.6 * rng.normal(size=(n, d)))
    logits = rng.normal(size=(n, n_classes))
    logits[:, :likely] += 5 if n_classes > 50 else 0
    logits[np.arange(n), labels] += 3
    return features, softmax(logits)


def empty_window(size, d, k):
    return {name: x.copy() for name, x in windowed._init_window(size, d, k).items()}


def one_by_one(corrector, features, probs):
    steps = zip(features, probs, strict=True)
    return np.vstack([corrector.correct(x[None], q[None]).probs for x, q in steps])


def by_definition(features, probs, size, k=5, weight=1.0, n_iter=250, direction="own"):
    rows = []
    for end in range(1, len(probs) + 1):
        x, q = features[max(0, end - size) : end], probs[max(0, end - size) : end]
        w = knn_matrix(x, k)
        w = {"own": w, "reverse": w.T, "both": (w + w.T) / 2}[direction]
        rows.append(lame_by_definition(q, weight * w, n_iter)[-1])
    return np.array(rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_classes", "size", "k", "weight"),
    [
        (300, 32, 5, 1.0),
        (1000, 12, 5, 1.0),
        (300, 32, 3, 0.5),
        (300, 24, 9, 2.0),
        (4, 32, 5, 1.0),
        (4, 7, 5, 0.0),
        (65, 3, 5, 1.0),
        (65, 1, 5, 1.0),
    ],
)
def test_every_answer_is_that_of_the_equation_on_its_window(n_classes, size, k, weight):
    features, probs = stream(45, n_classes)
    corrector = Windowed(LAME(knn(k), weight=weight, max_iter=1000, tol=1e-7), size)
    found = one_by_one(corrector, features, probs)
    exact = by_definition(features, probs, size, k, weight)
    assert np.abs(found - exact).max() < 1e-5


@pytest.mark.parametrize("direction", ["reverse", "both"])
def test_every_direction_is_that_of_the_equation_on_its_window(direction):
    features, probs = stream(20, 4)
    affinity = knn(3, direction=direction)
    corrector = Windowed(LAME(affinity, max_iter=1000, tol=1e-7), 8)
    found = one_by_one(corrector, features, probs)
    exact = by_definition(features, probs, 8, 3, direction=direction)
    assert np.abs(found - exact).max() < 1e-5
    own = by_definition(features, probs, 8, 3)
    assert np.abs(found - own).max() > 0.01, "this stream is meant to tell directions apart"


def test_answers_are_those_of_lame_with_the_same_tolerance():
    features, probs = stream(80, 300, seed=1)
    found = one_by_one(Windowed(size=32), features, probs)
    for end in range(1, 81):
        window = slice(max(0, end - 32), end)
        expected = lametta.lame(features[window], probs[window]).probs[-1]
        assert np.abs(found[end - 1] - expected).max() < 1e-4  # as `lame` is from a fixed point
        assert found[end - 1].argmax() == expected.argmax()


def test_the_iteration_and_not_the_source_answers():
    features, probs = stream(80, 300, seed=1)
    found = one_by_one(Windowed(size=32), features, probs)
    assert (found.argmax(axis=1) != probs.argmax(axis=1)).any()
    assert np.array_equal(found[0].astype(np.float32), probs[0].astype(np.float32))


def test_neighbors_are_those_of_a_search_from_scratch():
    features, probs = stream(60, 4)
    features = np.round(features * 2)  # many ties and duplicates, and their products are exact
    features[10:13] = 0
    features[20:26] = features[5]
    features[40] = features[39] * 2  # the same direction
    for k, size in ((3, 16), (20, 32)):
        state = empty_window(size, 12, 4)
        for end in range(1, 61):
            x, q = (array[end - 1].astype(np.float32) for array in (features, probs))
            windowed._insert(state, x, q, k, 1.0)
            order = windowed._by_age(state)
            window = features[max(0, end - size) : end]
            found = state["weights"][np.ix_(order, order)]
            assert np.array_equal(found.sum(axis=1), np.full(len(window), min(k, len(window) - 1)))
            nearness = _nearness(window)
            for i, row in enumerate(found > 0):
                others = np.arange(len(window)) != i
                if row.any() and not (row | ~others).all():
                    assert nearness[i][row].min() >= nearness[i][~row & others].max() - 1e-6


def _nearness(x):
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    unit = np.divide(x, norms, out=np.zeros_like(x), where=norms > 0)
    return -(np.linalg.norm(unit[:, None] - unit, axis=2) ** 2) / 2


def test_of_equally_near_samples_the_older_is_taken_as_knn_does():
    features = np.eye(6)[[0, 1, 2, 0, 0, 3, 0, 1, 0, 0]]
    state = empty_window(6, 6, 2)
    for end in range(1, len(features) + 1):
        windowed._insert(state, features[end - 1].astype(np.float32), np.ones(2) / 2, 2, 1.0)
        order = windowed._by_age(state)
        window = features[max(0, end - 6) : end]
        assert np.array_equal(state["weights"][np.ix_(order, order)], knn(2)(window))


def test_sums_stay_right_along_a_stream():
    _, probs = stream(300, 70)
    state = empty_window(8, 1, 70)
    for q in probs.astype(np.float32):
        windowed._insert(state, np.ones(1, np.float32), q, 2, 1.0)
    q = state["probs"].astype(float)
    assert np.allclose(q[windowed._by_age(state)], probs[-8:], atol=1e-6)
    assert np.allclose(state["overlap"], q @ q.T, atol=1e-6)
    assert np.allclose(state["total"], q.sum(axis=0), atol=1e-9)
    pairs = np.einsum("ik,jk->k", q, q * q) - (q**3).sum(axis=0)
    assert np.allclose(state["shared"], pairs, atol=1e-7)


@pytest.mark.parametrize("max_iter", [0, 1, 2, 3, 5])
def test_a_run_that_is_cut_short_makes_exactly_these_updates(max_iter):
    features, probs = stream(40, 100, seed=2)
    corrector = Windowed(LAME(max_iter=max_iter, tol=1e-12), 16)
    found = one_by_one(corrector, features, probs)
    exact = by_definition(features, probs, 16, n_iter=max_iter)
    assert np.abs(found - exact).max() < 1e-5


def test_extreme_features_keep_their_directions():
    features, probs = stream(20, 4)
    for scale in (1e-200, 1e200):
        found = one_by_one(Windowed(size=8), features * scale, probs)
        assert np.abs(found - one_by_one(Windowed(size=8), features, probs)).max() < 1e-5


@dataclass
class Blur:
    """A corrector of batches that is not LAME: means over the batch, by nearness."""

    refuses: int = -1

    def correct(self, features, probs, /):
        if len(probs) == self.refuses:
            raise LamettaError("probs must be fewer")
        w = softmax(features @ features.T)
        return Prediction(w @ probs, features)

    def reset(self):
        pass


@pytest.mark.parametrize("inner", [Blur(), LAME(rbf(2, row_sum=5.0)), LAME(tol=0)])
def test_any_corrector_of_batches_is_called_with_the_window(inner):
    features, probs = stream(30, 4)
    found = one_by_one(Windowed(inner, 6), features, probs)
    for end in range(1, 31):
        window = slice(max(0, end - 6), end)
        expected = inner.correct(features[window], probs[window]).probs[-1]
        assert np.allclose(found[end - 1], expected, atol=1e-12)


def test_a_window_that_is_refused_changes_nothing():
    features, probs = stream(10, 4)
    corrector = Windowed(Blur(refuses=6), 8)
    corrector.correct(features[:4], probs[:4])
    before = corrector.state_dict()
    with pytest.raises(LamettaError, match="probs must be fewer"):
        corrector.correct(features[4:], probs[4:])
    assert all(np.array_equal(x, before[name]) for name, x in corrector.state_dict().items())


@pytest.mark.slow
@pytest.mark.parametrize(
    "corrector",
    # The second with a high tolerance, which saves time: the number of updates plays no part.
    [Windowed(), Windowed(LAME(tol=1e-2), size=5), Windowed(Blur(), 6)],
    ids=["size 64", "size 5", "not LAME"],
)
def test_it_keeps_the_contract(corrector):
    check_corrector(corrector)


def test_it_has_a_name():
    method = methods.find("windowed")
    assert method.correctors({"size": 5}) == [Windowed(size=5)]
    assert method.parameters()["corrector"].default == LAME()
    assert (method.stateful, method.ordered, method.causal) == (True, True, True)


def test_what_is_wrong_is_named():
    with pytest.raises(LamettaError, match="size must be an integer >= 1, got 0"):
        Windowed(size=0)
    with pytest.raises(LamettaError, match="corrector must have correct and reset, got str"):
        Windowed("lame")
    with pytest.raises(LamettaError, match="corrector must have no memory of its own, .* Average"):
        Windowed(Average())
    with pytest.raises(LamettaError, match="no memory of its own, .* got Windowed"):
        Windowed(Windowed())
    stored = Windowed(size=4)
    stored.correct(*stream(3, 4))
    with pytest.raises(LamettaError, match=r"state\['features'\] must be float32 of shape \(5, 12"):
        Windowed(size=5).load_state_dict(stored.state_dict())


BANKS = ["imagenette_val500_lite0", "tinyimagenet_1010_lite0", "imagenet_one_per_class_lite0"]


@pytest.mark.slow
@pytest.mark.parametrize("bank", BANKS)
def test_real_networks(bank):
    with np.load(shared("data", "banks", f"{bank}.npz")) as data:
        order = np.random.default_rng(0).permutation(len(data["labels"]))[:100]
        order = order[np.argsort(data["labels"][order] // 50, kind="stable")]
        features, logits = (data[key][order].astype(np.float32) for key in ("features", "logits"))
    probs = softmax(logits)
    found = one_by_one(Windowed(LAME(tol=1e-7, max_iter=1000)), features, probs)
    usual = one_by_one(Windowed(), features, probs)
    for end in range(40, 101, 15):
        window = slice(max(0, end - 64), end)
        w = knn_matrix(features[window], 5)
        exact = lame_by_definition(probs[window].astype(float), w, 400)[-1]
        assert np.abs(found[end - 1] - exact).max() < 1e-5
        assert np.abs(usual[end - 1] - exact).max() < 5e-5
