"""What all launches share: their arguments, the choice of blocks and the work lists."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from apood.pooling.kernels.plan import Plan, cut_into_items
from apood.pooling.kernels.tuning import H200_SHARED_MEMORY, Blocks, Tuning, choose_tuning

__all__ = [
    "Columns",
    "Stats",
    "constant_flags",
    "constant_tensors",
    "describe",
    "make_plan",
    "multiprocessors",
    "on_device",
    "present",
    "shared_memory",
    "tiles_of",
    "tune",
]

_PIECE_BYTES = 2**29  # of the coefficients [tokens, M * T] that the backward pass holds at a time


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
    """Of each token 1 / |z| and |z'|²/2, where the preprocessing and the similarity ask for them."""

    scales: Tensor | None
    halves: Tensor | None


def tune(values: Tensor, columns: int, sequences: int, captured: bool = False) -> Tuning:
    """The choices for tokens `values` of so many sequences."""
    total, dim = values.shape
    described = dim * values.element_size() % 16 == 0 and values.data_ptr() % 16 == 0 and _copies_tensors(values.device)
    return choose_tuning(
        values.dtype, total, dim, columns, sequences, captured=captured, described=described,
        multiprocessors=multiprocessors(values.device), shared_memory=shared_memory(values.device),
    )  # fmt: skip


def make_plan(offsets: Tensor, values: Tensor, columns: int, tuning: Tuning) -> Plan:
    """The work lists of a batch; `offsets` on the CPU."""
    chunk = tuning.chunk
    if tuning.short:
        longest = int(offsets.diff().max()) if len(offsets) > 1 else 1
        chunk = min(chunk, triton.next_power_of_2(max(longest, 1)))
    piece = max(chunk, _PIECE_BYTES // (max(columns, 8) * values.element_size()))
    return cut_into_items(offsets, values.device, chunk, piece, not tuning.short)


def constant_tensors(columns: Columns, stats: Stats, values: Tensor) -> tuple[Tensor, ...]:
    """Of tokens and columns all that the kernels may have to take into account, in the order of their arguments."""
    own = (stats.scales, stats.halves, columns.shift, columns.half, columns.size)
    return tuple(present(tensor, values) for tensor in own)


def constant_flags(columns: Columns, stats: Stats) -> dict[str, bool]:
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
def shared_memory(device: torch.device) -> int:
    """Return the bytes of shared memory that a block of threads may ask for; the interpreter has as many as an H200."""
    if device.type != "cuda":
        return H200_SHARED_MEMORY
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block))


@cache
def _copies_tensors(device: torch.device) -> bool:
    """Whether the device has an engine that copies tiles of tensors: Hopper or later."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device)[0] >= 9
