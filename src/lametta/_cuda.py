"""LAME on an NVIDIA GPU: a few launches, and the host never waits.

A launch for the inner products of the features, one for the neighbors unless there are few rows,
and one that makes all updates: its programs share the rows of z, meet at a barrier in device memory
after each update, and leave together once no row moved. All of them must be resident at once, or
they would wait for ever: their number is bounded, and the launch is a cooperative one.
"""

import os
from contextlib import nullcontext
from typing import Any

import torch
import triton
from array_api_compat import array_namespace

from lametta import _triton as kernels
from lametta._arrays import nearest, widen

# With the interpreter a program ends before the next begins, and so can wait for nobody.
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_MAX_NEIGHBORS = 32
_MAX_CLASSES = 32768
_MAX_FUSED_BATCH = 4096  # up to here a row of inner products fits the registers of one program
_TILE = 64
_SLOTS = 5  # of each stream: four for the barrier of `updates`, one for its end
_WARPS_PER_SM = 16  # leaves each thread 128 registers
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def fits(x: Any, q: Any, k: int, weight: float) -> bool:
    """Whether these kernels can solve it; plain PyTorch takes what they cannot."""
    return (
        k <= _MAX_NEIGHBORS
        and k * weight <= 50  # exp(k * weight) stays in range
        and q.shape[-1] <= _MAX_CLASSES
        and x.dtype in _DTYPES
        and q.dtype in _DTYPES
        and not (torch.is_grad_enabled() and (x.requires_grad or q.requires_grad))
    )


def solve(
    x: Any, q: Any, k: int, weight: float, max_iter: int, tol: float, lengths: Any = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """LAME for features [B, N, d] and probabilities [B, N, K], everything left on the device.

    ``lengths`` [B], int32, says how many samples of each stream count; all if not given.
    Returns z [B, N, K], and of each stream the number of updates, whether it rests, the energy.
    """
    op = _op if torch.compiler.is_compiling() else _launch
    return op(x, q, k, float(weight), max_iter, float(tol), lengths)


def _launch(
    x: torch.Tensor,
    q: torch.Tensor,
    k: int,
    weight: float,
    max_iter: int,
    tol: float,
    lengths: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    with torch.cuda.device(x.device) if x.is_cuda else nullcontext():
        x, q = x.contiguous(), q.contiguous()
        resident = _resident(q)
        graph = Graph(x, k, lengths, late=x.shape[0] * x.shape[1] <= resident)
        return _updates(q, graph, weight, max_iter, tol, lengths, resident)


def _resident(q: torch.Tensor) -> int:
    """How many programs of `updates` are on the device at once."""
    if _INTERPRETED:
        return 64
    per_sm = max(1, _WARPS_PER_SM // _warps(q))
    return per_sm * int(torch.cuda.get_device_properties(q.device).multi_processor_count)


def _warps(q: torch.Tensor) -> int:
    return max(1, min(32, int(triton.next_power_of_2(q.shape[2])) // 256))


class Graph:
    """Who is a neighbor of whom in each stream.

    ``index`` [B, N, k] names the nearest samples, -1 where there are fewer. With ``late`` it is for
    `updates` to fill, each program for the row that is its own, from inner products in ``splits``
    parts: a launch less where there are few rows.
    """

    def __init__(
        self, x: torch.Tensor, k: int, lengths: torch.Tensor | None, *, late: bool = False
    ) -> None:
        streams, n, d = x.shape
        k = min(k, n - 1)
        self.splits = 0
        self.index = torch.empty((streams, n, k), dtype=torch.int32, device=x.device)
        self.gram = self.square = self.index  # where there are none
        if k == 0 or n > _MAX_FUSED_BATCH:
            self.slots = torch.zeros((streams, _SLOTS), dtype=torch.int32, device=x.device)
            if k > 0:
                _nearest_of_many(x, self.index, lengths)
            return
        tiles = triton.cdiv(n, _TILE) ** 2
        # Few tiles leave most of the device idle: then each takes a part of d.
        splits = max(1, min(triton.cdiv(d, _TILE), 64 // (tiles * streams)))
        per_split = triton.cdiv(triton.cdiv(d, splits), _TILE) * _TILE
        peak = torch.linalg.vector_norm(x, ord=float("inf"), dim=-1)
        self.slots = torch.empty((streams, _SLOTS), dtype=torch.int32, device=x.device)
        self.gram = torch.empty((streams, splits, n, n), dtype=torch.float32, device=x.device)
        self.square = torch.empty((streams, splits, n), dtype=torch.float32, device=x.device)
        kernels.gram[(tiles, splits, streams)](
            x, peak, self.gram, self.square, self.slots, n, d, per_split,
            SPLITS=splits, TILE=_TILE, SLOTS=_SLOTS,
        )  # fmt: skip
        if late:
            self.splits = splits
            return
        block = triton.next_power_of_2(n)
        kernels.neighbors[(n, streams)](
            self.gram, self.square, lengths, self.index, n,
            RAGGED=lengths is not None, SPLITS=splits, K=k, BLOCK=block,
            num_warps=max(1, min(8, block // 256)),
        )  # fmt: skip


def _nearest_of_many(x: torch.Tensor, index: torch.Tensor, lengths: torch.Tensor | None) -> None:
    """Fill ``index`` a block of rows at a time, for streams too long for a row to fit a program."""
    streams, n, k = index.shape
    index.fill_(-1)
    for stream, length in enumerate([n] * streams if lengths is None else lengths.tolist()):
        rows = widen(torch, x[stream, :length])
        index[stream, :length, : length - 1] = nearest(array_namespace(x), rows, k)


def _updates(
    q: torch.Tensor,
    graph: Graph,
    weight: float,
    max_iter: int,
    tol: float,
    lengths: torch.Tensor | None,
    resident: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    streams, n, n_classes = q.shape
    team_size, teams, options = 1, streams, {}
    if not _INTERPRETED:
        team_size = min(n, resident)
        teams = min(streams, resident // team_size)
        warps = _warps(q)
        options = {
            "num_warps": warps,
            "maxnreg": 65536 // (32 * warps * max(1, _WARPS_PER_SM // warps)),
            "launch_cooperative_grid": True,
        }
    z = torch.empty((2, streams, n, n_classes), dtype=torch.float32, device=q.device)
    shares = torch.empty((streams, n), dtype=torch.float32, device=q.device)  # of the energy
    out = torch.empty_like(q)
    n_iter = torch.empty(streams, dtype=torch.int32, device=q.device)
    rests = torch.empty(streams, dtype=torch.bool, device=q.device)
    energy = torch.empty(streams, dtype=torch.float32, device=q.device)
    kernels.updates[(team_size * teams,)](
        q, graph.gram, graph.square, graph.index, lengths, z, graph.slots, shares,
        out, n_iter, rests, energy,
        streams, n, n_classes, weight, tol if tol > 0 else -1.0, max_iter, team_size, teams,
        z.numel() // 2, RAGGED=lengths is not None, SPLITS=graph.splits, SLOTS=_SLOTS,
        K=graph.index.shape[2], BLOCK=triton.next_power_of_2(n_classes),
        BLOCK_N=triton.next_power_of_2(n) if graph.splits else 1, **options,
    )  # fmt: skip
    return out, n_iter, rests, energy


_op = torch.library.custom_op("lametta::lame", _launch, mutates_args=())


@_op.register_fake
def _(
    x: torch.Tensor,
    q: torch.Tensor,
    k: int,
    weight: float,
    max_iter: int,
    tol: float,
    lengths: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    count = q.new_empty(q.shape[:1], dtype=torch.int32)
    return torch.empty_like(q), count, count.to(torch.bool), count.to(torch.float32)
