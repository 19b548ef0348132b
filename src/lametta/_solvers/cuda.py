"""CUDA solver: whether it applies, and the call, which imports Triton only then.

The first tensor on CUDA loads `lametta._solvers.launch`, which imports PyTorch and Triton.
"""

import sys
from importlib.util import find_spec
from typing import cast

from array_api_compat import is_torch_array

from lametta._solvers.plain import has_few_neighbors
from lametta._solvers.problem import Problem, Solution
from lametta.affinity import knn
from lametta.types import Array

_HAS_TRITON = find_spec("triton") is not None
_MAX_NEIGHBORS = 32
_MAX_CLASSES = 32768


def fits(problem: Problem) -> bool:
    """Whether the kernels can do it, for one stream or several; plain PyTorch takes the rest."""
    x, q, affinity = problem.features, problem.probs, problem.affinity
    if not (_HAS_TRITON and is_torch_array(q) and q.is_cuda):
        return False
    torch = sys.modules["torch"]
    halves = (torch.float16, torch.bfloat16)
    return (
        has_few_neighbors(affinity, problem.weight)
        and affinity.method == "exact"
        and affinity.k <= _MAX_NEIGHBORS
        and q.shape[-1] <= _MAX_CLASSES
        and all(array.dtype in (torch.float32, *halves) for array in (x, q))
        and not (torch.is_grad_enabled() and (x.requires_grad or q.requires_grad))
    )


def solve(problem: Problem) -> Solution:
    """Solve it without the host ever waiting: ``n_iter`` and ``converged`` are 0-d tensors."""
    one = problem._replace(features=problem.features[None], probs=problem.probs[None])
    z, n_iter, converged, energy = solve_streams(one)
    return Solution(z[0], n_iter[0], converged[0], energy[0])


def solve_streams(
    problem: Problem, lengths: "Array | None" = None
) -> "tuple[Array, Array, Array, Array]":
    """The same for streams [B, N, d], [B, N, K] in one launch; ``lengths`` [B] are int32."""
    from lametta._solvers import launch  # loads PyTorch and Triton

    _, x, q, affinity, weight, max_iter, tol = problem
    solve = launch.traced if sys.modules["torch"].compiler.is_compiling() else launch.solve
    return solve(x, q, cast(knn, affinity).k, float(weight), max_iter, float(tol), lengths)
