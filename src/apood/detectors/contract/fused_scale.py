"""The scale of the log distances of a fusion's member: its floor, and distances that have no scale."""

import torch
from torch import Tensor

from apood.support.errors import InputError

__all__ = ["LEAST_KNOWN", "find_floor", "refuse_constant", "refuse_without_distances"]

LEAST_KNOWN = 5
"""Distances of held-out ID sequences that a scale needs."""

_FLOOR = 6.0  # in units of median minus lower quartile: 4 standard deviations of a normal distribution
_CONSTANT = 1e-9  # relative spread of equal scores by rounding alone


def find_floor(logs: Tensor) -> Tensor:
    """Return the floor of log d, from the log d of ID sequences."""
    lower, median = logs.quantile(torch.tensor([0.25, 0.5], dtype=logs.dtype))
    floor: Tensor = median - _FLOOR * (median - lower)
    return floor


def refuse_constant(name: str, mean: float, spread: float) -> None:
    """Raise `InputError` if the log distances of a member hardly spread."""
    if spread <= _CONSTANT * abs(mean):
        raise InputError(
            f"The member {name} gives all held-out ID sequences the same score, so there is no scale to compare it "
            "with the others; leave it out."
        )


def refuse_without_distances(name: str, logs: Tensor, known: Tensor) -> None:
    """Raise `InputError` if too few log distances are known, or if one is infinite.

    Args:
        name: the name of the member.
        logs: log d of held-out ID sequences.
        known: which of these are known; the others are of copies, or of texts of one sentence.
    """
    if int(known.sum()) < LEAST_KNOWN:
        raise InputError(
            f"The member {name} finds no distance between held-out ID sequences and those it learnt from: nearly every "
            "one is a copy of a training sequence; remove copies, or leave this member out."
        )
    if bool(logs.isposinf().any()):
        raise InputError(f"The member {name} finds held-out ID sequences infinitely far outside; leave it out.")
