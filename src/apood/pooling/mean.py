"""Mean pooling: what attention pooling becomes at β = 0, and what the classical detectors look at."""

import torch
from torch import Tensor

from apood.pooling.frame import Frame
from apood.tokens.batch import TokenBatch, upload

__all__ = ["mean_pool"]

_CPU_NUMBERS, _GPU_NUMBERS = 2**19, 2**26  # widened to float64 at a time: what caches hold, what a GPU can spare


def mean_pool(tokens: TokenBatch, frame: Frame | None = None) -> Tensor:
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
        z = (frame.apply(z) if frame else z).double()
        if owners is None:  # on a GPU, where index_add_ adds in whatever order
            bounds = (offsets - start).clamp(0, len(z))
            sums += torch.segment_reduce(z, "sum", offsets=bounds, axis=0)
        else:
            sums.index_add_(0, owners[start : start + step], z)
    return sums / offsets.diff().clamp_min(1)[:, None]
