"""Pools for queries that no longer change, as a detector has them when it scores."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from apood.pooling.algebra import Pooled
from apood.pooling.attention import Similarity, attention_pool, check_dimensions, check_pool, has_kernels
from apood.pooling.frame import Frame
from apood.tokens.batch import TokenBatch

if TYPE_CHECKING:
    from apood.pooling.captured import PreparedPool

__all__ = ["FrozenPool"]


class FrozenPool:
    """`attention_pool` for fixed queries, without gradients: what depends on them alone is computed once.

    On a GPU a single sequence of at most 512 tokens goes through a CUDA graph, captured when a length of its size is
    first seen: no launch from Python, and no new device memory once it is there. May be called from several threads
    that use the same CUDA stream.

    Args:
        queries: `[M heads, T queries, D]`, on the device to compute on.
        beta: inverse temperature.
        similarity: what the attention follows.
        frame: the scale and origin of the tokens.
        exact: as in `attention_pool`.
    """

    def __init__(
        self,
        queries: Tensor,
        beta: float,
        similarity: Similarity = "dot",
        frame: Frame | None = None,
        *,
        exact: bool = False,
    ) -> None:
        check_pool(queries, beta, similarity)
        self._queries = queries.detach()
        self._beta, self._similarity, self._frame, self._exact = beta, similarity, frame or Frame(), exact
        self._prepared: dict[torch.dtype, PreparedPool] = {}

    @torch.no_grad()
    def __call__(self, tokens: TokenBatch) -> Pooled:
        """Pooled values and log masses, both `[sequences, M]`, on the device of the queries."""
        check_dimensions(tokens, self._queries)
        if tokens.dtype == torch.float64 or not has_kernels(self._queries.device):
            return attention_pool(tokens, self._queries, self._beta, self._similarity, self._frame, exact=self._exact)
        dtype = torch.float32 if self._exact else tokens.dtype
        if dtype not in self._prepared:
            from apood.pooling.captured import PreparedPool

            self._prepared[dtype] = PreparedPool(self._queries, self._beta, self._similarity, self._frame, dtype)
        return self._prepared[dtype](tokens.values, tokens.offsets)
