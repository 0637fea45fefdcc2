"""Differences between two methods on the same inputs, with a paired bootstrap over the inputs."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from apood.evaluation.intervals import Estimate, percentiles

__all__ = ["Resampled", "difference", "resampled"]

_RESAMPLES = 1000
_TPR = 0.95

Floats = NDArray[np.float64]


class Resampled:
    """AUROC and FPR95, in percent, of one method on one ID set against several OOD sets: as it is, then resampled."""

    def __init__(self, auroc: Floats, fpr95: Floats) -> None:
        self.auroc = auroc
        self.fpr95 = fpr95


def resampled(id_scores: Floats, ood_scores: list[Floats]) -> Resampled:
    """Means over the OOD sets, `[1 + resamples]`; the same inputs are drawn whatever the method."""
    id_weights = _weights(0, len(id_scores))
    figures = [
        _figures(id_scores, id_weights, ood, _weights(number, len(ood))) for number, ood in enumerate(ood_scores, 1)
    ]
    auroc, fpr95 = np.mean(figures, axis=0)
    return Resampled(100 * auroc, 100 * fpr95)


def difference(first: list[Floats], second: list[Floats]) -> Estimate:
    """The mean over tasks of first - second, each resampled in the same way."""
    gaps = np.mean([a - b for a, b in zip(first, second, strict=True)], axis=0)
    return percentiles(float(gaps[0]), gaps[1:])


@lru_cache(maxsize=16)  # all methods on a task share them, and drawing takes longer than using
def _weights(number: int, count: int) -> NDArray[np.float32]:
    """How often each input of a set is in each resample; the first is the sample itself."""
    drawn = np.random.default_rng(number).multinomial(count, np.full(count, 1 / count), size=_RESAMPLES)
    return np.vstack([np.ones(count), drawn]).astype(np.float32)


def _figures(
    id_scores: Floats, id_weights: NDArray[np.float32], ood_scores: Floats, ood_weights: NDArray[np.float32]
) -> Floats:
    """AUROC and FPR95 of every row of weights; ties count half in the one, and as accepted in the other."""
    scores = np.concatenate([id_scores, ood_scores])
    order = np.argsort(scores, kind="stable")
    starts = np.flatnonzero(np.diff(scores[order], prepend=-np.inf))
    is_id = order < len(id_scores)
    inside = np.zeros((len(id_weights), len(order)))
    outside = np.zeros_like(inside)
    inside[:, is_id] = id_weights[:, order[is_id]]
    outside[:, ~is_id] = ood_weights[:, order[~is_id] - len(id_scores)]
    inside, outside = np.add.reduceat(inside, starts, axis=1), np.add.reduceat(outside, starts, axis=1)
    ids, oods = len(id_scores), len(ood_scores)  # every row of weights sums to these
    seen = outside.cumsum(1)
    auroc = (inside * (seen - outside / 2)).sum(1) / (ids * oods)
    at_least = inside[:, ::-1].cumsum(1)[:, ::-1]
    threshold = (at_least >= _TPR * ids - 1e-9).sum(1) - 1
    below = np.take_along_axis(seen - outside, threshold[:, None], 1)[:, 0]
    return np.stack([auroc, (oods - below) / oods])
