"""Inputs of the benchmarks: random tokens and queries of named shapes, and the matrix product that is the limit."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from apood.tokens.batch import TokenBatch
from benchmarks.timing import Call

__all__ = [
    "BARE",
    "PAPER",
    "Setting",
    "Shape",
    "bare_product",
    "draw_lengths",
    "make_queries",
    "make_tokens",
    "paper_pool",
]  # fmt: skip

BARE, PAPER = "matrix product Z Wᵀ", "the paper's pseudocode"
_AT_ONCE = 2**18  # tokens that are drawn or multiplied at once


class Shape(NamedTuple):
    """N sequences of S tokens in D dimensions, M heads of T queries."""

    n: int
    s: int
    d: int
    m: int
    t: int

    def __str__(self) -> str:
        return " ".join(f"{name.upper()}={size}" for name, size in self._asdict().items())

    @property
    def tokens(self) -> int:
        """The number of tokens of all sequences."""
        return self.n * self.s


@dataclass(frozen=True)
class Setting:
    """The device of a benchmark, and whether the sizes are tiny."""

    device: str
    quick: bool = False

    @property
    def gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device == "cuda"

    @property
    def small(self) -> Shape:
        """The batch to score, as in the paper's performance measurements."""
        return Shape(3, 32, 64, 8, 2) if self.quick else Shape(32, 512, 1024, 256, 4)

    @property
    def large(self) -> Shape:
        """The batch to train on; on a CPU, the batch to score."""
        return self.small._replace(n=6 if self.quick else 512) if self.gpu else self.small

    @property
    def seconds(self) -> float:
        """The time for one set of contenders."""
        if self.quick:
            return 0.05
        return 1.0 if self.gpu else 10.0


def make_tokens(
    shape: Shape, dtype: torch.dtype, device: str, lengths: Sequence[int] | None = None, seed: int = 0
) -> TokenBatch:
    """Return standard normal tokens in sequences of S tokens, or of the given lengths."""
    generator = torch.Generator(device).manual_seed(seed)
    values = torch.empty(shape.tokens, shape.d, dtype=dtype, device=device)
    for part in torch.split(values, _AT_ONCE):
        part.copy_(torch.randn(part.shape, generator=generator, device=device))
    return TokenBatch.from_lengths(values, [shape.s] * shape.n if lengths is None else lengths)


def make_queries(shape: Shape, device: str, seed: int = 1) -> Tensor:
    """Return queries whose similarities with the tokens have a standard deviation of 1."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape.m, shape.t, shape.d, generator=generator, device=device) / math.sqrt(shape.d)


def draw_lengths(total: int, least: int = 16, most: int = 2048) -> list[int]:
    """Return log-normal lengths that sum to `total`."""
    generator = torch.Generator().manual_seed(0)
    lengths, left = [], total
    while left:
        draw = int(torch.randn((), generator=generator).add(5.5).exp().clamp(least, most))
        lengths.append(min(draw, left))
        left -= lengths[-1]
    return lengths


def bare_product(values: Tensor, queries: Tensor) -> Call:
    """Return a call of the matrix product alone, into allocated memory."""
    weights = queries.flatten(0, 1).to(values.dtype).T
    room = torch.empty(min(len(values), _AT_ONCE), weights.shape[1], dtype=values.dtype, device=values.device)

    def run() -> None:
        for part in torch.split(values, _AT_ONCE):
            torch.mm(part, weights, out=room[: len(part)])

    return run


def paper_pool(tokens: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
    """Return h and L by the paper's pseudocode on padded tokens `[N, S, D]`, with all similarities in memory."""
    similarities = torch.einsum("nsd,mtd->nmst", tokens, queries.to(tokens.dtype)).flatten(2)
    return (similarities.softmax(-1) * similarities).sum(-1), similarities.logsumexp(-1)
