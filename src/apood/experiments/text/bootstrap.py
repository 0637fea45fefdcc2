"""Figures of a method with a paired bootstrap: every method of a task is resampled at the same inputs."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from apood.evaluation.metrics import Estimate, compute_weighted, percentiles, weigh_lengths

__all__ = ["RESAMPLES", "Floats", "Lengths", "average", "estimate", "estimate_difference", "resample"]

RESAMPLES = 500

Floats = NDArray[np.float64]
Lengths = NDArray[np.int64]


def resample(test: Floats, ood: Floats, name: str, lengths: tuple[Lengths, Lengths] | None = None) -> Floats | None:
    """Return AUROC and FPR95 of one OOD set in percent, `[2, 1 + resamples]`; the first column is the set itself.

    Args:
        test: scores of the ID test texts.
        ood: scores of the OOD texts.
        name: the name of the OOD set, which its resamples depend on.
        lengths: of the ID and OOD texts, for figures at equal lengths; None is returned if they overlap too little.
            The weights are those of the whole sets in every resample.
    """
    drawn = [_draw("", len(test)), _draw(name, len(ood))]
    if lengths is not None:
        if (weights := weigh_lengths(*lengths)) is None:
            return None
        drawn = [counts * own for counts, own in zip(drawn, weights, strict=True)]
        for counts, own in zip(drawn, weights, strict=True):
            counts[counts.sum(1) == 0] = own  # a resample without any of the few texts that have a weight
    return 100 * compute_weighted(test, ood, *drawn)


def estimate(resampled: Floats) -> Estimate:
    """Return a figure from its row of resamples; without resamples, the ends of its interval are not numbers."""
    if len(resampled) == 1:
        return Estimate(float(resampled[0]), math.nan, math.nan)
    return percentiles(float(resampled[0]), resampled[1:])


def estimate_difference(first: Sequence[Floats], second: Sequence[Floats]) -> Estimate:
    """Return the mean over tasks of first - second, each resampled at the same inputs."""
    columns = min(map(len, (*first, *second)))
    return estimate(np.mean([a[:columns] - b[:columns] for a, b in zip(first, second, strict=True)], axis=0))


def average(parts: Mapping[str, Floats] | Sequence[Floats]) -> Floats | None:
    """Return the mean of several resampled figures, None if there are none."""
    found = list(parts.values()) if isinstance(parts, Mapping) else list(parts)
    return np.asarray(np.mean(found, axis=0)) if found else None


@lru_cache(maxsize=32)  # all methods of a task share the counts, and drawing takes longer than using them
def _draw(name: str, count: int) -> NDArray[np.float64]:
    """Return how often each input of a set is in each resample; the first row is the set itself."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
    drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
    return np.vstack([np.ones(count), drawn]).astype(np.float64)
