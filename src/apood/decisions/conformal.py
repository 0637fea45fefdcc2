"""Conformal p-values: how rare a score is among the scores of held-out ID inputs."""

import numpy as np
from numpy.typing import NDArray

from apood.decisions.threshold import Scores, as_scores
from apood.support.errors import InputError

__all__ = ["conformal_p_values"]


def conformal_p_values(calibration: Scores, scores: Scores) -> NDArray[np.float64]:
    """One p for each of `scores`: p = (1 + number of calibration scores <= score) / (n + 1).

    An input that is exchangeable with the calibration inputs gets p <= alpha with probability at most alpha, for
    every alpha.

    So an input is OOD at level alpha when p <= alpha, which is the same as
    `score < conformal_threshold(calibration, 1 - alpha)`, ties and infinities included. No p is below 1 / (n + 1).
    """
    known = np.sort(as_scores(calibration, "calibration scores"))
    if not len(known):
        raise InputError("p-values need at least one calibration score, got none.")
    at_most = np.searchsorted(known, as_scores(scores, "scores"), side="right")
    return np.asarray((1 + at_most) / (len(known) + 1), dtype=np.float64)
