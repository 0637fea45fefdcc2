"""What scoring with AP-OOD needs on a device, made once from what was learnt."""

from operator import is_

import torch
from torch import Tensor

from apood.pooling import Frame, FrozenPool, Similarity, rounded
from apood.tokens.batch import TokenBatch

__all__ = ["Scorer"]


class Scorer:
    """The learnt tensors on `device`, and the pool of queries that no longer change."""

    def __init__(
        self,
        device: torch.device,
        similarity: Similarity,
        beta: float,
        unit: bool,
        queries: Tensor,
        prototype: Tensor,
        origin: Tensor,
    ) -> None:
        self._settings, self._learnt = (device, similarity, beta, unit), (queries, prototype, origin)
        self.frame = Frame(unit, origin.to(device) if bool(origin.any()) else None)
        self.queries, self.prototype = queries.to(device), prototype.to(device)
        self._pools: dict[torch.dtype, FrozenPool] = {}

    def is_made_from(self, settings: tuple[object, ...], learnt: tuple[Tensor, ...]) -> bool:
        """Whether these are the arguments that it was made with: the very tensors, not equal ones."""
        return settings == self._settings and all(map(is_, learnt, self._learnt))

    def squares(self, tokens: TokenBatch) -> Tensor:
        """The d² of each sequence and head `[N, M]`."""
        return (self._pool_of(tokens.dtype)(tokens).value - self.prototype).square()

    def _pool_of(self, dtype: torch.dtype) -> FrozenPool:
        """The pool of tokens in `dtype`; its queries lose no digit, on no device."""
        if dtype not in self._pools:
            _, similarity, beta, _ = self._settings
            queries = self._learnt[0]
            exact = not torch.equal(rounded(queries, dtype), queries)  # learnt from tokens of another dtype
            self._pools[dtype] = FrozenPool(self.queries, beta, similarity, self.frame, exact=exact)
        return self._pools[dtype]
