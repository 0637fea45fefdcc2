"""Distances on a logarithmic scale, where those of different methods can be compared."""

import torch
from torch import Tensor

__all__ = ["floored_log"]


def floored_log(distances: Tensor) -> Tensor:
    """Logarithms, with the smallest positive number for a distance of 0 (or below it, by rounding)."""
    return distances.clamp_min(torch.finfo(distances.dtype).tiny).log()
