"""Kernels for very short sequences: a tile holds several of them, each in its own slot.

A tile of the ordinary kernels never holds two sequences, so that sequences of a few tokens would leave most of it
empty. Here items have at most SLOT tokens, a tile has SLOTS slots, and reductions run within slots.
"""

import triton
import triton.language as tl

from apood.pooling.kernels.products import finish_columns, load_bias, load_column_terms, multiply_rows

__all__ = ["short_coefficient_kernel", "short_pool_kernel"]


@triton.jit
def _tile(
    z, w, scales, halves, items, count, columns, kappa, size,
    DIM: tl.constexpr, BC: tl.constexpr, SLOTS: tl.constexpr, SLOT: tl.constexpr, BK: tl.constexpr, UNIT: tl.constexpr,
    EUCLIDEAN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Return the group of items and the first column of this program, and what each lane of its tile holds.

    That is the row of its token, whether there is a token, its similarities and its logits.
    """
    blocks = tl.cdiv(columns, BC)
    group = tl.program_id(0) // blocks
    column = (tl.program_id(0) % blocks) * BC
    lane = tl.arange(0, SLOTS * SLOT)
    item = group * SLOTS + lane // SLOT
    start = tl.load(items + item * 4, mask=item < count, other=0)
    stop = tl.load(items + item * 4 + 1, mask=item < count, other=0)
    rows = start + lane % SLOT
    here = rows < stop
    acc = multiply_rows(z, w, rows, here, column, columns, DIM, BC, SLOTS * SLOT, BK, STAGES)
    if UNIT:
        acc *= tl.load(scales + rows, mask=here, other=0.0)[None, :]
    logits = acc * (kappa * size) + load_bias(halves, rows, here, kappa, EUCLIDEAN)[None, :]
    return group, column, rows, here, acc, logits


@triton.jit(do_not_specialize=["count"])
def short_pool_kernel(
    z, w, scales, halves, column_shift, column_half, query_size, items, beta, value, log_mass, count, columns,
    DIM: tl.constexpr, GROUP: tl.constexpr, BC: tl.constexpr, SLOTS: tl.constexpr, SLOT: tl.constexpr, BK: tl.constexpr,
    UNIT: tl.constexpr, SHIFTED: tl.constexpr, EUCLIDEAN: tl.constexpr, SIZED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Do the work of `pool_kernel` for `count` items of at most SLOT tokens; a program takes SLOTS of them."""
    log2e: tl.constexpr = 1.4426950408889634
    kappa = tl.load(beta) * log2e
    size = tl.load(query_size) if SIZED else 1.0
    group, column, _rows, _here, acc, logits = _tile(
        z, w, scales, halves, items, count, columns, kappa, size, DIM, BC, SLOTS, SLOT, BK, UNIT, EUCLIDEAN, STAGES
    )
    logits = tl.reshape(logits, (BC, SLOTS, SLOT))
    top = tl.max(logits, 2)
    top = tl.where(top == float("-inf"), 0.0, top)  # of an empty slot
    p = tl.exp2(logits - top[:, :, None])
    mass = tl.sum(p, 2)
    weighted = tl.sum(p * tl.reshape(acc, (BC, SLOTS, SLOT)), 2)
    cols = (column + tl.arange(0, BC))[:, None]
    h, logs = finish_columns(
        tl.where(mass == 0, weighted, weighted / mass), top + tl.log2(mass), column_shift, column_half, cols, columns,
        size, kappa, SHIFTED, EUCLIDEAN,
    )  # fmt: skip
    if GROUP > 1:
        logs = tl.reshape(logs, (BC // GROUP, GROUP, SLOTS))
        most = tl.max(logs, 1)
        most = tl.where(most == float("-inf"), 0.0, most)
        share = tl.exp2(logs - most[:, None, :])
        total = tl.sum(share, 1)
        h = tl.sum(share * tl.reshape(h, (BC // GROUP, GROUP, SLOTS)), 1)
        h = tl.where(total == 0, h, h / total)
        logs = most + tl.log2(total)
    else:
        h = tl.where(logs == float("-inf"), 0.0 * h, h)
    item = group * SLOTS + tl.arange(0, SLOTS)
    row = tl.load(items + item * 4 + 2, mask=item < count, other=0)
    out = column // GROUP + tl.arange(0, BC // GROUP)
    place = row[None, :] * (columns // GROUP) + out[:, None]
    inside = (item < count)[None, :] & (out < columns // GROUP)[:, None]
    tl.store(value + place, h, mask=inside)
    tl.store(log_mass + place, logs / log2e, mask=inside)


@triton.jit(do_not_specialize=["count", "first_token", "first_group"])
def short_coefficient_kernel(
    z, w, scales, halves, column_shift, column_half, query_size, items, beta, value, log_mass, grad_value, grad_mass,
    head_scale, out_at, sum_rows, through_rows, count, columns, heads, first_token, first_group, width,
    DIM: tl.constexpr, T: tl.constexpr, BC: tl.constexpr, SLOTS: tl.constexpr, SLOT: tl.constexpr, BK: tl.constexpr,
    UNIT: tl.constexpr, SHIFTED: tl.constexpr, EUCLIDEAN: tl.constexpr, SIZED: tl.constexpr, HALF: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Do the work of `coefficient_kernel` for items of at most SLOT tokens; sums have one row per group of items."""
    BS: tl.constexpr = SLOTS * SLOT
    b = tl.load(beta)
    kappa = b * 1.4426950408889634
    size = tl.load(query_size) if SIZED else 1.0
    group, column, rows, here, acc, logits = _tile(
        z, w, scales, halves, items, count, columns, kappa, size, DIM, BC, SLOTS, SLOT, BK, UNIT, EUCLIDEAN, STAGES
    )
    item = group * SLOTS + tl.arange(0, SLOTS)
    sequence = tl.load(items + item * 4 + 3, mask=item < count, other=0)
    cols = column + tl.arange(0, BC)
    inside = (cols < columns)[:, None] & (item < count)[None, :]
    head = cols[:, None] // T
    offset, u, v, grad_h = load_column_terms(
        value, log_mass, grad_value, grad_mass, head_scale, column_shift, column_half, sequence[None, :] * heads + head,
        head, cols[:, None], inside, b, kappa, size, HALF, SHIFTED, EUCLIDEAN,
    )  # fmt: skip
    # An empty sequence has L = -inf, and its slot has no token: without this, inf - inf would be NaN.
    offset = tl.where(offset == float("-inf"), 0.0, offset)
    p = tl.exp2(tl.reshape(logits, (BC, SLOTS, SLOT)) - offset[:, :, None])
    g = p * (tl.reshape(acc, (BC, SLOTS, SLOT)) * u[:, :, None] + v[:, :, None])
    row = (first_group + group).to(tl.int64) * columns + cols
    if EUCLIDEAN:
        through = tl.sum(tl.reshape(g - p * grad_h[:, :, None], (BC, BS)), 1)
        tl.store(through_rows + row, through, mask=cols < columns)
        if HALF:
            g = tl.clamp(g, -65504.0, 65504.0)
    g = tl.reshape(g, (BC, BS))
    if HALF:
        g = g.to(tl.float16)
    if SHIFTED:
        tl.store(sum_rows + row, tl.sum(g.to(tl.float32), 1), mask=cols < columns)
    at = tl.cast(rows - first_token, tl.int32)[:, None] * width + cols[None, :]
    tl.store(out_at + at, g.T, mask=here[:, None] & (cols < columns)[None, :])
