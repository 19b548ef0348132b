"""The search among many samples; Triton's interpreter runs it where there is no GPU."""

import numpy as np
import pytest
import torch

from tests.conftest import make_batch

pytest.importorskip("triton")
launch = pytest.importorskip("lametta._solvers.launch")
pytestmark = pytest.mark.usefixtures("patched_once")

ON_GPU = torch.cuda.is_available()
N = 5000 if ON_GPU else 36


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    if not ON_GPU:
        monkeypatch.setattr(launch, "_GROUP", 4)
        monkeypatch.setattr(
            launch, "_SEARCH_TILE", {"ROWS": 16, "COLUMNS": 16, "DEPTH": 16, "BAND": 2}
        )
        monkeypatch.setattr(launch, "_SEARCH_BLOCK", 20 * 16)  # several parts


@pytest.fixture
def stages(monkeypatch):
    """How many rows each stage of a search was given: the groups searched, or None for all."""
    seen = {}
    some, exact = launch._Search.__call__, launch._Search.exact

    def count(call, key, rows):
        seen[key] = seen.get(key, 0) + len(rows)
        return call()

    monkeypatch.setattr(
        launch._Search,
        "__call__",
        lambda s, rows, k, n: count(lambda: some(s, rows, k, n), n, rows),
    )
    monkeypatch.setattr(
        launch._Search, "exact", lambda s, rows, k: count(lambda: exact(s, rows, k), 0, rows)
    )
    return seen


def search(features, k):
    x = torch.tensor(features, dtype=torch.float32, device="cuda" if ON_GPU else "cpu")
    return launch.knn_large(x, k).cpu().numpy()


def farther_than_the_nearest(features, found):
    """By how much the neighbors found are farther, squared, than those of the definition."""
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    x = features / np.where(norms > 0, norms, 1)
    square = (x * x).sum(1)
    distance = square[:, None] + square - 2 * x @ x.T
    np.fill_diagonal(distance, np.inf)
    nearest = np.partition(distance, found.shape[1] - 1, axis=1)[:, : found.shape[1]]
    own = np.take_along_axis(distance, found, axis=1)
    assert len(set(map(len, map(set, found.tolist())))) == 1, "no neighbor twice"
    return np.abs(np.sort(own, axis=1) - np.sort(nearest, axis=1)).max()


@pytest.mark.slow
@pytest.mark.parametrize(("d", "offset"), [(20, 0.0), (9, 3.0)])
def test_neighbors_are_those_of_the_definition(d, offset, stages):
    features = make_batch(N, 3, d)[0] + offset
    features[5] = 0
    features[7] = features[20]
    assert farther_than_the_nearest(features, search(features, 1)) < 1e-6
    assert max(stages) > 0


@pytest.mark.slow
def test_what_rounding_leaves_open_is_sought_again(stages, monkeypatch):
    """Two tight bunches: float16 cannot tell their members apart."""
    monkeypatch.setattr(launch, "_MORE_GROUPS", 1)
    rng = np.random.default_rng(0)
    features = rng.choice([-1.0, 1.0], size=(N, 1)) * np.ones(17) + rng.normal(0, 0.01, (N, 17))
    assert farther_than_the_nearest(features, search(features, 1)) < 1e-6
    assert stages[4] == 2 * N, "both looks at a few groups must have left all rows open"
    assert stages[0] == N


@pytest.mark.slow
def test_samples_that_are_not_numbers_are_nobodys_neighbors():
    features = make_batch(N, 3, 8)[0]
    features[3] = np.nan
    found = search(features, 1)
    assert ((found >= 0) & (found < N)).all()
    rest = np.delete(np.arange(N), 3)
    assert not (found[rest] == 3).any()
    assert farther_than_the_nearest(features[rest], found[rest] - (found[rest] > 3)) < 1e-6


@pytest.mark.slow
def test_long_streams_take_this_path(stages, monkeypatch):
    monkeypatch.setattr(launch, "_MAX_FUSED_BATCH", 12)
    features = np.stack([make_batch(16, 3, 6, seed)[0] for seed in range(2)])
    x = torch.tensor(features, dtype=torch.float32, device="cuda" if ON_GPU else "cpu")
    lengths = torch.tensor([16, 3], dtype=torch.int32, device=x.device)
    index = launch.neighbors(x, 3, lengths).cpu().numpy()
    assert farther_than_the_nearest(features[0], index[0].astype(int)) < 1e-6
    assert sum(stages.values()) >= 16
    np.testing.assert_array_equal(np.sort(index[1, :3]), [[-1, 1, 2], [-1, 0, 2], [-1, 0, 1]])
    assert (index[1, 3:] == -1).all()
