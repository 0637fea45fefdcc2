"""Pools for queries that no longer change, as a detector has them when it scores."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from apood.pooling.algebra import Pooled
from apood.pooling.attention import Similarity, attention_pool, check_dimensions, check_pool, has_kernels
from apood.pooling.preprocessing import Preprocessing
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
        preprocessing: the scale and origin of the tokens.
        exact: as in `attention_pool`.
    """

    def __init__(
        self,
        queries: Tensor,
        beta: float,
        similarity: Similarity = "dot",
        preprocessing: Preprocessing | None = None,
        *,
        exact: bool = False,
    ) -> None:
        check_pool(queries, beta, similarity)
        self._queries = queries.detach()
        self._beta, self._similarity, self._frame, self._exact = (
            beta,
            similarity,
            preprocessing or Preprocessing(),
            exact,
        )
        self._prepared: dict[torch.dtype, PreparedPool] = {}

    def __call__(self, tokens: TokenBatch) -> Pooled:
        """Pooled values and log masses, both `[sequences, M]`, on the device of the queries."""
        prepared = self._prepared_for(tokens)
        return self._unprepared(tokens) if prepared is None else prepared(tokens.values, tokens.offsets)

    def then(self, tokens: TokenBatch, function: Callable[[Pooled], Tensor]) -> Tensor:
        """`function` of the pool; that of a single sequence becomes part of its graph, and has to be the same one."""
        prepared = self._prepared_for(tokens)
        if prepared is None:
            return function(self._unprepared(tokens))
        return prepared.then(tokens.values, tokens.offsets, function)

    def _unprepared(self, tokens: TokenBatch) -> Pooled:
        return attention_pool(tokens, self._queries, self._beta, self._similarity, self._frame, exact=self._exact)

    def _prepared_for(self, tokens: TokenBatch) -> "PreparedPool | None":
        """What pools such tokens by kernels, if there are any."""
        check_dimensions(tokens, self._queries)
        if tokens.dtype == torch.float64 or not has_kernels(self._queries.device):
            return None
        dtype = torch.float32 if self._exact else tokens.dtype
        if dtype not in self._prepared:
            from apood.pooling.captured import PreparedPool

            self._prepared[dtype] = PreparedPool(self._queries, self._beta, self._similarity, self._frame, dtype)
        return self._prepared[dtype]
