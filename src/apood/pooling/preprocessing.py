"""What happens to tokens and queries before they meet: unit length, origin and rounding; and the mean of tokens.

Mean pooling is attention pooling at β = 0, and all that the classical detectors look at. Queries that meet 16-bit
tokens have one rule of rounding, for the kernels and for what a detector keeps: tensor cores multiply numbers of one
dtype, so 16-bit tokens meet queries of their dtype. A detector that keeps queries which that dtype holds exactly gives
such tokens the same scores on every device.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from apood.tokens.batch import TokenBatch, upload

__all__ = ["Preprocessing", "mean_pool", "round_queries", "scale_to_dtype"]

_CPU_NUMBERS, _GPU_NUMBERS = 2**19, 2**26  # widened to float64 at a time: what caches hold, what a GPU can spare


@dataclass(frozen=True, eq=False)
class Preprocessing:
    """A map of tokens: z -> z / |z| (if `unit`), then z -> z - `origin` (if given).

    It is cheap enough to be applied block by block. A linear map (whitening) is not part of it, because that folds into
    the queries for free: (P z)ᵀ w = zᵀ (Pᵀ w).

    Attributes:
        unit: whether tokens are brought to unit length.
        origin: `[D]`, subtracted from each token, or None.
    """

    unit: bool = False
    origin: Tensor | None = None

    def apply(self, tokens: Tensor) -> Tensor:
        """Return the preprocessed tokens `[..., D]`; a zero token stays zero before the origin is subtracted."""
        if self.unit:
            norm = torch.linalg.vector_norm(tokens, dim=-1, keepdim=True)
            # The squares of a smaller norm vanish, so such a token shrinks towards zero instead of blowing up.
            tokens = tokens / norm.clamp_min(torch.finfo(tokens.dtype).tiny ** 0.5)
        return tokens if self.origin is None else tokens - self.origin.to(tokens)


def mean_pool(tokens: TokenBatch, preprocessing: Preprocessing | None = None) -> Tensor:
    """Return the mean token of each sequence, `[sequences, D]` in float64; zero for an empty sequence.

    Tokens are added one after the other, so that on a CPU the rounding of a mean does not depend on its neighbours.
    There is no synchronisation with a GPU.
    """
    values, offsets = tokens.values, upload(tokens.offsets, tokens.values.device)
    sums = torch.zeros(len(tokens), tokens.dim, dtype=torch.float64, device=values.device)
    owners = None if values.is_cuda else torch.arange(len(tokens)).repeat_interleave(tokens.lengths)
    step = max(1, (_GPU_NUMBERS if values.is_cuda else _CPU_NUMBERS) // max(1, tokens.dim))
    for start in range(0, len(values), step):
        z = values[start : start + step]
        z = z if z.dtype == torch.float64 else z.float()
        z = (preprocessing.apply(z) if preprocessing else z).double()
        if owners is None:  # on a GPU index_add_ adds in an arbitrary order
            bounds = (offsets - start).clamp(0, len(z))
            sums += torch.segment_reduce(z, "sum", offsets=bounds, axis=0)
        else:
            sums.index_add_(0, owners[start : start + step], z)
    return sums / offsets.diff().clamp_min(1)[:, None]


def scale_to_dtype(queries: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Return `queries` in `dtype`, and the power of two that they were divided by, if any.

    float16 has a narrow range, so queries in float16 are divided by their size.
    """
    if dtype != torch.float16:
        return queries.to(dtype), None
    size = torch.exp2(torch.ceil(torch.log2(queries.abs().amax().float().clamp_min(1e-30))))
    return (queries / size).to(dtype), size


def round_queries(queries: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the nearest queries, in their own dtype, that `dtype` holds exactly after `scale_to_dtype`."""
    weights, size = scale_to_dtype(queries, dtype)
    weights = weights.to(queries.dtype)
    return weights if size is None else weights * size
