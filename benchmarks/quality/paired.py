"""Differences between methods on the same inputs, with a paired bootstrap over the inputs."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from apood.evaluation.metrics import Estimate, percentiles

__all__ = ["Floats", "estimate_difference", "resample"]

_RESAMPLES = 1000
_TPR = 0.95

Floats = NDArray[np.float64]


def resample(id_scores: Floats, ood_scores: list[Floats]) -> Floats:
    """Return the mean AUROC and FPR95 over the OOD sets in percent, `[2, 1 + resamples]`.

    The first column is that of the sample itself. Every method is resampled at the same inputs.
    """
    id_weights = _draw_weights(0, len(id_scores))
    figures = [
        _compute_figures(id_scores, id_weights, ood, _draw_weights(number, len(ood)))
        for number, ood in enumerate(ood_scores, 1)
    ]
    return np.asarray(100 * np.mean(figures, axis=0))


def estimate_difference(first: list[Floats], second: list[Floats]) -> Estimate:
    """Return the mean over tasks of first - second, each resampled in the same way."""
    gaps = np.mean([a - b for a, b in zip(first, second, strict=True)], axis=0)
    return percentiles(float(gaps[0]), gaps[1:])


@lru_cache(maxsize=16)  # all methods on a task share the weights, and drawing takes longer than using them
def _draw_weights(number: int, count: int) -> NDArray[np.float32]:
    """Return how often each input of a set is in each resample; the first row is the sample itself."""
    drawn = np.random.default_rng(number).multinomial(count, np.full(count, 1 / count), size=_RESAMPLES)
    return np.vstack([np.ones(count), drawn]).astype(np.float32)


def _compute_figures(
    id_scores: Floats, id_weights: NDArray[np.float32], ood_scores: Floats, ood_weights: NDArray[np.float32]
) -> Floats:
    """Return AUROC and FPR95 for every row of weights; ties count half in AUROC, and as accepted in FPR95."""
    scores = np.concatenate([id_scores, ood_scores])
    order = np.argsort(scores, kind="stable")
    starts = np.flatnonzero(np.diff(scores[order], prepend=-np.inf))
    is_id = order < len(id_scores)
    inside = np.zeros((len(id_weights), len(order)))
    outside = np.zeros_like(inside)
    inside[:, is_id] = id_weights[:, order[is_id]]
    outside[:, ~is_id] = ood_weights[:, order[~is_id] - len(id_scores)]
    inside, outside = np.add.reduceat(inside, starts, axis=1), np.add.reduceat(outside, starts, axis=1)
    ids, oods = len(id_scores), len(ood_scores)  # the sums of every row of weights
    seen = outside.cumsum(1)
    auroc = (inside * (seen - outside / 2)).sum(1) / (ids * oods)
    at_least = inside[:, ::-1].cumsum(1)[:, ::-1]
    threshold = (at_least >= _TPR * ids - 1e-9).sum(1) - 1
    below = np.take_along_axis(seen - outside, threshold[:, None], 1)[:, 0]
    return np.stack([auroc, (oods - below) / oods])
