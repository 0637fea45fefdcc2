"""The forward kernels: (h, L) of every sequence and head in one pass over the tokens.

A program keeps the running (maximum, sum, weighted sum) of its columns over the tokens of an item, then merges the T
columns of a head and writes one row of pools. A second kernel merges rows where a sequence has several.

The frame costs nothing but a factor a token: a' = (z·w) / |z| - o·w. What is constant in a column (o·w, |w|²/2) is put
on its pool afterwards: L - β (o·w + |w|²/2) and h - o·w.
"""

import triton
import triton.language as tl

from apood.pooling.kernels.products import load_bias, only, similarities

__all__ = ["finish_columns", "merge_kernel", "pool_kernel"]


@triton.jit
def _absorb(acc, bias, top, mass, weighted, kappa, BIASED: tl.constexpr):
    """Takes a tile into the running pool of its columns; `top` is in units of log 2."""
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
    acc = similarities(z, w, start, stop, column, columns, DIM, BC, BS, BK, TMA, STAGES)
    tokens = start + tl.arange(0, BS)
    here = tokens < stop
    if UNIT:
        acc *= tl.load(scales + tokens, mask=here, other=0.0)[None, :]
    if MASKED or EUCLIDEAN:
        bias = load_bias(halves, tokens, here, kappa, EUCLIDEAN)
        top, mass, weighted = _absorb(only(acc, here, TMA), bias, top, mass, weighted, slope, True)
    elif stop - start >= BS:
        top, mass, weighted = _absorb(acc, 0.0, top, mass, weighted, slope, False)
    else:
        bias = load_bias(halves, tokens, here, kappa, False)
        top, mass, weighted = _absorb(only(acc, here, TMA), bias, top, mass, weighted, slope, True)
    return top, mass, weighted


@triton.jit
def finish_columns(
    h, logs, column_shift, column_half, cols, columns, size, kappa, SHIFTED: tl.constexpr, EUCLIDEAN: tl.constexpr
):
    """Puts on the pools of columns what is constant in them; `size` is what the queries were divided by."""
    h *= size
    if SHIFTED:
        shift = tl.load(column_shift + cols, mask=cols < columns, other=0.0)
        h -= shift
        logs -= kappa * shift
    if EUCLIDEAN:
        logs -= kappa * tl.load(column_half + cols, mask=cols < columns, other=0.0)
    return h, logs


# numbers of a batch: no new compilation for each
@triton.jit(do_not_specialize=["work"])
def pool_kernel(
    z, w, tail_z, scales, halves, column_shift, column_half, query_size, items, beta, value, log_mass, work, columns,
    DIM: tl.constexpr, GROUP: tl.constexpr, BC: tl.constexpr, BS: tl.constexpr, TAIL: tl.constexpr, BK: tl.constexpr,
    TMA: tl.constexpr, UNIT: tl.constexpr, SHIFTED: tl.constexpr, EUCLIDEAN: tl.constexpr, SIZED: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """One row of `value` and `log_mass [items, columns / GROUP]` for each item.

    Persistent if the grid is smaller than `work`. Neighbouring programs share an item: its tokens are read from L2.
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
        # what is left after the last full tile goes into a small one if it fits
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
    """Merges the rows of each sequence, and of each head the GROUPS columns that are still apart.

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
