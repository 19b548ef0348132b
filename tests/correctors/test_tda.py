"""TDA, against the numbers of its authors' code; views of an image are not a corrector's."""

import numpy as np
import pytest

from lametta import LamettaError
from lametta.correctors import TDA
from tests.correctors.golden import DTYPES, close, run, softmax, vectors, zero_shot

PUBLISHED = {"tda_orig_2_5": TDA(), "tda_orig_5_5": TDA(alpha=5.0)}


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


def test_what_is_refused():
    with pytest.raises(LamettaError, match="most_entropy must be a finite number >= 0.2, got 0.1"):
        TDA(most_entropy=0.1)
    with pytest.raises(LamettaError, match="positives must be an integer >= 1, got 0"):
        TDA(positives=0)
    one = TDA()
    run(one, zero_shot())
    with pytest.raises(LamettaError, match=r"state\['positive'\] must be .* \(10, 2, 32\)"):
        TDA(positives=2).load_state_dict(one.state_dict())
