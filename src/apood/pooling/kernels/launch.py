"""Launches the forward kernels on tensors: no checks, no autograd, no synchronisation with the host."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from apood.pooling.kernels.forward import merge_kernel, pool_kernel
from apood.pooling.kernels.plan import Plan, plan_of
from apood.pooling.kernels.short import short_pool_kernel
from apood.pooling.kernels.stats import stats_kernel
from apood.pooling.kernels.tuning import Blocks, Tuning, choose_tuning
from apood.pooling.rounding import in_dtype

__all__ = [
    "Columns",
    "Stats",
    "columns_of",
    "describe",
    "frame_flags",
    "frame_tensors",
    "multiprocessors",
    "on_device",
    "plan_batch",
    "pool_forward",
    "present",
    "tiles_of",
    "token_stats",
    "tune",
]

_PIECE_BYTES = 2**29  # of the coefficients [tokens, M * T] that the backward pass holds at a time
_MERGED_IN_PLACE = 64  # queries of a head at most whose pools one program merges


@dataclass(frozen=True, eq=False)
class Columns:
    """The queries as the kernels want them: `weights [M * T, D]` in the dtype of the tokens, o·w and |w|²/2.

    `size` is what the weights still have to be multiplied with, a power of two: float16 has a narrow range.
    """

    weights: Tensor
    heads: int
    shift: Tensor | None
    half: Tensor | None
    size: Tensor | None


@dataclass(frozen=True, eq=False)
class Stats:
    """Of each token 1 / |z| and |z'|²/2, where the frame and the similarity ask for them."""

    scales: Tensor | None
    halves: Tensor | None


def columns_of(queries: Tensor, dtype: torch.dtype, origin: Tensor | None, euclidean: bool) -> Columns:
    """`queries [M, T, D]` rounded to `dtype`, with the constants of each column from the rounded values."""
    weights, size = in_dtype(queries.detach().reshape(-1, queries.shape[2]), dtype)
    weights = weights.contiguous()
    if origin is None and not euclidean:
        return Columns(weights, len(queries), None, None, size)
    seen = weights.float() if size is None else weights.float() * size
    # not a matrix product: those may round to tf32
    shift = None if origin is None else (seen * origin).sum(1)
    half = seen.square().sum(1) / 2 if euclidean else None
    return Columns(weights, len(queries), shift, half, size)


def token_stats(values: Tensor, unit: bool, origin: Tensor | None, euclidean: bool) -> Stats:
    """One pass over the tokens, and none where nothing is needed."""
    total, dim = values.shape
    scales = values.new_empty(total, dtype=torch.float32) if unit else None
    halves = values.new_empty(total, dtype=torch.float32) if euclidean else None
    if total and (unit or euclidean):
        bs, bk = 4, min(1024, triton.next_power_of_2(dim))
        with on_device(values):
            stats_kernel[(triton.cdiv(total, bs),)](
                values, present(origin, values), present(scales, values), present(halves, values), total,
                DIM=dim, BS=bs, BK=bk, UNIT=unit, SHIFTED=origin is not None, HALVES=euclidean, num_warps=4,
            )  # fmt: skip
    return Stats(scales, halves)


def tune(values: Tensor, columns: int, sequences: int, captured: bool = False) -> Tuning:
    """The choices for tokens `values` of so many sequences."""
    total, dim = values.shape
    described = dim * values.element_size() % 16 == 0 and values.data_ptr() % 16 == 0 and _copies_tensors(values.device)
    return choose_tuning(
        values.dtype, total, dim, columns, sequences, captured=captured, described=described,
        multiprocessors=multiprocessors(values.device),
    )  # fmt: skip


def plan_batch(offsets: Tensor, values: Tensor, columns: int, tuning: Tuning) -> Plan:
    """The work lists of a batch; `offsets` on the CPU."""
    chunk = tuning.chunk
    if tuning.short:
        longest = int(offsets.diff().max()) if len(offsets) > 1 else 1
        chunk = min(chunk, triton.next_power_of_2(max(longest, 1)))
    piece = max(chunk, _PIECE_BYTES // (max(columns, 8) * values.element_size()))
    return plan_of(offsets, values.device, chunk, piece, not tuning.short)


def pool_forward(
    values: Tensor, columns: Columns, stats: Stats, beta: Tensor, plan: Plan, tuning: Tuning
) -> tuple[Tensor, Tensor]:
    """(h, L), both `[sequences, M]` in float32."""
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
    constants = (*frame_tensors(columns, stats, values), plan.items, beta, value, mass)
    with on_device(values):
        if tuning.short:
            slots = blocks.bs // plan.chunk
            grid = triton.cdiv(rows, slots) * triton.cdiv(count, blocks.bc)
            short_pool_kernel[(grid,)](
                values, columns.weights, *constants, rows, count,
                DIM=values.shape[1], GROUP=group, BC=blocks.bc, SLOTS=slots, SLOT=plan.chunk, BK=blocks.bk,
                **frame_flags(columns, stats), STAGES=blocks.stages, num_warps=blocks.warps,
            )  # fmt: skip
        else:
            work = rows * triton.cdiv(count, blocks.bc)
            programs = blocks.persistent * multiprocessors(values.device) if plan.even else 0
            pool_kernel[(min(work, programs or work),)](
                *tiles_of(values, columns.weights, blocks), *constants, work, count,
                DIM=values.shape[1], GROUP=group, BC=blocks.bc, BS=blocks.bs, TAIL=blocks.tail, BK=blocks.bk,
                TMA=blocks.tma, **frame_flags(columns, stats), STAGES=blocks.stages, num_warps=blocks.warps,
            )  # fmt: skip
        if rows == plan.sequences and group == per_head:
            return value, mass
        return _merged(value, mass, plan, heads, per_head // group)


def _merged(value: Tensor, mass: Tensor, plan: Plan, heads: int, groups: int) -> tuple[Tensor, Tensor]:
    """The pools of sequences and heads from rows `[items, heads * groups]`."""
    out = tuple(value.new_empty((plan.sequences, heads)) for _ in range(2))
    bh = min(256 if groups == 1 else 64, max(16, triton.next_power_of_2(heads)))
    merge_kernel[(plan.sequences, triton.cdiv(heads, bh))](
        value, mass, plan.first, *out, heads, GROUPS=groups, BH=bh, BE=8 if groups == 1 else 32, num_warps=4
    )
    return out[0], out[1]


def frame_tensors(columns: Columns, stats: Stats, values: Tensor) -> tuple[Tensor, ...]:
    """Of tokens and columns all that the kernels may have to take into account, in the order of their arguments."""
    own = (stats.scales, stats.halves, columns.shift, columns.half, columns.size)
    return tuple(present(tensor, values) for tensor in own)


def frame_flags(columns: Columns, stats: Stats) -> dict[str, bool]:
    """Which of these they do have to."""
    return {
        "UNIT": stats.scales is not None,
        "SHIFTED": columns.shift is not None,
        "EUCLIDEAN": columns.half is not None,
        "SIZED": columns.size is not None,
    }


def tiles_of(values: Tensor, weights: Tensor, blocks: Blocks) -> tuple[Any, Any, Any]:
    """Tokens, queries, and tokens for the small last tile: descriptors or the tensors themselves."""
    if not blocks.tma:
        return values, weights, values
    z, w = describe(values, blocks.bs, blocks.bk), describe(weights, blocks.bc, blocks.bk)
    return z, w, describe(values, blocks.tail, blocks.bk) if blocks.tail < blocks.bs else z


def describe(tensor: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """The tensor for the copy engine, in tiles of `rows` x `columns`."""
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), [rows, columns])


def present(tensor: Tensor | None, otherwise: Tensor) -> Tensor:
    """An argument that the kernel does not read still has to be a pointer."""
    return otherwise if tensor is None else tensor


def on_device(tensor: Tensor) -> AbstractContextManager[Any]:
    """Triton launches on the current device."""
    if not tensor.is_cuda or tensor.device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(tensor.device)


@cache
def multiprocessors(device: torch.device) -> int:
    """Of a GPU; the interpreter has a few."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


@cache
def _copies_tensors(device: torch.device) -> bool:
    """Whether the device has an engine that copies tiles of tensors: Hopper or later."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device)[0] >= 9
