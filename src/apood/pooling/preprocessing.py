"""The preprocessing in which tokens are looked at: their scale and their origin."""

from dataclasses import dataclass

import torch
from torch import Tensor

from apood.tokens.batch import TokenBatch, upload

__all__ = ["Preprocessing", "mean_pool", "round_queries", "scale_to_dtype"]

_CPU_NUMBERS, _GPU_NUMBERS = 2**19, 2**26  # widened to float64 at a time: what caches hold, what a GPU can spare


@dataclass(frozen=True, eq=False)
class Preprocessing:
    """z -> z / |z| (if `unit`), then z -> z - `origin` (if given).

    Cheap enough to be applied block by block. A linear map of the tokens (whitening) is not part
    of it: that one folds into the queries for free, (P z)ᵀ w = zᵀ (Pᵀ w).
    """

    unit: bool = False
    origin: Tensor | None = None

    def apply(self, tokens: Tensor) -> Tensor:
        """The tokens `[..., D]` as seen in this preprocessing; a zero token stays zero before the shift."""
        if self.unit:
            norm = torch.linalg.vector_norm(tokens, dim=-1, keepdim=True)
            # the squares of anything smaller vanish: it shrinks to zero like a zero token, and never blows up
            tokens = tokens / norm.clamp_min(torch.finfo(tokens.dtype).tiny ** 0.5)
        return tokens if self.origin is None else tokens - self.origin.to(tokens)


def mean_pool(tokens: TokenBatch, preprocessing: Preprocessing | None = None) -> Tensor:
    """The mean token of each sequence, `[sequences, D]` in float64; zero for an empty sequence.

    Tokens are added one after the other, so that on a CPU a mean never depends on its neighbours, not even by rounding.
    A GPU is not waited for.
    """
    values, offsets = tokens.values, upload(tokens.offsets, tokens.values.device)
    sums = torch.zeros(len(tokens), tokens.dim, dtype=torch.float64, device=values.device)
    owners = None if values.is_cuda else torch.arange(len(tokens)).repeat_interleave(tokens.lengths)
    step = max(1, (_GPU_NUMBERS if values.is_cuda else _CPU_NUMBERS) // max(1, tokens.dim))
    for start in range(0, len(values), step):
        z = values[start : start + step]
        z = z if z.dtype == torch.float64 else z.float()
        z = (preprocessing.apply(z) if preprocessing else z).double()
        if owners is None:  # on a GPU, where index_add_ adds in whatever order
            bounds = (offsets - start).clamp(0, len(z))
            sums += torch.segment_reduce(z, "sum", offsets=bounds, axis=0)
        else:
            sums.index_add_(0, owners[start : start + step], z)
    return sums / offsets.diff().clamp_min(1)[:, None]


def scale_to_dtype(queries: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """`queries` in `dtype`, and the power of two that they were divided by, if any: float16 has a narrow range."""
    if dtype != torch.float16:
        return queries.to(dtype), None
    size = torch.exp2(torch.ceil(torch.log2(queries.abs().amax().float().clamp_min(1e-30))))
    return (queries / size).to(dtype), size


def round_queries(queries: Tensor, dtype: torch.dtype) -> Tensor:
    """The nearest queries, in their own dtype, that `scale_to_dtype` only copies."""
    weights, size = scale_to_dtype(queries, dtype)
    weights = weights.to(queries.dtype)
    return weights if size is None else weights * size
