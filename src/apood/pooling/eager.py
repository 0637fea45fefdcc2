"""The definition, written to be read: one sequence at a time, any dtype, ordinary autograd.

The fast paths are tested against it. It is far too slow, and needs far too much memory, for other use.
"""

import torch
from torch import Tensor

from apood.pooling.algebra import Pooled, Preprocessing, similarities_and_logits
from apood.tokens.batch import TokenBatch

__all__ = ["attention_pool_eager"]


def attention_pool_eager(
    tokens: TokenBatch,
    queries: Tensor,
    beta: float,
    similarity: str = "dot",
    preprocessing: Preprocessing | None = None,
) -> Pooled:
    """Return `attention_pool`, computed by its definition."""
    values, masses = [], []
    for sequence in tokens:
        z = sequence.to(queries.dtype)
        a, b = (
            x.flatten(1)
            for x in similarities_and_logits(preprocessing.apply(z) if preprocessing else z, queries, beta, similarity)
        )
        values.append((torch.softmax(b, 1) * a).sum(1))
        masses.append(torch.logsumexp(b, 1))
    return Pooled(torch.stack(values), torch.stack(masses))
