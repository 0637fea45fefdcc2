"""Metrics of how well scores separate ID from OOD. ID is the positive class and has the higher scores.

Only the order of the scores counts, so ties and infinities are allowed. Every metric has a 95% confidence interval for
the sampling of the inputs, and gives the same figures each time.
"""

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from apood.decisions.conformal import Scores, as_scores, check_level
from apood.support.errors import InputError

__all__ = [
    "Estimate", "aupr_id", "aupr_ood", "auroc", "compute_weighted", "delong", "fpr95", "fpr_at_tpr", "percentiles",
    "weigh_lengths",
]  # fmt: skip

_CONFIDENCE = 0.95
_Z = NormalDist().inv_cdf((1 + _CONFIDENCE) / 2)
_RESAMPLES = 1000
_DRAWS = 10_000  # if no inputs are resampled, a draw costs next to nothing
_SEED = 0
_CACHE_FRIENDLY = 2**17  # counts held at once while resampling
_BINS_PER_OCTAVE = 4  # lengths in one bin differ by at most 19%
_FEWEST_ALIKE = 30  # inputs of a set that the weights must leave, as an effective number


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


def auroc(id_scores: Scores, ood_scores: Scores) -> Estimate:
    """Return the probability that an ID input scores higher than an OOD input, ties counted half."""
    return delong(*_check_scores(id_scores, ood_scores))


def aupr_id(id_scores: Scores, ood_scores: Scores) -> Estimate:
    """Return the average precision of finding the ID inputs from the top.

    The interval is that of a stratified bootstrap. For perfectly separated sets it is a single point.
    """
    id_, ood = _check_scores(id_scores, ood_scores)
    return _average_precision(id_, ood)


def aupr_ood(id_scores: Scores, ood_scores: Scores) -> Estimate:
    """Return the average precision of finding the OOD inputs from the bottom, with an interval as in `aupr_id`."""
    id_, ood = _check_scores(id_scores, ood_scores)
    return _average_precision(-ood, -id_)


def fpr_at_tpr(id_scores: Scores, ood_scores: Scores, tpr: float = 0.95) -> Estimate:
    """Return the share of OOD inputs above the largest threshold that accepts at least the share `tpr` of ID inputs.

    The stratified bootstrap needs no resampling here. The threshold of a resample is the ID score at a rank whose
    distribution is known: indices drawn with replacement are floor(n U), and an order statistic of uniforms U is Beta
    distributed. The share of OOD inputs above it is drawn from its Jeffreys posterior instead of a binomial: with 0
    accepted of 500, resampling would always give 0, and an interval of no width.
    """
    id_, ood = (np.sort(scores) for scores in _check_scores(id_scores, ood_scores))
    refused = len(id_) - math.ceil(check_level(tpr, "tpr") * len(id_))

    def accepted(ranks: NDArray[np.int64] | int) -> NDArray[np.int64]:
        return np.asarray(len(ood) - np.searchsorted(ood, id_[ranks], side="left"), dtype=np.int64)

    generator = np.random.default_rng(_SEED)
    quantiles = generator.beta(refused + 1, len(id_) - refused, size=_DRAWS)
    ranks = np.minimum((len(id_) * quantiles).astype(np.int64), len(id_) - 1)
    hits = accepted(ranks)
    shares = generator.beta(hits + 0.5, len(ood) - hits + 0.5)
    return percentiles(float(accepted(refused)) / len(ood), shares)


def fpr95(id_scores: Scores, ood_scores: Scores) -> Estimate:
    """Return the share of OOD inputs that are accepted if 95% of the ID inputs are: `fpr_at_tpr` at 0.95."""
    return fpr_at_tpr(id_scores, ood_scores, 0.95)


def _check_scores(id_scores: Scores, ood_scores: Scores) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    id_, ood = as_scores(id_scores, "ID scores"), as_scores(ood_scores, "OOD scores")
    for name, scores in (("ID", id_), ("OOD", ood)):
        if not len(scores):
            raise InputError(f"A metric needs at least one {name} score, got none.")
    return id_, ood


def _average_precision(positive: NDArray[np.float64], negative: NDArray[np.float64]) -> Estimate:
    levels, ascending = np.unique(np.concatenate([positive, negative]), return_inverse=True)
    ranks = len(levels) - 1 - ascending  # 0 is the highest score
    hits, misses = ranks[: len(positive)], ranks[len(positive) :]
    value = _precision_of_counts(_count_ranks(hits[None], len(levels)), _count_ranks(misses[None], len(levels)))

    generator = np.random.default_rng(_SEED)
    rows = max(1, _CACHE_FRIENDLY // len(levels))
    resampled = [
        _precision_of_counts(
            _count_ranks(_resample(hits, count, generator), len(levels)),
            _count_ranks(_resample(misses, count, generator), len(levels)),
        )
        for count in (min(rows, _RESAMPLES - start) for start in range(0, _RESAMPLES, rows))
    ]
    return percentiles(float(value[0]), np.concatenate(resampled))


def _resample(ranks: NDArray[np.int64], count: int, generator: np.random.Generator) -> NDArray[np.int64]:
    return ranks[generator.integers(len(ranks), size=(count, len(ranks)))]


def _count_ranks(ranks: NDArray[np.int64], levels: int) -> NDArray[np.int64]:
    """Return how often each rank occurs in each row of `ranks`."""
    rows = len(ranks)
    places = ranks + levels * np.arange(rows)[:, None]
    return np.bincount(places.ravel(), minlength=rows * levels).reshape(rows, levels)


def _precision_of_counts(hits: NDArray[np.int64], misses: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the average precision of each row, from the numbers of positives and negatives at each rank."""
    found = hits.cumsum(axis=1)
    seen = np.maximum(found + misses.cumsum(axis=1), 1)
    return np.asarray((hits * found / seen).sum(axis=1) / found[:, -1], dtype=np.float64)


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
    low, high = np.quantile(resampled, [(1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2])
    return Estimate(value, float(min(low, value)), float(max(high, value)))


# Metrics at equal lengths


def weigh_lengths(
    id_lengths: NDArray[np.int64], ood_lengths: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Return weights of ID and OOD inputs under which both sets have the same distribution of lengths, or None.

    Lengths are sorted into bins of log S, four per octave. With p and q the shares of ID and of OOD inputs in a bin,
    the bin has weight min(p, q) in both sets, divided equally among its inputs. So a bin that one set lacks does not
    count, and no input counts more than it does without weights. The weights of each set sum to 1.

    The result is None if the sets overlap too little to compare them: if the effective number of inputs, 1 / sum of
    squared weights, is below 30 in one of them. Inputs of length 0 have no weight.
    """
    bins = [
        np.floor(_BINS_PER_OCTAVE * np.log2(np.maximum(own, 1))).astype(np.int64) for own in (id_lengths, ood_lengths)
    ]
    for own, lengths in zip(bins, (id_lengths, ood_lengths), strict=True):
        own[lengths < 1] = -1
    size = 1 + max((int(own.max()) for own in bins if len(own)), default=-1)
    counts = [np.bincount(own[own >= 0], minlength=size) for own in bins]
    shared = np.minimum(*(count / max(1, len(own)) for count, own in zip(counts, bins, strict=True)))
    if not shared.sum() > 0:
        return None
    found = []
    for own, count in zip(bins, counts, strict=True):
        weights = np.where(own >= 0, (shared / np.maximum(count, 1))[own], 0.0) / shared.sum()
        if 1 / np.square(weights).sum() < _FEWEST_ALIKE:
            return None
        found.append(weights)
    return found[0], found[1]


def compute_weighted(
    id_scores: Scores, ood_scores: Scores, id_weights: NDArray[np.floating], ood_weights: NDArray[np.floating]
) -> NDArray[np.float64]:
    """Return AUROC and FPR95 `[2, rows]` for every row of weights, `[rows, inputs]`, which need not sum to 1.

    With equal weights they are `auroc` and `fpr95`. A resample of a bootstrap is a row of counts.
    """
    id_, ood = _check_scores(id_scores, ood_scores)
    for name, weights, scores in (("ID", id_weights, id_), ("OOD", ood_weights, ood)):
        if weights.ndim != 2 or weights.shape[1] != len(scores):
            raise InputError(
                f"The {name} weights must have {len(scores)} columns, one per score, got shape {weights.shape}."
            )
        if not (weights >= 0).all() or not (weights.sum(1) > 0).all():
            raise InputError(f"The {name} weights of a row must be at least 0, and some above 0.")
    scores = np.concatenate([id_, ood])
    order = np.argsort(scores, kind="stable")
    first = np.r_[True, scores[order][1:] != scores[order][:-1]]  # a difference of two infinities would not be a number
    starts = np.flatnonzero(first)
    is_id = order < len(id_)
    inside = np.zeros((len(id_weights), len(order)))
    outside = np.zeros_like(inside)
    inside[:, is_id] = id_weights[:, order[is_id]]
    outside[:, ~is_id] = ood_weights[:, order[~is_id] - len(id_)]
    if len(starts) < len(order):
        inside, outside = np.add.reduceat(inside, starts, axis=1), np.add.reduceat(outside, starts, axis=1)
    at_most, seen = inside.cumsum(1), outside.cumsum(1)
    ids, oods = at_most[:, -1].copy(), seen[:, -1].copy()
    # the largest threshold that accepts 95%: the ID inputs below it weigh at most 5%
    at_most -= inside
    threshold = (at_most <= (1 - 0.95) * ids[:, None] * (1 + 1e-9)).sum(1) - 1
    refused = np.take_along_axis(seen - outside, threshold[:, None], 1)[:, 0]
    area = (np.einsum("ij,ij->i", inside, seen) - np.einsum("ij,ij->i", inside, outside) / 2) / (ids * oods)
    return np.stack([area, (oods - refused) / oods])
