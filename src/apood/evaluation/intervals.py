"""Estimates with 95% confidence intervals."""

from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["CONFIDENCE", "Estimate", "delong", "percentiles"]

CONFIDENCE = 0.95
_Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


class Estimate(NamedTuple):
    """A value with its 95% confidence interval, which always contains it.

    Attributes:
        value: the estimate.
        low: lower end of the interval.
        high: upper end.
    """

    value: float
    low: float
    high: float


def delong(positive: NDArray[np.float64], negative: NDArray[np.float64]) -> Estimate:
    """Return AUROC with the interval of DeLong et al. (1988), on the logit scale so that it stays inside [0, 1].

    If the sets are perfectly separated, all scores are equal, or a set has a single score, then the variance is zero or
    unknown. The interval is then the Wilson interval of min(n_positive, n_negative) independent pairs: 100% of 500 is
    [99.2, 100].
    """
    won, lost = _placements(positive, negative), _placements(negative, positive)
    value = float(won.mean())
    fewest = min(len(won), len(lost))
    variance = won.var(ddof=1) / len(won) + lost.var(ddof=1) / len(lost) if fewest > 1 else 0.0
    if variance == 0 or not 0 < value < 1:
        return _wilson(value, fewest)
    reach = np.exp(_Z * np.sqrt(variance) / (value * (1 - value)))
    odds = value / (1 - value)
    return Estimate(value, float(odds / (odds + reach)), float(1 - 1 / (1 + odds * reach)))


def _placements(scores: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return, for each score, the share of `others` below it, ties counted half."""
    known = np.sort(others)
    below = np.searchsorted(known, scores, side="left") + np.searchsorted(known, scores, side="right")
    return np.asarray(below / (2 * len(known)), dtype=np.float64)


def _wilson(share: float, count: int) -> Estimate:
    total = count + _Z**2
    centre = (count * share + _Z**2 / 2) / total
    reach = _Z * np.sqrt(count * share * (1 - share) + _Z**2 / 4) / total
    return Estimate(share, float(min(max(centre - reach, 0.0), share)), float(max(min(centre + reach, 1.0), share)))


def percentiles(value: float, resampled: NDArray[np.float64]) -> Estimate:
    """Return the percentile interval of a bootstrap, widened to contain `value` if all resamples lie on one side."""
    low, high = np.quantile(resampled, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(value, float(min(low, value)), float(max(high, value)))
