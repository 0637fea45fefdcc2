"""Distances on a logarithmic scale: their floor, and how they fall with the length of a sequence."""

import math

import torch
from torch import Tensor

__all__ = ["allowance", "floored_log", "length_law"]


def floored_log(distances: Tensor) -> Tensor:
    """Logarithms, with the smallest positive number for a distance of 0 (or below it, by rounding)."""
    return distances.clamp_min(torch.finfo(distances.dtype).tiny).log()


_SURE = 2.0  # standard errors that a slope must be away from 0; a few sequences happen to show anything
_TAIL = 0.01  # share of the lengths at either end beyond which no law is assumed


def length_law(log_distances: Tensor, lengths: Tensor) -> Tensor:
    """`[3 + members]`: the least, the mean and the greatest log length that the law is for, and a slope a member.

    The slope is that of the regression of log d on log S over held-out ID sequences, `log_distances
    [N, members]` (NaN where one says nothing); 0 where it may as well be chance.
    """
    logs = _log(lengths)
    low, high = logs.quantile(torch.tensor([_TAIL, 1 - _TAIL], dtype=logs.dtype))
    logs = logs.clamp(low, high)
    slopes = [_slope(logs, column) for column in log_distances.T]
    return torch.tensor([float(low), float(logs.mean()), float(high), *slopes], dtype=torch.float64)


def allowance(law: Tensor, lengths: Tensor) -> Tensor:
    """How much lower log d of an ID sequence is expected to be for its length alone, `[N, members]`, never above 0.

    One-sided on purpose: a long sequence is near because it is long, and is compared with its like; a short one
    is far for the same reason, but an unusually short input is also what a foreign one looks like.
    """
    low, mean, high = law[:3].tolist()
    return torch.outer(_log(lengths).clamp(low, high) - mean, law[3:]).clamp_max(0.0)


def _log(lengths: Tensor) -> Tensor:
    return lengths.double().clamp_min(1).log()


def _slope(logs: Tensor, column: Tensor) -> float:
    known = ~column.isnan()
    x, y = logs[known] - logs[known].mean(), column[known].double() - column[known].mean()
    spread = float(x.square().sum())
    if len(x) < 3 or spread == 0:
        return 0.0
    slope = float(x @ y) / spread
    error = math.sqrt(float((y - slope * x).square().sum()) / (len(x) - 2) / spread)
    return slope if abs(slope) > _SURE * error else 0.0
