"""The backward kernels: the gradient of the queries, with the similarities computed again.

With p = exp(l - L) the coefficient of a token in the gradient of a query is
g = grad_h p (1 + β (a - h)) + grad_L β p = p (u a + v), u and v constant for a query and a sequence. The first kernel
writes these coefficients for a piece of the tokens, `[tokens, columns]`: a sequence may start at any row, and rows are
aligned. The second is the product of coefficients and tokens, split over tokens, each split into its own float32 block.
The last adds the blocks in a fixed order, so the result is always the same.

Coefficients of 16-bit tokens are float16, scaled to its range head by head: sharp attention hangs on a few of them, and
the eight bits of bfloat16 would show. In a frame the gradient is Σ_s g_s (z_s / |z_s| - o): the sum over coefficients,
rounded as they are, goes with the origin, so that rounding errors meet centred tokens and not their large mean. The
euclidean logits see |w|²/2 too, which adds -w Σ_s (g_s - grad_h p_s).
"""

import triton
import triton.language as tl

from apood.pooling.kernels.products import add_product, load_bias, only, similarities

__all__ = ["coefficient_kernel", "finish_kernel", "load_column_terms", "product_kernel", "scale_kernel"]


@triton.jit(do_not_specialize=["sequences"])
def scale_kernel(grad_value, grad_mass, beta, head_scale, sequences, heads, BN: tl.constexpr, BH: tl.constexpr):
    """For each head a power of two such that its coefficients suit float16.

    A coefficient is at most grad_h (1 + p β |a - h|) + β grad_L, and p β |a - h| is rarely above ten: 2^8 leaves room
    upwards, and downwards for all that matters beside it.
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
def load_column_terms(
    value, log_mass, grad_value, grad_mass, head_scale, column_shift, column_half, at, head, cols, inside, b, kappa,
    size, HALF: tl.constexpr, SHIFTED: tl.constexpr, EUCLIDEAN: tl.constexpr,
):  # fmt: skip
    """What is constant in a column of a sequence: the logits' offset in units of log 2, u, v and grad_h."""
    h = tl.load(value + at, mask=inside, other=0.0)
    offset = tl.load(log_mass + at, mask=inside, other=0.0) * 1.4426950408889634
    grad_h = tl.load(grad_value + at, mask=inside, other=0.0)
    grad_l = tl.load(grad_mass + at, mask=inside, other=0.0)
    if HALF:
        scale = tl.load(head_scale + head, mask=inside, other=0.0)
        grad_h *= scale
        grad_l *= scale
    if SHIFTED:
        shift = tl.load(column_shift + cols, mask=inside, other=0.0)
        h += shift
        offset += kappa * shift
    if EUCLIDEAN:
        offset += kappa * tl.load(column_half + cols, mask=inside, other=0.0)
    # `a` arrives divided by the size of the queries
    return offset, b * grad_h * size, grad_h * (1 - b * h) + b * grad_l, grad_h


@triton.jit
def _coefficients(
    z, w, scales, halves, start, stop, column, columns, slope, kappa, offset, u, v, grad_h, sums, through,
    DIM: tl.constexpr, BC: tl.constexpr, BS: tl.constexpr, BK: tl.constexpr, TMA: tl.constexpr, UNIT: tl.constexpr,
    SUMS: tl.constexpr, EUCLIDEAN: tl.constexpr, MASKED: tl.constexpr, STAGES: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    acc = similarities(z, w, start, stop, column, columns, DIM, BC, BS, BK, TMA, STAGES)
    tokens = start + tl.arange(0, BS)
    here = tokens < stop
    if UNIT:
        acc *= tl.load(scales + tokens, mask=here, other=0.0)[None, :]
    if MASKED:
        acc = only(acc, here, TMA)
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
    """Coefficients of the tokens from `first_token` on; `out` is a descriptor with TMA, `out_at` its pointer.

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
            g, sums, through = _coefficients(
                z, w, scales, halves, t, stop, column, columns, slope, kappa, offset, u, v, grad_h, sums, through,
                DIM, BC, BS, BK, TMA, UNIT, SHIFTED, EUCLIDEAN, False, STAGES, HALF,
            )  # fmt: skip
            place = tl.cast(t - first_token, tl.int32)
            if TMA:
                out.store([place, column], g)
            else:
                at = (place + tl.arange(0, BS))[:, None] * width + cols[None, :]
                tl.store(out_at + at, g, mask=inside[None, :])
        # the rest of the item: what lies behind it belongs to the next sequence and must not be written
        for t in tl.range(stop - small, stop, TAIL, num_stages=1):
            g, sums, through = _coefficients(
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
    g, z, scales, out, columns, tokens, per_split, width,
    DIM: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr, BK: tl.constexpr, TMA: tl.constexpr, UNIT: tl.constexpr,
    BRAIN: tl.constexpr, FIRST: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Adds Σ_s g[s, c] z[s, d] over the tokens of a split to out[split, c, d]; `g`, `z`, `scales` start with the piece.

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
        if TMA:  # the descriptors end with the piece, and what lies beyond reads as zero
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
        acc += tl.load(out + at, mask=mask, other=0.0)
    tl.store(out + at, acc, mask=mask)


@triton.jit
def finish_kernel(
    parts, head_scale, sums, origin, through, weights, query_size, gradient, columns,
    DIM: tl.constexpr, T: tl.constexpr, SPLITS: tl.constexpr, BD: tl.constexpr, HALF: tl.constexpr,
    SHIFTED: tl.constexpr, EUCLIDEAN: tl.constexpr, SIZED: tl.constexpr,
):  # fmt: skip
    """Writes gradient[c] = (Σ parts[:, c] - sums[c] o - through[c] w_c) / scale of the head; one program a column."""
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
