"""Launching the kernels of `lametta._solvers.kernels`: three launches, no wait of the host.

A launch for the inner products of the features, one for the neighbors, and one that makes all
updates: its programs share the rows of z, meet at a barrier in device memory after each update,
and leave together once no row moved. All of them must be resident at once, or they would wait for
ever: their number is bounded, and the launch is a cooperative one.
"""

import os
from contextlib import nullcontext

import torch
import triton

from lametta._arrays import namespace_of, nearest, widen
from lametta._solvers import kernels
from lametta._solvers.many import nearest_of_many

# With the interpreter a program ends before the next begins, and so can wait for nobody.
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_MAX_FUSED_BATCH = 4096  # up to here a row of inner products fits the registers of one program
_TILE = 64
_WARPS_PER_SM = 16  # leaves each thread 128 registers


def solve(
    x: torch.Tensor,
    q: torch.Tensor,
    k: int,
    weight: float,
    max_iter: int,
    tol: float,
    lengths: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """LAME for features [B, N, d] and probabilities [B, N, K], everything left on the device.

    ``lengths`` [B], int32, says how many samples of each stream count; None for all.
    Returns z [B, N, K], and of each stream the number of updates, whether it converged, the energy.
    """
    with torch.cuda.device(x.device) if x.is_cuda else nullcontext():
        x, q = x.contiguous(), q.contiguous()
        index = neighbors(x, min(k, x.shape[1] - 1), lengths)
        return _updates(q, index, weight, max_iter, tol, lengths)


def neighbors(x: torch.Tensor, k: int, lengths: torch.Tensor | None) -> torch.Tensor:
    """Indices [B, N, k] of the nearest samples in each stream, -1 where there are fewer."""
    streams, n, d = x.shape
    index = torch.empty((streams, n, k), dtype=torch.int32, device=x.device)
    if k == 0:
        return index
    if n > _MAX_FUSED_BATCH:
        return _in_parts(x, index, lengths)
    tiles = triton.cdiv(n, _TILE) ** 2
    # Few tiles leave most of the device idle: then each takes a part of d.
    splits = max(1, min(triton.cdiv(d, _TILE), 64 // (tiles * streams)))
    per_split = triton.cdiv(triton.cdiv(d, splits), _TILE) * _TILE
    peak = torch.linalg.vector_norm(x, ord=float("inf"), dim=-1)
    gram = torch.empty((streams, splits, n, n), dtype=torch.float32, device=x.device)
    square = torch.empty((streams, splits, n), dtype=torch.float32, device=x.device)
    kernels.gram[(tiles, splits, streams)](
        x, peak, gram, square, n, d, per_split, SPLITS=splits, TILE=_TILE
    )
    block = triton.next_power_of_2(n)
    kernels.neighbors[(n, streams)](
        gram, square, lengths, index, n,
        RAGGED=lengths is not None, SPLITS=splits, K=k, BLOCK=block,
        num_warps=max(1, min(8, block // 256)),
    )  # fmt: skip
    return index


def _in_parts(x: torch.Tensor, index: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
    """The same some rows at a time, for streams too long for a row to fit one program."""
    streams, n, k = index.shape
    index.fill_(-1)
    waits = not (x.is_cuda and torch.cuda.is_current_stream_capturing())
    for stream, length in enumerate([n] * streams if lengths is None else lengths.tolist()):
        rows = widen(torch, x[stream, :length])
        if waits and length > _MAX_FUSED_BATCH:
            index[stream, :length] = nearest_of_many(rows, k)
        else:
            index[stream, :length, : length - 1] = nearest(namespace_of(x), rows, k)
    return index


def _updates(
    q: torch.Tensor,
    index: torch.Tensor,
    weight: float,
    max_iter: int,
    tol: float,
    lengths: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    streams, n, n_classes = q.shape
    block = triton.next_power_of_2(n_classes)
    warps = max(1, min(32, block // 256))
    team_size, teams, options = 1, streams, {}
    if not _INTERPRETED:
        per_sm = max(1, _WARPS_PER_SM // warps)
        resident = per_sm * torch.cuda.get_device_properties(q.device).multi_processor_count
        team_size = min(n, resident)
        teams = min(streams, resident // team_size)
        options = {
            "num_warps": warps,
            "maxnreg": 65536 // (32 * warps * per_sm),
            "launch_cooperative_grid": True,
        }
    z = torch.empty((2, streams, n, n_classes), dtype=torch.float32, device=q.device)
    slots = torch.zeros((streams, 4), dtype=torch.int32, device=q.device)
    out, energy = torch.empty_like(q), torch.empty_like(q[..., 0], dtype=torch.float32)
    n_iter = torch.empty(streams, dtype=torch.int32, device=q.device)
    rests = torch.empty(streams, dtype=torch.bool, device=q.device)
    kernels.updates[(team_size * teams,)](
        q, index, lengths, z, slots, out, energy, n_iter, rests,
        streams, n, n_classes, weight, tol if tol > 0 else -1.0, max_iter, team_size, teams,
        z.numel() // 2, RAGGED=lengths is not None, K=index.shape[2], BLOCK=block, **options,
    )  # fmt: skip
    return out, n_iter, rests, energy.sum(-1)


traced = torch.library.custom_op("lametta::lame", solve, mutates_args=())
"""`solve` under `torch.compile`, which does not look into it; elsewhere it would take longer."""


@traced.register_fake
def _(
    x: torch.Tensor, q: torch.Tensor, *options: object
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    count = q.new_empty(q.shape[:1], dtype=torch.int32)
    return torch.empty_like(q), count, count.to(torch.bool), count.to(torch.float32)
