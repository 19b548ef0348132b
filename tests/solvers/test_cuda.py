"""The GPU's kernels, run by Triton's interpreter where there is no GPU."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lametta
from lametta._solvers import cuda
from lametta._solvers.problem import Problem
from tests.conftest import energy_by_definition, knn_matrix, lame_by_definition, make_batch

pytest.importorskip("triton")
launch = pytest.importorskip("lametta._solvers.launch")

pytestmark = pytest.mark.usefixtures("patched_once")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TILE = launch._TILE if DEVICE == "cuda" else 16  # a smaller one needs fewer samples for a border


@pytest.fixture(autouse=True)
def _small_tile(monkeypatch):
    monkeypatch.setattr(launch, "_TILE", TILE)


def solve(features, probs, k=5, weight=1.0, max_iter=100, tol=1e-5, lengths=None, dtype="float32"):
    x, q = (torch.tensor(a, dtype=getattr(torch, dtype), device=DEVICE) for a in (features, probs))
    if lengths is not None:
        lengths = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    found = launch.solve(x, q, k, weight, max_iter, tol, lengths)
    return tuple(tensor.cpu() for tensor in found)


def solve_one(features, probs, **options):
    return tuple(tensor[0] for tensor in solve(features[None], probs[None], **options))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "n_classes", "d", "k"),
    [
        *((1, 2, 3, 5), (3, 4, 5, 9), (12, 1001, 2 * TILE + 2, 5)),
        *((5, 2, 33, 1), (TILE - 1, 4, 9, 2)),
        (TILE + 1, 5, TILE + 6, 2),
    ],
)
def test_equals_the_core(n, n_classes, d, k):
    features, probs = make_batch(n, n_classes, d)
    z, _, converged, energy = solve_one(features, probs, k=k)
    core = lametta.lame(features, probs, affinity=lametta.knn(k))
    np.testing.assert_allclose(z, core.probs, atol=2e-5)
    assert (z.argmax(1).numpy() == core.probs.argmax(1)).all()
    assert bool(converged)
    assert float(energy) == pytest.approx(float(core.energy), abs=1e-4)


@pytest.mark.slow
@settings(max_examples=25)
@given(
    st.integers(1, 9), st.integers(2, 6), st.integers(1, 9), st.integers(0, 10**6), st.booleans()
)
def test_equals_the_equation_on_any_neighbors(n, n_classes, k, seed, duplicates):
    features, probs = make_batch(n, n_classes, 4, seed)
    if duplicates:
        features[: n // 2] = features[0]
    weight = 0.7
    x = torch.tensor(features, dtype=torch.float32, device=DEVICE)
    index = launch.neighbors(x[None], min(k, n - 1), None)[0].cpu().numpy()
    w = np.zeros((n, n))
    np.put_along_axis(w, index.astype(int), weight, axis=1)
    assert (w > 0).sum() == n * min(k, n - 1)
    assert not w.diagonal().any()
    z, n_iter, converged, energy = solve_one(features, probs, k=k, weight=weight, max_iter=3, tol=0)
    np.testing.assert_allclose(z, lame_by_definition(probs, w, 3), atol=1e-5)
    assert (int(n_iter), bool(converged)) == (3, False)
    assert float(energy) == pytest.approx(energy_by_definition(z.numpy(), probs, w), abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1, 1e-25, 1e25])
def test_neighbors_are_those_of_the_definition(scale):
    features, _ = make_batch(20, 3, 6)
    x = torch.tensor(features * scale, dtype=torch.float32, device=DEVICE)[None]
    index = launch.neighbors(x, 4, None)[0]
    w = np.zeros((20, 20))
    np.put_along_axis(w, index.cpu().numpy().astype(int), 1, axis=1)
    np.testing.assert_array_equal(w, knn_matrix(features, 4))


@pytest.mark.slow
def test_a_zero_row_is_as_far_from_all_and_nobody_is_its_own_neighbor():
    features, _ = make_batch(6, 3, 6)
    features[2] = 0
    x = torch.tensor(features, dtype=torch.float32, device=DEVICE)[None]
    index = launch.neighbors(x, 5, None)[0].cpu()
    for row in range(6):
        assert sorted(index[row].tolist()) == [j for j in range(6) if j != row]


@pytest.mark.slow
def test_streams_of_unequal_length_do_not_meet():
    batches = [make_batch(5, 4, 8, seed) for seed in range(5)]
    features, probs = (np.stack(arrays) for arrays in zip(*batches, strict=True))
    lengths = [5, 3, 1, 0, 4]
    z, n_iter, _, energy = solve(features, probs, k=2, tol=1e-2, lengths=lengths)
    assert len(set(n_iter.tolist())) > 2
    for b, length in enumerate(lengths):
        np.testing.assert_allclose(z[b, length:], probs[b, length:], rtol=1e-6)
        if length == 0:
            continue
        alone = solve_one(features[b, :length], probs[b, :length], k=2, tol=1e-2)
        torch.testing.assert_close(z[b, :length], alone[0], atol=1e-6, rtol=0)
        assert int(n_iter[b]) == int(alone[1])
        assert float(energy[b]) == pytest.approx(float(alone[3]), abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "atol"), [("float16", 2e-3), ("bfloat16", 1e-2)])
def test_half_precision_is_computed_in_float32(dtype, atol):
    features, probs = make_batch(7, 4, 8)
    z, _, _, _ = solve_one(features, probs, k=2, dtype=dtype)
    assert z.dtype is getattr(torch, dtype)
    core = lametta.lame(features, probs, affinity=lametta.knn(2))
    np.testing.assert_allclose(z.float(), core.probs, atol=atol)


@pytest.mark.slow
def test_max_iter_0_gives_the_source_back():
    features, probs = make_batch(9, 4, 8)
    z, n_iter, converged, _ = solve_one(features, probs, max_iter=0)
    np.testing.assert_allclose(z, probs, rtol=1e-6)
    assert (int(n_iter), bool(converged)) == (0, False)


class OnCuda(torch.Tensor):
    is_cuda = True


def test_what_the_kernels_cannot_do_is_left_to_pytorch():
    def fits(x, q, affinity, weight=1.0):
        x, q = (array.as_subclass(OnCuda) for array in (x, q))
        return cuda.fits(Problem(torch, x, q, affinity, weight, 100, 1e-5))

    x, q = torch.rand(4, 3), torch.rand(4, 3)
    assert fits(x, q, lametta.knn(5))
    assert not fits(x, q, lametta.knn(33))
    assert not fits(x, q, lametta.knn(5, symmetric=True))
    assert not fits(x, q, lametta.knn(5, direction="reverse"))
    assert not fits(x, q, lametta.knn(5, direction="both"))
    assert not fits(x, q, lametta.knn(5, method="faiss"))
    assert not fits(x, q, lametta.rbf(5))
    assert not fits(x, q, lametta.knn(5), weight=11.0)
    assert not fits(x.double(), q, lametta.knn(5))
    assert not fits(x, q.requires_grad_(), lametta.knn(5))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_lame_takes_this_path_and_never_waits():
    features, probs = (torch.tensor(a, device=DEVICE).float() for a in make_batch(64, 10))
    lametta.lame(features, probs)
    torch.cuda.set_sync_debug_mode("error")
    try:
        result = lametta.lame(features, probs)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert isinstance(result.n_iter, torch.Tensor)
    core = lametta.lame(features.cpu().double(), probs.cpu().double())
    torch.testing.assert_close(result.probs.cpu().double(), core.probs, atol=1e-5, rtol=0)


@pytest.mark.slow
def test_the_plain_version_agrees_with_the_kernels():
    """What runs on a GPU without Triton: the core's iteration, which has no look at the host."""
    features, probs = make_batch(8, 5, 8)
    x, q = (torch.tensor(a, dtype=torch.float32) for a in (features, probs))
    plain = lametta.lame(x, q, tol=0, max_iter=6).probs
    z, _, _, _ = solve_one(features, probs, max_iter=6, tol=0)
    torch.testing.assert_close(z, plain, atol=1e-5, rtol=0)
