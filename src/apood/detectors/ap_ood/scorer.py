"""Scoring with AP-OOD: from pooled values to distances, and what that needs on a device, made once."""

from dataclasses import dataclass
from operator import is_

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from apood.detectors.ap_ood.recipe import ScoreName
from apood.pooling import FrozenPool, Pooled, Preprocessing, Similarity, round_queries
from apood.tokens.batch import TokenBatch

__all__ = ["Scorer", "Shortfall", "temper"]

_FREEDOM = 3.0  # ν of the Student score; heads are trained to d² of order 1, so it needs no scale


def temper(squares: Tensor, score: ScoreName) -> Tensor:
    """What d² of a head counts in the score."""
    return _FREEDOM * torch.log1p(squares / _FREEDOM) if score == "student" else squares


@dataclass(frozen=True, eq=False)
class Shortfall:
    """What a score lacks to the best one possible, from pooled values: the distance that it stands for.

    A pooled value that is not finite leaves none that is.
    """

    score: ScoreName
    prototype: Tensor
    log_norms: Tensor

    def __call__(self, pooled: Pooled) -> Tensor:
        """Of each sequence `[N]`, as if its length did not matter."""
        return self.of(pooled.value)

    def of(self, h: Tensor) -> Tensor:
        """The same from the pooled values `[N, M]` alone."""
        squares = mse_loss(h, self.prototype.expand_as(h), reduction="none")  # in one launch
        if self.score == "min":
            return (squares - (self.log_norms - self.log_norms.amin())).amax(1)
        return temper(squares, self.score).sum(1)


class Scorer:
    """The learnt tensors on `device`, and the pool of queries that no longer change."""

    def __init__(
        self,
        device: torch.device,
        similarity: Similarity,
        beta: float,
        unit: bool,
        score: ScoreName,
        queries: Tensor,
        prototype: Tensor,
        origin: Tensor,
        log_norms: Tensor,
    ) -> None:
        self._settings = (device, similarity, beta, unit, score)
        self._learnt = (queries, prototype, origin, log_norms)
        self.preprocessing = Preprocessing(unit, origin.to(device) if bool(origin.any()) else None)
        self.queries = queries.to(device)
        self.shortfall = Shortfall(score, prototype.to(device), log_norms.to(device))
        self._pools: dict[torch.dtype, FrozenPool] = {}

    def is_made_from(self, settings: tuple[object, ...], learnt: tuple[Tensor, ...]) -> bool:
        """Whether these are the arguments that it was made with: the very tensors, not equal ones."""
        return settings == self._settings and all(map(is_, learnt, self._learnt))

    def lacking(self, tokens: TokenBatch) -> Tensor:
        """The shortfall of each sequence `[N]`, on the device, which is not waited for."""
        return self._pool_of(tokens.dtype).then(tokens, self.shortfall)

    def _pool_of(self, dtype: torch.dtype) -> FrozenPool:
        """The pool of tokens in `dtype`; its queries lose no digit, on no device."""
        if dtype not in self._pools:
            _, similarity, beta, _, _ = self._settings
            queries = self._learnt[0]
            other = not torch.equal(round_queries(queries, dtype), queries)  # learnt from tokens of another dtype
            exact = other or self.queries.device.type == "cpu"  # else a CPU rounds by what lies beside a sequence
            self._pools[dtype] = FrozenPool(self.queries, beta, similarity, self.preprocessing, exact=exact)
        return self._pools[dtype]
