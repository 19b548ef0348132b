"""Prudent: absent classes against dense rows, who spoke and when, and real networks."""

from types import SimpleNamespace

import numpy as np
import pytest

from lametta import LAME, LamettaError, Prudent
from lametta.correctors import prudent as module
from lametta.correctors.prudent import label_prior, scenes, window
from lametta.correctors.prudent.constants import CONSTANTS
from lametta.stream import Scenario
from tests.conftest import softmax
from tests.correctors.prudent.test_memory import bank, play


def images(n=400, n_classes=40, present=4, order="iid", seed=0):
    """A network of many classes on images of few: it confuses them with those that are absent."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(present, size=n)
    labels = np.sort(labels) if order == "sorted" else labels
    features = 0.8 * rng.normal(size=(present, 64))[labels] + rng.normal(size=(n, 64))
    scores = 1.7 * rng.normal(size=(n, n_classes))
    scores[np.arange(n), labels] += 4
    return features, softmax(scores), labels


def gain(corrector, features, probs, labels, size=1):
    right = play(corrector, features, probs, size).argmax(axis=1) == labels
    return 100 * (right.mean() - (probs.argmax(axis=1) == labels).mean())


def kept(probs, features=None):
    """The state after keeping these rows, all of them new, and what a fit reads of it."""
    if features is None:
        features = np.random.default_rng(0).normal(size=(len(probs), 8))
    k = probs.shape[1]
    state = window.init_state(CONSTANTS, features.shape[1], k)
    state |= label_prior.init_state(CONSTANTS, k)
    rows = probs.astype(np.float32)
    window.add(state, [1.0] * len(rows), scenes.sketch(features, 256), rows)
    return state


def fit(state):
    sketches, classes, probs = window.in_order(state)
    return label_prior.fit(CONSTANTS, state, sketches @ sketches.T, classes, probs)


# Absent classes


def dense_rows(probs, top=32):
    """The top classes of each row, and what the others have together spread evenly over them."""
    is_top = probs >= np.sort(probs, axis=1)[:, [-min(top, probs.shape[1])]]
    rest = np.where(is_top, 0, probs).sum(axis=1, keepdims=True)
    return np.where(is_top, probs, rest / np.maximum((~is_top).sum(axis=1, keepdims=True), 1))


@pytest.mark.parametrize("n_classes", [1, 2, 10, 100])
def test_the_prior_is_smoothed_em(n_classes):
    _, probs, _ = images(60, max(n_classes, 4))
    probs = probs[:, :n_classes] / probs[:, :n_classes].sum(axis=1, keepdims=True)
    # Directions that are all equally far from each other: sixty things.
    state = kept(probs, np.eye(60))
    fit(state)
    assert state["things"] == 60
    top = np.where(probs >= np.sort(probs, axis=1)[:, [-min(32, n_classes)]], probs, 0)
    prior = np.full(n_classes, 1 / n_classes)
    for _ in range(12):
        counts = (top * prior / (top * prior).sum(axis=1, keepdims=True)).sum(axis=0)
        distinct = np.minimum(counts, 1).sum()
        prior = (counts + distinct / n_classes) / (60 + distinct)
    assert prior.sum() == pytest.approx(1)
    assert np.allclose(state["label_prior"], prior, atol=1e-5)


@pytest.mark.parametrize("n_classes", [1, 2, 32, 33, 100])
@pytest.mark.parametrize("n", [20, 200])
def test_rows_of_the_window_share_what_was_not_kept(n, n_classes):
    probs = softmax(2 * np.random.default_rng(0).normal(size=(n, n_classes)))
    _, classes, kept_probs = window.in_order(kept(probs))
    found = window.dense(classes, kept_probs, n_classes)
    assert np.allclose(found, dense_rows(probs[-128:]), atol=1e-6)


def test_near_copies_are_kept_once():
    probs = softmax(np.random.default_rng(0).normal(size=(300, 5))).astype(np.float32)
    state = window.init_state(CONSTANTS, 4, 5)
    sketches = scenes.sketch(np.random.default_rng(1).normal(size=(300, 4)), 256)
    for i in range(300):
        window.add(state, [0.25], sketches[i : i + 1], probs[i : i + 1])
    assert state["window_count"] == 75
    found, classes, rows = window.in_order(state)
    assert np.array_equal(found, sketches[3::4])
    assert np.array_equal(rows, np.take_along_axis(probs[3::4], classes, axis=1))
    assert not window.should_look(CONSTANTS, window.init_state(CONSTANTS, 4, 5))
    assert window.should_look(CONSTANTS, state)


def test_a_large_batch_leaves_its_last_rows():
    probs = softmax(np.random.default_rng(0).normal(size=(300, 5))).astype(np.float32)
    features = np.random.default_rng(0).normal(size=(300, 8))
    whole, one_by_one = kept(probs, features), kept(probs[:0], features[:0])
    sketches = scenes.sketch(features, 256)
    for i in range(300):
        window.add(one_by_one, [1.0], sketches[i : i + 1], probs[i : i + 1])
    assert all(np.array_equal(whole[name], one_by_one[name]) for name in whole)


@pytest.mark.parametrize("n", [40, 128])
def test_things_are_groups_of_near_copies(n):
    """Connected components, by brute force; the first sample stands for each."""
    rng = np.random.default_rng(0)
    x = scenes.sketch(np.repeat(rng.normal(size=(n // 4, 6)), 4, axis=0), 256)
    x = scenes.sketch(x + 0.12 * rng.normal(size=x.shape), 256)
    state = label_prior.init_state(CONSTANTS, 5)
    found = label_prior._things(CONSTANTS, state, x @ x.T)
    distances = 1 - x @ x.T
    median = np.median(distances[np.triu_indices(n, 1)])
    limit = 0.4 * max(median, (0.5 + median) / 2)
    group = list(range(n))
    for i in range(n):
        for j in range(i):
            if distances[i, j] < limit and group[i] != group[j]:
                group = [group[j] if one == group[i] else one for one in group]
    assert np.array_equal(found, sorted({group.index(one) for one in group}))
    assert len(found) < n / 2


def test_few_things_tell_nothing():
    """A video of one thing is one thing, however many frames of it there are."""
    features, probs, _ = images(128)
    assert fit(kept(probs, features))
    assert not fit(kept(probs[:20], features[:20]))
    copies = np.repeat(features[:20], 6, axis=0)
    assert not fit(
        kept(probs[:120], copies + 0.01 * np.random.default_rng(0).normal(size=copies.shape))
    )


def test_the_gate_asks_the_features():
    """The same rows: where features tell nothing of labels, the prior is not believed."""
    features, probs, _ = images(128)
    assert fit(kept(probs, features))
    assert not fit(kept(probs, np.random.default_rng(1).normal(size=(128, 64))))


def test_a_hopeless_network_is_not_believed():
    """Its own labels do not agree with its neighbors', whatever a prior makes of them."""
    features, _, _ = images(128)
    rng = np.random.default_rng(2)
    favorites = 2.5 * (np.arange(40) < 3)
    assert not fit(kept(softmax(1.7 * rng.normal(size=(128, 40)) + favorites), features))


def test_a_row_has_no_part_in_its_own_prior():
    """A class that one row alone has is, for that row, one that never came."""
    probs = softmax(8 * np.eye(40)[np.arange(100) % 4]).astype(np.float32)
    probs[50] = softmax(8 * np.eye(40)[[7]])[0]
    state = kept(probs, np.eye(100))
    fit(state)
    prior = state["label_prior"].copy()
    assert prior[7] > 5 * prior[8]
    posteriors = probs * prior
    posteriors /= posteriors.sum(axis=1, keepdims=True)
    others = np.maximum(prior - posteriors / 100, prior.min())
    expected = probs * others / (probs * others).sum(axis=1, keepdims=True)
    assert np.allclose(label_prior.reweight(state, probs, fitted=True), expected, atol=1e-5)
    assert others[50, 7] == prior.min()
    assert np.allclose(label_prior.reweight(state, probs, fitted=False), posteriors, atol=1e-6)


# Who speaks


@pytest.mark.slow
@pytest.mark.parametrize("order", ["iid", "sorted"])
@pytest.mark.parametrize("size", [1, 16, 64])
def test_it_finds_the_classes_that_a_stream_has(order, size):
    features, probs, labels = images(order=order)
    assert gain(Prudent(), features, probs, labels, size) > 5


@pytest.mark.slow
def test_it_is_the_source_where_nothing_speaks():
    rng = np.random.default_rng(0)
    labels = rng.integers(40, size=400)
    features = rng.normal(size=(40, 16))[labels] + rng.normal(size=(400, 16))
    probs = softmax(2 * rng.normal(size=(400, 40)) + 4 * np.eye(40)[labels])
    for size in (1, 16, 64):
        assert abs(gain(Prudent(), features, probs, labels, size)) < 0.6


@pytest.mark.slow
def test_info_says_who_spoke():
    features, probs, _ = images()
    prudent = Prudent()
    first = prudent.correct(features[:1], probs[:1]).info
    play(prudent, features[:-1], probs[:-1])
    last = prudent.correct(features[-1:], probs[-1:]).info
    again = prudent.correct(features[-1:], probs[-1:]).info
    names = {"entropy", "diversity", "changed", "novelty", "trust", "absent", "evidence", "order"}
    assert set(first) == set(last) == names
    assert all(type(last[name]) is float for name in ("novelty", "trust", "absent", "evidence"))
    assert first["novelty"] == 1
    assert again["novelty"] < 0.1
    assert again["trust"] < 0.1  # of what is known there is nothing new to say
    assert first["absent"] == first["trust"] == 0  # until a look finds order
    assert last["absent"] == last["trust"]  # as far as the prior is believed
    assert 0.1 < last["trust"] <= 1


@pytest.mark.slow
def test_a_batch_asks_its_neighbors(monkeypatch):
    asked = []
    from lametta.correctors import prudent as module

    plain = module.lame
    monkeypatch.setattr(module, "lame", lambda x, q: asked.append(len(q)) or plain(x, q))
    features, probs, _ = images(order="sorted")
    play(Prudent(), features, probs, 1)
    assert asked == []
    play(Prudent(), features, probs, 80)
    assert set(asked) == {80}


def test_it_takes_what_lame_takes():
    features, probs, _ = images(30)
    for bad in (np.nan, np.inf):
        broken = features.copy()
        broken[-1, -1] = bad
        for corrector in (LAME(), Prudent()):
            with pytest.raises(LamettaError, match="features must be finite"):
                corrector.correct(broken, probs)
    for x in (features.astype(np.float16), features[:, ::-1], np.asfortranarray(features)):
        for q in (probs.astype(np.float16), probs[:, ::-1], probs * 1.0009, probs[:, :1] * 0 + 1):
            q = q.astype(x.dtype)
            for corrector in (LAME(), Prudent()):
                found = corrector.correct(x, q).probs
                assert np.abs(found.sum(axis=1, dtype=np.float64) - 1).max() < 5e-3


@pytest.mark.parametrize("label", [-1, 40])
def test_a_state_with_a_class_that_is_not_there_is_refused(label):
    features, probs, _ = images(30)
    prudent = Prudent()
    prudent.correct(features, probs)
    before = prudent.state_dict()
    broken = prudent.state_dict()
    broken["window_classes"][3, 5] = label
    named = rf"state\['window_classes'\] must be different numbers of classes in each row.*{label}"
    with pytest.raises(LamettaError, match=named):
        prudent.load_state_dict(broken)
    after = prudent.state_dict()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    broken["window_classes"][3] = np.arange(8, 40)  # to the last that there is
    prudent.load_state_dict(broken)


@pytest.mark.parametrize("name", ["window_count", "pending", "since_look", "belief", "things"])
@pytest.mark.parametrize("count", [-1.0, 1e300])
def test_a_count_that_cannot_be_is_refused(name, count):
    features, probs, _ = images(40)
    prudent = Prudent()
    prudent.correct(features, probs)
    broken = prudent.state_dict()
    broken[name][()] = count
    with pytest.raises(LamettaError, match=rf"state\['{name}'\] must be from 0 to"):
        prudent.load_state_dict(broken)


@pytest.mark.slow
def test_the_gate_may_close_and_open_again():
    """Few classes, then all of them, then few again; nothing of the first time is left over."""
    few, all_ = images(200), images(300, present=40, seed=1)
    prudent, spoke = Prudent(), []
    for features, probs, _ in (few, all_, few):
        for x, q in zip(features, probs, strict=True):
            spoke.append(prudent.correct(x[None], q[None]).info["absent"])
    assert spoke[199] > 0.5
    assert spoke[499] == 0
    assert spoke[-1] > 0.5


@pytest.mark.parametrize(("n_classes", "order"), [(40, "iid"), (4, "sorted")])
def test_neighbors_are_heard_as_far_as_the_others_speak(monkeypatch, n_classes, order):
    """Where neighbors all say class 0, half of the weight they are given goes to class 0."""
    features, probs, _ = images(256, n_classes, order=order)

    def answers(neighbors):
        monkeypatch.setattr(module, "lame", lambda x, q: SimpleNamespace(probs=neighbors(q)))
        corrector, found = Prudent(), []
        for i in range(0, 256, 16):
            found.append(corrector.correct(features[i : i + 16], probs[i : i + 16]))
        return found

    alone = answers(lambda q: q)
    moved = answers(lambda q: np.eye(q.shape[1], dtype=q.dtype)[np.zeros(len(q), int)])
    shares = []
    for one, other in zip(alone, moved, strict=True):
        room = 1 - one.probs[:, 0]
        shares.append(float(np.mean((other.probs[:, 0] - one.probs[:, 0]) / room)))
        gate = 1 if one.info["absent"] else min(one.info["evidence"], 1)
        heard = one.info["trust"] * gate
        expected = 0.5 * heard if heard > CONSTANTS.min_gate else 0
        assert shares[-1] == pytest.approx(expected, abs=1e-4)
    assert min(shares) == 0
    assert 0.2 < max(shares) < 0.5 + 1e-6
    # Where classes are absent, part 3 gives neighbors weight; where they are sorted, the memory.
    memory = [share for one, share in zip(alone, shares, strict=True) if not one.info["absent"]]
    assert (max(memory) > 0) == (order == "sorted")


# Real networks


@pytest.mark.slow(2)
@pytest.mark.parametrize(
    ("name", "order", "least"),
    [
        ("imagenette_val500_lite0", "iid", 5),
        ("imagenette_val500_lite0", "by_class", 5),
        ("cifar10_resnet56_gauss3", "iid", -0.3),
    ],
)
def test_real_networks_one_by_one(name, order, least):
    features, probs, labels = bank(name)
    own = Scenario(order, seed=0, limit=1500)(labels).index
    assert gain(Prudent(), features[own], probs[own], labels[own]) > least


def test_classes_that_change_where_a_large_batch_begins_are_seen():
    """The window is smaller than the batch, and would have forgotten the change at its end."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(12) % 4, 200)
    features = np.eye(4, 16)[labels] + 0.4 * rng.normal(size=(len(labels), 16))
    scores = np.exp(2 * features[:, :4] + rng.normal(size=(len(labels), 4)))
    probs = scores / scores.sum(axis=1, keepdims=True)
    prudent = Prudent()
    trust = [
        prudent.correct(features[i : i + 200], probs[i : i + 200]).info["trust"]
        for i in range(0, len(labels), 200)
    ]
    assert max(trust) > 0.1


def test_belief_in_absent_classes_comes_by_degrees():
    """The more the network's own labels agree with neighbors', the more a prior is believed."""
    features, _, labels = images(128)
    beliefs = []
    for strength in (2, 4, 5):
        scores = 1.7 * np.random.default_rng(2).normal(size=(128, 40))
        scores[np.arange(128), labels] += strength
        state = kept(softmax(scores), features)
        assert fit(state) == (state["belief"] > 0)
        beliefs.append(float(state["belief"]))
    assert beliefs[0] == 0
    assert 0 < beliefs[1] < beliefs[2] == 1


def test_a_state_of_another_version_is_refused_by_name():
    prudent = Prudent()
    prudent.correct(*images(30)[:2])
    old = prudent.state_dict()
    old["accepted"] = old.pop("belief")
    with pytest.raises(LamettaError, match="belief"):
        prudent.load_state_dict(old)
