"""From scores to decisions: conformal thresholds, conformal p-values, and the selection of many inputs at once."""

import math
from dataclasses import dataclass
from fractions import Fraction
from numbers import Real
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from apood.support.checks import shorten
from apood.support.errors import InputError

if TYPE_CHECKING:  # this module needs numpy alone, and importing torch is slow
    from torch import Tensor

__all__ = [
    "Calibration",
    "Scores",
    "accepted_interval",
    "as_scores",
    "benjamini_hochberg",
    "check_level",
    "conformal_p_values",
    "conformal_threshold",
    "count_needed",
    "find_rank",
    "score_tolerance",
]

Scores: TypeAlias = "ArrayLike | Tensor"
"""One score per sequence: a numpy array, a torch tensor (any float dtype, any device) or a list of numbers."""

# The rounding of a score depends on the shape of its batch, in the detector and in the encoder. That of an encoder in
# bfloat16, as on a GPU, is by far the largest. A store in float16 comes next; all other rounding is much smaller.
_OF_RANGE = 1e-3  # of the range from the 5% to the 95% quantile; raises the accept rate of normal scores by 0.0003
_COARSE_OF_RANGE = 1e-2  # the same for tokens of an encoder in bfloat16; 0.003
_OF_SIZE = 1e-6  # of the median, for calibration scores that are nearly all the same

_COVERED = 0.95  # probability of the interval of the accepted share


def as_scores(scores: Scores, name: str) -> NDArray[np.float64]:
    """Return scores as one float64 vector, which may hold infinities but no NaN; `name` is for error messages."""
    if hasattr(scores, "detach"):
        scores = scores.detach().cpu().double()  # numpy has no bfloat16
    try:
        vector = np.asarray(scores, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"The {name} must be numbers, one per sequence, got {type(scores).__name__}.") from error
    if vector.ndim != 1:
        raise InputError(f"The {name} must be one-dimensional, one per sequence, got shape {vector.shape}.")
    if len(missing := np.flatnonzero(np.isnan(vector))):
        raise InputError(
            f"The {name} hold {len(missing)} NaN of {len(vector)}, the first at index {missing[0]}: "
            "each must be a number or an infinity."
        )
    return vector


def check_level(level: Any, name: str) -> Fraction:
    """Return a level between 0 and 1 as the exact fraction that was meant, or raise `InputError`.

    In floating point 100 * (1 - 0.93) is 6.999999999999995, and its floor would be one too low.
    """
    real = isinstance(level, Real)
    if not (real and 1e-9 <= level <= 1 - 1e-9):
        raise InputError(f"{name} must be a number strictly between 0 and 1, by at least 1e-9, got {shorten(level)}.")
    return Fraction(float(level)).limit_denominator(10**9)


def score_tolerance(calibration: Scores, *, coarse: bool = False) -> float:
    """Return the difference up to which two scores count as equal, given the calibration scores.

    It is above rounding, and below any difference that matters. Quantiles are used, so a few extreme scores do not
    change it. Thresholds and p-values use it in favour of acceptance, so their guarantees hold.

    Args:
        calibration: the calibration scores.
        coarse: whether their tokens have the precision of bfloat16 alone.
    """
    known = np.sort(as_scores(calibration, "calibration scores"))
    known = known[np.isfinite(known)]
    if not len(known):
        return 0.0
    last = len(known) - 1
    low, median, high = (known[round(share * last)] for share in (0.05, 0.5, 0.95))
    share = _COARSE_OF_RANGE if coarse else _OF_RANGE
    return float(share * high - share * low + _OF_SIZE * abs(median))  # high - low might overflow


def count_needed(accept: float) -> int:
    """Return the smallest number of calibration scores that an accept rate can be guaranteed with."""
    return math.ceil(1 / (1 - check_level(accept, "accept"))) - 1


def find_rank(count: int, accept: float) -> int:
    """Return k: the threshold is the k-th smallest of `count` calibration scores. Raise `InputError` if k is 0."""
    k = math.floor((count + 1) * (1 - check_level(accept, "accept")))
    if k < 1:
        raise InputError(
            f"An accept rate of {accept} needs at least {count_needed(accept)} calibration scores, got {count}."
        )
    return k


def conformal_threshold(scores: Scores, accept: float = 0.95, *, coarse: bool = False) -> float:
    """Return the threshold from held-out ID `scores`; an input is accepted if its score is at least the threshold.

    A new input that is exchangeable with the calibration inputs is refused with probability at most `1 - accept`,
    for every distribution and every number of calibration inputs.

    The threshold is the k-th smallest score with k = floor((n + 1) (1 - accept)), minus `score_tolerance`, so that
    rounding does not refuse copies of that calibration input. n must be at least `1 / (1 - accept) - 1`. The threshold
    is -inf, and refuses nothing, if at least k calibration scores are -inf.
    """
    calibration = as_scores(scores, "calibration scores")
    k = find_rank(len(calibration), accept)
    return float(np.partition(calibration, k - 1)[k - 1] - score_tolerance(calibration, coarse=coarse))


def conformal_p_values(calibration: Scores, scores: Scores, *, coarse: bool = False) -> NDArray[np.float64]:
    """Return p = (1 + number of calibration scores <= score) / (n + 1) for each of `scores`.

    A calibration score that is higher by at most `score_tolerance` counts as equal. An input that is exchangeable with
    the calibration inputs gets p <= alpha with probability at most alpha, for every alpha. So an input is OOD at level
    alpha if p <= alpha, which is the same as `score < conformal_threshold(calibration, 1 - alpha)`, ties and infinities
    included. No p is below 1 / (n + 1).
    """
    known = np.sort(as_scores(calibration, "calibration scores"))
    if not len(known):
        raise InputError("p-values need at least one calibration score, got none.")
    lowered = known - score_tolerance(known, coarse=coarse)
    at_most = np.searchsorted(lowered, as_scores(scores, "scores"), side="right")
    return np.asarray((1 + at_most) / (len(known) + 1), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Calibration:
    """The outcome of a calibration, which never changes: one object, so that all decisions come from one calibration.

    Attributes:
        accept: accept rate.
        threshold: an input is accepted if its score is at least this.
        scores: calibration scores in ascending order.
        coarse: whether the tokens of the calibration have the precision of bfloat16 alone (see `score_tolerance`).
    """

    accept: float
    threshold: float
    scores: NDArray[np.float64]
    coarse: bool = False

    @classmethod
    def from_scores(cls, scores: Scores, accept: float, *, coarse: bool = False) -> Self:
        """Return the calibration by held-out ID scores."""
        known = np.sort(as_scores(scores, "calibration scores"))
        threshold = conformal_threshold(known, accept, coarse=coarse)
        return cls(float(accept), threshold, known, coarse)

    def subtract_threshold(self, scores: Scores) -> NDArray[np.float64]:
        """Return score minus threshold: -inf for a score of -inf, and else 0 for equal ones, infinite ones included."""
        given = as_scores(scores, "scores")
        never = np.isneginf(given)
        start = np.where(never, -np.inf, 0.0)
        return np.subtract(given, self.threshold, out=start, where=~never & (given != self.threshold))

    def accepts(self, scores: Scores) -> NDArray[np.bool_]:
        """Return which scores are in-distribution."""
        return self.subtract_threshold(scores) >= 0

    def p_values(self, scores: Scores) -> NDArray[np.float64]:
        """Return the conformal p-values of scores."""
        return conformal_p_values(self.scores, scores, coarse=self.coarse)


def benjamini_hochberg(p_values: Scores, rate: float = 0.05) -> NDArray[np.bool_]:
    """Return True for the inputs to call OOD; the expected share of false alarms among them is at most `rate`.

    These are the inputs with the i smallest p-values, i the largest with p_(i) <= rate * i / m (Benjamini & Hochberg
    1995). Conformal p-values from one calibration set depend on each other, but in a way that keeps this valid (Bates
    et al. 2023). They are never below 1 / (n + 1): to find i outliers among m takes n >= m / (rate * i) - 1.
    """
    p = as_scores(p_values, "p-values")
    check_level(rate, "rate")
    if len(wrong := np.flatnonzero((p < 0) | (p > 1))):
        raise InputError(f"p-values must lie between 0 and 1, got {p[wrong[0]]} at index {wrong[0]}.")
    ascending = np.sort(p)
    # Conformal p-values lie on a grid and often equal the bound, so rounding must not decide.
    bounds = rate * np.arange(1, len(p) + 1) / max(len(p), 1) * (1 + 1e-12)
    largest = ascending[ascending <= bounds].max(initial=-1.0)
    return np.asarray(p <= largest, dtype=np.bool_)


def accepted_interval(calibration: Calibration) -> tuple[float, float]:
    """Return an interval for the share of new ID inputs that this calibration accepts, with probability 0.95.

    The guarantee is about the mean over calibration sets. For one set and continuous scores, the share follows a Beta
    distribution.
    """
    from scipy.stats import beta

    count = len(calibration.scores)
    rank = find_rank(count, calibration.accept)
    low, high = beta(count + 1 - rank, rank).interval(_COVERED)
    return float(low), float(high)
