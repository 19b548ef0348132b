"""Memory with evidence, against the equations of its modules in float64, and at the edges."""

import copy
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save

import lametta
from lametta import LamettaError, Memory, Prudent, methods
from lametta.correctors import Average, Majority, Product, advance
from lametta.correctors.prudent import experts, scenes
from lametta.stream import Scenario, tracks
from lametta.testing import yield_checks
from tests.conftest import Library, shared, softmax

CORRECTORS = {"camera": Memory(), "track": Memory("track"), "prudent": Prudent()}
CHECKS = [
    pytest.param(name, check, id=f"{name}-{check.__name__}")
    for name, corrector in CORRECTORS.items()
    for check in yield_checks(corrector)
]


def stream(n=100, n_classes=5, d=6, seed=0, stay=8, copies=1, noise=0.8):
    """Classes that stay for a while; each sample comes ``copies`` times, hardly changed."""
    rng = np.random.default_rng(seed)
    count = -(-n // copies)
    labels = np.repeat(rng.integers(n_classes, size=count), stay)[:count]
    features = rng.normal(size=(n_classes, d))[labels] + noise * rng.normal(size=(count, d))
    logits = 2 * np.eye(n_classes)[labels] + rng.normal(size=(count, n_classes))
    features, logits = (np.repeat(x, copies, axis=0)[:n] for x in (features, logits))
    logits = logits + (copies > 1) * rng.normal(size=logits.shape)
    return features + 0.15 * (copies > 1) * rng.normal(size=features.shape), softmax(logits)


def play(corrector, features, probs, size=1):
    corrector.reset()
    starts = range(0, len(probs), size)
    rows = [corrector.correct(features[i : i + size], probs[i : i + size]) for i in starts]
    return np.concatenate([prediction.probs for prediction in rows])


# The equations


def unit(features):
    return features / np.linalg.norm(features, axis=1, keepdims=True)


def share(x, y, near):
    return min((max(1 - x @ y, 0) / near) ** 4, 1)


def novelty_of(features):
    """How new each sample is, and the usual distance when it came."""
    x = unit(features)
    usual, found, usuals, copies = [0.5], [1.0], [0.5], 0.0
    for i in range(1, len(x)):
        near = (scenes.NEAR + scenes.NEAR_IN_VIDEO * copies) * np.mean(usual)
        mark = x[max(i // 16 - 1, 0) * 16]  # the sample 16 to 31 before, or the first
        new = share(x[i], x[i - 1], near)
        drift = share(x[i], x[i - 1], scenes.DRIFT * max(1 - mark @ x[i], 1e-9))
        found.append(new)
        usuals.append(np.mean(usual))
        copies += (1 - max(new, drift) - copies) / 8
        marks = x[: i - 64 : 16] if i % 16 == 0 and i > 64 else []
        if len(marks):
            usual.append(max(1 - (marks[-16:] @ x[i]).max(), 1e-6))
    return np.array(found), np.array(usuals)


def scenes_of(features, probs, novelty, usual):
    x, logs = unit(features), np.log(np.maximum(probs, 1e-9))
    rows, weights = [], np.zeros(0)
    for i, v in enumerate(novelty):
        if i and v < 1:  # a scene ends where its mean is far, too
            anchor = weights @ x[:i]
            v = max(v, share(anchor / np.linalg.norm(anchor), x[i], usual[i]))
        weights = np.append(weights * (1 - v), 1)
        mean = weights @ logs[: i + 1] / weights.sum()
        rows.append(softmax((weights.sum() ** 0.2 * mean)[None])[0])
    return np.array(rows)


def mixture_of(rows, novelty):
    """The answers of source and experts, their evidence [N, 3], and the mixture's [N]."""
    k = rows.shape[1]
    read = np.stack([rows, rows**0.25 / (rows**0.25).sum(axis=1, keepdims=True)], axis=1)
    posterior, start = None, np.array([0.9, 0.05, 0.05])
    weights = start
    memory, size, base, n = np.zeros((2, k)), 0.0, np.full((2, k), 3 / k), 0.0
    answers, evidence, together = [], [], []
    for i, q in enumerate(read):
        if i:
            v = novelty[i]
            memory, size = (memory + v * posterior) * np.exp(-v / 8), (size + v) * np.exp(-v / 8)
            base, n = base + v * read[i - 1], n + v
            weights = weights * np.exp(v * evidence[-1])
            weights = (1 - 3e-4 * v) * weights / weights.sum() + 3e-4 * v * start
        mean = (base + q) / (n + 1 + 3)
        assert np.allclose(mean.sum(axis=1), 1)
        joint = (memory + mean) / (size + 1) * q / mean
        posterior = joint / joint.sum(axis=1, keepdims=True)
        evidence.append(np.array([0, *(np.log(joint.sum(axis=1)) - 0.05)]))
        shares = weights * np.exp(evidence[-1])
        together.append(np.log(shares.sum()))
        shares = shares / shares.sum()
        answers.append(shares[0] * q[0] + shares[1:] @ posterior)
    return np.array(answers), np.array(evidence), np.array(together)


@pytest.mark.parametrize("copies", [1, 5])
@pytest.mark.parametrize("n", [5, 300])
def test_scenes(n, copies):
    features, probs = stream(n, copies=copies)
    found, rows, sketches = scenes.observe(scenes.init_state(6, 5), features, probs)
    novelty, usual = novelty_of(features)
    assert np.allclose(found, novelty, atol=1e-4)
    assert copies == 1 or (novelty[1:] < 0.9).mean() > 0.7
    assert np.allclose(rows, scenes_of(features, probs, found, usual), atol=1e-5)
    assert np.allclose(np.linalg.norm(sketches, axis=1), 1, atol=1e-6)


def test_tight_features_are_no_video(monkeypatch):
    """All samples are near each other: the one before is no copy if others are as near."""
    rng = np.random.default_rng(0)
    noise = rng.uniform(0.25, 0.5, size=(300, 1))
    features = np.ones(64) + noise * rng.normal(size=(300, 64))
    cosines = np.vecdot(scenes.sketch(features)[1:], scenes.sketch(features)[:-1])
    assert (1 - cosines).mean() < scenes.BASELINE_DISTANCE * (scenes.NEAR + scenes.NEAR_IN_VIDEO)
    probs = softmax(rng.normal(size=(300, 5)))
    tight, _, _ = scenes.observe(scenes.init_state(64, 5), features, probs)
    assert np.mean(tight[1:65]) > 0.4  # while the usual distance is not known
    assert np.mean(tight[65:]) > 0.9
    moving = np.ones(64) + 0.45 * np.cumsum(rng.normal(size=(300, 64)), axis=0) / 3
    video, _, _ = scenes.observe(scenes.init_state(64, 5), moving, probs)
    assert np.mean(video[1:65]) < 0.3
    monkeypatch.setattr(scenes, "DRIFT", 1e9)  # without the look at what came before
    fooled, _, _ = scenes.observe(scenes.init_state(64, 5), features, probs)
    assert np.mean(fooled[1:65]) < 0.1


def test_a_camera_that_turns_ends_a_scene():
    """Each frame is a near-copy of the one before, and the last is of something else."""
    share = np.repeat([0.0, *np.linspace(0, 1, 14)[1:-1], 1.0], [40, *[1] * 12, 20])[:, None]
    features = np.eye(2, 16)[0] * (1 - share) + np.eye(2, 16)[1] * share
    rows = np.array([[0.9, 0.1]]) * (1 - share) + np.array([[0.1, 0.9]]) * share
    novelty, merged, _ = scenes.observe(scenes.init_state(16, 2), features, rows)
    assert max(novelty[1:]) < 0.5
    assert (merged.argmax(axis=1) == rows.argmax(axis=1)).mean() > 0.9


@pytest.mark.parametrize("copies", [1, 5])
def test_evidence_one_by_one(copies):
    features, probs = stream(300, copies=copies)
    novelty, usual = novelty_of(features)
    expected, _, _ = mixture_of(scenes_of(features, probs, novelty, usual), novelty)
    found = play(Memory(), features, probs)
    assert np.abs(found - expected).max() < 1e-4
    assert np.abs(expected - probs).max() > 0.1


def test_a_track_is_the_product_of_its_scenes():
    features, probs = stream(60, copies=3)
    novelty, usual = novelty_of(features)
    rows = scenes_of(features, probs, novelty, usual)
    prior = posterior = np.full(5, 0.2)
    for v, row, found in zip(novelty, rows, play(Memory("track"), features, probs), strict=True):
        prior = (1 - v) * prior + v * ((1 - 1e-4) * posterior + 1e-4 / 5)
        posterior = prior * row / (prior * row).sum()
        assert np.allclose(found, posterior, atol=1e-4)


def test_sketches_keep_cosines():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 1280)) + 2 * rng.normal(size=(4, 1280))[np.arange(40) % 4]
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    rows = scenes.sketch(x)
    assert rows.shape == (40, 256)
    assert np.abs(rows @ rows.T - unit @ unit.T).max() < 0.25
    assert np.abs(rows @ rows.T - unit @ unit.T).mean() < 0.06


# The guarantee


@pytest.mark.slow
@settings(max_examples=20)
@given(
    seed=st.integers(0, 10**6),
    n_classes=st.integers(2, 20),
    sharp=st.floats(0, 20),
    stay=st.integers(1, 40),
    old=st.floats(0, 1),
)
def test_the_mixture_is_never_far_below_the_best_of_its_parts(seed, n_classes, sharp, stay, old):
    rng = np.random.default_rng(seed)
    labels = np.repeat(rng.integers(n_classes, size=120), stay)[:120]
    rows = softmax(sharp * (rng.normal(size=(120, n_classes)) + np.eye(n_classes)[labels]))
    novelty = np.where(rng.random(120) < old, rng.random(120) ** 4, 1.0).tolist()
    state, together, evidence = experts.init_state(n_classes), [], []
    for v, row in zip(novelty, rows.astype(np.float32), strict=True):
        together.append(experts.mix(state, [v], experts.temper(row[None]))[2][0, 0])
        evidence.append(state["log_evidence"][0].copy())
    weights = np.array(novelty[1:])  # a sample counts as far as the next one is new
    mixture, parts = weights @ together[:-1], weights @ np.array(evidence[:-1])
    n = weights.sum()
    assert mixture >= parts[0] - 0.106 - 3.01e-4 * n
    assert mixture >= parts[1:].max() - np.log(20) - 3.01e-4 * n
    unpriced = parts[1:].max() + 0.05 * n
    assert mixture >= unpriced - np.log(20) - 0.0504 * n


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), scale=st.floats(0.01, 20), drift=st.floats(-1, 1))
def test_absent_classes_cost_little_where_they_are_wrong(seed, scale, drift):
    rng = np.random.default_rng(seed)
    ahead = scale * (rng.normal(size=200) + drift)
    novelty = np.where(rng.random(200) < 0.5, rng.random(200), 1.0).tolist()
    lead, total = np.zeros(2), 0.0
    for i, v in enumerate(novelty):
        Prudent._label_prior_weight(lead, [v], ahead[i : i + 1])
        following = novelty[i + 1] if i < 199 else 0
        share = 1 / (1 + np.exp(-lead[0]))
        total += following * np.log(1 - share + share * np.exp(ahead[i]))
    weights = np.array(novelty[1:])
    bound = np.log(2) + 0.127 * weights.sum() + 1e-9
    assert total >= max(0, weights @ ahead[:-1]) - bound


# Properties


@pytest.mark.slow(2)
@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    n_classes=st.sampled_from([1, 2, 3, 40]),
    d=st.sampled_from([1, 2, 7, 300]),
    scale=st.sampled_from([0.0, 1e-42, 1e-30, 1e-9, 1.0, 1e20, 3e37]),
    sharp=st.sampled_from([0.0, 1.0, 30.0, 1000.0]),
    copies=st.sampled_from([1, 4, 32]),
    dtype=st.sampled_from(["float16", "float32", "float64"]),
)
def test_rows_are_probabilities_whatever_comes(seed, n_classes, d, scale, sharp, copies, dtype):
    rng = np.random.default_rng(seed)
    features = np.repeat(rng.uniform(-1, 1, size=(32, d)), copies, axis=0)[:32]
    probs = softmax(sharp * rng.normal(size=(32, n_classes)))
    features = (features * (min(scale, 1e4) if dtype == "float16" else scale)).astype(dtype)
    probs = probs.astype(dtype)
    for corrector in CORRECTORS.values():
        whole = play(corrector, features, probs, 32)
        for size in (1, 14):
            found = play(corrector, features, probs, size)
            assert found.dtype == dtype
            assert np.isfinite(found).all()
            assert (found >= 0).all()
            slack = 5e-3 if dtype == "float16" else 1e-5
            assert np.abs(found.sum(axis=1, dtype=np.float64) - 1).max() < slack
            if corrector.causal:
                assert np.abs(found.astype(float) - whole).max() < 1e-6


@pytest.mark.parametrize("largest", [3.4e38, 1e38, 1e-38, 1e-45])
@pytest.mark.parametrize("name", CORRECTORS)
def test_features_at_the_ends_of_float32_are_as_good_as_others(name, largest):
    rng = np.random.default_rng(0)
    signs = np.sign(rng.normal(size=(40, 300)))
    probs = softmax(rng.normal(size=(40, 3)))
    features = (signs * largest).astype(np.float32)
    features[20] = 0
    expected = play(CORRECTORS[name], np.sign(features), probs)
    assert np.allclose(play(CORRECTORS[name], features, probs), expected, atol=1e-5)


@pytest.mark.parametrize("name", CORRECTORS)
def test_rows_that_sum_to_one_only_nearly_do_so_afterwards(name):
    features, probs = stream(40)
    for factor in (0.9991, 1.0009):
        for size in (1, 40):
            found = play(CORRECTORS[name], features, probs * factor, size)
            assert np.abs(found.sum(axis=1) - 1).max() < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["camera", "prudent"])
@pytest.mark.parametrize("seed", range(3))
def test_a_stream_without_order_is_left_alone(name, seed):
    rng = np.random.default_rng(seed)
    features, probs = rng.normal(size=(400, 64)), rng.dirichlet(np.full(10, 0.2), size=400)
    corrector = CORRECTORS[name]
    found = play(corrector, features, probs)
    assert np.abs(found - probs).max() < 0.1
    assert (found.argmax(axis=1) == probs.argmax(axis=1)).mean() > 0.98


@pytest.mark.parametrize("name", CORRECTORS)
def test_a_constant_stream_stays_with_its_label(name):
    features, probs = np.ones((300, 4)), np.tile([[0.2, 0.5, 0.3]], (300, 1))
    found = play(CORRECTORS[name], features, probs)
    assert (found.argmax(axis=1) == 1).all()
    assert found[-1, 1] > 0.5


def test_streams_may_be_long():
    """Sums of float32 stop growing at 2 ** 24; a base that forgets half of itself does not."""
    corrector = Memory()
    features, probs = stream(64, seed=1)
    corrector.correct(features, probs)
    state = corrector.state_dict()
    many = 1e6 / state["counts"][0, 1]
    flat = np.float32(3 / 5)
    state["marginal"] = (state["marginal"] - flat) * np.float32(many) + flat
    state["counts"][0, 1] *= many
    corrector.load_state_dict(state)
    for _ in range(3):
        info = corrector.correct(features, probs).info
        state = corrector.state_dict()
        assert state["counts"][0, 1] < 1e6
        total = state["marginal"][0].sum(axis=1, dtype=np.float64)
        assert np.allclose(total, state["counts"][0, 1] + 3, rtol=1e-3)
    assert np.isfinite(info["evidence"])


# State


@pytest.mark.parametrize(("name", "check"), CHECKS)
def test_contract(name, check):
    check(CORRECTORS[name])


@pytest.mark.parametrize("name", CORRECTORS)
def test_a_stored_state_continues_bit_for_bit(name):
    features, probs = stream(120, n_classes=30)
    corrector = CORRECTORS[name]
    expected = play(corrector, features, probs)
    play(corrector, features[:70], probs[:70])
    stored = load(save(corrector.state_dict()))
    corrector.reset()
    corrector.load_state_dict(stored)
    for i in range(70, 120):
        found = corrector.correct(features[i : i + 1], probs[i : i + 1]).probs
        assert np.array_equal(found[0], expected[i])


@pytest.mark.parametrize(("name", "size"), [("camera", 59), ("track", 43), ("prudent", 259)])
def test_memory_is_what_the_docstrings_say(name, size):
    corrector = CORRECTORS[name]
    corrector.reset()
    corrector.correct(np.ones((1, 1280)), np.full((1, 1000), 1e-3))
    used = sum(array.nbytes for array in corrector.state_dict().values())
    assert round(used / 1000) == size <= 512
    assert f"{size} kB" in type(corrector).__doc__
    corrector.reset()


@pytest.mark.slow(2)
def test_ten_thousand_streams_do_not_grow():
    features, probs = stream(40, n_classes=4, d=3)
    begun = [Prudent() for _ in probs]
    for i, one in enumerate(begun):
        one.correct(features[i : i + 1], probs[i : i + 1])
    streams, sizes = [copy.deepcopy(begun[i % 40]) for i in range(10_000)], []
    for step in (1, 2):
        sizes.append(sum(a.nbytes for one in streams for a in one._state.values()))
        for i, one in enumerate(streams[::10]):
            row = slice((i + step) % 40, (i + step) % 40 + 1)
            one.correct(features[row], probs[row])
    assert sizes[0] == sizes[1] < 7e7


@pytest.mark.slow
def test_a_stream_takes_no_more_than_its_state():
    features, probs = stream(50, n_classes=4, d=3)
    streams, sizes = [Prudent() for _ in range(4)], []
    for turn in range(3):
        for i in range(50):
            if turn == 1 and i == 0:
                tracemalloc.start()
            for one in streams:
                one.correct(features[i : i + 1], probs[i : i + 1])
        sizes.append(tracemalloc.get_traced_memory()[0] if turn else 0)
    tracemalloc.stop()
    assert sizes[2] - sizes[1] < 5_000


@pytest.mark.parametrize("name", CORRECTORS)
def test_libraries_give_the_same_answers(name, library: Library):
    features, probs = stream(48, n_classes=7)
    for dtype in ("float64", "float32"):
        _, expected = advance(CORRECTORS[name], {}, features.astype(dtype), probs.astype(dtype))
        arrays = library.array(features, dtype), library.array(probs, dtype)
        _, found = advance(CORRECTORS[name], {}, *arrays)
        assert np.abs(library.numpy(found.probs) - expected.probs).max() < 1e-5


def test_names_traits_and_options():
    assert lametta.Memory is Memory
    camera, track = (methods.find("memory").correctors(p)[0] for p in ({}, {"scope": "track"}))
    assert (camera, track) == (Memory(), Memory("track"))
    memory, prudent = methods.find("memory"), methods.find("prudent")
    assert (memory.stateful, memory.ordered, memory.causal) == (True, True, True)
    assert (prudent.stateful, prudent.ordered, prudent.causal) == (True, True, False)
    with pytest.raises(LamettaError, match="scope must be one of 'camera', 'track', got 'object'"):
        Memory("object")


def test_info_says_who_spoke():
    features, probs = stream(60, copies=3)
    usual = {"entropy", "diversity", "changed", "novelty"}
    assert set(Memory("track").correct(features, probs).info) == usual
    info = Memory().correct(features, probs).info
    assert set(info) == usual | {"trust", "evidence"}
    assert 0 < info["novelty"] < 0.7
    assert 0 < info["trust"] < 1


# Real networks


def bank(name):
    with np.load(shared("data", "banks", f"{name}.npz")) as found:
        features, logits, labels = (found[key] for key in ("features", "logits", "labels"))
    return features.astype(np.float32), softmax(logits.astype(np.float64)), labels.astype(int)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "length", "is_right"),
    [
        ("tinyimagenet_1010_lite0", 5, True),
        ("imagenette_val500_lite0", 20, True),
        ("cifar10_resnet20_clean", 5, True),
        ("cifar10_resnet56_gauss3", 20, False),
    ],
)
def test_tracks_of_real_images(name, length, is_right):
    features, probs, labels = bank(name)
    rivals = {
        "memory": Memory("track"),
        "average": Average(),
        "majority": Majority(),
        "product": Product(),
    }
    hits = {method: [] for method in rivals}
    found = Scenario(tracks(length=length), seed=0, batch_size=length, limit=2000)(labels)
    for own in found:
        for method, corrector in rivals.items():
            corrector.reset()
            answers = corrector.correct(features[own], probs[own]).probs
            hits[method].extend(answers.argmax(axis=1) == labels[own])
    right = {method: 100 * np.mean(found) for method, found in hits.items()}
    assert right["memory"] > right["majority"]
    if is_right:
        assert right["memory"] > max(right["average"], right["product"]) - 0.7
    else:  # confident and wrong: all lose, and memory the least
        assert right["memory"] > max(right["average"], right["product"])
