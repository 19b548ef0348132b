"""Launches of the Triton kernels, and exact kNN of many samples by half-precision search.

A batch takes three launches and no wait of the host: one for the inner products of the features,
one for the neighbors, and one that makes all updates: its programs share the rows of z, meet at a
barrier in device memory after each update, and leave together once no row moved. All of them must
be resident at once, or they would wait for ever: their number is bounded, and the launch is a
cooperative one.

kNN of many samples
-------------------
The inner products of all pairs take a tensor core seconds, in float16; to choose the largest of a
trillion of them would take a minute. So no product is stored: samples are taken in groups of
neighbors in memory, and a kernel keeps only the nearest of each group. The k nearest samples lie in
the k groups whose best samples are nearest, of which some more are taken because of the rounding,
and all samples of these are compared in float32.

Whether that was right is known afterwards. A sample outside the chosen groups was no nearer, in
float16, than the last of them: `peak`. Rounding c to c' moves the product of two rows by no more
than

    |ci.cj - c'i.c'j| <= |ci - c'i| |cj| + |c'i| |cj - c'j|,

plus what the sum of d products loses. Where the k-th neighbor that was found is nearer than
`peak` by more than this, it is the k-th of all. The other rows are searched again among more
groups, and what is then still uncertain is compared with all samples in float32.

Rows are of length 1, less the mean of all of them: features of a network have much in common,
which would only make the rounding larger. Since c = x - mean, xi.xj is ci.cj + mean.cj and a term
that all j share; the second term joins the *shift* of column j.
"""

import os
from contextlib import nullcontext

import torch
import triton

from lametta._arrays import namespace_of, unit_rows, widen
from lametta._neighbors import nearest
from lametta._solvers import kernels

# With the interpreter a program ends before the next begins, and so can wait for nobody.
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_MAX_FUSED_BATCH = 4096  # up to here a row of inner products fits the registers of one program
_TILE = 64
_WARPS_PER_SM = 16  # leaves each thread 128 registers

_SCALE = 256.0  # lifts small entries out of the range where float16 has fewer digits
_GROUP = 32
_GROUPS_PER_NEIGHBOR = 3  # groups that are searched for each neighbor, at first
_MORE_GROUPS = 8  # times as many where these were not enough
_SEARCH_BLOCK = 2**28  # entries of the largest array that is made at a time
_SEARCH_TILE = {"ROWS": 128, "COLUMNS": 256, "DEPTH": 64, "BAND": 8}


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
        return _blockwise(x, index, lengths)
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


def _blockwise(x: torch.Tensor, index: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
    """The same a block of rows at a time, for streams too long for a row to fit one program."""
    streams, n, k = index.shape
    index.fill_(-1)
    may_wait = not (x.is_cuda and torch.cuda.is_current_stream_capturing())
    for stream, length in enumerate([n] * streams if lengths is None else lengths.tolist()):
        rows = widen(torch, x[stream, :length])
        if may_wait and length > _MAX_FUSED_BATCH:
            index[stream, :length] = knn_large(rows, k)
        else:
            index[stream, :length, : length - 1] = nearest(namespace_of(x), rows, k)
    return index


def knn_large(x: torch.Tensor, k: int) -> torch.Tensor:
    """Indices [N, k] of the rows of x [N, d] nearest in direction to each row, itself left out.

    Makes the host wait, since what is done depends on what was found.
    """
    unit = unit_rows(namespace_of(x), x)
    mean = unit.nanmean(dim=0)
    # |xi - xj|^2 = |xi|^2 - 2 (xi.xj - |xj|^2 / 2), where a zero row has |xj| = 0.
    shift = unit.square().sum(1) / 2
    search = _Search(unit.sub_(mean), mean, shift)
    n = len(x)
    rows = torch.arange(n, device=x.device)
    index = torch.empty((n, k), dtype=torch.int64, device=x.device)
    groups = triton.next_power_of_2(_GROUPS_PER_NEIGHBOR * k)
    for count in (groups, groups * _MORE_GROUPS, None):
        uncertain = []
        step = search.rows_at_a_time(count)
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            found, certain = search.exact(part, k) if count is None else search(part, k, count)
            index[part] = found
            uncertain.append(part[~certain])
        rows = torch.cat(uncertain)
        if len(rows) == 0:
            break
    return index


class _Search:
    """A search by groups, with what stays the same for all rows."""

    def __init__(self, c: torch.Tensor, mean: torch.Tensor, shift: torch.Tensor) -> None:
        self.c, self.shift = c, shift - c @ mean
        self.n, self.d = c.shape
        self.n_groups = triton.cdiv(self.n, _GROUP)
        padded = triton.cdiv(self.d, _SEARCH_TILE["DEPTH"]) * _SEARCH_TILE["DEPTH"]
        self.half = torch.zeros((self.n, padded), dtype=torch.float16, device=c.device)
        lost, length = torch.empty_like(shift), torch.empty_like(shift)
        step = max(1, _SEARCH_BLOCK // padded)
        for at in (slice(start, start + step) for start in range(0, self.n, step)):
            self.half[at, : self.d] = c[at] * _SCALE
            rounded = self.half[at, : self.d].float() / _SCALE
            lost[at] = torch.linalg.vector_norm(c[at] - rounded, dim=1)
            length[at] = torch.linalg.vector_norm(rounded, dim=1)
        lost, length = lost.nan_to_num(), length.nan_to_num()
        longest = (length + lost).max()
        # The sum of d products in float32 loses less than d times its last digit, here and there.
        self.margin = lost * longest + length * (lost.max() + self.d * 2.0**-23 * longest) + 1e-6

    def rows_at_a_time(self, count: int | None) -> int:
        """How many rows to take at a time, so that memory grows with N and not with its square."""
        widest = self.n if count is None else max(self.n_groups, count * _GROUP)
        return max(1, _SEARCH_BLOCK // widest)

    def __call__(self, rows: torch.Tensor, k: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Indices [R, k] from the best ``count`` groups, and whether they are right."""
        peaks = self.peaks(rows)
        count = min(count, self.n_groups)
        best, chosen = peaks.topk(count, dim=1)
        del peaks
        shape = (len(rows), count * _GROUP)
        similarity = torch.empty(shape, dtype=torch.float32, device=rows.device)
        kernels.group_similarity[(len(rows), count)](
            self.c, self.shift, rows, chosen, similarity, self.n, self.d,
            CHOSEN=count, GROUP=_GROUP, DEPTH=64,
        )  # fmt: skip
        found, place = similarity.topk(k, dim=1)
        index = chosen.gather(1, place // _GROUP) * _GROUP + place % _GROUP
        if count == self.n_groups:
            return index, torch.ones_like(rows, dtype=torch.bool)
        return index, found[:, -1] >= best[:, -1] + self.margin[rows]

    def peaks(self, rows: torch.Tensor) -> torch.Tensor:
        """Similarity [R, groups] to the nearest sample of every group, in half precision."""
        shape = (len(rows), self.n_groups)
        peaks = torch.empty(shape, dtype=torch.float32, device=rows.device)
        tiles = triton.cdiv(len(rows), _SEARCH_TILE["ROWS"])
        tiles *= triton.cdiv(self.n, _SEARCH_TILE["COLUMNS"])
        kernels.group_peaks[(tiles,)](
            self.half, self.shift, rows, peaks, len(rows), self.n, self.half.shape[1],
            self.n_groups, _SCALE**-2, GROUP=_GROUP, **_SEARCH_TILE, num_warps=8, num_stages=3,
        )  # fmt: skip
        return peaks

    def exact(self, rows: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The same from all samples, in float32."""
        similarity = (self.c[rows] @ self.c.T).sub_(self.shift).nan_to_num_(nan=-9.0)
        similarity.scatter_(1, rows[:, None], -torch.inf)
        return similarity.topk(k, dim=1).indices, torch.ones_like(rows, dtype=torch.bool)


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
    converged = torch.empty(streams, dtype=torch.bool, device=q.device)
    kernels.updates[(team_size * teams,)](
        q, index, lengths, z, slots, out, energy, n_iter, converged,
        streams, n, n_classes, weight, tol if tol > 0 else -1.0, max_iter, team_size, teams,
        z.numel() // 2, RAGGED=lengths is not None, K=index.shape[2], BLOCK=block, **options,
    )  # fmt: skip
    return out, n_iter, converged, energy.sum(-1)


traced = torch.library.custom_op("lametta::lame", solve, mutates_args=())
"""`solve` under `torch.compile`, which does not look into it; elsewhere it would take longer."""


@traced.register_fake
def _(
    x: torch.Tensor, q: torch.Tensor, *options: object
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    count = q.new_empty(q.shape[:1], dtype=torch.int32)
    return torch.empty_like(q), count, count.to(torch.bool), count.to(torch.float32)
