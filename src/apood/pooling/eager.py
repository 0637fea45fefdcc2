"""The definition, written to be read: one sequence at a time, any dtype, ordinary autograd.

It is the truth that the fast paths are tested against, and far too slow and hungry to be used.
"""

import torch
from torch import Tensor

from apood.pooling.algebra import Pooled
from apood.pooling.frame import Frame
from apood.tokens.batch import TokenBatch

__all__ = ["attention_pool_eager", "similarities_and_logits"]


def similarities_and_logits(tokens: Tensor, queries: Tensor, beta: float, similarity: str) -> tuple[Tensor, Tensor]:
    """Similarities a and logits l of `tokens [S, D]` and `queries [M, T, D]`, both `[M, T, S]`."""
    similarities = torch.einsum("sd,mtd->mts", tokens, queries)
    if similarity == "dot":
        return similarities, beta * similarities
    # -|z - w|²/2 = z·w - |z|²/2 - |w|²/2
    halves = tokens.square().sum(-1) / 2 + queries.square().sum(-1, keepdim=True) / 2
    return similarities, beta * (similarities - halves)


def attention_pool_eager(
    tokens: TokenBatch, queries: Tensor, beta: float, similarity: str = "dot", frame: Frame | None = None
) -> Pooled:
    """`attention_pool` by its definition."""
    values, masses = [], []
    for sequence in tokens:
        z = sequence.to(queries.dtype)
        a, b = (
            x.flatten(1) for x in similarities_and_logits(frame.apply(z) if frame else z, queries, beta, similarity)
        )
        values.append((torch.softmax(b, 1) * a).sum(1))
        masses.append(torch.logsumexp(b, 1))
    return Pooled(torch.stack(values), torch.stack(masses))
