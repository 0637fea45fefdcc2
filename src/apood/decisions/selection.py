"""Which inputs of a batch to call OOD while few of the calls are false alarms."""

import numpy as np
from numpy.typing import NDArray

from apood.decisions.threshold import Scores, as_scores, exact_level
from apood.support.errors import InputError

__all__ = ["benjamini_hochberg"]


def benjamini_hochberg(p_values: Scores, rate: float = 0.05) -> NDArray[np.bool_]:
    """True for the inputs of a batch to call OOD; the expected share of false alarms among them is at most `rate`.

    Calls the inputs with the i smallest p-values, i the largest with p_(i) <= rate * i / m (Benjamini & Hochberg 1995).
    Conformal p-values of one calibration set depend on each other, but only in the way that keeps this valid
    (Bates et al. 2023). They are never below 1 / (n + 1): to find i outliers among m takes n >= m / (rate * i) - 1.
    """
    p = as_scores(p_values, "p-values")
    exact_level(rate, "rate")
    if len(wrong := np.flatnonzero((p < 0) | (p > 1))):
        raise InputError(f"p-values must lie between 0 and 1, got {p[wrong[0]]} at index {wrong[0]}.")
    ascending = np.sort(p)
    # Conformal p-values lie on a grid and often meet the bound exactly, where rounding must not decide.
    bounds = rate * np.arange(1, len(p) + 1) / max(len(p), 1) * (1 + 1e-12)
    largest = ascending[ascending <= bounds].max(initial=-1.0)
    return np.asarray(p <= largest, dtype=np.bool_)
