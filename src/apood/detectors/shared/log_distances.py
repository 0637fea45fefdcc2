"""Distances on a logarithmic scale: their floor, and how they depend on the length of a sequence."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

__all__ = ["LengthLaw", "compute_floored_log"]

_PRIOR = 40.0  # sequences that the absence of a law weighs as much as, because a few sequences can show any by chance
_TAIL = 0.01  # share of the lengths at either end beyond which no ID sequence tells how the law goes on
_EXTREMES = 2  # and of how many sequences at least, because a single very long one would bend the law of a few
_LONGEST_TAIL = 0.05  # because the line beyond a few middle lengths would be steep
_VERSION = -1.0  # first number of the stored form; the former one began with a length


def compute_floored_log(distances: Tensor) -> Tensor:
    """Return the logarithms; a distance of 0, or below 0 by rounding, counts as the smallest positive number."""
    return distances.clamp_min(torch.finfo(distances.dtype).tiny).log()


@dataclass(frozen=True)
class LengthLaw:
    """A curve per distance that says how log d of ID sequences depends on log S, the logarithm of their length.

    More tokens average out, so a long sequence is near and a short one is far, whatever they contain. The law is a
    parabola, a(S) = b u + c u² - constant with u = (log S - mean) / spread, and 0 on average over the ID sequences.
    Below the shortest 1% (of their beginnings, if it was learnt from these, too) it is constant. Beyond the longest 1%
    it goes on as a line if it falls there, so that nothing looks nearer because ordinary text was appended to it, and
    is constant otherwise. With 40 to 200 sequences, the limits are set by the two shortest and the two longest instead
    of by 1%; with fewer than 40, by 5%.

    Attributes:
        shortest: log length below which the law is constant.
        mean: mean log length of the ID sequences.
        longest: log length above which the law is a line.
        spread: standard deviation of the log lengths of the ID sequences.
        curves: b, c and the constant per distance.
        one_sided: whether only long sequences are compared with ID sequences of their length, as in detectors that were
            saved by earlier versions.
    """

    shortest: float = 0.0
    mean: float = 0.0
    longest: float = 0.0
    spread: float = 1.0
    curves: tuple[tuple[float, float, float], ...] = ((0.0, 0.0, 0.0),)
    one_sided: bool = False

    @classmethod
    def fit(
        cls, samples: Sequence[tuple[Tensor, Tensor]], beginnings: Sequence[tuple[Tensor, Tensor]] | None = None
    ) -> Self:
        """Return the law of ID sequences by ridge regression: the fewer sequences, the flatter it is.

        Args:
            samples: per distance, log d `[N]` of some ID sequences, and their numbers of tokens `[N]`.
            beginnings: the same of beginnings of ID sequences, which together weigh as much as the sequences.
        """
        logs = torch.cat([_log(lengths) for _, lengths in samples])
        tail = _choose_tail(len(logs) / len(samples))
        shortest, longest = logs.quantile(torch.tensor([tail, 1 - tail], dtype=logs.dtype)).tolist()
        if beginnings is not None:
            begun = torch.cat([_log(lengths) for _, lengths in beginnings])
            shortest = min(shortest, float(begun.quantile(_choose_tail(len(begun) / len(beginnings)))))
            logs = torch.cat([logs, begun])
        logs = logs.clamp(shortest, longest)
        law = cls(shortest, float(logs.mean()), longest, float(logs.std(correction=0)), ())
        if law.spread <= 1e-6:  # all sequences have one length
            return cls.make_flat(len(samples))
        parts = beginnings if beginnings is not None else [None] * len(samples)
        curves = tuple(law._fit_curve(sample, part) for sample, part in zip(samples, parts, strict=True))
        return cls(shortest, law.mean, longest, law.spread, curves)

    @classmethod
    def make_flat(cls, distances: int) -> Self:
        """Return a law by which no distance depends on the length."""
        return cls(curves=((0.0, 0.0, 0.0),) * distances)

    def refit(self, number: int, logs: Tensor, lengths: Tensor) -> Self:
        """Return the law with another curve for one distance, learnt from log d and lengths of ID sequences.

        A flat law stays flat.
        """
        if self.is_flat:
            return self
        curve = self._fit_curve((logs, lengths), None)
        return replace(self, curves=(*self.curves[:number], curve, *self.curves[number + 1 :]))

    def __len__(self) -> int:
        """Return the number of distances."""
        return len(self.curves)

    @property
    def is_flat(self) -> bool:
        """Whether no distance depends on the length."""
        return not any(b or c for b, c, _ in self.curves)

    def compute_allowances(self, lengths: Tensor) -> Tensor:
        """Return how much log d of ID sequences of these lengths exceeds the mean over all: `[N, distances]`."""
        u = self._scale(lengths)
        end = (self.longest - self.mean) / self.spread
        inside, beyond = u.clamp_max(end), (u - end).clamp_min(0)
        b, c, constant = torch.tensor(self.curves, dtype=torch.float64).unbind(1)
        slope = (b + 2 * c * end).clamp_max(0)
        line: Tensor = torch.outer(inside, b)
        if self.one_sided:
            return line.clamp_max(0)
        return line.add(torch.outer(inside.square(), c)).sub(constant).add(torch.outer(beyond, slope))

    def to_tensor(self) -> Tensor:
        """Return the form that artefacts store: all numbers of the law in one row."""
        numbers = [self.shortest, self.mean, self.longest, self.spread, float(self.one_sided)]
        curves = [number for curve in self.curves for number in curve]
        return torch.tensor([_VERSION, *numbers, *curves], dtype=torch.float64)

    @classmethod
    def from_tensor(cls, stored: Tensor) -> Self:
        """Return the law that `to_tensor` stored, in this version or an earlier one."""
        numbers = stored.tolist()
        if not all(map(math.isfinite, numbers)):
            raise ValueError("its numbers are not all finite")
        if len(numbers) < 4 or (numbers[0] == _VERSION and (len(numbers) < 9 or len(numbers) % 3)):
            raise ValueError(f"it has {len(numbers)} numbers, not three for each distance and those of the lengths")
        if numbers[0] != _VERSION:
            shortest, mean, longest, *slopes = numbers
            return cls(shortest, mean, longest, 1.0, tuple((slope, 0.0, 0.0) for slope in slopes), one_sided=True)
        shortest, mean, longest, spread, one_sided, *rest = numbers[1:]
        if spread <= 0 or shortest > longest or one_sided not in (0, 1):
            raise ValueError("its lengths contradict each other")
        curves = tuple((rest[k], rest[k + 1], rest[k + 2]) for k in range(0, len(rest), 3))
        return cls(shortest, mean, longest, spread, curves, bool(one_sided))

    def _scale(self, lengths: Tensor) -> Tensor:
        return (_log(lengths).clamp_min(self.shortest) - self.mean) / self.spread

    def _fit_curve(
        self, sample: tuple[Tensor, Tensor], beginnings: tuple[Tensor, Tensor] | None
    ) -> tuple[float, float, float]:
        column, lengths = sample
        weights = torch.ones(len(column), dtype=torch.float64)
        if beginnings is not None:
            begun, theirs = beginnings
            weights = torch.cat([weights, torch.full_like(begun, len(column) / len(begun), dtype=torch.float64)])
            column, lengths = torch.cat([column, begun]), torch.cat([lengths, theirs])
        u = self._scale(lengths).clamp_max((self.longest - self.mean) / self.spread)
        x, y = torch.stack([u, u.square()], 1), column.double()
        centred = x - weights @ x / weights.sum()
        weighted = centred * weights[:, None]
        y = y - weights @ y / weights.sum()
        curve = torch.linalg.solve(weighted.T @ centred + _PRIOR * torch.eye(2).double(), weighted.T @ y)
        whole = x[: len(sample[0])].mean(0)  # the law is 0 on average over the sequences, not over their beginnings
        b, c = curve.tolist()
        return b, c, float(whole @ curve)


def _choose_tail(sequences: float) -> float:
    return min(max(_TAIL, _EXTREMES / sequences), _LONGEST_TAIL)


def _log(lengths: Tensor) -> Tensor:
    return lengths.double().clamp_min(1).log()
