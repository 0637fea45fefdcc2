"""Attention pooling against the bare matrix product, its lower limit, and against the paper's pseudocode."""

import torch
from torch import Tensor

from apood.pooling import Frame, attention_pool
from apood.tokens.batch import TokenBatch
from benchmarks.timing import Row, best_times

__all__ = ["rows"]

_N, _S, _D, _M, _T = 32, 512, 1024, 256, 4
_SHAPE = f"N={_N} S={_S} D={_D} M={_M} T={_T}"
_BARE = "matrix product Z Wᵀ, float32"


def _pseudocode(padded: Tensor, queries: Tensor) -> Tensor:
    """Algorithm 4 of the paper: similarities, softmax over tokens and queries, weighted sum."""
    similarities = torch.einsum("nsd,mtd->nmst", padded, queries)
    weights = similarities.flatten(2).softmax(-1).view_as(similarities)
    return (similarities * weights).sum((2, 3))


def rows(device: str) -> list[Row]:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(_N * _S, _D, generator=generator).to(device)
    queries = (torch.randn(_M, _T, _D, generator=generator) / _D**0.5).to(device)
    flat, padded = queries.view(-1, _D), values.view(_N, _S, _D)
    frame = Frame(unit=True, origin=torch.randn(_D, generator=generator).to(device))
    even = TokenBatch.from_lengths(values, [_S] * _N)
    short = TokenBatch.from_lengths(values, [16] * (_N * _S // 16))
    ragged = TokenBatch.from_lengths(values, _ragged_lengths(generator))
    trained = queries.clone().requires_grad_()

    def training_step() -> None:
        trained.grad = None
        pooled = attention_pool(even, trained, 1.0)
        (pooled.value.square().mean() + pooled.log_mass.mean()).backward()  # type: ignore[no-untyped-call]

    contenders = {
        _BARE: lambda: values @ flat.T,
        "the paper's pseudocode": lambda: _pseudocode(padded, queries),
        "pool": lambda: attention_pool(even, queries, 1.0),
        "pool, unit length and centred": lambda: attention_pool(even, queries, 1.0, "dot", frame),
        "pool, euclidean": lambda: attention_pool(even, queries, 1.0, "euclidean"),
        "pool, 1024 sequences of 16 tokens": lambda: attention_pool(short, queries, 1.0),
        "pool, log-normal lengths 16 to 2048": lambda: attention_pool(ragged, queries, 1.0),
        "pool and gradient of the queries": training_step,
    }
    best = best_times(contenders)
    bare = best.pop(_BARE)
    return [Row(name, _SHAPE, _BARE, bare, seconds) for name, seconds in best.items()]


def _ragged_lengths(generator: torch.Generator) -> list[int]:
    """Log-normal lengths from 16 to 2048 that use up all tokens."""
    lengths, left = [], _N * _S
    while left:
        draw = int(torch.randn((), generator=generator).mul(1.0).add(5.5).exp().clamp(16, 2048))
        lengths.append(min(draw, left))
        left -= lengths[-1]
    return lengths
