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
from lametta.correctors.prudent import experts, order, scenes
from lametta.correctors.prudent.constants import CONSTANTS
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
    """How new each sample is, the usual distance when it came, and the log odds of a video."""
    x, log_odds = unit(features), -2.0
    usual, found, usuals, odds = [0.5], [1.0], [0.5], [-2.0]
    for i in range(1, len(x)):
        m = min(i, 8)
        if m > 1:
            cosines = x[i - m : i] @ x[i]
            ratio = 0.6 * m if cosines[-1] > cosines[:-1].max() else 0.4 * m / (m - 1)
            log_odds = np.clip(log_odds + np.log(ratio), -12, 12)
        near = (0.1 + 0.8 / (1 + np.exp(-log_odds))) * np.mean(usual)
        found.append(share(x[i], x[i - 1], near))
        usuals.append(np.mean(usual))
        odds.append(log_odds)
        references = x[: i - 64 : 16] if i % 16 == 0 and i > 64 else []
        if len(references):
            usual.append(max(1 - (references[-16:] @ x[i]).max(), 1e-6))
    return np.array(found), np.array(usuals), np.array(odds)


def scenes_of(features, probs, novelty, usual, odds):
    x, rows, weights, varied = unit(features), [], np.zeros(0), 0.0
    votes = np.eye(probs.shape[1])[probs.argmax(axis=1)]
    for i, v in enumerate(novelty):
        if i and v < 1:  # a scene ends where all of it is far, too
            anchor = weights @ x[:i]
            v = max(v, share(anchor / np.linalg.norm(anchor), x[i], usual[i]))
        change = np.abs(probs[i] - probs[i - 1]).sum() / 2 / probs[i].max() if i else 0
        varied = (1 - v) * (varied * np.exp(-1 / 50) + min(change, 1))
        weights = np.append(weights * (1 - v) * np.exp(-1 / 50), 1)
        part = weights / weights.sum()
        own = 1 - 0.75 / (1 + np.exp(-odds[i]))  # of no video, nearly all
        mean = (1 - own) * part @ probs[: i + 1] + own * probs[i]
        best = mean.argmax()
        sharp = mean ** ((1 + varied) ** 0.14)
        sharp /= sharp.sum()
        voted = (1 - own) * part @ votes[: i + 1, best] + own * votes[i, best]
        gap = (voted - mean[best]) * varied / (1 + varied)
        rows.append(
            mean + np.clip(gap / max(sharp[best] - mean[best], 1e-9), 0, 1) * (sharp - mean)
        )
    return np.array(rows)


def pattern(matrix):
    """A symmetric matrix without its diagonal, centered by projection, of norm one."""
    n = len(matrix)
    free = matrix[~np.eye(n, dtype=bool)].mean() * np.eye(n) + matrix * (1 - np.eye(n))
    center = np.eye(n) - 1 / n
    centered = center @ free @ center
    return centered / np.linalg.norm(centered)


def time(n):
    return pattern(np.exp(-np.abs(np.arange(n)[:, None] - np.arange(n)) / 8))


def likeness_of(rows):
    roots = np.sqrt(rows) / np.sqrt(rows).sum(axis=1, keepdims=True)
    return np.einsum("ik,jk,k->ij", roots, roots, 1 / roots.mean(axis=0))


def order_of(x, rows):
    """Order of features and of outputs over a window, and how much the two have in common."""
    near, features, outputs = time(len(x)), pattern(x @ x.T), pattern(likeness_of(rows))
    return [(near * features).sum(), (near * outputs).sum(), (features * outputs).sum()]


def effective(labels):
    shares = np.unique(labels, return_counts=True)[1] / len(labels)
    return 1 / (shares**2).sum()


def is_over(rows, r_o):
    """Whether the last 48 samples are of many classes, and in less than .4 of the order."""
    latest = likeness_of(rows)[-48:, -48:]
    many = len(latest) == 48 and effective(rows[-48:].argmax(axis=1)) > 4
    return many and (time(48) * pattern(latest)).sum() < 0.4 * r_o


def heard_of(features, rows, novelty):
    """Whether the memory is heard at each sample: the count of `order`, look by look."""
    x, kept, pending, since, heard, count = unit(features), [], 0.0, 0.0, [], -1.0
    for i, v in enumerate(novelty):
        pending, since = pending + v, since + v
        if pending > 1 - 1e-9:
            pending, kept = pending - 1, [*kept, i][-128:]
        if since >= 16:
            r_f, r_o, c = order_of(x[kept], rows[kept])
            z, u, since = (len(kept) - 1) / np.sqrt(2), min(since / len(kept), 1), 0.0
            labels = rows[kept].argmax(axis=1)
            ordered, over = z * max(r_f, r_o) > 5, is_over(rows[kept], r_o)
            if ordered:
                part = min(c, CONSTANTS.order_ratio)
                step = z * (r_o - part * r_f) / np.sqrt(1 + part**2 - 2 * part * c)
                most = 0 if over else CONSTANTS.order_step
                count = np.clip(count + u * min(step, most), -8, 1)
            if over or not ordered:
                n = 48 if over else len(kept)
                fall = min(u * len(kept) / n, 1) / 2 * (effective(labels[-n:]) - 1)
                count = max(count - fall, min(count, 0))
            again = [labels[j] in labels[j - 3 : j] for j in range(3, len(kept))]
            count = min(count, 0) if np.mean(again) < 0.1 else count
        heard.append(count > 0)
    return np.array(heard)


def mixture_of(rows, novelty, heard):
    """The answers of source and experts, their evidence [N, 3], and the mixture's [N]."""
    k = rows.shape[1]
    read = np.stack([rows, np.sqrt(rows) / np.sqrt(rows).sum(axis=1, keepdims=True)], axis=1)
    start = np.array([0.9, 0.05, 0.05])
    weights, memory, size, base, n = start, np.zeros((2, k)), 0.0, np.zeros((2, k)), 0.0
    answers, evidence, together = [], [], []
    for q, v, speaks in zip(read, novelty, heard, strict=True):
        if not speaks:
            weights, memory, size = start, np.zeros((2, k)), 0.0
        mean = (base + q + 3 / k) / (n + 1 + 3)
        joint = (memory + mean) / (size + 1) * q / mean
        posterior = joint / joint.sum(axis=1, keepdims=True)
        evidence.append(speaks * np.array([0, *(np.log(joint.sum(axis=1)) - 0.05)]))
        shares = weights * np.exp(evidence[-1])
        together.append(np.log(shares.sum()))
        shares = shares / shares.sum()
        answers.append(shares[0] * q[0] + shares[1:] @ posterior if speaks else q[0])
        if speaks:
            fade = np.exp(-v / CONSTANTS.memory)
            memory, size = (memory + v * posterior) * fade, (size + v) * fade
            weights = weights * np.exp(v * evidence[-1])
            weights = (1 - 3e-4 * v) * weights / weights.sum() + 3e-4 * v * start
        base, n = (base + v * q) * np.exp(-v / 512), (n + v) * np.exp(-v / 512)
    return np.array(answers), np.array(evidence), np.array(together)


@pytest.mark.parametrize("copies", [1, 5])
@pytest.mark.parametrize("n", [5, 300])
def test_scenes(n, copies):
    features, probs = stream(n, copies=copies)
    found, rows, sketches = scenes.observe(
        CONSTANTS, scenes.init_state(CONSTANTS, 6, 5), features, probs
    )
    novelty, usual, odds = novelty_of(features)
    assert np.allclose(found, novelty, atol=1e-4)
    assert copies == 1 or (novelty[1:] < 0.9).mean() > 0.6
    assert np.allclose(rows, scenes_of(features, probs, found, usual, odds), atol=1e-5)
    assert np.allclose(np.linalg.norm(sketches, axis=1), 1, atol=1e-6)


def observed(features, probs):
    state = scenes.init_state(CONSTANTS, features.shape[1], probs.shape[1])
    return scenes.observe(CONSTANTS, state, features, probs)


def test_tight_features_are_no_video():
    """All samples are near each other: the one before is no copy if others are as near."""
    rng = np.random.default_rng(0)
    noise = rng.uniform(0.25, 0.5, size=(300, 1))
    features = np.ones(64) + noise * rng.normal(size=(300, 64))
    sketches = scenes.sketch(features, 256)
    assert (1 - np.vecdot(sketches[1:], sketches[:-1])).mean() < 0.9 * 0.5  # near, in a video
    probs = softmax(rng.normal(size=(300, 5)))
    tight, _, _ = observed(features, probs)
    assert np.mean(tight) > 0.95
    moving = np.ones(64) + 0.45 * np.cumsum(rng.normal(size=(300, 64)), axis=0) / 3
    video, _, _ = observed(moving, probs)
    assert np.mean(video[8:]) < 0.3


def test_a_camera_that_turns_ends_a_scene():
    """Each frame is a near-copy of the one before, and the last is of something else."""
    share = np.repeat([0.0, *np.linspace(0, 1, 14)[1:-1], 1.0], [40, *[1] * 12, 20])[:, None]
    features = np.eye(2, 16)[0] * (1 - share) + np.eye(2, 16)[1] * share
    rows = np.array([[0.9, 0.1]]) * (1 - share) + np.array([[0.1, 0.9]]) * share
    novelty, merged, _ = observed(features, rows)
    assert max(novelty[4:]) < 0.5
    assert (merged.argmax(axis=1) == rows.argmax(axis=1)).mean() > 0.9


def test_a_scene_keeps_its_doubt():
    """Identical frames tell nothing more; frames that differ are as sure as they vote."""
    features, sure = np.ones((200, 8)), np.tile([[0.6, 0.4]], (200, 1))
    _, rows, _ = observed(features, sure)
    assert np.allclose(rows, sure, atol=1e-6)
    rng = np.random.default_rng(0)
    mixed = softmax(np.stack([rng.normal(0.3, 0.6, size=200), np.zeros(200)], axis=1))
    moving = features + 0.01 * np.cumsum(rng.normal(size=(200, 8)), axis=0)
    _, rows, _ = observed(moving, mixed)
    voted = (mixed.argmax(axis=1) == 0).mean()
    assert 0.6 < voted < 0.9
    assert rows[100:].max() < voted + 0.25 * (1 - voted)


# Order


@pytest.mark.parametrize("seed", range(3))
def test_order_has_no_mean_where_samples_are_exchangeable(seed):
    """Whatever the network's bias: deviations of about one, and none beyond five."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(40):
        x = rng.normal(size=(64, 12)) + 2 * rng.normal(size=(4, 12))[rng.integers(4, size=64)]
        rows = softmax(x @ rng.normal(size=(12, 6)) + 3 * rng.normal(size=6))
        found.append(63 / np.sqrt(2) * np.array(order_of(unit(x), rows)[:2]))
    assert np.abs(np.mean(found)) < 0.4
    assert 0.6 < np.std(found) < 1.5
    assert np.max(found) < 5


def domains(classes, seed=0, n=480):
    """A stream in order: by classes, or by shifts of all features that also bias the outputs."""
    rng = np.random.default_rng(seed)
    blocks = np.repeat(rng.integers(6, size=n // 40), 40)
    labels = blocks if classes else rng.integers(6, size=n)
    head = rng.normal(size=(6, 24))
    features = 1.2 * head[labels] + rng.normal(size=(n, 24))
    if not classes:
        features += 3 * rng.normal(size=(6, 24))[blocks]
    return features, softmax(0.15 * features @ head.T), labels


@pytest.mark.parametrize("name", ["camera", "prudent"])
@pytest.mark.parametrize("classes", [True, False])
def test_the_memory_is_heard_where_classes_make_the_order(name, classes):
    features, probs, labels = domains(classes)
    corrector, spoke = CORRECTORS[name], []
    corrector.reset()
    for x, q in zip(features, probs, strict=True):
        spoke.append(corrector.correct(x[None], q[None]))
    orders = [one.info["order"] for one in spoke[100:]]
    right = np.mean([one.probs.argmax() for one in spoke] == labels)
    before = np.mean(probs.argmax(axis=1) == labels)
    if classes:
        assert np.mean(np.equal(orders, 1)) > 0.5
        assert np.mean([one.info["trust"] for one in spoke[100:]]) > 0.5
    else:
        assert set(orders) <= {0, -1}
        assert np.mean(np.equal(orders, -1)) > 0.5
        if name == "camera":
            assert all(one.info["trust"] == 0 for one in spoke[100:])
        else:  # each domain has a bias of its own, which recentering takes off
            assert right > before + 0.05


@pytest.mark.parametrize("copies", [1, 5])
def test_evidence_one_by_one(copies):
    features, probs = stream(300, copies=copies)
    novelty, usual, odds = novelty_of(features)
    rows = scenes_of(features, probs, novelty, usual, odds)
    heard = heard_of(features, rows, novelty) & (odds <= 0)
    expected, _, _ = mixture_of(rows, novelty, heard)
    found = play(Memory(), features, probs)
    assert np.abs(found - expected).max() < 1e-3
    assert np.abs(expected - probs).max() > 0.1
    assert heard.any() == (copies == 1)  # what a camera films is left to the scenes
    assert not heard.all()


def test_a_track_is_the_product_of_its_scenes():
    features, probs = stream(60, copies=3)
    novelty, usual, odds = novelty_of(features)
    rows = scenes_of(features, probs, novelty, usual, odds)
    prior = posterior = np.full(5, 0.2)
    for v, row, found in zip(novelty, rows, play(Memory("track"), features, probs), strict=True):
        prior = (1 - v) * prior + v * ((1 - 1e-4) * posterior + 1e-4 / 5)
        posterior = prior * row / (prior * row).sum()
        assert np.allclose(found, posterior, atol=1e-4)


def test_sketches_keep_cosines():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 1280)) + 2 * rng.normal(size=(4, 1280))[np.arange(40) % 4]
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    rows = scenes.sketch(x, 256)
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
    novelty = np.where(rng.random(120) < old, rng.random(120) ** 4, 1.0)
    state, together = experts.init_state(CONSTANTS, n_classes), []
    for v, row in zip(novelty.tolist(), rows.astype(np.float32), strict=True):
        mixed = experts.mix(CONSTANTS, state, [v], row[None], kind=0, heard=True)
        together.append(mixed[2])
    _, evidence, expected = mixture_of(rows, novelty, np.ones(120, bool))
    assert np.allclose(together, expected, atol=1e-3)
    mixture, parts, n = novelty @ together, novelty @ evidence, novelty.sum()
    assert mixture >= parts[0] - 0.106 - 3.01e-4 * n - 1e-3
    assert mixture >= parts[1:].max() - np.log(20) - 3.01e-4 * n - 1e-3
    unpriced = parts[1:].max() + 0.05 * n
    assert mixture >= unpriced - np.log(20) - 0.0504 * n - 1e-3


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
    assert np.abs(found - probs).max() < 0.01  # identical frames tell nothing more


@pytest.mark.slow
def test_streams_may_be_long():
    """Sums of float32 stop growing at 2 ** 24; a base that forgets has no more than 512 samples."""
    state = experts.init_state(CONSTANTS, 5)
    _, probs = stream(64, seed=1)
    rows = probs.astype(np.float32)
    for i in range(2000):
        heard = i % 50 < 25
        mixed = experts.mix(CONSTANTS, state, [1.0] * 64, rows, kind=0, heard=heard)
        assert state["counts"][1] <= 512
    assert state["counts"][1] > 450
    total = state["marginals"][0].sum(axis=1, dtype=np.float64)
    assert np.allclose(total, state["counts"][1], rtol=1e-3)
    assert np.isfinite(mixed[2])


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


@pytest.mark.parametrize(("name", "size"), [("camera", 230), ("track", 58), ("prudent", 238)])
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
    assert set(info) == usual | {"trust", "evidence", "order"}
    assert 0 < info["novelty"] < 0.7
    assert 0 < Memory().correct(*stream(60)).info["trust"] < 1


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


def test_a_run_is_over_where_many_classes_show_no_order():
    rng = np.random.default_rng(0)
    x, labels = unit(rng.normal(size=(128, 24))), rng.integers(6, size=128)
    for classes, falls in ((labels, True), (np.zeros(128, int), False)):
        state = order.init_state(CONSTANTS)
        state["order"][0] = 1
        order.look(CONSTANTS, state, x @ x.T, softmax(4 * np.eye(6)[classes]), 1 / 8)
        assert (state["order"][0] < 0.8) == falls
        assert (state["order"][0] == 1) != falls


@pytest.mark.parametrize("after", ["many classes", "runs", "a run"])
def test_runs_are_over_where_the_latest_samples_show_no_order(after):
    """Runs fill most of the window, and so it has an order; what counts is how it ends."""
    rng = np.random.default_rng(0)
    runs, n = np.repeat(rng.permutation(np.arange(16) % 8), 8), 56
    latest = {"many classes": rng.integers(8, size=n), "runs": runs[:n], "a run": np.zeros(n, int)}
    labels = np.concatenate([runs, latest[after]])[-128:]
    x = unit(2 * rng.normal(size=(8, 24))[labels] + rng.normal(size=(128, 24)))
    rows = softmax(3 * np.eye(8)[labels] + rng.normal(size=(128, 8)))
    state = order.init_state(CONSTANTS)
    state["order"][0] = 1
    for _ in range(3):
        order.look(CONSTANTS, state, x @ x.T, rows, 1 / 8)
    assert state["order"][1] > CONSTANTS.order_deviations
    assert order.by_classes(state) == (after != "many classes")


@pytest.mark.parametrize("copies", [1, 2])
def test_classes_that_do_not_come_again_are_no_runs(copies):
    """Kinds that are alike follow each other, of each one sample: no class is worth remembering."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(128), copies)[:128]
    kinds = rng.normal(size=(8, 24))
    x = unit(kinds[labels * 8 // 128] + 0.3 * rng.normal(size=(128, 24)))
    alike = np.equal.outer(labels * 8 // 128, np.arange(128) * 8 // 128)
    rows = softmax(5 * np.eye(128)[labels] + 2 * alike)
    state = order.init_state(CONSTANTS)
    for _ in range(8):
        order.look(CONSTANTS, state, x @ x.T, rows, 1.0)
    assert state["order"][1] > 5
    assert order.by_classes(state) == (copies == 2)


def test_a_picture_that_comes_again_and_again_is_no_video():
    """Exact repeats in random order: rows are left as they are, and count once where they stay."""
    rng = np.random.default_rng(0)
    drawn = rng.choice(40, 400, p=np.arange(1, 41) ** -1.5 / (np.arange(1, 41) ** -1.5).sum())
    features, probs = stream(40, n_classes=10, d=64)
    features, probs = features[drawn], probs[drawn]
    state = scenes.init_state(CONSTANTS, 64, 10)
    _, rows, _ = scenes.observe(CONSTANTS, state, features, probs)
    assert not scenes.is_video(state)
    assert np.abs(rows - probs).max() < 0.05
