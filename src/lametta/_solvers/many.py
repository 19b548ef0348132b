"""The nearest of many samples on a GPU: sought in half precision, found in float32.

The inner products of all pairs take a tensor core seconds, in float16; to choose the largest of a
trillion of them would take a minute. So no product is stored: samples are taken in groups of
neighbors in memory, and a kernel keeps only the closest of each group. The k nearest samples lie in
the k groups whose closest are nearest, of which some more are taken for the rounding's sake, and
all samples of these are compared in float32.

Whether that was right is known afterwards. A sample outside the chosen groups was no closer, in
float16, than the last of them: `peak`. Rounding c to c' moves the product of two rows by no more
than

    |ci.cj - c'i.c'j| <= |ci - c'i| |cj| + |c'i| |cj - c'j|,

plus what the sum of d products loses. Where the k-th neighbor that was found is closer than
`peak` by more than this, it is the k-th of all. The other rows are sought again among more groups,
and what is then still open is compared with all samples in float32.

Rows are of length 1, less the mean of all of them: features of a network have much in common,
which would only make the rounding larger. Since c = x - mean, xi.xj is ci.cj + mean.cj and a term
that all j share; the second term joins the *shift* of column j.
"""

import torch
import triton

from lametta._arrays import namespace_of, unit_rows
from lametta._solvers import kernels

_SCALE = 256.0  # lifts small entries out of the range where float16 has fewer digits
_GROUP = 32
_GROUPS_FOR_EACH = 3  # groups that are looked at for each neighbor, at first
_MORE_GROUPS = 8  # times as many where these were not enough
_BLOCK = 2**28  # entries of the largest array that is made at a time
_TILE = {"ROWS": 128, "COLUMNS": 256, "DEPTH": 64, "BAND": 8}


def nearest_of_many(x: torch.Tensor, k: int) -> torch.Tensor:
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
    groups = triton.next_power_of_2(_GROUPS_FOR_EACH * k)
    for count in (groups, groups * _MORE_GROUPS, None):
        open_rows = []
        step = search.rows_at_a_time(count)
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            found, sure = search.among_all(part, k) if count is None else search(part, k, count)
            index[part] = found
            open_rows.append(part[~sure])
        rows = torch.cat(open_rows)
        if len(rows) == 0:
            break
    return index


class _Search:
    """What stays the same for all rows."""

    def __init__(self, c: torch.Tensor, mean: torch.Tensor, shift: torch.Tensor) -> None:
        self.c, self.shift = c, shift - c @ mean
        self.n, self.d = c.shape
        self.n_groups = triton.cdiv(self.n, _GROUP)
        padded = triton.cdiv(self.d, _TILE["DEPTH"]) * _TILE["DEPTH"]
        self.half = torch.zeros((self.n, padded), dtype=torch.float16, device=c.device)
        lost, length = torch.empty_like(shift), torch.empty_like(shift)
        step = max(1, _BLOCK // padded)
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
        return max(1, _BLOCK // widest)

    def __call__(self, rows: torch.Tensor, k: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Indices [R, k] from the best ``count`` groups, and whether they are right."""
        peaks = self.peaks(rows)
        count = min(count, self.n_groups)
        best, chosen = peaks.topk(count, dim=1)
        del peaks
        shape = (len(rows), count * _GROUP)
        closeness = torch.empty(shape, dtype=torch.float32, device=rows.device)
        kernels.group_closeness[(len(rows), count)](
            self.c, self.shift, rows, chosen, closeness, self.n, self.d,
            CHOSEN=count, GROUP=_GROUP, DEPTH=64,
        )  # fmt: skip
        found, place = closeness.topk(k, dim=1)
        index = chosen.gather(1, place // _GROUP) * _GROUP + place % _GROUP
        if count == self.n_groups:
            return index, torch.ones_like(rows, dtype=torch.bool)
        return index, found[:, -1] >= best[:, -1] + self.margin[rows]

    def peaks(self, rows: torch.Tensor) -> torch.Tensor:
        """Closeness [R, groups] of the closest sample of every group, in half precision."""
        shape = (len(rows), self.n_groups)
        peaks = torch.empty(shape, dtype=torch.float32, device=rows.device)
        tiles = triton.cdiv(len(rows), _TILE["ROWS"]) * triton.cdiv(self.n, _TILE["COLUMNS"])
        kernels.group_peaks[(tiles,)](
            self.half, self.shift, rows, peaks, len(rows), self.n, self.half.shape[1],
            self.n_groups, _SCALE**-2, GROUP=_GROUP, **_TILE, num_warps=8, num_stages=3,
        )  # fmt: skip
        return peaks

    def among_all(self, rows: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The same from all samples, in float32."""
        closeness = (self.c[rows] @ self.c.T).sub_(self.shift).nan_to_num_(nan=-9.0)
        closeness.scatter_(1, rows[:, None], -torch.inf)
        return closeness.topk(k, dim=1).indices, torch.ones_like(rows, dtype=torch.bool)
