"""What the kernels need to know of each token beside the token itself."""

import triton
import triton.language as tl

__all__ = ["stats_kernel"]


@triton.jit(do_not_specialize=["total"])
def stats_kernel(
    z, origin, scales, halves, total,
    DIM: tl.constexpr, BS: tl.constexpr, BK: tl.constexpr, UNIT: tl.constexpr, SHIFTED: tl.constexpr,
    HALVES: tl.constexpr,
):  # fmt: skip
    """Of each token 1 / |z| (UNIT) and |z'|²/2 in the frame (HALVES)."""
    tokens = tl.program_id(0).to(tl.int64) * BS + tl.arange(0, BS)
    depth = tl.arange(0, BK)
    scale = tl.full((BS,), 1.0, tl.float32)
    if UNIT:
        squares = tl.zeros((BS, BK), tl.float32)
        for k in tl.range(0, DIM, BK):
            mask = (tokens < total)[:, None] & (depth < DIM - k)[None, :]
            x = tl.load(z + tokens[:, None] * DIM + k + depth[None, :], mask=mask, other=0.0).to(tl.float32)
            squares += x * x
        # like Frame: the root of the smallest normal number, below which squares vanish
        scale = 1.0 / tl.maximum(tl.sqrt(tl.sum(squares, 1)), 1.0842021724855044e-19)
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
