"""The threshold that lets a chosen share of in-distribution inputs through; how scores and levels are read."""

import math
from fractions import Fraction
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from apood.support.errors import InputError

if TYPE_CHECKING:  # decisions need numpy alone: the slow import of torch is left to those who score
    from torch import Tensor

__all__ = ["Scores", "as_scores", "conformal_threshold", "exact_level"]

Scores: TypeAlias = "ArrayLike | Tensor"
"""One score a sequence: a numpy array, a torch tensor (any float dtype, any device) or a list of numbers."""


def as_scores(scores: Scores, name: str) -> NDArray[np.float64]:
    """Scores as one float64 vector; infinities pass, NaN is refused with its place. Messages call them `name`."""
    if hasattr(scores, "detach"):
        scores = scores.detach().cpu().double()  # numpy knows no bfloat16
    try:
        vector = np.asarray(scores, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"The {name} must be numbers, one a sequence, got {type(scores).__name__}.") from error
    if vector.ndim != 1:
        raise InputError(f"The {name} must be one-dimensional, one a sequence, got shape {vector.shape}.")
    if len(missing := np.flatnonzero(np.isnan(vector))):
        raise InputError(
            f"The {name} hold {len(missing)} NaN of {len(vector)}, the first at index {missing[0]}: "
            "each must be a number or an infinity."
        )
    return vector


def exact_level(level: float, name: str) -> Fraction:
    """A level between 0 and 1 as the number that was meant.

    In floating point 100 * (1 - 0.93) is 6.999999999999995, and its floor would be one too low.
    """
    if not 1e-9 <= level <= 1 - 1e-9:
        raise InputError(f"{name} must lie strictly between 0 and 1, by at least 1e-9, got {level}.")
    return Fraction(float(level)).limit_denominator(10**9)


def conformal_threshold(scores: Scores, accept: float = 0.95) -> float:
    """The threshold for held-out ID `scores`: an input is accepted when its score is at least the threshold.

    A new input that is exchangeable with the calibration inputs is refused with probability at most `1 - accept`,
    whatever the distribution and however few calibration inputs there are.

    It is the k-th smallest score with k = floor((n + 1) (1 - accept)), so n must be at least `1 / (1 - accept) - 1`.
    It is -inf, and refuses nothing, where k calibration scores or more are -inf.
    """
    calibration = as_scores(scores, "calibration scores")
    refuse = 1 - exact_level(accept, "accept")
    k = math.floor((len(calibration) + 1) * refuse)
    if k < 1:
        raise InputError(
            f"An accept rate of {accept} needs at least {math.ceil(1 / refuse) - 1} calibration scores, "
            f"got {len(calibration)}."
        )
    return float(np.partition(calibration, k - 1)[k - 1])
