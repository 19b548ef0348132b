"""TDA, against the numbers of its authors' code, and its equation by loops."""

import numpy as np
import pytest

from lametta import LamettaError
from lametta.correctors import TDA
from tests.correctors.golden import DTYPES, close, run, softmax, vectors, zero_shot

PUBLISHED = {
    "tda_orig_2_5": TDA(released=True),
    "tda_orig_5_5": TDA(alpha=5.0, released=True),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PUBLISHED)
def test_it_gives_its_authors_numbers(name, dtype):
    expected = vectors(name)
    found, states = run(PUBLISHED[name], zero_shot(dtype), size=1)
    close(found, softmax(expected["out"]), dtype)
    for ours, theirs in ("positive", "pos"), ("negative", "neg"):
        entropies = np.stack([state[f"{ours}_entropy"] for state in states])
        entropies[entropies == np.finfo(float).max] = np.nan
        # A class's places have no order.
        close(np.sort(entropies), np.sort(expected[f"{theirs}_entropy"]), dtype)
        state, wanted = states[-1], expected[f"{theirs}_entropy"][-1]
        order = np.argsort(state[f"{ours}_entropy"]), np.argsort(wanted)
        kept = ~np.isnan(np.sort(wanted))
        rows = [np.take_along_axis(array, at[..., None], axis=1)[kept] for array, at in (
            (state[ours], order[0]), (expected[f"{theirs}_feature_last"], order[1]),
        )]  # fmt: skip
        close(*rows, dtype)
    masks = np.take_along_axis(state["masks"], order[0][..., None], axis=1)[kept]
    probs = np.take_along_axis(expected["neg_prob_last"], order[1][..., None], axis=1)[kept]
    np.testing.assert_array_equal(masks, (probs > 0.03) & (probs < 1))


@pytest.mark.parametrize("released", [False, True])
def test_it_is_its_equation(released):
    """By loops over lists of samples; entropies are shares of the highest, or as published."""
    features, probs, _ = zero_shot()
    found, _ = run(TDA(released=released), zero_shot(), size=32)
    highest = np.log2(10) if released else np.log(10)
    caches = {"positive": ({}, 3), "negative": ({}, 2)}
    masked = 0
    for f, p, answer in zip(features, probs, found, strict=True):
        entropy = -(p * np.log(p)).sum()
        entering = {"positive": True, "negative": 0.2 < entropy / highest < 0.5}
        for name, (cache, size) in caches.items():
            if entering[name]:
                kept = cache.setdefault(p.argmax(), [])
                kept.append((entropy, f, (p > 0.03) & (p < 1)))
                kept.sort(key=lambda sample: sample[0])
                del kept[size:]
        logits = np.log(p)
        for label, kept in caches["positive"][0].items():
            logits[label] += sum(2 * np.exp(-5 * (1 - f @ x)) for _, x, _ in kept)
        for kept in caches["negative"][0].values():
            masked += len(kept)
            logits -= sum(0.117 * np.exp(-(1 - f @ x)) * mask for _, x, mask in kept)
        np.testing.assert_allclose(answer, softmax(logits[None])[0], atol=1e-12)
    assert masked > 100


def test_views_of_an_image_enter_as_their_mean_prediction():
    """As far as a corrector sees them: which samples the caches hold, by the entropies."""
    expected, texts = vectors("tda_orig_views"), vectors("clip_problem")["prototypes"]
    views = expected["views"] / np.linalg.norm(expected["views"], axis=2, keepdims=True)
    each = np.stack([softmax(100 * rows @ texts.T) for rows in views])
    order = np.argsort(-(each * np.log(each)).sum(axis=2), axis=1)[:, :2, None]  # the surest tenth
    features, probs = (np.take_along_axis(x, order, axis=1).mean(axis=1) for x in (views, each))
    _, states = run(TDA(released=True), (features, probs, None), size=1)
    for ours, theirs in ("positive", "pos"), ("negative", "neg"):
        entropies = np.stack([state[f"{ours}_entropy"] for state in states])
        entropies[entropies == np.finfo(float).max] = np.nan
        close(np.sort(entropies), np.sort(expected[f"{theirs}_entropy"]), np.float64)


def test_what_is_refused():
    with pytest.raises(LamettaError, match="most_entropy must be a finite number >= 0.2, got 0.1"):
        TDA(most_entropy=0.1)
    with pytest.raises(LamettaError, match="positives must be an integer >= 1, got 0"):
        TDA(positives=0)
    one = TDA()
    run(one, zero_shot())
    with pytest.raises(LamettaError, match=r"state\['positive'\] must be .* \(10, 2, 32\)"):
        TDA(positives=2).load_state_dict(one.state_dict())
