"""Differences between two methods on the same inputs, with a paired bootstrap over the inputs."""

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


def resampled(id_scores: Floats, ood_scores: list[Floats], seed: int) -> Resampled:
    """Means over the OOD sets, `[1 + resamples]`; equal seeds draw the same inputs, whatever the method."""
    generator = np.random.default_rng(seed)
    id_weights = _weights(generator, len(id_scores))
    figures = [_figures(id_scores, id_weights, ood, _weights(generator, len(ood))) for ood in ood_scores]
    auroc, fpr95 = np.mean(figures, axis=0)
    return Resampled(100 * auroc, 100 * fpr95)


def difference(first: list[Floats], second: list[Floats]) -> Estimate:
    """The mean over tasks of first - second, each resampled in the same way."""
    gaps = np.mean([a - b for a, b in zip(first, second, strict=True)], axis=0)
    return percentiles(float(gaps[0]), gaps[1:])


def _weights(generator: np.random.Generator, count: int) -> Floats:
    """How often each input is in each resample; the first is the sample itself."""
    drawn = generator.multinomial(count, np.full(count, 1 / count), size=_RESAMPLES)
    return np.vstack([np.ones(count), drawn])


def _figures(id_scores: Floats, id_weights: Floats, ood_scores: Floats, ood_weights: Floats) -> Floats:
    """AUROC and FPR95 of every row of weights; ties count half in the one, and as accepted in the other."""
    levels, places = np.unique(np.concatenate([id_scores, ood_scores]), return_inverse=True)
    of_id, of_ood = places[: len(id_scores)], places[len(id_scores) :]
    found = np.empty((2, len(id_weights)))
    for row, (mine, theirs) in enumerate(zip(id_weights, ood_weights, strict=True)):
        inside = np.bincount(of_id, mine, len(levels))
        outside = np.bincount(of_ood, theirs, len(levels))
        below = np.cumsum(outside) - outside / 2
        found[0, row] = inside @ below / (inside.sum() * outside.sum())
        at_least = np.cumsum(inside[::-1])[::-1]
        threshold = np.flatnonzero(at_least >= _TPR * inside.sum() - 1e-9)[-1]
        found[1, row] = outside[threshold:].sum() / outside.sum()
    return found
