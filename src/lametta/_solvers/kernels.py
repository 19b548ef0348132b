"""Triton kernels: Gram matrix, neighbors, fixed-point updates."""

import triton
import triton.language as tl


@triton.jit
def gram(
    x_ptr, peak_ptr, gram_ptr, square_ptr, n, d, per_split,
    SPLITS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Inner products of rows, each scaled by its largest entry, over one of SPLITS parts of d."""
    tiles = tl.cdiv(n, TILE)
    tile, split, stream = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    rows = (tile // tiles) * TILE + tl.arange(0, TILE)
    columns = (tile % tiles) * TILE + tl.arange(0, TILE)
    peak = peak_ptr + stream * n
    # Squares of very small or large entries would leave the range of float32.
    row_peak = tl.load(peak + rows, mask=rows < n, other=0.0).to(tl.float32)
    column_peak = tl.load(peak + columns, mask=columns < n, other=0.0).to(tl.float32)
    row_peak = tl.where(row_peak > 0, row_peak, 1.0)
    column_peak = tl.where(column_peak > 0, column_peak, 1.0)
    x = x_ptr + stream * n * d
    products = tl.zeros((TILE, TILE), tl.float32)
    squares = tl.zeros((TILE,), tl.float32)
    for start in range(split * per_split, min((split + 1) * per_split, d), TILE):
        at = start + tl.arange(0, TILE)
        a = tl.load(
            x + rows[:, None].to(tl.int64) * d + at[None, :],
            mask=(rows < n)[:, None] & (at < d)[None, :],
            other=0.0,
        )
        b = tl.load(
            x + columns[None, :].to(tl.int64) * d + at[:, None],
            mask=(columns < n)[None, :] & (at < d)[:, None],
            other=0.0,
        )
        a = a.to(tl.float32) / row_peak[:, None]
        b = b.to(tl.float32) / column_peak[None, :]
        products = tl.dot(a, b, products, input_precision="tf32x3")
        squares += tl.sum(a * a, axis=1)
    part = stream * SPLITS + split
    tl.store(
        gram_ptr + (part * n + rows[:, None]) * n + columns[None, :],
        products,
        mask=(rows < n)[:, None] & (columns < n)[None, :],
    )
    if tile % tiles == 0:
        tl.store(square_ptr + part * n + rows, squares, mask=rows < n)


@triton.jit
def neighbors(
    gram_ptr, square_ptr, length_ptr, index_ptr, n, RAGGED: tl.constexpr,
    SPLITS: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The K rows nearest in direction to one row, itself left out; -1 where there are fewer."""
    row, stream = tl.program_id(0), tl.program_id(1).to(tl.int64)
    length = tl.load(length_ptr + stream) if RAGGED else n
    columns = tl.arange(0, BLOCK)
    product = tl.zeros((BLOCK,), tl.float32)
    square = tl.zeros((BLOCK,), tl.float32)
    for split in range(SPLITS):
        part = stream * SPLITS + split
        product += tl.load(gram_ptr + (part * n + row) * n + columns, mask=columns < n, other=0.0)
        square += tl.load(square_ptr + part * n + columns, mask=columns < n, other=0.0)
    own = tl.sum(tl.where(columns == row, square, 0.0))
    # |xi - xj|^2 / -2 between rows of length 1, less what all j share; a zero row has length 0.
    norms = tl.sqrt(tl.where(square > 0, square, 1.0)) * tl.sqrt(tl.where(own > 0, own, 1.0))
    similarity = product / norms - tl.where(square > 0, 0.5, 0.0)
    # NaN would hide the rest of the row from the search.
    similarity = tl.where(similarity == similarity, similarity, -3.0)
    similarity = tl.where((columns < length) & (columns != row), similarity, float("-inf"))
    for j in tl.static_range(K):
        best = tl.argmax(similarity, axis=0, tie_break_left=True)
        found = (j < length - 1) & (row < length)
        tl.store(index_ptr + (stream * n + row) * K + j, tl.where(found, best, -1))
        similarity = tl.where(columns == best, float("-inf"), similarity)


@triton.jit
def _gathered(z_ptr, index_ptr, row, n_classes, columns, K: tl.constexpr):
    """Row of W z: the sum of the rows of z that are neighbors."""
    total = tl.zeros(columns.shape, tl.float32)
    for j in tl.static_range(K):
        neighbor = tl.load(index_ptr + row * K + j).to(tl.int64)
        total += tl.load(
            z_ptr + neighbor * n_classes + columns,
            mask=columns < tl.where(neighbor >= 0, n_classes, 0),
            other=0.0,
            cache_modifier=".cg",  # other programs wrote it: not from this one's own cache
        )
    return total


@triton.jit
def _arrive_and_wait(slot_ptr, moved, team_size):
    """Meet the other programs of the team; returns how many of them say that something moved."""
    tl.debug_barrier()
    says = 1 + moved * 65536
    seen = tl.atomic_add(slot_ptr, says, sem="acq_rel", scope="gpu") + says
    while seen % 65536 < team_size:
        seen = tl.atomic_add(slot_ptr, 0, sem="acquire", scope="gpu")
    tl.debug_barrier()
    return seen // 65536


@triton.jit
def updates(
    q_ptr, index_ptr, length_ptr, z_ptr, slot_ptr, out_ptr, energy_ptr, n_iter_ptr, converged_ptr,
    streams, n, n_classes, weight, tol, max_iter, team_size, teams, scratch,
    RAGGED: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """All updates of all streams: z_i <- q_i exp(w sum_j z_j) / norm, until none moves."""
    me = tl.program_id(0).to(tl.int64)  # wide enough for all that is counted from it
    team, me = me // team_size, me % team_size
    columns = tl.arange(0, BLOCK)
    inside = columns < n_classes
    for stream in range(team, streams, teams):
        length = tl.load(length_ptr + stream) if RAGGED else n
        first = stream * n
        q = q_ptr + first * n_classes
        index = index_ptr + first * K
        z = z_ptr + first * n_classes
        slots = slot_ptr + stream * 4
        for i in range(me, length, team_size):
            at = i * n_classes + columns
            q_i = tl.load(q + at, mask=inside, other=0.0).to(tl.float32)
            tl.store(z + at, q_i / tl.sum(q_i), mask=inside)
        moved = _arrive_and_wait(slots, 1, team_size)
        step = 0
        while (step < max_iter) & (moved > 0):
            old = z + (step % 2) * scratch
            new = z + ((step + 1) % 2) * scratch
            most = 0.0
            for i in range(me, length, team_size):
                at = i * n_classes + columns
                q_i = tl.load(q + at, mask=inside, other=0.0).to(tl.float32)
                z_old = tl.load(old + at, mask=inside, other=0.0)
                a = _gathered(old, index, i, n_classes, columns, K)
                e = q_i * tl.exp(weight * a)
                z_i = e / tl.sum(e)
                tl.store(new + at, z_i, mask=inside)
                most = tl.maximum(most, tl.max(tl.abs(z_i - z_old)))
            step += 1
            # The slot of two updates ago is out of use, and serves again in two.
            if me == 0:
                tl.store(slots + (step + 2) % 4, 0)
            moved = _arrive_and_wait(slots + step % 4, (most > tol).to(tl.int32), team_size)
        final = z + (step % 2) * scratch
        for i in range(me, length, team_size):
            at = i * n_classes + columns
            q_i = tl.load(q + at, mask=inside, other=0.0).to(tl.float32)
            q_i = q_i / tl.sum(q_i)
            z_i = tl.load(final + at, mask=inside, other=0.0)
            a = weight * _gathered(final, index, i, n_classes, columns, K)
            kl = z_i * tl.log(tl.where(z_i > 0, z_i / tl.where(q_i > 0, q_i, 1.0), 1.0))
            tl.store(energy_ptr + first + i, tl.sum(kl - z_i * a / 2))
            tl.store(out_ptr + first * n_classes + at, z_i, mask=inside)
        for i in range(length + me, n, team_size):  # what pads a short stream stays as it came
            at = (first + i) * n_classes + columns
            tl.store(out_ptr + at, tl.load(q_ptr + at, mask=inside), mask=inside)
            tl.store(energy_ptr + first + i, 0.0)
        if me == 0:
            tl.store(n_iter_ptr + stream, step)
            tl.store(converged_ptr + stream, moved == 0)


@triton.jit
def group_peaks(
    half_ptr, shift_ptr, rows_ptr, peak_ptr, n_rows, n, d, groups, unit,
    GROUP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    BAND: tl.constexpr,
):  # fmt: skip
    """Similarity of each row to the nearest of every GROUP samples, in half precision."""
    bands = tl.cdiv(n_rows, ROWS)
    across = tl.cdiv(n, COLUMNS)
    # Programs that run at the same time share few rows and columns, which then stay in the cache.
    program = tl.program_id(0)
    first = (program // (BAND * across)) * BAND
    tall = min(bands - first, BAND)
    at_row = (first + (program % (BAND * across)) % tall) * ROWS + tl.arange(0, ROWS)
    column = (program % (BAND * across)) // tall
    columns = column * COLUMNS + tl.arange(0, COLUMNS)
    rows = tl.load(rows_ptr + tl.minimum(at_row, n_rows - 1))
    inside = tl.minimum(columns, n - 1)
    depth = tl.arange(0, DEPTH)
    a_ptr = half_ptr + rows[:, None] * d + depth[None, :]
    b_ptr = half_ptr + inside[None, :].to(tl.int64) * d + depth[:, None]
    products = tl.zeros((ROWS, COLUMNS), tl.float32)
    for _ in range(0, d, DEPTH):  # d is a multiple of DEPTH
        products = tl.dot(tl.load(a_ptr), tl.load(b_ptr), products)
        a_ptr += DEPTH
        b_ptr += DEPTH
    similarity = products * unit - tl.load(shift_ptr + inside)[None, :]
    similarity = tl.where(similarity == similarity, similarity, -9.0)
    others = (columns < n)[None, :] & (columns[None, :] != rows[:, None])
    similarity = tl.where(others, similarity, float("-inf"))
    peaks = tl.max(tl.reshape(similarity, (ROWS, COLUMNS // GROUP, GROUP)), axis=2)
    group = column * (COLUMNS // GROUP) + tl.arange(0, COLUMNS // GROUP)
    tl.store(
        peak_ptr + at_row[:, None].to(tl.int64) * groups + group[None, :],
        peaks,
        mask=(at_row < n_rows)[:, None] & (group < groups)[None, :],
    )


@triton.jit
def group_similarity(
    x_ptr, shift_ptr, rows_ptr, chosen_ptr, similarity_ptr, n, d,
    CHOSEN: tl.constexpr, GROUP: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Similarities of one row to the samples of one chosen group, in float32."""
    at_row, slot = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = tl.load(rows_ptr + at_row)
    columns = tl.load(chosen_ptr + at_row * CHOSEN + slot) * GROUP + tl.arange(0, GROUP)
    inside = columns < n
    products = tl.zeros((GROUP, DEPTH), tl.float32)
    for start in range(0, d, DEPTH):
        at = start + tl.arange(0, DEPTH)
        a = tl.load(x_ptr + row * d + at, mask=at < d, other=0.0)
        b = tl.load(
            x_ptr + columns[:, None] * d + at[None, :],
            mask=inside[:, None] & (at < d)[None, :],
            other=0.0,
        )
        products += a[None, :] * b
    similarity = tl.sum(products, axis=1) - tl.load(shift_ptr + columns, mask=inside, other=0.0)
    similarity = tl.where(similarity == similarity, similarity, -9.0)
    similarity = tl.where(inside & (columns != row), similarity, float("-inf"))
    tl.store(similarity_ptr + (at_row * CHOSEN + slot) * GROUP + tl.arange(0, GROUP), similarity)
