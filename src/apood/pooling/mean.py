"""Mean pooling: what attention pooling becomes at β = 0, and what the classical detectors look at."""

import torch
from torch import Tensor

from apood.pooling.frame import Frame
from apood.tokens.batch import TokenBatch

__all__ = ["mean_pool"]


def mean_pool(tokens: TokenBatch, frame: Frame | None = None) -> Tensor:
    """The mean token of each sequence, `[sequences, D]` in float64; zero for an empty sequence.

    One sequence at a time, so that a mean never depends on its neighbours, not even by rounding.
    """
    means = torch.zeros(len(tokens), tokens.dim, dtype=torch.float64, device=tokens.values.device)
    for row, sequence in zip(means, tokens, strict=True):
        if len(sequence):
            z = sequence if sequence.dtype == torch.float64 else sequence.float()
            row.copy_((frame.apply(z) if frame else z).sum(0, dtype=torch.float64) / len(sequence))
    return means
