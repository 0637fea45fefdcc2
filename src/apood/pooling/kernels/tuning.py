"""The choice of blocks for a shape: as measured on an H200, with rules for other shapes and smaller GPUs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

__all__ = [
    "H200_SHARED_MEMORY",
    "Blocks",
    "ProductBlocks",
    "Tuning",
    "choose_tuning",
    "force_tuning",
    "shrink_to_fit",
]


@dataclass(frozen=True)
class Blocks:
    """The blocks of the pool and the coefficient kernels.

    Attributes:
        bc: columns of a tile.
        bs: tokens of a tile.
        tail: tokens of the small last tile.
        bk: depth of a product.
        warps: of a program.
        stages: of the pipeline that reads ahead.
        persistent: programs per multiprocessor if all items are alike; 0 launches one program per tile.
        tma: whether tiles are read through tensor descriptors.
    """

    bc: int
    bs: int
    tail: int
    bk: int
    warps: int
    stages: int
    persistent: int = 0
    tma: bool = True


@dataclass(frozen=True)
class ProductBlocks:
    """The blocks of the product of coefficients and tokens.

    Attributes:
        bc: columns of a tile.
        bd: dimensions of a tile.
        bk: tokens that a product adds at one time.
        warps: of a program.
        stages: of the pipeline that reads ahead.
        splits: over tokens; 0 fills the GPU.
        tma: whether tiles are read through tensor descriptors.
    """

    bc: int
    bd: int
    bk: int
    warps: int
    stages: int
    splits: int = 0
    tma: bool = True


@dataclass(frozen=True)
class Tuning:
    """All choices for one call.

    Attributes:
        forward: blocks of the pool kernel.
        coefficients: blocks of the coefficient kernel.
        product: blocks of the product kernel.
        chunk: the largest number of tokens of an item.
        short: whether a tile holds several items, each in a slot of `chunk` tokens.
    """

    forward: Blocks
    coefficients: Blocks
    product: ProductBlocks
    chunk: int
    short: bool = False


_HALF = Tuning(
    forward=Blocks(128, 128, 32, 64, 4, 3, persistent=2),
    coefficients=Blocks(128, 128, 64, 64, 4, 3),
    product=ProductBlocks(256, 128, 64, 8, 3),
    chunk=1024,
)
_HALF_SMALL = Tuning(
    forward=Blocks(64, 64, 16, 128, 4, 3),
    coefficients=Blocks(64, 64, 16, 128, 4, 3),
    product=ProductBlocks(64, 64, 64, 4, 3),
    chunk=64,
)
_HALF_SHORT = Tuning(
    forward=Blocks(64, 128, 128, 64, 4, 3, tma=False),
    coefficients=Blocks(64, 128, 128, 64, 4, 3, tma=False),
    product=ProductBlocks(256, 128, 64, 8, 3),
    chunk=16,
    short=True,
)
_FLOAT = Tuning(
    forward=Blocks(64, 128, 32, 32, 4, 3),
    coefficients=Blocks(64, 128, 32, 32, 4, 3),
    product=ProductBlocks(64, 128, 32, 4, 3),
    chunk=1024,
)
_FLOAT_SHORT = replace(
    _FLOAT,
    forward=Blocks(64, 128, 128, 32, 8, 2, tma=False),
    coefficients=Blocks(64, 128, 128, 32, 8, 2, tma=False),
    chunk=16,
    short=True,
)

# Tokens that no copy engine can read (D odd, or an older GPU) go through masked loads, which need registers.
_PLAIN = Blocks(64, 128, 32, 32, 8, 3, tma=False)
_PLAIN_PRODUCT = ProductBlocks(64, 128, 32, 8, 3, tma=False)

H200_SHARED_MEMORY = 232_448  # bytes that a block of threads may ask for on the GPU that all of this was measured on
_SCRATCH = 2**13  # bytes of shared memory for reductions
_LEAST = 32  # columns, tokens, dimensions of a tile at least; tensor cores need 16
_SHORT = 48  # mean tokens per sequence below which several sequences share a tile
_LAUNCH = 2.6e10  # multiplications that take as long as Python needs to describe tensors to the copy engine

_forced: list[Tuning] = []


@contextmanager
def force_tuning(tuning: Tuning) -> Iterator[None]:
    """Use these choices for every shape: for tests and measurements."""
    _forced.append(tuning)
    try:
        yield
    finally:
        _forced.pop()


def choose_tuning(
    dtype: torch.dtype,
    tokens: int,
    dim: int,
    columns: int,
    sequences: int,
    *,
    captured: bool = False,
    described: bool = True,
    multiprocessors: int = 132,
    shared_memory: int = H200_SHARED_MEMORY,
) -> Tuning:
    """Return the choices for a shape.

    Args:
        dtype: of the tokens.
        tokens: of the batch.
        dim: of a token.
        columns: M * T.
        sequences: of the batch.
        captured: whether the launches go into a graph and cost no time in Python.
        described: whether the copy engine can read the tokens.
        multiprocessors: of the device.
        shared_memory: bytes that a block of threads may have on the device. Where the blocks of the H200 need more,
            they shrink.
    """
    if _forced:
        return shrink_to_fit(_forced[-1] if described else _avoid_descriptors(_forced[-1]), dtype, shared_memory)
    from_python = not captured and tokens * columns * dim < _LAUNCH
    return _choose(dtype, tokens, columns, sequences, from_python, described, multiprocessors, shared_memory)


@lru_cache(maxsize=256)  # for small batches the launch is what takes time
def _choose(
    dtype: torch.dtype,
    tokens: int,
    columns: int,
    sequences: int,
    from_python: bool,
    described: bool,
    multiprocessors: int,
    shared_memory: int,
) -> Tuning:
    tuning = _choose_by_shape(dtype, tokens, columns, sequences, multiprocessors)
    if from_python:  # a descriptor costs more than it saves
        forward = replace(tuning.forward, tma=False, tail=tuning.forward.bs, persistent=0)
        tuning = replace(tuning, forward=forward)
    return shrink_to_fit(tuning if described else _avoid_descriptors(tuning), dtype, shared_memory)


def _choose_by_shape(dtype: torch.dtype, tokens: int, columns: int, sequences: int, multiprocessors: int) -> Tuning:
    half = dtype != torch.float32
    small = tokens * columns < 2 * multiprocessors * 128 * 256
    if tokens < _SHORT * sequences and not small:
        return _HALF_SHORT if half else _FLOAT_SHORT
    if small:
        return _HALF_SMALL if half else replace(_FLOAT, chunk=128)
    tuning = _HALF if half else _FLOAT
    # Items are long enough that rows seldom need merging, and there are enough of them to fill the GPU.
    chunk = tuning.chunk
    while chunk > tuning.forward.bs and tokens * columns < 1.8 * multiprocessors * chunk * tuning.forward.bc:
        chunk //= 2
    return replace(tuning, chunk=chunk)


def _avoid_descriptors(tuning: Tuning) -> Tuning:
    """Return choices for tokens that the copy engine cannot read."""
    if not tuning.short:
        tuning = replace(tuning, forward=_PLAIN, coefficients=_PLAIN)
    return replace(tuning, product=_PLAIN_PRODUCT)


def shrink_to_fit(tuning: Tuning, dtype: torch.dtype, shared_memory: int) -> Tuning:
    """Return `tuning` with smaller blocks where a kernel would need more than `shared_memory` bytes."""
    forward, coefficients, product = tuning.forward, tuning.coefficients, tuning.product
    while _estimate_pool(forward, dtype) > shared_memory and (smaller := _shrink(forward)):
        forward = smaller
    while _estimate_coefficients(coefficients, dtype) > shared_memory and (smaller := _shrink(coefficients)):
        coefficients = smaller
    while _estimate_product(product, dtype) > shared_memory and (less := _shrink_product(product)):
        product = less
    return replace(tuning, forward=forward, coefficients=coefficients, product=product)


def _estimate_pool(blocks: Blocks, dtype: torch.dtype) -> int:
    """Return the bytes of shared memory of the tiles of queries and tokens that are read ahead, and of reductions."""
    return blocks.stages * (blocks.bc + blocks.bs) * blocks.bk * dtype.itemsize + _SCRATCH


def _estimate_coefficients(blocks: Blocks, dtype: torch.dtype) -> int:
    """Return the same with the tile of coefficients on its way out."""
    return _estimate_pool(blocks, dtype) + blocks.bc * blocks.bs * dtype.itemsize


def _estimate_product(blocks: ProductBlocks, dtype: torch.dtype) -> int:
    """Return the bytes of the tiles that are read ahead or, afterwards, of the float32 tile of the result."""
    ahead = blocks.stages * (blocks.bc + blocks.bd) * blocks.bk * dtype.itemsize
    return max(ahead, blocks.bc * blocks.bd * 4) + _SCRATCH


def _shrink(blocks: Blocks) -> Blocks | None:
    """Return blocks that need less, or None: fewer stages cost the least time, then shallower tiles, then smaller."""
    if blocks.stages > 2:
        return replace(blocks, stages=blocks.stages - 1)
    if blocks.bk > _LEAST:
        return replace(blocks, bk=blocks.bk // 2)
    if max(blocks.bc, blocks.bs) <= _LEAST:
        return None
    if blocks.bc > blocks.bs:
        return replace(blocks, bc=blocks.bc // 2)
    return replace(blocks, bs=blocks.bs // 2, tail=min(blocks.tail, blocks.bs // 2))


def _shrink_product(blocks: ProductBlocks) -> ProductBlocks | None:
    """Return the same for the product."""
    if blocks.stages > 2:
        return replace(blocks, stages=blocks.stages - 1)
    if blocks.bk > _LEAST:
        return replace(blocks, bk=blocks.bk // 2)
    if max(blocks.bc, blocks.bd) <= _LEAST:
        return None
    return replace(blocks, bc=blocks.bc // 2) if blocks.bc > blocks.bd else replace(blocks, bd=blocks.bd // 2)
