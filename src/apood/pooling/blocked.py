"""Attention pooling block by block: exact, on any device, and never holding S x M x T numbers.

The forward pass keeps only `(h, L)`. The backward pass recomputes each block and uses
dh/da = p (1 + β (a - h)) and dL/da = β p, with p = exp(l - L), so a long sequence needs no more
memory than a short one. The euclidean logits depend on the queries a second time, through
|w|²/2, which adds -β w_t Σ_s p (a - h) to dh/dw_t and -β w_t Σ_s p to dL/dw_t.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from apood.pooling.algebra import Pooled, merge
from apood.pooling.blocks import Block, cut_into_blocks
from apood.pooling.frame import Frame
from apood.tokens.batch import TokenBatch

__all__ = ["attention_pool_blocked"]

# Similarities of one block: 2 MB of float32 stay in the cache of one CPU core complex; a GPU wants large launches.
_BLOCK_ELEMENTS = {"cpu": 2**19, "cuda": 2**27}
_BLOCK_TOKENS = {"cpu": 2048, "cuda": 2**17}
_PADDING = {"cpu": 0.125, "cuda": 1.0}  # a GPU loses less to padding than to many small launches
_CHUNK_QUERIES = 2048  # queries (M * T) handled at once when there are very many


class _Blocks:
    """What the forward and the backward pass share: reading a block and its similarities."""

    def __init__(self, tokens: TokenBatch, queries: Tensor, beta: float, similarity: str, frame: Frame) -> None:
        self.tokens, self.queries, self.beta, self.frame = tokens, queries, beta, frame
        self.euclidean = similarity == "euclidean"
        kind = "cpu" if queries.device.type == "cpu" else "cuda"
        heads, per_head, _ = queries.shape
        self.chunk = max(1, min(heads, _CHUNK_QUERIES // per_head))
        size = _BLOCK_ELEMENTS[kind] // (self.chunk * per_head)
        self.block_tokens = max(16, min(size, _BLOCK_TOKENS[kind]))
        self.padding = _PADDING[kind]

    def __iter__(self) -> Iterator[Block]:
        return cut_into_blocks(self.tokens.offsets, self.block_tokens, self.padding)

    def read(self, block: Block) -> tuple[Tensor, Tensor | None]:
        """Tokens `[pieces * S, D]` in the frame, and the padding `[pieces, S]` if there is any."""
        rows, padding = block.token_rows()
        device = self.queries.device
        values = self.tokens.values
        picked = values[rows] if isinstance(rows, slice) else values.index_select(0, rows.to(values.device))
        z = self.frame.apply(picked.to(device=device, dtype=self.queries.dtype))
        return z, None if padding is None else padding.to(device)

    def heads(self) -> list[slice]:
        """Ranges of heads handled at once."""
        return [slice(i, i + self.chunk) for i in range(0, len(self.queries), self.chunk)]

    def similarities(self, z: Tensor, queries: Tensor, padding: Tensor | None, pieces: int) -> tuple[Tensor, Tensor]:
        """Similarities and logits, `[pieces * heads, T * S]`: contiguous rows over which the softmax runs."""
        heads, per_head, dim = queries.shape
        a = queries.reshape(-1, dim) @ z.T
        logits = a - z.square().sum(1) / 2 - queries.square().sum(-1).reshape(-1, 1) / 2 if self.euclidean else a
        logits = logits * self.beta
        if pieces > 1:  # [heads, T, pieces, S] -> [pieces, heads, T, S]
            a, logits = (x.view(heads, per_head, pieces, -1).permute(2, 0, 1, 3) for x in (a, logits))
            if padding is not None:
                logits = logits.masked_fill(padding[:, None, None, :], -torch.inf)
        shape = (pieces * heads, -1)
        return a.reshape(shape), logits.reshape(shape)


def _pool(blocks: _Blocks) -> Pooled:
    queries = blocks.queries
    shape = (len(blocks.tokens), len(queries))
    value, log_mass = queries.new_zeros(shape), queries.new_full(shape, -torch.inf)
    for block in blocks:
        z, padding = blocks.read(block)
        pieces = len(block.sequences)
        rows = block.sequences.to(queries.device)
        for heads in blocks.heads():
            a, logits = blocks.similarities(z, queries[heads], padding, pieces)
            p = torch.softmax(logits, 1)
            # the largest weight is exp(largest logit - L): a log-sum-exp for the price of two maxima
            mass = logits.amax(1) - p.amax(1).log()
            piece = Pooled(torch.linalg.vecdot(p, a).view(pieces, -1), mass.view(pieces, -1))
            if pieces == 1:  # perhaps not the first piece of a long sequence
                piece = merge(Pooled(value[rows, heads], log_mass[rows, heads]), piece)
            value[rows, heads], log_mass[rows, heads] = piece
    return Pooled(value, log_mass)


def _query_gradient(blocks: _Blocks, pooled: Pooled, grad: Pooled) -> Tensor:
    queries, beta = blocks.queries, blocks.beta
    gradient = torch.zeros_like(queries)
    for block in blocks:
        z, padding = blocks.read(block)
        pieces = len(block.sequences)
        rows = block.sequences.to(queries.device)
        for heads in blocks.heads():
            per_head, dim = queries.shape[1:]
            a, logits = blocks.similarities(z, queries[heads], padding, pieces)
            h, mass, grad_h, grad_mass = (
                x[rows, heads].reshape(-1, 1) for x in (pooled.value, pooled.log_mass, grad.value, grad.log_mass)
            )
            p = logits.sub_(mass).exp_()
            # dh/da and dL/da together, p (u a + v): u and v are one number a row, and a is not needed afterwards
            u, v = beta * grad_h, grad_h * (1 - beta * h) + beta * grad_mass
            c = a.mul_(u).add_(v).mul_(p)
            shape = (pieces, -1, per_head, len(z) // pieces)
            columns = c.view(shape).permute(1, 2, 0, 3).reshape(-1, len(z))
            gradient[heads] += (columns @ z).view(-1, per_head, dim)
            if blocks.euclidean:  # the share of c that goes through the logits, c - grad_h p, also moves |w|²/2
                through_logits = (c - grad_h * p).view(shape).sum((0, 3))
                gradient[heads] -= queries[heads] * through_logits[..., None]
    return gradient


class _AttentionPool(torch.autograd.Function):
    """(h, L) with gradients for the queries alone; the encoder is frozen."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, tokens: TokenBatch, beta: float, similarity: str, frame: Frame) -> Any:
        pooled = _pool(_Blocks(tokens, queries, beta, similarity, frame))
        ctx.save_for_backward(queries, *pooled)
        ctx.rest = (tokens, beta, similarity, frame)
        return tuple(pooled)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        queries, value, log_mass = ctx.saved_tensors
        tokens, beta, similarity, frame = ctx.rest
        blocks = _Blocks(tokens, queries, beta, similarity, frame)
        return _query_gradient(blocks, Pooled(value, log_mass), Pooled(*grads)), None, None, None, None


def attention_pool_blocked(tokens: TokenBatch, queries: Tensor, beta: float, similarity: str, frame: Frame) -> Pooled:
    """`attention_pool` in float64 for float64 tokens, else in float32."""
    compute = torch.float64 if tokens.dtype == torch.float64 else torch.float32
    pooled = _AttentionPool.apply(queries.to(compute), tokens, beta, similarity, frame)  # type: ignore[no-untyped-call]
    return Pooled(*pooled)
