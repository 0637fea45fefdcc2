"""Launches the backward kernels on tensors: no checks, no autograd, no synchronisation with the host."""

from typing import Any

import torch
import triton
from torch import Tensor

from apood.pooling.kernels.backward import coefficient_kernel, finish_kernel, product_kernel, scale_kernel
from apood.pooling.kernels.launch import (
    Columns,
    Stats,
    describe,
    frame_flags,
    frame_tensors,
    multiprocessors,
    on_device,
    present,
    tiles_of,
)
from apood.pooling.kernels.plan import Piece, Plan
from apood.pooling.kernels.short import short_coefficient_kernel
from apood.pooling.kernels.tuning import ProductBlocks, Tuning

__all__ = ["pool_gradient"]


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
    """The gradient of the queries `[M * T, D]`, float32; summed in an order that depends on shapes alone."""
    dim = values.shape[1]
    count, heads = len(columns.weights), columns.heads
    if len(values) == 0:
        return values.new_zeros((count, dim), dtype=torch.float32)
    half = values.dtype != torch.float32
    slots = tuning.coefficients.bs // plan.chunk if tuning.short else 1
    # a row of sums for each program of a column block
    groups = [triton.cdiv(p.last_item - p.first_item, slots) for p in plan.pieces]
    sums = values.new_empty((sum(groups), count), dtype=torch.float32) if columns.shift is not None else None
    through = values.new_empty((sum(groups), count), dtype=torch.float32) if columns.half is not None else None
    grads = (grads[0].float().contiguous(), grads[1].float().contiguous())
    gradient = values.new_empty((count, dim), dtype=torch.float32)
    blocks = tuning.product
    splits, per_piece = _splits(plan.pieces, count, dim, blocks, values)
    parts = values.new_empty((splits, count, dim), dtype=torch.float32)
    scale = values.new_empty(heads, dtype=torch.float32)
    with on_device(values):
        if half:
            scale_kernel[(triton.cdiv(heads, 16),)](
                *grads, beta, scale, plan.sequences, heads, BN=64, BH=16, num_warps=4
            )
        for number, piece in enumerate(plan.pieces):
            coefficients = _coefficients(
                values, columns, stats, beta, plan, tuning, pooled, grads, scale, piece, sum(groups[:number]),
                present(sums, values), present(through, values),
            )  # fmt: skip
            tokens = values[piece.first_token : piece.last_token]
            scales = present(None if stats.scales is None else stats.scales[piece.first_token :], values)
            g: Any = describe(coefficients, blocks.bk, blocks.bc) if blocks.tma else coefficients
            z: Any = describe(tokens, blocks.bk, blocks.bd) if blocks.tma else tokens
            product_kernel[(splits * _tiles(count, dim, blocks),)](
                g, z, scales, parts, count, len(tokens), per_piece[number], coefficients.stride(0),
                DIM=dim, BC=blocks.bc, BD=blocks.bd, BK=blocks.bk, TMA=blocks.tma, UNIT=stats.scales is not None,
                BRAIN=values.dtype == torch.bfloat16, FIRST=number == 0, STAGES=blocks.stages, num_warps=blocks.warps,
            )  # fmt: skip
        flags = frame_flags(columns, stats)
        del flags["UNIT"]
        finish_kernel[(count,)](
            parts, scale, present(None if sums is None else sums.sum(0), values), present(origin, values),
            present(None if through is None else through.sum(0), values), columns.weights,
            present(columns.size, values), gradient, count,
            DIM=dim, T=count // heads, SPLITS=splits, BD=triton.next_power_of_2(dim), HALF=half, **flags, num_warps=4,
        )  # fmt: skip
    return gradient


def _coefficients(
    values: Tensor, columns: Columns, stats: Stats, beta: Tensor, plan: Plan, tuning: Tuning,
    pooled: tuple[Tensor, Tensor], grads: tuple[Tensor, Tensor], scale: Tensor, piece: Piece, first_group: int,
    sums: Tensor, through: Tensor,
) -> Tensor:  # fmt: skip
    """The coefficients `[tokens, columns]` of a piece."""
    count, heads = len(columns.weights), columns.heads
    blocks = tuning.coefficients
    half = values.dtype != torch.float32
    width = triton.cdiv(count, 8) * 8  # rows that start at multiples of 16 bytes
    tokens = piece.last_token - piece.first_token
    buffer = values.new_empty((tokens, width), dtype=torch.float16 if half else torch.float32)
    coefficients = buffer[:, :count]
    items = plan.items[piece.first_item : piece.last_item]
    constants = (*frame_tensors(columns, stats, values), items, beta, *pooled, *grads, scale)
    flags: dict[str, Any] = {
        "DIM": values.shape[1], "T": count // heads, "BC": blocks.bc, "BK": blocks.bk, "HALF": half,
        "STAGES": blocks.stages, "num_warps": blocks.warps, **frame_flags(columns, stats),
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
    programs = blocks.persistent * multiprocessors(values.device) if plan.even else 0
    out = describe(coefficients, blocks.bs, blocks.bc) if blocks.tma else buffer
    coefficient_kernel[(min(work, programs or work),)](
        *tiles_of(values, columns.weights, blocks), *constants, out, buffer, sums, through, work, count, heads,
        piece.first_token, width, BS=blocks.bs, TAIL=blocks.tail, TMA=blocks.tma, **flags,
    )  # fmt: skip
    return coefficients


def _tiles(count: int, dim: int, blocks: ProductBlocks) -> int:
    return int(triton.cdiv(count, blocks.bc) * triton.cdiv(dim, blocks.bd))


def _splits(
    pieces: tuple[Piece, ...], count: int, dim: int, blocks: ProductBlocks, values: Tensor
) -> tuple[int, list[int]]:
    """Into how many blocks the product is split, and how many tokens of each piece go into one."""
    wanted = blocks.splits or max(1, multiprocessors(values.device) // _tiles(count, dim, blocks))
    tokens = [piece.last_token - piece.first_token for piece in pieces]
    splits = min(wanted, triton.cdiv(max(tokens), blocks.bk))
    return splits, [triton.cdiv(triton.cdiv(n, splits), blocks.bk) * blocks.bk for n in tokens]
