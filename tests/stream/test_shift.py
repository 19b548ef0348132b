"""Online label shift, by its definition."""

import numpy as np
import pytest

from lametta.stream import (
    Scenario,
    label_shift,
)
from tests.stream.cases import repeats, runs


def second_half(labels):
    """Which classes make the second distribution: those that a monotone stream ends with."""
    shown = labels[Scenario(label_shift())(labels).index]
    early, late = (np.bincount(half) for half in np.split(shown, 2))
    return (late > early)[labels]


@pytest.mark.parametrize("contrast", [1.0, 0.6])
@pytest.mark.parametrize("shape", ["monotone", "square", "sinusoidal", "bernoulli"])
def test_label_shift_follows_its_schedule(shape, contrast):
    n, period = 40_000, 4000
    labels = np.arange(n) % 10
    is_second = second_half(labels)
    assert len(set(labels[is_second].tolist())) == 5
    order = label_shift(shape, contrast=contrast, period=period)
    share = is_second[Scenario(order)(labels).index].reshape(-1, 200).mean(axis=1)
    time = np.arange(n).reshape(-1, 200).mean(axis=1)
    expected = {
        "monotone": time / n,
        "square": (time % period >= period / 2).astype(float),
        "sinusoidal": 0.5 + 0.5 * np.sin(2 * np.pi * time / period),
    }
    if shape in expected:
        moved = 0.5 + contrast * (expected[shape] - 0.5)
        assert np.abs(share - moved).max() < 0.12
        return
    # One of two levels, for long; both are moved by what one half has more than its time.
    high = share > share.mean()
    assert share[high].mean() - share[~high].mean() > 0.6 * contrast
    assert max(share[high].std(), share[~high].std()) < 0.1
    assert 3 <= np.count_nonzero(np.diff(high.astype(int))) <= 25  # 10 are expected


def test_label_shift_takes_the_root_of_the_length_as_its_period():
    labels = np.arange(900) % 2
    one, two = (Scenario(label_shift("square", period=p))(labels) for p in (None, 30))
    assert one.index.tolist() == two.index.tolist()
    assert len(runs(labels[two.index])) == 60
    flat = labels[Scenario(label_shift("square", contrast=0))(labels).index]
    assert repeats(flat) == pytest.approx(0.5, abs=0.06)
