"""The backward kernels: the gradient of the queries, with the similarities computed again.

With p = exp(l - L) the coefficient of a token in the gradient of a query is
g = grad_h p (1 + β (a - h)) + grad_L β p = p (u a + v), u and v constant for a query and a sequence. The first kernel
writes these coefficients for a piece of the tokens, `[tokens, columns]`: a sequence may start at any row, and rows are
aligned. The second is the product of coefficients and tokens, split over tokens, each split into its own float32 block.
The last adds the blocks in a fixed order, so the result is always the same.

Coefficients of 16-bit tokens are float16, scaled to its range head by head: sharp attention hangs on a few of them, and
the eight bits of bfloat16 would show. With preprocessing the gradient is Σ_s g_s (z_s / |z_s| - o): the sum over
coefficients, rounded as they are, goes with the origin, so that rounding errors meet centred tokens and not their large
mean. The euclidean logits see |w|²/2 too, which adds -w Σ_s (g_s - grad_h p_s).
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from apood.pooling.kernels.launch import (
    Columns,
    Stats,
    count_multiprocessors,
    describe,
    flag_constants,
    get_pointer,
    list_constants,
    make_tiles,
    use_device_of,
)
from apood.pooling.kernels.plan import Piece, Plan
from apood.pooling.kernels.products import add_product, load_bias, load_column_terms, mask_absent, multiply_tile
from apood.pooling.kernels.short import short_coefficient_kernel
from apood.pooling.kernels.tuning import ProductBlocks, Tuning

__all__ = ["pool_gradient"]


@triton.jit(do_not_specialize=["sequences"])
def scale_kernel(grad_value, grad_mass, beta, head_scale, sequences, heads, BN: tl.constexpr, BH: tl.constexpr):
    """Write a power of two per head that brings its coefficients into the range of float16.

    A coefficient is at most grad_h (1 + p β |a - h|) + β grad_L, and p β |a - h| is rarely above ten. Scaling to 2^8
    leaves room above, and below for all coefficients that matter beside the largest.
    """
    b = tl.load(beta)
    head = tl.program_id(0) * BH + tl.arange(0, BH)
    largest = tl.full((BN, BH), 1e-30, tl.float32)
    for n in tl.range(0, sequences, BN):
        rows = n + tl.arange(0, BN)
        mask = (rows < sequences)[:, None] & (head < heads)[None, :]
        at = rows.to(tl.int64)[:, None] * heads + head[None, :]
        grad_h = tl.load(grad_value + at, mask=mask, other=0.0)
        grad_l = tl.load(grad_mass + at, mask=mask, other=0.0)
        largest = tl.maximum(largest, tl.abs(grad_h) + b * tl.abs(grad_l))
    power = 8 - tl.ceil(tl.log2(tl.max(largest, 0)))
    tl.store(head_scale + head, tl.exp2(power), mask=head < heads)


@triton.jit
def _coefficient_tile(
    z, w, scales, halves, start, stop, column, columns, slope, kappa, offset, u, v, grad_h, sums, through,
    DIM: tl.constexpr, BC: tl.constexpr, BS: tl.constexpr, BK: tl.constexpr, TMA: tl.constexpr, UNIT: tl.constexpr,
    SUMS: tl.constexpr, EUCLIDEAN: tl.constexpr, MASKED: tl.constexpr, STAGES: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    acc = multiply_tile(z, w, start, stop, column, columns, DIM, BC, BS, BK, TMA, STAGES)
    tokens = start + tl.arange(0, BS)
    here = tokens < stop
    if UNIT:
        acc *= tl.load(scales + tokens, mask=here, other=0.0)[None, :]
    if MASKED:
        acc = mask_absent(acc, here, TMA)
    if MASKED or EUCLIDEAN:
        bias = load_bias(halves, tokens, here, kappa, EUCLIDEAN)
        p = tl.exp2(acc * slope + (bias[None, :] - offset[:, None]))
    else:
        p = tl.exp2(acc * slope - offset[:, None])
    g = p * (acc * u[:, None] + v[:, None])
    if EUCLIDEAN:
        through += tl.sum(g - p * grad_h[:, None], 1)
        if HALF:  # a is not bounded by the logits here, and infinity would spoil the whole column
            g = tl.clamp(g, -65504.0, 65504.0)
    if HALF:
        g = g.to(tl.float16)
    if SUMS:
        sums += tl.sum(g.to(tl.float32), 1)
    return g.T, sums, through


@triton.jit(do_not_specialize=["work", "first_token"])
def coefficient_kernel(
    z, w, tail_z, scales, halves, column_shift, column_half, query_size, items, beta, value, log_mass, grad_value,
    grad_mass, head_scale, out, out_at, sum_rows, through_rows, work, columns, heads, first_token, width,
    DIM: tl.constexpr, T: tl.constexpr, BC: tl.constexpr, BS: tl.constexpr, TAIL: tl.constexpr, BK: tl.constexpr,
    TMA: tl.constexpr, UNIT: tl.constexpr, SHIFTED: tl.constexpr, EUCLIDEAN: tl.constexpr, SIZED: tl.constexpr,
    HALF: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write the coefficients of the tokens from `first_token` on.

    A piece has fewer than 2^31 coefficients, so that places in it are 32-bit numbers.
    """
    log2e: tl.constexpr = 1.4426950408889634
    b = tl.load(beta)
    kappa = b * log2e
    size = tl.load(query_size) if SIZED else 1.0
    slope = kappa * size
    blocks = tl.cdiv(columns, BC)
    for number in tl.range(tl.program_id(0), work, tl.num_programs(0), num_stages=1):
        item = items + (number // blocks) * 4
        column = (number % blocks) * BC
        start = tl.load(item)
        stop = tl.load(item + 1)
        cols = column + tl.arange(0, BC)
        inside = cols < columns
        head = cols // T
        offset, u, v, grad_h = load_column_terms(
            value, log_mass, grad_value, grad_mass, head_scale, column_shift, column_half,
            tl.load(item + 3) * heads + head, head, cols, inside, b, kappa, size, HALF, SHIFTED, EUCLIDEAN,
        )  # fmt: skip
        sums = tl.zeros((BC,), tl.float32)
        through = tl.zeros((BC,), tl.float32)
        small = (stop - start) % BS
        for t in tl.range(start, stop - small, BS, num_stages=1):
            g, sums, through = _coefficient_tile(
                z, w, scales, halves, t, stop, column, columns, slope, kappa, offset, u, v, grad_h, sums, through,
                DIM, BC, BS, BK, TMA, UNIT, SHIFTED, EUCLIDEAN, False, STAGES, HALF,
            )  # fmt: skip
            place = tl.cast(t - first_token, tl.int32)
            if TMA:
                out.store([place, column], g)
            else:
                at = (place + tl.arange(0, BS))[:, None] * width + cols[None, :]
                tl.store(out_at + at, g, mask=inside[None, :])
        # The rest of the item. The coefficients behind it belong to the next sequence and must not be written.
        for t in tl.range(stop - small, stop, TAIL, num_stages=1):
            g, sums, through = _coefficient_tile(
                tail_z, w, scales, halves, t, stop, column, columns, slope, kappa, offset, u, v, grad_h, sums, through,
                DIM, BC, TAIL, BK, TMA, UNIT, SHIFTED, EUCLIDEAN, True, STAGES, HALF,
            )  # fmt: skip
            tokens = t + tl.arange(0, TAIL)
            at = tl.cast(tokens - first_token, tl.int32)[:, None] * width + cols[None, :]
            tl.store(out_at + at, g, mask=(tokens < stop)[:, None] & inside[None, :])
        row = tl.load(item + 2) * columns + cols
        if SHIFTED:
            tl.store(sum_rows + row, sums, mask=inside)
        if EUCLIDEAN:
            tl.store(through_rows + row, through, mask=inside)


@triton.jit(do_not_specialize=["tokens", "per_split"])
def product_kernel(
    g, z, scales, parts, columns, tokens, per_split, width,
    DIM: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr, BK: tl.constexpr, TMA: tl.constexpr, UNIT: tl.constexpr,
    BRAIN: tl.constexpr, FIRST: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Add Σ_s g[s, c] z[s, d] over the tokens of a split to parts[split, c, d]; `g`, `z`, `scales` start at the piece.

    16-bit tokens meet float16 coefficients. bfloat16 tokens (BRAIN) become float16 on their way into the product, of
    unit length (UNIT) or a sixteenth of their size, so that a million still fits: their digits fit, and what is too
    small for float16 is too small to matter beside the rest of the token. Only the left operand of a product can come
    from registers, so the tile is [dimensions, columns] here.
    """
    blocks_d: tl.constexpr = (DIM + BD - 1) // BD
    blocks = tl.cdiv(columns, BC) * blocks_d
    split = tl.program_id(0) // blocks
    block = tl.program_id(0) % blocks
    column = (block // blocks_d) * BC
    dim = (block % blocks_d) * BD
    cols = column + tl.arange(0, BC)
    dims = dim + tl.arange(0, BD)
    begin = split * per_split
    end = tl.minimum(begin + per_split, tokens)
    acc = tl.zeros((BD, BC), tl.float32)
    for t in tl.range(begin, end, BK, num_stages=STAGES):
        rows = t + tl.arange(0, BK)
        here = rows < end
        if TMA:  # the descriptors end with the piece, and numbers beyond it read as zero
            left = z.load([t, dim]).T
            right = g.load([t, column])
        else:
            at = rows.to(tl.int64)[None, :] * DIM + dims[:, None]
            left = tl.load(z + at, mask=here[None, :] & (dims < DIM)[:, None], other=0.0)
            at = rows.to(tl.int64)[:, None] * width + cols[None, :]
            right = tl.load(g + at, mask=here[:, None] & (cols < columns)[None, :], other=0.0)
        if UNIT:
            factor = tl.load(scales + rows, mask=here, other=0.0)
            left = (left.to(tl.float32) * factor[None, :]).to(right.dtype)
        elif BRAIN:
            left = (left.to(tl.float32) * 0.0625).to(tl.float16)
        acc = add_product(left, right, acc, BK)
    if BRAIN and not UNIT:
        acc *= 16
    at = (split.to(tl.int64) * columns + cols)[None, :] * DIM + dims[:, None]
    mask = (cols < columns)[None, :] & (dims < DIM)[:, None]
    if not FIRST:
        acc += tl.load(parts + at, mask=mask, other=0.0)
    tl.store(parts + at, acc, mask=mask)


@triton.jit
def finish_kernel(
    parts, head_scale, sums, origin, through, weights, query_size, gradient, columns,
    DIM: tl.constexpr, T: tl.constexpr, SPLITS: tl.constexpr, BD: tl.constexpr, HALF: tl.constexpr,
    SHIFTED: tl.constexpr, EUCLIDEAN: tl.constexpr, SIZED: tl.constexpr,
):  # fmt: skip
    """Write gradient[c] = (Σ parts[:, c] - sums[c] o - through[c] w_c) / scale of the head, one program per column."""
    column = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, BD)
    mask = dims < DIM
    total = tl.zeros((BD,), tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(parts + (split * columns + column) * DIM + dims, mask=mask, other=0.0)
    if SHIFTED:
        total -= tl.load(sums + column) * tl.load(origin + dims, mask=mask, other=0.0)
    if EUCLIDEAN:
        factor = tl.load(through + column)
        if SIZED:
            factor *= tl.load(query_size)
        total -= factor * tl.load(weights + column * DIM + dims, mask=mask, other=0.0).to(tl.float32)
    if HALF:
        total /= tl.load(head_scale + column // T)
    tl.store(gradient + column * DIM + dims, total, mask=mask)


def pool_gradient(
    values: Tensor,
    columns: Columns,
    stats: Stats,
    origin: Tensor | None,
    beta: Tensor,
    plan: Plan,
    tuning: Tuning,
    pooled: tuple[Tensor, Tensor],
    grads: tuple[Tensor, Tensor],
) -> Tensor:
    """Return the gradient of the queries `[M * T, D]`, float32, summed in an order that depends on shapes only."""
    dim = values.shape[1]
    count, heads = len(columns.weights), columns.heads
    if len(values) == 0:
        return values.new_zeros((count, dim), dtype=torch.float32)
    half = values.dtype != torch.float32
    slots = tuning.coefficients.bs // plan.chunk if tuning.short else 1
    # one row of sums per program of a column block
    groups = [triton.cdiv(p.last_item - p.first_item, slots) for p in plan.pieces]
    sums = values.new_empty((sum(groups), count), dtype=torch.float32) if columns.shift is not None else None
    through = values.new_empty((sum(groups), count), dtype=torch.float32) if columns.half is not None else None
    grads = (grads[0].float().contiguous(), grads[1].float().contiguous())
    gradient = values.new_empty((count, dim), dtype=torch.float32)
    blocks = tuning.product
    splits, per_piece = _count_splits(plan.pieces, count, dim, blocks, values)
    parts = values.new_empty((splits, count, dim), dtype=torch.float32)
    scale = values.new_empty(heads, dtype=torch.float32)
    with use_device_of(values):
        if half:
            scale_kernel[(triton.cdiv(heads, 16),)](
                *grads, beta, scale, plan.sequences, heads, BN=64, BH=16, num_warps=4
            )
        for number, piece in enumerate(plan.pieces):
            coefficients = _launch_coefficients(
                values, columns, stats, beta, plan, tuning, pooled, grads, scale, piece, sum(groups[:number]),
                get_pointer(sums, values), get_pointer(through, values),
            )  # fmt: skip
            tokens = values[piece.first_token : piece.last_token]
            scales = get_pointer(None if stats.scales is None else stats.scales[piece.first_token :], values)
            g: Any = describe(coefficients, blocks.bk, blocks.bc) if blocks.tma else coefficients
            z: Any = describe(tokens, blocks.bk, blocks.bd) if blocks.tma else tokens
            product_kernel[(splits * _count_tiles(count, dim, blocks),)](
                g, z, scales, parts, count, len(tokens), per_piece[number], coefficients.stride(0),
                DIM=dim, BC=blocks.bc, BD=blocks.bd, BK=blocks.bk, TMA=blocks.tma, UNIT=stats.scales is not None,
                BRAIN=values.dtype == torch.bfloat16, FIRST=number == 0, STAGES=blocks.stages, num_warps=blocks.warps,
            )  # fmt: skip
        flags = flag_constants(columns, stats)
        del flags["UNIT"]
        finish_kernel[(count,)](
            parts, scale, get_pointer(None if sums is None else sums.sum(0), values), get_pointer(origin, values),
            get_pointer(None if through is None else through.sum(0), values), columns.weights,
            get_pointer(columns.size, values), gradient, count,
            DIM=dim, T=count // heads, SPLITS=splits, BD=triton.next_power_of_2(dim), HALF=half, **flags, num_warps=4,
        )  # fmt: skip
    return gradient


def _launch_coefficients(
    values: Tensor, columns: Columns, stats: Stats, beta: Tensor, plan: Plan, tuning: Tuning,
    pooled: tuple[Tensor, Tensor], grads: tuple[Tensor, Tensor], scale: Tensor, piece: Piece, first_group: int,
    sums: Tensor, through: Tensor,
) -> Tensor:  # fmt: skip
    """Return the coefficients `[tokens, columns]` of a piece."""
    count, heads = len(columns.weights), columns.heads
    blocks = tuning.coefficients
    half = values.dtype != torch.float32
    width = triton.cdiv(count, 8) * 8  # rows then start at multiples of 16 bytes
    tokens = piece.last_token - piece.first_token
    buffer = values.new_empty((tokens, width), dtype=torch.float16 if half else torch.float32)
    coefficients = buffer[:, :count]
    items = plan.items[piece.first_item : piece.last_item]
    constants = (*list_constants(columns, stats, values), items, beta, *pooled, *grads, scale)
    flags: dict[str, Any] = {
        "DIM": values.shape[1], "T": count // heads, "BC": blocks.bc, "BK": blocks.bk, "HALF": half,
        "STAGES": blocks.stages, "num_warps": blocks.warps, **flag_constants(columns, stats),
    }  # fmt: skip
    across = triton.cdiv(count, blocks.bc)
    if tuning.short:
        slots = blocks.bs // plan.chunk
        short_coefficient_kernel[(triton.cdiv(len(items), slots) * across,)](
            values, columns.weights, *constants, buffer, sums, through, len(items), count, heads, piece.first_token,
            first_group, width, SLOTS=slots, SLOT=plan.chunk, **flags,
        )  # fmt: skip
        return coefficients
    work = len(items) * across
    programs = blocks.persistent * count_multiprocessors(values.device) if plan.even else 0
    out = describe(coefficients, blocks.bs, blocks.bc) if blocks.tma else buffer
    coefficient_kernel[(min(work, programs or work),)](
        *make_tiles(values, columns.weights, blocks), *constants, out, buffer, sums, through, work, count, heads,
        piece.first_token, width, BS=blocks.bs, TAIL=blocks.tail, TMA=blocks.tma, **flags,
    )  # fmt: skip
    return coefficients


def _count_tiles(count: int, dim: int, blocks: ProductBlocks) -> int:
    return int(triton.cdiv(count, blocks.bc) * triton.cdiv(dim, blocks.bd))


def _count_splits(
    pieces: tuple[Piece, ...], count: int, dim: int, blocks: ProductBlocks, values: Tensor
) -> tuple[int, list[int]]:
    """Return the number of splits of the product, and the number of tokens per split for each piece."""
    wanted = blocks.splits or max(1, count_multiprocessors(values.device) // _count_tiles(count, dim, blocks))
    tokens = [piece.last_token - piece.first_token for piece in pieces]
    splits = min(wanted, triton.cdiv(max(tokens), blocks.bk))
    return splits, [triton.cdiv(triton.cdiv(n, splits), blocks.bk) * blocks.bk for n in tokens]
