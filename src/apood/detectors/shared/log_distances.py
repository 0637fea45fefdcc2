"""Distances on a logarithmic scale: their floor, and how they fall with the length of a sequence."""

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

__all__ = ["LengthLaw", "compute_floored_log"]

_SURE = 2.0  # standard errors that a slope must be away from 0, because a few sequences can show any slope by chance
_TAIL = 0.01  # share of the lengths at either end beyond which the law is constant


def compute_floored_log(distances: Tensor) -> Tensor:
    """Return the logarithms; a distance of 0, or below 0 by rounding, counts as the smallest positive number."""
    return distances.clamp_min(torch.finfo(distances.dtype).tiny).log()


@dataclass(frozen=True)
class LengthLaw:
    """A line per distance that says how log d of ID sequences falls with log S, the logarithm of their length.

    More tokens average out, so a long sequence is near whatever it contains.

    Attributes:
        shortest: log length below which the law is constant.
        mean: mean log length of the ID sequences; the law says nothing about a sequence of this length.
        longest: log length above which the law is constant.
        slopes: slope of log d over log S per distance; 0 if it does not differ significantly from 0.
    """

    shortest: float = 0.0
    mean: float = 0.0
    longest: float = 0.0
    slopes: tuple[float, ...] = (0.0,)

    @classmethod
    def fit(cls, log_distances: Tensor, lengths: Tensor) -> Self:
        """Return the law of ID sequences by linear regression.

        Args:
            log_distances: log d `[N, members]` of each sequence for each distance; NaN values are left out.
            lengths: number of tokens `[N]` of each sequence.
        """
        logs = _log(lengths)
        shortest, longest = logs.quantile(torch.tensor([_TAIL, 1 - _TAIL], dtype=logs.dtype))
        logs = logs.clamp(shortest, longest)
        slopes = tuple(_fit_slope(logs, column) for column in log_distances.T)
        return cls(float(shortest), float(logs.mean()), float(longest), slopes)

    def compute_allowances(self, lengths: Tensor) -> Tensor:
        """Return how much lower log d is expected to be because of the length alone: `[N, members]`, at most 0.

        Only sequences that are longer than the mean get an allowance. A long sequence is near because it is long, so
        it is compared with ID sequences of its length. A short one is far for the same reason, but foreign inputs
        are often unusually short, too.
        """
        logs = _log(lengths).clamp(self.shortest, self.longest)
        return torch.outer(logs - self.mean, torch.tensor(self.slopes, dtype=torch.float64)).clamp_max(0.0)

    def to_tensor(self) -> Tensor:
        """Return `[shortest, mean, longest, *slopes]`, the form that artefacts store."""
        return torch.tensor([self.shortest, self.mean, self.longest, *self.slopes], dtype=torch.float64)

    @classmethod
    def from_tensor(cls, stored: Tensor) -> Self:
        """Return the law that `to_tensor` stored."""
        shortest, mean, longest, *slopes = stored.tolist()
        return cls(shortest, mean, longest, tuple(slopes))


def _log(lengths: Tensor) -> Tensor:
    return lengths.double().clamp_min(1).log()


def _fit_slope(logs: Tensor, column: Tensor) -> float:
    """Return the slope of `column` over `logs`, or 0 if it could be chance."""
    known = ~column.isnan()
    x, y = logs[known] - logs[known].mean(), column[known].double() - column[known].mean()
    spread = float(x.square().sum())
    if len(x) < 3 or spread == 0:
        return 0.0
    slope = float(x @ y) / spread
    error = math.sqrt(float((y - slope * x).square().sum()) / (len(x) - 2) / spread)
    return slope if abs(slope) > _SURE * error else 0.0
