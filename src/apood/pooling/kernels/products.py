"""The product of queries and tokens that every kernel begins with.

Columns are the M * T queries one after the other. A tile is `[columns, tokens]`, in this order, so that the softmax
over tokens runs along the second dimension of the product, which one thread holds almost entirely: reductions need
hardly any shuffles.

The arguments have the same names and shapes in all kernels; `columns` is M * T, and numbers are float32 unless stated:

    z, tail_z                  tokens `[total, D]` in their dtype; with TMA, descriptors of tiles of BS or TAIL tokens
    w                          queries `[columns, D]` in the dtype of the tokens; with TMA, a descriptor
    scales, halves             1 / |z| and |z'|²/2 `[total]`
    column_shift, column_half  o·w and |w|²/2 `[columns]`
    origin                     o `[D]`
    query_size, beta           one number each
    items                      `[items, 4]` int64, see `Plan.items`
    first                      `[sequences + 1]` int64, see `Plan.first`
    value, log_mass            h and L, `[sequences, M]`; those that a pool kernel writes, `[items, columns / GROUP]`
    grad_value, grad_mass      gradients of h and L, `[sequences, M]`
    head_scale                 powers of two `[M]`
    out, out_at, g             coefficients `[tokens of a piece, width]`, float16 or float32; `out` is a descriptor
    sum_rows, through_rows     sums over the coefficients of a program `[programs per column block, columns]`
    parts                      partial gradients `[splits, columns, D]`
    gradient                   `[columns, D]`
"""

import triton
import triton.language as tl

__all__ = [
    "add_product",
    "finish_columns",
    "load_bias",
    "load_column_terms",
    "mask_absent",
    "multiply_rows",
    "multiply_tile",
]


@triton.jit
def add_product(left, right, acc, BK: tl.constexpr):
    """Return `acc + left @ right`; float32 factors are multiplied in three tf32 products.

    Tensor cores truncate as they accumulate, and the errors of a long sum grow with its length: float32 sums each block
    on its own first. The last argument keeps the compiler from joining the two sums.
    """
    if left.dtype == tl.float32:
        acc += tl.dot(left, right, input_precision="tf32x3", max_num_imprecise_acc=BK)
    else:
        acc = tl.dot(left, right, acc)
    return acc


@triton.jit
def multiply_rows(
    z, w, rows, here, column, columns,
    DIM: tl.constexpr, BC: tl.constexpr, BS: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Return acc[c, s] = w_c · z[rows[s]] in float32, and 0 where not `here`."""
    acc = tl.zeros((BC, BS), tl.float32)
    cols = column + tl.arange(0, BC)
    depth = tl.arange(0, BK)
    z_at = z + rows.to(tl.int64)[None, :] * DIM + depth[:, None]
    w_at = w + cols.to(tl.int64)[:, None] * DIM + depth[None, :]
    for k in tl.range(0, DIM, BK, num_stages=STAGES):
        if DIM % BK == 0:
            queries = tl.load(w_at + k, mask=(cols < columns)[:, None], other=0.0)
            tokens = tl.load(z_at + k, mask=here[None, :], other=0.0)
        else:
            left = depth < DIM - k
            queries = tl.load(w_at + k, mask=(cols < columns)[:, None] & left[None, :], other=0.0)
            tokens = tl.load(z_at + k, mask=here[None, :] & left[:, None], other=0.0)
        acc = add_product(queries, tokens, acc, BK)
    return acc


@triton.jit
def multiply_tile(
    z, w, start, stop, column, columns,
    DIM: tl.constexpr, BC: tl.constexpr, BS: tl.constexpr, BK: tl.constexpr, TMA: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Return acc[c, s] = w_c · z_s of BS tokens from `start` on.

    With TMA, `z` and `w` are tensor descriptors: the copy engine of the GPU reads the tiles. The numbers behind `stop`
    are then arbitrary, and may be NaN.
    """
    if TMA:
        acc = tl.zeros((BC, BS), tl.float32)
        row = tl.cast(start, tl.int32)
        for k in tl.range(0, DIM, BK, num_stages=STAGES):
            queries = w.load([column, k])
            tokens = z.load([row, k])
            acc = add_product(queries, tokens.T, acc, BK)
    else:
        rows = start + tl.arange(0, BS)
        acc = multiply_rows(z, w, rows, rows < stop, column, columns, DIM, BC, BS, BK, STAGES)
    return acc


@triton.jit
def mask_absent(acc, here, TMA: tl.constexpr):
    """Return the similarities of tokens that are `here` and 0 for others, as without TMA: -inf as a logit keeps NaN."""
    if TMA:
        acc = tl.where(here[None, :], acc, 0.0)
    return acc


@triton.jit
def load_bias(halves, tokens, here, kappa, EUCLIDEAN: tl.constexpr):
    """Return what is added to the logits of tokens, in units of log 2: -κ |z|²/2, and -inf where not `here`."""
    bias = tl.where(here, 0.0, float("-inf"))
    if EUCLIDEAN:
        bias -= kappa * tl.load(halves + tokens, mask=here, other=0.0)
    return bias


@triton.jit
def finish_columns(
    h, logs, column_shift, column_half, cols, columns, size, kappa, SHIFTED: tl.constexpr, EUCLIDEAN: tl.constexpr
):
    """Return the pools of columns with what is constant in a column; the queries were divided by `size`."""
    h *= size
    if SHIFTED:
        shift = tl.load(column_shift + cols, mask=cols < columns, other=0.0)
        h -= shift
        logs -= kappa * shift
    if EUCLIDEAN:
        logs -= kappa * tl.load(column_half + cols, mask=cols < columns, other=0.0)
    return h, logs


@triton.jit
def load_column_terms(
    value, log_mass, grad_value, grad_mass, head_scale, column_shift, column_half, at, head, cols, inside, b, kappa,
    size, HALF: tl.constexpr, SHIFTED: tl.constexpr, EUCLIDEAN: tl.constexpr,
):  # fmt: skip
    """Return what is constant in a column of a sequence: the offset of logits in units of log 2, u, v and grad_h."""
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
