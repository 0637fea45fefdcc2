"""The frame in which tokens are looked at: their scale and their origin."""

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Frame"]


@dataclass(frozen=True, eq=False)
class Frame:
    """z -> z / |z| (if `unit`), then z -> z - `origin` (if given).

    Cheap enough to be applied block by block. A linear map of the tokens (whitening) is not part
    of it: that one folds into the queries for free, (P z)ᵀ w = zᵀ (Pᵀ w).
    """

    unit: bool = False
    origin: Tensor | None = None

    def apply(self, tokens: Tensor) -> Tensor:
        """The tokens `[..., D]` as seen in this frame; a zero token stays zero before the shift."""
        if self.unit:
            norm = torch.linalg.vector_norm(tokens, dim=-1, keepdim=True)
            # the squares of anything smaller vanish: it shrinks to zero like a zero token, and never blows up
            tokens = tokens / norm.clamp_min(torch.finfo(tokens.dtype).tiny ** 0.5)
        return tokens if self.origin is None else tokens - self.origin.to(tokens)
