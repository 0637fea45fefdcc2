"""Attention pooling block by block: exact, on any device, and without all S x M x T numbers at once.

A block of tokens is multiplied with all queries; each query then pools each sequence of the block by
itself, and the T pools of a head are merged, as are the pieces of a long sequence.

The backward pass uses dh/da = p (1 + β (a - h)) and dL/da = β p, with p = exp(l - L). It computes the
similarities of a block again, except for those of the first blocks, which the forward pass has kept.
The euclidean logits depend on the queries a second time, through |w|²/2, which adds
-β w_t Σ_s p (a - h) to dh/dw_t and -β w_t Σ_s p to dL/dw_t.

Products are made in float32 here even where tokens are bfloat16 and a CPU multiplies these natively: rounding
the queries costs up to 1e-2 of h on real embeddings, and rounding the similarities as much again.
"""

import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from apood.pooling.algebra import Pooled, merge
from apood.pooling.blocks import VECTOR, Block, Rectangle, cut_into_blocks, rows_of
from apood.pooling.frame import Frame
from apood.tokens.batch import TokenBatch

__all__ = ["LEAST_SCALE", "Blocks", "attention_pool_blocked", "space"]

_THREAD_ELEMENTS = 2**19  # similarities of a block for each thread of a CPU: 2 MB of float32 stay in its caches
_CPU_ELEMENTS, _GPU_ELEMENTS = 2**23, 2**27  # of a block at most; a GPU wants large launches
_CHUNK_QUERIES = 2048  # queries (M * T) handled at once when there are very many
_KEPT_ELEMENTS = 2**24  # numbers that a forward pass keeps for its backward pass, give or take a block
LEAST_SCALE = 1e-20  # a smaller β would push the similarities it multiplies out of the range of float32


class _Similarities(NamedTuple):
    """Of a block of tokens and some heads: `scale` times the similarities, and the logits, often the same tensor.

    `[heads, T * tokens]` for a single sequence, because a softmax over long contiguous rows is the fastest,
    else `[tokens, heads * T]`, because one over short rows is the slowest.
    """

    scaled: Tensor
    logits: Tensor

    @property
    def elements(self) -> int:
        return self.scaled.numel() * (1 if self.logits is self.scaled else 2)


class _Workspace(threading.local):
    """Memory that a thread uses again and again: fresh pages would cost more than what is computed in them."""

    def __init__(self) -> None:
        self.buffers: dict[tuple[str, torch.dtype], Tensor] = {}


_workspace = _Workspace()


def space(use: str, shape: torch.Size, like: Tensor) -> Tensor:
    """Memory of the given shape, valid until this thread asks for the same use again."""
    if like.device.type != "cpu":  # whose allocator does this by itself
        return like.new_empty(shape)
    size = shape.numel()
    buffer = _workspace.buffers.get((use, like.dtype))
    if buffer is None or len(buffer) < size:
        with torch.inference_mode(False):  # else no call outside of inference mode could use it again
            buffer = _workspace.buffers[use, like.dtype] = torch.empty(size, dtype=like.dtype)
    return buffer[:size].view(shape)


class Blocks:
    """What the forward and the backward pass share: reading a block and its similarities."""

    def __init__(self, tokens: TokenBatch, queries: Tensor, beta: float, similarity: str, frame: Frame) -> None:
        self.tokens, self.queries, self.beta, self.frame = tokens, queries, beta, frame
        self.euclidean = similarity == "euclidean"
        self.scale = beta if beta >= LEAST_SCALE else 1.0
        heads, self.per_head, _ = queries.shape
        chunk = max(1, min(heads, _CHUNK_QUERIES // self.per_head))
        self.chunks = [slice(i, i + chunk) for i in range(0, heads, chunk)]
        elements = _GPU_ELEMENTS
        if queries.device.type == "cpu":
            elements = min(_THREAD_ELEMENTS * torch.get_num_threads(), _CPU_ELEMENTS)
        self.block_tokens = max(VECTOR, elements // (chunk * self.per_head) // VECTOR * VECTOR)

    def __iter__(self) -> Iterator[Block]:
        return cut_into_blocks(self.tokens.offsets, self.block_tokens)

    def read(self, block: Block) -> Tensor:
        """Tokens `[tokens, D]` in the frame, valid until the next block is read."""
        z = self.tokens.values[block.tokens].to(self.queries.device)
        if z.dtype != self.queries.dtype:
            z = space("tokens", z.shape, self.queries).copy_(z)
        return self.frame.apply(z)

    def similarities(self, z: Tensor, heads: slice | Tensor, single: bool, keep: bool) -> _Similarities:
        """Of the tokens of a single sequence, or of many; unless they are to be kept, valid until the next call."""

        def memory(use: str, shape: torch.Size) -> Tensor:
            return z.new_empty(shape) if keep else space(use, shape, z)

        queries = self.queries[heads].flatten(0, 1)
        # products with rows that are not whole vectors are slow, and a transposition is not
        turn = single and len(z) % VECTOR != 0
        left, right = (queries, z) if single and not turn else (z, queries)
        shape = torch.Size((len(left), len(right)))
        scaled = space("product", shape, z) if turn else memory("product", shape)
        torch.addmm(scaled, left, right.T, beta=0, alpha=self.scale, out=scaled)  # multiplies by β for nothing
        both = [scaled]
        if self.euclidean or self.scale != self.beta:
            logits = torch.mul(scaled, self.beta / self.scale, out=memory("logits", shape))
            if self.euclidean:
                logits.sub_(self.beta / 2 * left.square().sum(1, keepdim=True))
                logits.sub_(self.beta / 2 * right.square().sum(1))
            both.append(logits)
        if turn:
            both = [memory(f"turned {i}", x.T.shape).copy_(x.T) for i, x in enumerate(both)]
        if single:
            both = [x.view(-1, self.per_head * len(z)) for x in both]
        return _Similarities(both[0], both[-1])

    def single(self, block: Block) -> bool:
        """Whether similarities are laid out as those of a single sequence, which must not be a very short one."""
        return len(block.sequences) == 1 and block.lengths[0] * self.per_head >= VECTOR

    def spread(self, block: Block, heads: slice, of_sequences: Sequence[Tensor]) -> list[Tensor]:
        """Numbers of sequences and heads `[sequences, heads]`, shaped to be combined with similarities."""
        some = [x[rows_of(block.sequences), heads] for x in of_sequences]
        if self.single(block):
            return [x.T for x in some]
        rows = torch.arange(len(block.sequences)).repeat_interleave(torch.tensor(block.lengths)).to(self.queries.device)
        return [x.repeat_interleave(self.per_head, 1).index_select(0, rows) for x in some]

    def pool(self, rectangle: Rectangle, similarities: _Similarities, single: bool) -> Pooled:
        """The pools `[sequences, heads]` of the sequences of a rectangle."""
        a, logits = similarities
        if not single:
            a = rectangle.pick(a)
            logits = a if similarities.logits is similarities.scaled else rectangle.pick(logits)
            if rectangle.padding is not None:
                logits = logits.masked_fill(rectangle.padding[:, :, None], -torch.inf)
        p = torch.softmax(logits, 1, out=space("weights", logits.shape, logits))
        # the largest weight is exp(largest logit - L): a log-sum-exp for the price of two maxima
        mass = logits.amax(1) - p.amax(1).log_()
        value = p.mul_(a).sum(1).div_(self.scale)
        if single:
            return Pooled(value[None], mass[None])
        # so far a pool of each query
        value, mass = (x.view(len(x), -1, self.per_head) for x in (value, mass))
        top = mass.amax(2, keepdim=True)
        weights = (mass - top).exp_()
        total = weights.sum(2)
        return Pooled(weights.mul_(value).sum(2).div_(total), total.log_().add_(top[..., 0]))


def _pool(blocks: Blocks, keep: int) -> tuple[Pooled, list[_Similarities]]:
    """The pools, and the similarities of the first blocks, until these have `keep` elements."""
    queries = blocks.queries
    shape = (len(blocks.tokens), len(queries))
    value, log_mass = queries.new_zeros(shape), queries.new_full(shape, -torch.inf)
    kept = []
    for block in blocks:
        z = blocks.read(block)
        rectangles, single = block.rectangles(queries.device), blocks.single(block)
        for heads in blocks.chunks:
            similarities = blocks.similarities(z, heads, single, keep > 0)
            if keep > 0:
                kept.append(similarities)
                keep -= similarities.elements
            for rectangle in rectangles:
                rows = rows_of(rectangle.sequences)
                pooled = blocks.pool(rectangle, similarities, single)
                if block.piece:
                    pooled = merge(Pooled(value[rows, heads], log_mass[rows, heads]), pooled)
                value[rows, heads], log_mass[rows, heads] = pooled
    return Pooled(value, log_mass), kept


def _query_gradient(blocks: Blocks, kept: list[_Similarities], pooled: Pooled, grad: Pooled) -> Tensor:
    queries, beta = blocks.queries, blocks.beta
    gradient = queries.new_zeros(queries.shape)  # contiguous, whatever the queries are
    # dh/da and dL/da together are p (u a + v): u and v are one number for each sequence and head
    u = grad.value * (beta / blocks.scale)
    v = grad.value * (1 - beta * pooled.value) + beta * grad.log_mass
    known = iter(kept)
    for block in blocks:
        z = blocks.read(block)
        single = blocks.single(block)
        for heads in blocks.chunks:
            a, logits = next(known, None) or blocks.similarities(z, heads, single, keep=False)
            mass, factor, shift, grad_h = blocks.spread(block, heads, (pooled.log_mass, u, v, grad.value))
            p = torch.sub(logits, mass, out=space("weights", a.shape, a)).exp_()
            c = torch.addcmul(shift, a, factor, out=space("gradient", a.shape, a)).mul_(p)
            part = gradient[heads].flatten(0, 1)
            part.addmm_(c.view(-1, len(z)) if single else c.T, z)
            if blocks.euclidean:  # the share of c that goes through the logits, c - grad_h p, also moves |w|²/2
                c -= p.mul_(grad_h)
                through_logits = c.view(-1, len(z)).sum(1) if single else c.sum(0)
                part -= queries[heads].flatten(0, 1) * through_logits[:, None]
    return gradient


class _AttentionPool(torch.autograd.Function):
    """(h, L) with gradients for the queries alone; the encoder is frozen."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, tokens: TokenBatch, beta: float, similarity: str, frame: Frame) -> Any:
        pooled, ctx.kept = _pool(Blocks(tokens, queries, beta, similarity, frame), _KEPT_ELEMENTS)
        ctx.save_for_backward(queries, *pooled)
        ctx.rest = (tokens, beta, similarity, frame)
        return tuple(pooled)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        queries, value, log_mass = ctx.saved_tensors
        tokens, beta, similarity, frame = ctx.rest
        blocks = Blocks(tokens, queries, beta, similarity, frame)
        return _query_gradient(blocks, ctx.kept, Pooled(value, log_mass), Pooled(*grads)), None, None, None, None


def attention_pool_blocked(tokens: TokenBatch, queries: Tensor, beta: float, similarity: str, frame: Frame) -> Pooled:
    """`attention_pool` in float64 for float64 tokens, else in float32."""
    queries = queries.to(torch.float64 if tokens.dtype == torch.float64 else torch.float32)
    if torch.is_grad_enabled() and queries.requires_grad:
        return Pooled(*_AttentionPool.apply(queries, tokens, beta, similarity, frame))  # type: ignore[no-untyped-call]
    return _pool(Blocks(tokens, queries.detach(), beta, similarity, frame), 0)[0]
