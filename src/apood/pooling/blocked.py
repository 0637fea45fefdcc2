"""Attention pooling block by block: exact, on any device, without all S x M x T similarities at once.

A block is a run of consecutive tokens, so that its matrix product reads them in place and without padding: as many
short sequences as fit, or one long sequence, or one of several equal pieces of a longer sequence. Only what follows the
product is padded: the short sequences of a block are sorted by length and grouped into rectangles.

A block of tokens is multiplied with all queries; each query then pools each sequence of the block by
itself, and the T pools of a head are merged, as are the pieces of a long sequence.

The backward pass uses dh/da = p (1 + β (a - h)) and dL/da = β p, with p = exp(l - L). It computes the
similarities of a block again, except for those of the first blocks, which the forward pass has kept.
The euclidean logits depend on the queries a second time, through |w|²/2, which adds
-β w_t Σ_s p (a - h) to dh/dw_t and -β w_t Σ_s p to dL/dw_t.

All products are in float32 (float64 for float64 tokens), also for bfloat16 tokens on a CPU that multiplies bfloat16
natively: rounding the queries costs up to 1e-2 of h on real embeddings, and rounding the similarities as much again.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from apood.pooling.algebra import Pooled, Preprocessing, merge
from apood.tokens.batch import TokenBatch

__all__ = ["VECTOR", "Block", "Rectangle", "attention_pool_blocked", "cut_into_blocks"]

_THREAD_ELEMENTS = 2**19  # similarities of a block per thread of a CPU: 2 MB of float32 stay in its caches
_CPU_ELEMENTS, _GPU_ELEMENTS = 2**23, 2**27  # similarities of a block at most; a GPU needs large launches
_CHUNK_QUERIES = 2048  # queries (M * T) handled at once when there are very many
_KEPT_ELEMENTS = 2**24  # similarities that a forward pass keeps for its backward pass, up to a block more
_LEAST_SCALE = 1e-20  # times a smaller β, similarities would leave the range of float32 and lose digits
VECTOR = 16  # numbers in the widest vector of a CPU: long sequences are cut at multiples of it
_ALONE = 4  # a sequence with more than this part of the tokens of a block is a block of its own
_STRETCH = 2  # the longest sequence of a rectangle over its shortest: padding costs less than many small operations


@dataclass(frozen=True)
class Rectangle:
    """Some sequences of a block, padded to the same length.

    Attributes:
        sequences: their numbers in the batch.
        longest: the length that they are padded to.
        rows: of the block, `longest` for each sequence.
        padding: True where a row is padding, or None if there is none.
    """

    sequences: list[int]
    longest: int
    rows: slice | Tensor
    padding: Tensor | None

    def pick(self, of_block: Tensor) -> Tensor:
        """Return the rows of `of_block [tokens, K]` as `[sequences, longest, K]`."""
        picked = of_block[self.rows] if isinstance(self.rows, slice) else of_block.index_select(0, self.rows)
        return picked.view(len(self.sequences), self.longest, -1)


@dataclass(frozen=True)
class Block:
    """A run of consecutive tokens.

    Attributes:
        start: the first token.
        sequences: the numbers of the sequences that the tokens belong to, in order.
        lengths: the number of tokens of each of these sequences.
        piece: whether its only sequence continues in another block.
    """

    start: int
    sequences: list[int]
    lengths: list[int]
    piece: bool = False

    @property
    def tokens(self) -> slice:
        """The place of the tokens in the batch."""
        return slice(self.start, self.start + sum(self.lengths))

    @property
    def even(self) -> bool:
        """Whether all sequences have the same length, so that they form a rectangle without padding."""
        return min(self.lengths) == max(self.lengths)

    def make_rectangles(self, device: torch.device) -> list[Rectangle]:
        """Return rectangles that cover every sequence of the block once."""
        if self.even:
            return [Rectangle(self.sequences, self.lengths[0], slice(None), None)]
        starts = [0, *accumulate(self.lengths)]
        groups: list[list[int]] = []
        for i in sorted(range(len(self.lengths)), key=self.lengths.__getitem__):
            if groups and self.lengths[i] <= _STRETCH * self.lengths[groups[-1][0]]:
                groups[-1].append(i)
            else:
                groups.append([i])
        return [self._make_rectangle(group, starts, device) for group in groups]

    def _make_rectangle(self, group: list[int], starts: list[int], device: torch.device) -> Rectangle:
        sequences = [self.sequences[i] for i in group]
        shortest, longest = self.lengths[group[0]], self.lengths[group[-1]]
        if len(group) == 1:
            return Rectangle(sequences, longest, slice(starts[group[0]], starts[group[0]] + longest), None)
        lengths = torch.tensor([self.lengths[i] for i in group])[:, None]
        steps = torch.arange(longest)
        # padding repeats the last token of the sequence, which is always a row that exists
        rows = torch.tensor([starts[i] for i in group])[:, None] + torch.minimum(steps, lengths - 1)
        padding = (steps >= lengths).to(device) if shortest < longest else None
        return Rectangle(sequences, longest, rows.flatten().to(device), padding)


def _index_rows(sequences: list[int]) -> slice | list[int]:
    """Return an index of these rows: a slice if they are consecutive, because it costs next to nothing."""
    first, last = sequences[0], sequences[-1]
    return slice(first, last + 1) if sequences == list(range(first, last + 1)) else sequences


def cut_into_blocks(offsets: Tensor, block_tokens: int) -> Iterator[Block]:
    """Yield blocks that cover every token of every sequence once, in order; empty sequences are in no block.

    Args:
        offsets: of the sequences.
        block_tokens: the largest number of tokens of a block, a multiple of `VECTOR`.
    """
    block, size = Block(0, [], []), 0
    for sequence, (start, stop) in enumerate(pairwise(offsets.tolist())):
        length = stop - start
        alone = length * _ALONE > block_tokens
        if size and (alone or size + length > block_tokens):
            yield block
            size = 0
        if alone:
            pieces = -(-length // block_tokens)
            # even cuts: full blocks would often leave a piece of a few tokens, which costs a whole pass
            cuts = [-(-length * i // (pieces * VECTOR)) * VECTOR for i in range(pieces)]
            for begin, end in pairwise([*cuts, length]):
                yield Block(start + begin, [sequence], [end - begin], piece=pieces > 1)
        elif length:
            if not size:
                block = Block(start, [], [])
            block.sequences.append(sequence)
            block.lengths.append(length)
            size += length
    if size:
        yield block


class _Similarities(NamedTuple):
    """The similarities of a block of tokens and some heads.

    Their shape is `[heads, T * tokens]` for a single sequence, because a softmax over long contiguous rows is the
    fastest, and `[tokens, heads * T]` otherwise, because one over short rows is the slowest.

    Attributes:
        scaled: the similarities times `scale`.
        logits: the logits, often the same tensor.
    """

    scaled: Tensor
    logits: Tensor

    @property
    def elements(self) -> int:
        return self.scaled.numel() * (1 if self.logits is self.scaled else 2)


class _Workspace(threading.local):
    """Buffers that a thread reuses: fresh pages would cost more than the computation in them."""

    def __init__(self) -> None:
        self.buffers: dict[tuple[str, torch.dtype], Tensor] = {}


_workspace = _Workspace()


def _borrow(use: str, shape: torch.Size, like: Tensor) -> Tensor:
    """Return memory of the given shape, valid until this thread asks for the same use again."""
    if like.device.type != "cpu":  # the allocator of a GPU reuses memory by itself
        return like.new_empty(shape)
    size = shape.numel()
    buffer = _workspace.buffers.get((use, like.dtype))
    if buffer is None or len(buffer) < size:
        with torch.inference_mode(False):  # otherwise no call outside of inference mode could use it again
            buffer = _workspace.buffers[use, like.dtype] = torch.empty(size, dtype=like.dtype)
    return buffer[:size].view(shape)


class _BlockedPool:
    """The steps that the forward and the backward pass share: reading a block and computing its similarities."""

    def __init__(
        self, tokens: TokenBatch, queries: Tensor, beta: float, similarity: str, preprocessing: Preprocessing
    ) -> None:
        self.tokens, self.queries, self.beta, self.preprocessing = tokens, queries, beta, preprocessing
        self.euclidean = similarity == "euclidean"
        self.scale = beta if beta >= _LEAST_SCALE else 1.0
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
        """Return the preprocessed tokens `[tokens, D]`, valid until the next block is read."""
        z = self.tokens.values[block.tokens].to(self.queries.device)
        if z.dtype != self.queries.dtype:
            z = _borrow("tokens", z.shape, self.queries).copy_(z)
        return self.preprocessing.apply(z)

    def compute_similarities(self, z: Tensor, heads: slice, single: bool, keep: bool) -> _Similarities:
        """Return the similarities of tokens and heads, valid until the next call unless they are to be kept."""

        def memory(use: str, shape: torch.Size) -> Tensor:
            return z.new_empty(shape) if keep else _borrow(use, shape, z)

        queries = self.queries[heads].flatten(0, 1)
        # products with rows that are not whole vectors are slow, and a transposition is not
        turn = single and len(z) % VECTOR != 0
        left, right = (queries, z) if single and not turn else (z, queries)
        shape = torch.Size((len(left), len(right)))
        scaled = _borrow("product", shape, z) if turn else memory("product", shape)
        torch.addmm(scaled, left, right.T, beta=0, alpha=self.scale, out=scaled)  # the factor β costs nothing here
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

    def is_single(self, block: Block) -> bool:
        """Whether similarities have the layout of a single sequence, which must not be very short."""
        return len(block.sequences) == 1 and block.lengths[0] * self.per_head >= VECTOR

    def spread(self, block: Block, heads: slice, of_sequences: Sequence[Tensor]) -> list[Tensor]:
        """Return numbers per sequence and head `[sequences, heads]` in a shape that combines with similarities."""
        some = [x[_index_rows(block.sequences), heads] for x in of_sequences]
        if self.is_single(block):
            return [x.T for x in some]
        rows = torch.arange(len(block.sequences)).repeat_interleave(torch.tensor(block.lengths)).to(self.queries.device)
        return [x.repeat_interleave(self.per_head, 1).index_select(0, rows) for x in some]

    def pool(self, rectangle: Rectangle, similarities: _Similarities, single: bool) -> Pooled:
        """Return the pools `[sequences, heads]` of the sequences of a rectangle."""
        a, logits = similarities
        if not single:
            a = rectangle.pick(a)
            logits = a if similarities.logits is similarities.scaled else rectangle.pick(logits)
            if rectangle.padding is not None:
                logits = logits.masked_fill(rectangle.padding[:, :, None], -torch.inf)
        p = torch.softmax(logits, 1, out=_borrow("weights", logits.shape, logits))
        # the largest weight is exp(largest logit - L): a log-sum-exp for the price of two maxima
        mass = logits.amax(1) - p.amax(1).log_()
        value = p.mul_(a).sum(1).div_(self.scale)
        if single:
            return Pooled(value[None], mass[None])
        # so far there is one pool per query
        value, mass = (x.view(len(x), -1, self.per_head) for x in (value, mass))
        top = mass.amax(2, keepdim=True)
        weights = (mass - top).exp_()
        total = weights.sum(2)
        return Pooled(weights.mul_(value).sum(2).div_(total), total.log_().add_(top[..., 0]))


def _pool(blocks: _BlockedPool, keep: int) -> tuple[Pooled, list[_Similarities]]:
    """Return the pools, and the similarities of the first blocks until these have `keep` elements."""
    queries = blocks.queries
    shape = (len(blocks.tokens), len(queries))
    value, log_mass = queries.new_zeros(shape), queries.new_full(shape, -torch.inf)
    kept = []
    for block in blocks:
        z = blocks.read(block)
        rectangles, single = block.make_rectangles(queries.device), blocks.is_single(block)
        for heads in blocks.chunks:
            similarities = blocks.compute_similarities(z, heads, single, keep > 0)
            if keep > 0:
                kept.append(similarities)
                keep -= similarities.elements
            for rectangle in rectangles:
                rows = _index_rows(rectangle.sequences)
                pooled = blocks.pool(rectangle, similarities, single)
                if block.piece:
                    pooled = merge(Pooled(value[rows, heads], log_mass[rows, heads]), pooled)
                value[rows, heads], log_mass[rows, heads] = pooled
    return Pooled(value, log_mass), kept


def _compute_gradient(blocks: _BlockedPool, kept: list[_Similarities], pooled: Pooled, grad: Pooled) -> Tensor:
    """Return the gradient of the queries from that of the pools."""
    queries, beta = blocks.queries, blocks.beta
    gradient = queries.new_zeros(queries.shape)  # contiguous, whatever the queries are
    # dh/da and dL/da together are p (u a + v): u and v are one number per sequence and head
    u = grad.value * (beta / blocks.scale)
    v = grad.value * (1 - beta * pooled.value) + beta * grad.log_mass
    known = iter(kept)
    for block in blocks:
        z = blocks.read(block)
        single = blocks.is_single(block)
        for heads in blocks.chunks:
            a, logits = next(known, None) or blocks.compute_similarities(z, heads, single, keep=False)
            mass, factor, shift, grad_h = blocks.spread(block, heads, (pooled.log_mass, u, v, grad.value))
            p = torch.sub(logits, mass, out=_borrow("weights", a.shape, a)).exp_()
            c = torch.addcmul(shift, a, factor, out=_borrow("gradient", a.shape, a)).mul_(p)
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
    def forward(
        ctx: Any, queries: Tensor, tokens: TokenBatch, beta: float, similarity: str, preprocessing: Preprocessing
    ) -> Any:
        pooled, ctx.kept = _pool(_BlockedPool(tokens, queries, beta, similarity, preprocessing), _KEPT_ELEMENTS)
        ctx.save_for_backward(queries, *pooled)
        ctx.rest = (tokens, beta, similarity, preprocessing)
        return tuple(pooled)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        queries, value, log_mass = ctx.saved_tensors
        tokens, beta, similarity, preprocessing = ctx.rest
        blocks = _BlockedPool(tokens, queries, beta, similarity, preprocessing)
        return _compute_gradient(blocks, ctx.kept, Pooled(value, log_mass), Pooled(*grads)), None, None, None, None


def attention_pool_blocked(
    tokens: TokenBatch, queries: Tensor, beta: float, similarity: str, preprocessing: Preprocessing
) -> Pooled:
    """Return `attention_pool`, computed in float64 for float64 tokens and in float32 otherwise."""
    queries = queries.to(torch.float64 if tokens.dtype == torch.float64 else torch.float32)
    if torch.is_grad_enabled() and queries.requires_grad:
        return Pooled(*_AttentionPool.apply(queries, tokens, beta, similarity, preprocessing))  # type: ignore[no-untyped-call]
    return _pool(_BlockedPool(tokens, queries.detach(), beta, similarity, preprocessing), 0)[0]
