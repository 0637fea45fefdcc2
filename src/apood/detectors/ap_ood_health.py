"""Whether a training of AP-OOD went wrong, and what to do about it."""

import warnings

import torch
from torch import Tensor

from apood.detectors.mean_pooling import few_sequences
from apood.fitting.loop import Outcome
from apood.support.errors import DivergedWarning, FitWarning

__all__ = ["warn_of_failure"]

_UNSETTLED = 4.0  # mean d² a head; good fits end between 0.4 and 1.7
_COLLAPSED = 0.99  # cosine of two heads
_COLLAPSED_SHARE = 0.1
_DEAD = 1e-6  # variance of a head, relative to the median one


def warn_of_failure(weights: Tensor, variances: Tensor, distance: float, sequences: int, outcome: Outcome) -> None:
    """Issues a `FitWarning` for each thing that is clearly wrong.

    Args:
        weights: `[M, T, D]` in the space they were trained in.
        variances: variance of each head's pooled value over the training sequences.
        distance: mean d² a head over the training sequences.
        sequences: number of training sequences.
        outcome: how the optimisation ended.
    """
    if outcome.diverged_at is not None:
        warnings.warn(
            f"Training broke off at step {outcome.diverged_at} because the loss was no longer finite, and the last "
            "finite weights were kept; use recipe='robust' or a smaller learning_rate.",
            DivergedWarning,
            stacklevel=4,
        )
    for message in _findings(weights, variances, distance, sequences):
        warnings.warn(message, FitWarning, stacklevel=4)


def _findings(weights: Tensor, variances: Tensor, distance: float, sequences: int) -> list[str]:
    heads, _, dim = weights.shape
    found = []
    if (few := few_sequences(sequences, dim)) is not None:
        found.append(few)
    if distance > _UNSETTLED:
        found.append(
            f"Training has not settled: the mean squared distance a head is {distance:.3g} where about 1 is right; "
            "use more steps or a smaller beta, and recipe='robust' if this was not it."
        )
    if (collapsed := _collapsed_share(weights)) > _COLLAPSED_SHARE:
        found.append(
            f"{collapsed:.0%} of the {heads} heads have collapsed onto another head and add nothing; "
            "use regularizer='logdet' or fewer steps."
        )
    if dead := int((variances <= _DEAD * variances.median()).sum()):
        found.append(
            f"{dead} of the {heads} heads are dead: their value is the same for every ID sequence; "
            "use recipe='robust' or a smaller beta."
        )
    return found


def _collapsed_share(weights: Tensor) -> float:
    """Share of heads that point the same way as, or opposite to, a head before them."""
    directions = torch.nn.functional.normalize(weights.flatten(1), dim=1)
    cosines = (directions @ directions.T).abs().tril(-1)
    return float((cosines.amax(1) > _COLLAPSED).double().mean())
