"""The forward kernels: (h, L) of every sequence and head in one pass over the tokens.

A program keeps the running (maximum, sum, weighted sum) of its columns over the tokens of an item, then merges the T
columns of a head and writes one row of pools. A second kernel merges rows where a sequence has several.

The preprocessing costs nothing but a factor per token: a' = (z·w) / |z| - o·w. What is constant in a column (o·w,
|w|²/2) is put on its pool afterwards: L - β (o·w + |w|²/2) and h - o·w.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from apood.pooling.kernels.launch import (
    Columns,
    Stats,
    count_multiprocessors,
    flag_constants,
    get_pointer,
    list_constants,
    make_tiles,
    use_device_of,
)
from apood.pooling.kernels.plan import Plan
from apood.pooling.kernels.products import finish_columns, load_bias, mask_absent, multiply_tile
from apood.pooling.kernels.short import short_pool_kernel
from apood.pooling.kernels.tuning import Tuning

__all__ = ["compute_token_stats", "pool_forward"]

_MERGED_IN_PLACE = 64  # largest number of queries per head whose pools one program merges


@triton.jit(do_not_specialize=["total"])
def stats_kernel(
    z, origin, scales, halves, total,
    DIM: tl.constexpr, BS: tl.constexpr, BK: tl.constexpr, UNIT: tl.constexpr, SHIFTED: tl.constexpr,
    HALVES: tl.constexpr,
):  # fmt: skip
    """Write 1 / |z| (UNIT) and |z'|²/2 of the preprocessed token (HALVES) for each token."""
    tokens = tl.program_id(0).to(tl.int64) * BS + tl.arange(0, BS)
    depth = tl.arange(0, BK)
    scale = tl.full((BS,), 1.0, tl.float32)
    if UNIT:
        squares = tl.zeros((BS, BK), tl.float32)
        for k in tl.range(0, DIM, BK):
            mask = (tokens < total)[:, None] & (depth < DIM - k)[None, :]
            x = tl.load(z + tokens[:, None] * DIM + k + depth[None, :], mask=mask, other=0.0).to(tl.float32)
            squares += x * x
        norm = tl.sqrt(tl.sum(squares, 1))
        # like Preprocessing: the root of the smallest normal number, below which squares vanish
        scale = tl.where(norm < float("inf"), 1.0 / tl.maximum(norm, 1.0842021724855044e-19), float("nan"))
        tl.store(scales + tokens, scale, mask=tokens < total)
    if HALVES:
        squares = tl.zeros((BS, BK), tl.float32)
        for k in tl.range(0, DIM, BK):
            mask = (tokens < total)[:, None] & (depth < DIM - k)[None, :]
            x = tl.load(z + tokens[:, None] * DIM + k + depth[None, :], mask=mask, other=0.0).to(tl.float32)
            x *= scale[:, None]
            if SHIFTED:
                x -= tl.load(origin + k + depth, mask=depth < DIM - k, other=0.0)[None, :]
            squares += x * x
        tl.store(halves + tokens, tl.sum(squares, 1) / 2, mask=tokens < total)


@triton.jit
def _absorb(acc, bias, top, mass, weighted, kappa, BIASED: tl.constexpr):
    """Return the running pool of columns with a tile added to it; `top` is in units of log 2."""
    if BIASED:
        new = tl.maximum(top, tl.max(acc * kappa + bias[None, :], 1))
        p = tl.exp2(acc * kappa + (bias[None, :] - new[:, None]))
    else:  # kappa >= 0, so the maximum can be taken before the factor, and the factor goes into one multiply-add
        new = tl.maximum(top, tl.max(acc, 1) * kappa)
        p = tl.exp2(acc * kappa - new[:, None])
    shrink = tl.exp2(top - new)
    return new, mass * shrink + tl.sum(p, 1), weighted * shrink + tl.sum(p * acc, 1)


@triton.jit
def _tile(
    z, w, scales, halves, start, stop, column, columns, slope, kappa, top, mass, weighted,
    DIM: tl.constexpr, BC: tl.constexpr, BS: tl.constexpr, BK: tl.constexpr, TMA: tl.constexpr, UNIT: tl.constexpr,
    EUCLIDEAN: tl.constexpr, MASKED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    acc = multiply_tile(z, w, start, stop, column, columns, DIM, BC, BS, BK, TMA, STAGES)
    tokens = start + tl.arange(0, BS)
    here = tokens < stop
    if UNIT:
        acc *= tl.load(scales + tokens, mask=here, other=0.0)[None, :]
    if MASKED or EUCLIDEAN:
        bias = load_bias(halves, tokens, here, kappa, EUCLIDEAN)
        top, mass, weighted = _absorb(mask_absent(acc, here, TMA), bias, top, mass, weighted, slope, True)
    elif stop - start >= BS:
        top, mass, weighted = _absorb(acc, 0.0, top, mass, weighted, slope, False)
    else:
        bias = load_bias(halves, tokens, here, kappa, False)
        top, mass, weighted = _absorb(mask_absent(acc, here, TMA), bias, top, mass, weighted, slope, True)
    return top, mass, weighted


# numbers that differ between batches need no new compilation
@triton.jit(do_not_specialize=["work"])
def pool_kernel(
    z, w, tail_z, scales, halves, column_shift, column_half, query_size, items, beta, value, log_mass, work, columns,
    DIM: tl.constexpr, GROUP: tl.constexpr, BC: tl.constexpr, BS: tl.constexpr, TAIL: tl.constexpr, BK: tl.constexpr,
    TMA: tl.constexpr, UNIT: tl.constexpr, SHIFTED: tl.constexpr, EUCLIDEAN: tl.constexpr, SIZED: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Write one row of `value` and `log_mass [items, columns / GROUP]` per item.

    Programs are persistent if there are fewer than `work`. Neighbouring programs share an item, so that they read its
    tokens from the L2 cache.
    """
    log2e: tl.constexpr = 1.4426950408889634
    kappa = tl.load(beta) * log2e
    size = tl.load(query_size) if SIZED else 1.0
    slope = kappa * size
    blocks = tl.cdiv(columns, BC)
    for number in tl.range(tl.program_id(0), work, tl.num_programs(0), num_stages=1):
        item = items + (number // blocks) * 4
        column = (number % blocks) * BC
        start = tl.load(item)
        stop = tl.load(item + 1)
        row = tl.load(item + 2)
        top = tl.full((BC,), float("-inf"), tl.float32)
        mass = tl.zeros((BC,), tl.float32)
        weighted = tl.zeros((BC,), tl.float32)
        # the rest after the last full tile goes into a small tile if it fits
        small = (stop - start) % BS
        small = tl.where(small <= TAIL, small, 0) if TAIL < BS else small * 0
        for at in tl.range(start, stop - small, BS, num_stages=1):
            top, mass, weighted = _tile(
                z, w, scales, halves, at, stop, column, columns, slope, kappa, top, mass, weighted,
                DIM, BC, BS, BK, TMA, UNIT, EUCLIDEAN, False, STAGES,
            )  # fmt: skip
        if TAIL < BS:  # noqa: SIM102 (known to the compiler, unlike the other)
            if small > 0:
                top, mass, weighted = _tile(
                    tail_z, w, scales, halves, stop - small, stop, column, columns, slope, kappa, top, mass, weighted,
                    DIM, BC, TAIL, BK, TMA, UNIT, EUCLIDEAN, True, STAGES,
                )  # fmt: skip
        h, logs = finish_columns(
            weighted / mass, top + tl.log2(mass), column_shift, column_half, column + tl.arange(0, BC), columns, size,
            kappa, SHIFTED, EUCLIDEAN,
        )  # fmt: skip
        if GROUP > 1:
            logs = tl.reshape(logs, (BC // GROUP, GROUP))
            most = tl.max(logs, 1)
            share = tl.exp2(logs - most[:, None])
            total = tl.sum(share, 1)
            h = tl.sum(share * tl.reshape(h, (BC // GROUP, GROUP)), 1) / total
            logs = most + tl.log2(total)
        out = column // GROUP + tl.arange(0, BC // GROUP)
        place = row * (columns // GROUP) + out
        inside = out < columns // GROUP
        empty = stop <= start
        tl.store(value + place, tl.where(empty, 0.0, h), mask=inside)
        tl.store(log_mass + place, tl.where(empty, float("-inf"), logs / log2e), mask=inside)


@triton.jit
def merge_kernel(
    row_value, row_mass, first, value, log_mass, heads, GROUPS: tl.constexpr, BH: tl.constexpr, BE: tl.constexpr
):
    """Merge the rows of each sequence, and the GROUPS columns of each head that are still separate.

    L = log Σ exp(L_r), h = Σ exp(L_r - L) h_r; always in the same order.
    """
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BH + tl.arange(0, BH)
    begin, end = tl.load(first + sequence) * GROUPS, tl.load(first + sequence + 1) * GROUPS
    top = tl.full((BH,), float("-inf"), tl.float32)
    mass = tl.zeros((BH,), tl.float32)
    weighted = tl.zeros((BH,), tl.float32)
    for e in tl.range(begin, end, BE):
        entry = e + tl.arange(0, BE)
        mask = (head < heads)[:, None] & (entry < end)[None, :]
        at = (entry // GROUPS * heads)[None, :] * GROUPS + head[:, None] * GROUPS + (entry % GROUPS)[None, :]
        logs = tl.load(row_mass + at, mask=mask, other=float("-inf"))
        new = tl.maximum(top, tl.max(logs, 1))
        # nothing but -inf (an empty sequence, or beyond the last head) must not become NaN
        base = tl.where(new == float("-inf"), 0.0, new)
        share = tl.exp(logs - base[:, None])
        shrink = tl.exp(top - base)
        mass = mass * shrink + tl.sum(share, 1)
        weighted = weighted * shrink + tl.sum(share * tl.load(row_value + at, mask=mask, other=0.0), 1)
        top = new
    at = sequence * heads + head
    tl.store(value + at, tl.where(mass == 0, weighted, weighted / mass), mask=head < heads)
    tl.store(log_mass + at, top + tl.log(mass), mask=head < heads)


def compute_token_stats(values: Tensor, unit: bool, origin: Tensor | None, euclidean: bool) -> Stats:
    """Return what the kernels need of each token, in one pass over the tokens, or in none if nothing is needed."""
    total, dim = values.shape
    scales = values.new_empty(total, dtype=torch.float32) if unit else None
    halves = values.new_empty(total, dtype=torch.float32) if euclidean else None
    if total and (unit or euclidean):
        bs, bk = 4, min(1024, triton.next_power_of_2(dim))
        with use_device_of(values):
            stats_kernel[(triton.cdiv(total, bs),)](
                values, get_pointer(origin, values), get_pointer(scales, values), get_pointer(halves, values), total,
                DIM=dim, BS=bs, BK=bk, UNIT=unit, SHIFTED=origin is not None, HALVES=euclidean, num_warps=4,
            )  # fmt: skip
    return Stats(scales, halves)


def pool_forward(
    values: Tensor, columns: Columns, stats: Stats, beta: Tensor, plan: Plan, tuning: Tuning
) -> tuple[Tensor, Tensor]:
    """Return (h, L), both `[sequences, M]` in float32."""
    count, heads = len(columns.weights), columns.heads
    if len(values) == 0:  # nothing to launch, and nothing that a descriptor could describe
        value = values.new_zeros((plan.sequences, heads), dtype=torch.float32)
        return value, value - torch.inf
    per_head = count // heads
    blocks = tuning.forward
    power_of_two = per_head & (per_head - 1) == 0
    group = per_head if power_of_two and per_head <= min(blocks.bc, _MERGED_IN_PLACE) else 1
    rows = len(plan.items)
    value, mass = (values.new_empty((rows, count // group), dtype=torch.float32) for _ in range(2))
    constants = (*list_constants(columns, stats, values), plan.items, beta, value, mass)
    with use_device_of(values):
        if tuning.short:
            slots = blocks.bs // plan.chunk
            grid = triton.cdiv(rows, slots) * triton.cdiv(count, blocks.bc)
            short_pool_kernel[(grid,)](
                values, columns.weights, *constants, rows, count,
                DIM=values.shape[1], GROUP=group, BC=blocks.bc, SLOTS=slots, SLOT=plan.chunk, BK=blocks.bk,
                **flag_constants(columns, stats), STAGES=blocks.stages, num_warps=blocks.warps,
            )  # fmt: skip
        else:
            work = rows * triton.cdiv(count, blocks.bc)
            programs = blocks.persistent * count_multiprocessors(values.device) if plan.even else 0
            pool_kernel[(min(work, programs or work),)](
                *make_tiles(values, columns.weights, blocks), *constants, work, count,
                DIM=values.shape[1], GROUP=group, BC=blocks.bc, BS=blocks.bs, TAIL=blocks.tail, BK=blocks.bk,
                TMA=blocks.tma, **flag_constants(columns, stats), STAGES=blocks.stages, num_warps=blocks.warps,
            )  # fmt: skip
        if rows == plan.sequences and group == per_head:
            return value, mass
        return _merge_rows(value, mass, plan, heads, per_head // group)


def _merge_rows(value: Tensor, mass: Tensor, plan: Plan, heads: int, groups: int) -> tuple[Tensor, Tensor]:
    """Return the pools of sequences and heads from rows `[items, heads * groups]`."""
    out = tuple(value.new_empty((plan.sequences, heads)) for _ in range(2))
    bh = min(256 if groups == 1 else 64, max(16, triton.next_power_of_2(heads)))
    merge_kernel[(plan.sequences, triton.cdiv(heads, bh))](
        value, mass, plan.first, *out, heads, GROUPS=groups, BH=bh, BE=8 if groups == 1 else 32, num_warps=4
    )
    return out[0], out[1]
