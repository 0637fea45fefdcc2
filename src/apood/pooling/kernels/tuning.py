"""Which blocks the kernels use for which shape, as measured on an H200, and rules for the rest."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

__all__ = ["Blocks", "ProductBlocks", "Tuning", "choose_tuning", "forced"]


@dataclass(frozen=True)
class Blocks:
    """Of the pool and the coefficient kernels: BC columns x BS tokens a tile, TAIL tokens of the last one, BK deep."""

    bc: int
    bs: int
    tail: int
    bk: int
    warps: int
    stages: int
    persistent: int = 0  # programs a multiprocessor if all items are alike; 0 always launches one for each tile
    tma: bool = True


@dataclass(frozen=True)
class ProductBlocks:
    """Of the product of coefficients and tokens: BC columns x BD dimensions a tile, BK tokens deep."""

    bc: int
    bd: int
    bk: int
    warps: int
    stages: int
    splits: int = 0  # over tokens; 0 fills the machine
    tma: bool = True


@dataclass(frozen=True)
class Tuning:
    """All choices for one call."""

    forward: Blocks
    coefficients: Blocks
    product: ProductBlocks
    chunk: int  # tokens of an item
    short: bool = False  # a tile holds several items, each in a slot of `chunk` tokens


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

# tokens that no copy engine can read (D odd, or an older GPU) go through masked loads, which need registers
_PLAIN = Blocks(64, 128, 32, 32, 8, 3, tma=False)
_PLAIN_PRODUCT = ProductBlocks(64, 128, 32, 8, 3, tma=False)

_SHORT = 48  # mean tokens of a sequence below which several share a tile
_LAUNCH = 2.6e10  # multiplications that take as long as it takes Python to describe tensors to the copy engine

_forced: list[Tuning] = []


@contextmanager
def forced(tuning: Tuning) -> Iterator[None]:
    """Takes these choices whatever the shape: for tests and measurements."""
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
) -> Tuning:
    """The choices for a shape.

    Args:
        dtype: of the tokens.
        tokens: of the batch.
        dim: of a token.
        columns: M * T.
        sequences: of the batch.
        captured: whether the launches go into a graph and cost Python nothing.
        described: whether the copy engine can read the tokens.
        multiprocessors: of the device.
    """
    if _forced:
        tuning = _forced[-1]
    else:
        from_python = not captured and tokens * columns * dim < _LAUNCH
        tuning = _by_shape(dtype, tokens, columns, sequences, multiprocessors, from_python)
    if described:
        return tuning
    if not tuning.short:
        tuning = replace(tuning, forward=_PLAIN, coefficients=_PLAIN)
    return replace(tuning, product=_PLAIN_PRODUCT)


@lru_cache(maxsize=256)  # of small batches the launch is what takes time
def _by_shape(
    dtype: torch.dtype, tokens: int, columns: int, sequences: int, multiprocessors: int, from_python: bool
) -> Tuning:
    if from_python:
        return _undescribed(_by_shape(dtype, tokens, columns, sequences, multiprocessors, False))
    half = dtype != torch.float32
    small = tokens * columns < 2 * multiprocessors * 128 * 256
    if tokens < _SHORT * sequences and not small:
        return _HALF_SHORT if half else _FLOAT_SHORT
    if small:
        return _HALF_SMALL if half else replace(_FLOAT, chunk=128)
    tuning = _HALF if half else _FLOAT
    # items long enough that rows seldom need merging, and enough of them to fill the machine
    chunk = tuning.chunk
    while chunk > tuning.forward.bs and tokens * columns < 1.8 * multiprocessors * chunk * tuning.forward.bc:
        chunk //= 2
    return replace(tuning, chunk=chunk)


def _undescribed(tuning: Tuning) -> Tuning:
    """The same without tensor descriptors."""
    forward = replace(tuning.forward, tma=False, tail=tuning.forward.bs, persistent=0)
    return replace(tuning, forward=forward)
