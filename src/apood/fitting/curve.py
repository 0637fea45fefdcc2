"""The course of a training: the loss and the distance at some of its steps, small enough to be kept with a detector."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Self

import torch
from torch import Tensor

__all__ = ["CurvePoint", "TrainingCurve"]

_MOST = 100  # points that are kept


class CurvePoint(NamedTuple):
    """One step of a training.

    Attributes:
        step: its number, from 0.
        loss: the loss of its batch.
        distance: the mean squared distance of its batch.
    """

    step: int
    loss: float
    distance: float


@dataclass(frozen=True)
class TrainingCurve:
    """The course of a training.

    Attributes:
        points: some steps in their order, the first and the last among them; none in a detector that was saved before
            curves were kept.
    """

    points: tuple[CurvePoint, ...] = ()

    @classmethod
    def thin_out(cls, points: Sequence[CurvePoint]) -> Self:
        """Return the curve of at most 100 of these points, evenly spaced."""
        chosen = torch.linspace(0, len(points) - 1, min(len(points), _MOST)).round().long().tolist()
        return cls(tuple(points[number] for number in chosen))

    def to_tensor(self) -> Tensor:
        """Return the form that artefacts store: step, loss and distance of each point, in one row."""
        return torch.tensor([number for point in self.points for number in point], dtype=torch.float64)

    @classmethod
    def from_tensor(cls, stored: Tensor) -> Self:
        """Return the curve that `to_tensor` stored."""
        numbers = stored.tolist()
        if len(numbers) % 3 or len(numbers) > 3 * _MOST or not all(map(math.isfinite, numbers)):
            raise ValueError(f"it has {len(numbers)} numbers, not three finite ones for each of {_MOST} steps at most")
        points = [CurvePoint(int(numbers[k]), *numbers[k + 1 : k + 3]) for k in range(0, len(numbers), 3)]
        if any(one.step >= other.step for one, other in pairwise(points)):
            raise ValueError("its steps are not in their order")
        return cls(tuple(points))
