"""What the launchers of all kernels share: arguments, the choice of blocks, and work lists."""

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
    "count_multiprocessors",
    "describe",
    "flag_constants",
    "get_pointer",
    "get_shared_memory",
    "list_constants",
    "make_plan",
    "make_tiles",
    "tune",
    "use_device_of",
]

_PIECE_BYTES = 2**29  # of the coefficients [tokens, M * T] that the backward pass holds at one time


@dataclass(frozen=True, eq=False)
class Columns:
    """The queries as the kernels need them: one column for each of the M * T queries.

    Attributes:
        weights: the queries `[M * T, D]` in the dtype of the tokens.
        heads: M.
        shift: o·w `[M * T]`, or None without an origin.
        half: |w|²/2 `[M * T]`, or None for the dot similarity.
        size: a power of two by which the weights were divided, since float16 has a narrow range, or None.
    """

    weights: Tensor
    heads: int
    shift: Tensor | None
    half: Tensor | None
    size: Tensor | None


@dataclass(frozen=True, eq=False)
class Stats:
    """Two numbers per token, where the preprocessing and the similarity need them.

    Attributes:
        scales: 1 / |z| `[total]`, or None.
        halves: |z'|²/2 of the preprocessed tokens `[total]`, or None.
    """

    scales: Tensor | None
    halves: Tensor | None


def tune(values: Tensor, columns: int, sequences: int, captured: bool = False) -> Tuning:
    """Return the choice of blocks for the tokens `values` of that many sequences."""
    total, dim = values.shape
    described = dim * values.element_size() % 16 == 0 and values.data_ptr() % 16 == 0 and _copies_tensors(values.device)
    return choose_tuning(
        values.dtype, total, dim, columns, sequences, captured=captured, described=described,
        multiprocessors=count_multiprocessors(values.device), shared_memory=get_shared_memory(values.device),
    )  # fmt: skip


def make_plan(offsets: Tensor, values: Tensor, columns: int, tuning: Tuning) -> Plan:
    """Return the work lists of a batch; `offsets` lie on the CPU."""
    chunk = tuning.chunk
    if tuning.short:
        longest = int(offsets.diff().max()) if len(offsets) > 1 else 1
        chunk = min(chunk, triton.next_power_of_2(max(longest, 1)))
    piece = max(chunk, _PIECE_BYTES // (max(columns, 8) * values.element_size()))
    return cut_into_items(offsets, values.device, chunk, piece, not tuning.short)


def list_constants(columns: Columns, stats: Stats, values: Tensor) -> tuple[Tensor, ...]:
    """Return the constants of tokens and columns in the order of the arguments of the kernels."""
    own = (stats.scales, stats.halves, columns.shift, columns.half, columns.size)
    return tuple(get_pointer(tensor, values) for tensor in own)


def flag_constants(columns: Columns, stats: Stats) -> dict[str, bool]:
    """Return which of these constants the kernels have to apply."""
    return {
        "UNIT": stats.scales is not None,
        "SHIFTED": columns.shift is not None,
        "EUCLIDEAN": columns.half is not None,
        "SIZED": columns.size is not None,
    }


def make_tiles(values: Tensor, weights: Tensor, blocks: Blocks) -> tuple[Any, Any, Any]:
    """Return tokens, queries, and tokens for the small last tile: as descriptors or as the tensors themselves."""
    if not blocks.tma:
        return values, weights, values
    z, w = describe(values, blocks.bs, blocks.bk), describe(weights, blocks.bc, blocks.bk)
    return z, w, describe(values, blocks.tail, blocks.bk) if blocks.tail < blocks.bs else z


def describe(tensor: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """Return a description of the tensor for the copy engine of the GPU, in tiles of `rows` x `columns`."""
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), [rows, columns])


def get_pointer(tensor: Tensor | None, otherwise: Tensor) -> Tensor:
    """Return `tensor`, or another tensor if it is None: an argument that a kernel does not read must be a pointer."""
    return otherwise if tensor is None else tensor


def use_device_of(tensor: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which Triton, which launches on the current device, launches on that of the tensor."""
    if not tensor.is_cuda or tensor.device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(tensor.device)


@cache
def count_multiprocessors(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU; the interpreter has a few."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


@cache
def get_shared_memory(device: torch.device) -> int:
    """Return the bytes of shared memory that a block of threads may ask for; the interpreter has as many as an H200."""
    if device.type != "cuda":
        return H200_SHARED_MEMORY
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block))


@cache
def _copies_tensors(device: torch.device) -> bool:
    """Whether the device has an engine that copies tiles of tensors (Hopper or later)."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device)[0] >= 9
