"""Attention pooling by bfloat16 products, on CPUs that are faster at them; heads that suffer are done again in float32.

Such a product is summed in float32, but its result is rounded to bfloat16. What is rounded here is the difference from
a similarity common to all tokens, which the product subtracts before it rounds and which is added again afterwards. The
errors δ that remain are small, have no preferred sign, and move h by Σ p (1 + β (a - h)) δ: next to nothing where many
tokens share the attention. Where few do, this sum tells so, and float32 takes over.
"""

from functools import cache

import torch
from torch import Tensor

from apood.pooling.algebra import Pooled, merge
from apood.pooling.blocked import LEAST_SCALE, Blocks, space
from apood.pooling.blocks import VECTOR, Block, Rectangle, rows_of
from apood.pooling.frame import Frame
from apood.pooling.rounding import rounded
from apood.tokens.batch import TokenBatch

__all__ = ["attention_pool_coarse", "may_be_coarse"]

_LEAST_TOKENS = 512  # for fewer, to look at the queries costs more than is gained
_SAMPLE = 256  # tokens that the common similarity is taken from
_DISTINCT = 0.9  # of the sample at least: equal tokens have equal errors, which do not cancel
_ROUNDING = 1.7e-3  # root mean square of the relative errors of numbers rounded to bfloat16
_TYPICAL, _LARGEST = 6e-4, 1.2e-3  # errors over the root mean square of h that all heads may have, and one of them
_WORTH = 0.5  # of the heads that suffer: with more, float32 is faster from the start


@cache
def _has_products() -> bool:
    """Whether this CPU multiplies bfloat16 itself: elsewhere such products are slower than those of float32."""
    asked = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")  # private, so not in every version of torch
    return any(getattr(torch.cpu, name, bool)() for name in asked)


def may_be_coarse(tokens: TokenBatch, queries: Tensor, beta: float, similarity: str, frame: Frame) -> bool:
    """Whether `attention_pool_coarse` can do this: without gradients, and with queries that lose no digit."""
    return (
        tokens.dtype == torch.bfloat16
        and similarity == "dot"
        and beta >= LEAST_SCALE
        and len(tokens.values) >= _LEAST_TOKENS
        and tokens.values.device.type == queries.device.type == "cpu"
        and not (torch.is_grad_enabled() and queries.requires_grad)
        and not frame.unit  # whose factors would have to come before the rounding
        and _has_products()
        and torch.equal(rounded(queries, torch.bfloat16), queries)
    )


def attention_pool_coarse(tokens: TokenBatch, queries: Tensor, beta: float, frame: Frame) -> Pooled:
    """`attention_pool` by the dot product; the norm of the errors of h is below 1e-3 of the norm of h."""
    queries = queries.detach().float()
    blocks, attempt = Blocks(tokens, queries, beta, "dot", frame), _Attempt(tokens, queries, beta, frame)
    shape = (len(tokens), len(queries))
    value, log_mass = queries.new_zeros(shape), queries.new_full(shape, -torch.inf)
    trying = attempt.errors_cancel
    for block in blocks:
        rectangles, single = block.rectangles(queries.device), blocks.single(block)
        for heads in blocks.chunks:
            if trying:
                found, suffering = attempt(block, heads, rectangles, single)
                trying = len(suffering) <= _WORTH * found[0].value.shape[1]
            if not trying:
                similarities = blocks.similarities(blocks.read(block), heads, single, keep=False)
                found = [blocks.pool(rectangle, similarities, single) for rectangle in rectangles]
            elif len(suffering):
                similarities = blocks.similarities(blocks.read(block), suffering, single, keep=False)
                for rectangle, pooled in zip(rectangles, found, strict=True):
                    for coarse, fine in zip(pooled, blocks.pool(rectangle, similarities, single), strict=True):
                        coarse[:, suffering - heads.start] = fine
            for rectangle, pooled in zip(rectangles, found, strict=True):
                rows = rows_of(rectangle.sequences)
                if block.piece:
                    pooled = merge(Pooled(value[rows, heads], log_mass[rows, heads]), pooled)
                value[rows, heads], log_mass[rows, heads] = pooled
    return Pooled(value, log_mass)


class _Attempt:
    """Pools blocks by bfloat16 products, and names the heads that need better ones. Everything is in units of β a."""

    def __init__(self, tokens: TokenBatch, queries: Tensor, beta: float, frame: Frame) -> None:
        flat = queries.flatten(0, 1)
        # an odd step, lest it meet the first token of every sequence, which often is unlike all others
        some = tokens.values[:: len(tokens.values) // _SAMPLE | 1]
        self.values, self.beta, self.per_head = tokens.values, beta, queries.shape[1]
        self.errors_cancel = len(set(some.sum(1, dtype=torch.float32).tolist())) >= _DISTINCT * len(some)
        self.weights = flat.to(torch.bfloat16)
        self.common = (flat @ some.mean(0, dtype=torch.float32)).mul_(beta).to(torch.bfloat16)
        self.shift = self.common.float()  # from what the products give to β a
        if frame.origin is not None:
            self.shift -= beta * (flat @ frame.origin.to(flat))

    def __call__(
        self, block: Block, heads: slice, rectangles: list[Rectangle], single: bool
    ) -> tuple[list[Pooled], Tensor]:
        """The pools `[sequences, heads]` of each rectangle, and the numbers of the heads that need float32."""
        queries = slice(heads.start * self.per_head, heads.stop * self.per_head)
        differences = self._differences(self.values[block.tokens], queries, single)
        shift = self.shift[queries].view(-1, self.per_head)
        found, suffering = [], torch.zeros(len(shift), dtype=torch.bool)
        for rectangle in rectangles:
            pooled, of_these = self._pool(differences if single else rectangle.pick(differences), rectangle, shift)
            found.append(pooled)
            suffering |= of_these
        return found, suffering.nonzero()[:, 0] + heads.start

    def _differences(self, z: Tensor, queries: slice, single: bool) -> Tensor:
        """From the common similarities: `[queries, tokens]` if single, or else `[tokens, queries]`."""
        weights, common = self.weights[queries], self.common[queries]
        across = single and len(z) % VECTOR == 0
        left, right, less = (weights, z, -common[:, None]) if across else (z, weights, -common)
        product = space("coarse product", torch.Size((len(left), len(right))), z)
        torch.addmm(less, left, right.T, alpha=self.beta, out=product)
        if single and not across:
            product = product.T
        return space("differences", product.shape, self.shift).copy_(product)

    def _pool(self, x: Tensor, rectangle: Rectangle, shift: Tensor) -> tuple[Pooled, Tensor]:
        """Of differences `[queries, tokens]` or `[sequences, tokens, queries]`; these are overwritten."""
        logits = x if rectangle.padding is None else x.masked_fill(rectangle.padding[:, :, None], -torch.inf)
        p = torch.softmax(logits, 1, out=space("weights", logits.shape, logits))
        mass = logits.amax(1) - p.amax(1).log_()
        p.mul_(x)
        value, mass = p.sum(1).view(-1, *shift.shape), mass.view(-1, *shift.shape) + shift
        shares = mass.softmax(2)
        value, common = (shares * value).sum(2), (shares * shift).sum(2)
        h = value + common
        factor = (1 - h[..., None] + shift).flatten(1)  # and the difference: 1 + β (a - h)
        effects = x.add_(factor[0, :, None] if x.ndim == 2 else factor[:, None]).mul_(p)
        lost = torch.linalg.vector_norm(effects, dim=1).view(shares.shape).mul_(shares)
        lost = torch.linalg.vector_norm(lost, dim=2).mul_(_ROUNDING)
        typical, *scales = (of_heads.square().mean(1, keepdim=True).sqrt() for of_heads in (lost, h, value))
        scale = torch.minimum(*scales)  # without what is common to all sequences, from which no detector learns
        most = torch.where(typical < _TYPICAL * scale, _LARGEST, _TYPICAL) * scale
        # also where nothing can be said, because numbers are too small to be squared, or not finite
        suffering = ~(lost < most).all(0)
        return Pooled(h.div_(self.beta), mass.logsumexp(2)), suffering
