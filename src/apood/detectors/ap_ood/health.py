"""Warnings about a training of AP-OOD that failed, with remedies."""

import math
import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from apood.detectors.ap_ood.recipe import HeadReduction
from apood.detectors.shared.mean_pooling import describe_shortage
from apood.fitting.optimise import Outcome
from apood.support.errors import DivergedWarning, FitWarning

__all__ = ["Outliers", "warn_of_failure"]

_UNSETTLED = 4.0  # mean d² per head; good fits end between 0.4 and 1.7
_COLLAPSED = 0.99  # absolute cosine between two heads
_COLLAPSED_SHARE = 0.1  # of the heads
_DEAD = 1e-6  # variance of a head, relative to the median one
# d² of AUX sequences. The gradient with respect to d² is 1 for an ID sequence and -λ / (exp(d²) - 1) for an AUX one.
# Beyond this value it is below a millionth at λ = 1, which is lost in the rounding of float32 sums.
_UNFELT = 14.0


class Outliers(NamedTuple):
    """How far away AUX sequences were in a fit.

    Attributes:
        distance: -log of their mean exp(-d²), at the start or at the end, whichever is nearer.
        weight: λ.
        reduction: how the loss reduces d² over heads.
    """

    distance: float
    weight: float
    reduction: HeadReduction


def warn_of_failure(
    weights: Tensor,
    variances: Tensor,
    distance: float,
    sequences: int,
    outcome: Outcome,
    outliers: Outliers | None,
) -> None:
    """Issue a `FitWarning` for each failure.

    Args:
        weights: `[M, T, D]` in the space of the training.
        variances: variance of the pooled value over the training sequences, per head.
        distance: mean d² per head over the training sequences.
        sequences: number of training sequences.
        outcome: how the optimisation ended.
        outliers: how far away AUX sequences were; None if the loss ignores them.
    """
    if outcome.diverged_at is not None:
        warnings.warn(
            f"Training broke off at step {outcome.diverged_at} because the loss was no longer finite, and the last "
            "finite weights were kept; use recipe='robust' or a smaller learning_rate.",
            DivergedWarning,
            stacklevel=4,
        )
    found = _find_failures(weights, variances, distance, sequences)
    if outliers is not None and (unfelt := _find_unfelt(outliers, len(weights), distance)) is not None:
        found.append(unfelt)
    for message in found:
        warnings.warn(message, FitWarning, stacklevel=4)


def _find_failures(weights: Tensor, variances: Tensor, distance: float, sequences: int) -> list[str]:
    """Return a message per failure."""
    heads, _, dim = weights.shape
    found = []
    if (few := describe_shortage(sequences, dim)) is not None:
        found.append(few)
    if distance > _UNSETTLED:
        found.append(
            f"Training has not settled: the mean squared distance per head is {distance:.3g}, but should be about 1; "
            "use more steps or a smaller beta, or recipe='robust' if this was another recipe."
        )
    if (collapsed := _measure_collapse(weights)) > _COLLAPSED_SHARE:
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


def _measure_collapse(weights: Tensor) -> float:
    """Return the share of heads that have the same or the opposite direction as an earlier head."""
    directions = torch.nn.functional.normalize(weights.flatten(1), dim=1)
    cosines = (directions @ directions.T).abs().tril(-1)
    return float((cosines.amax(1) > _COLLAPSED).double().mean())


def _find_unfelt(outliers: Outliers, heads: int, inside: float) -> str | None:
    """Return a message if AUX sequences were too far away to learn from; `inside` is the mean d² per head of ID."""
    distance, weight, reduction = outliers
    limit = _UNFELT + math.log(max(weight, 1.0))
    if not distance > limit:
        return None
    per_head = distance / heads if reduction == "sum" else distance
    if per_head > limit and inside <= _UNSETTLED:
        return (
            "The AUX sequences taught nothing because they differ from ID anyway: their mean squared distance per head "
            f"is at least {per_head:.3g} at the start and at the end, that of ID {inside:.3g}; "
            "use AUX sequences that are more like ID ones, or none."
        )
    which, remedy = "per head", "more steps or a smaller beta"
    if reduction == "sum":
        which, remedy = f"summed over {heads} heads", "recipe='robust' or head_reduction='mean'"
    return (
        f"The AUX sequences taught nothing: their squared distance {which} is at least {distance:.3g} at the start and "
        f"at the end, and exp(-d²) leaves no gradient beyond about {limit:.0f}; use {remedy}."
    )
