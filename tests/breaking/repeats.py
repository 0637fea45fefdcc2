"""Repeated inputs: acceptance and p-values keep their promise where a few inputs make up a third of all.

Phrases such as "Thanks!" are frequent in real traffic. Their scores are ties, and one of them is often the threshold.
"""

import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from workshop import Tally

from apood.detectors.contract.registry import METHODS

__all__ = ["VARIANTS", "break_promises"]

ACCEPT = 0.95
SIZES = (19, 20, 100)
"""Numbers of calibration sequences; 19 is the least that an accept rate of 0.95 needs."""

_REPEATED, _SHARE = 3, 0.3  # sequences that are repeated, and their share of all
_POOL, _TESTED = 400, 10
_LEVELS = (0.05, 0.2)
_SETTINGS: dict[str, dict[str, Any]] = {
    "ap-ood": {"steps": 20},
    "deep-svdd": {"steps": 40},
    "deep-sad": {"steps": 40},
}


VARIANTS = tuple((method, size) for method in METHODS for size in SIZES)


def break_promises(count: int, seed: int, folder: Path, method: str, size: int) -> Tally:  # noqa: ARG001
    """Calibrate a method `count` times with `size` sequences, and tally which promises were kept."""
    tally = Tally()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        detector, pool = _fit(method)
        _measure(method, detector, pool, size, count, random.Random(f"{seed} {method} {size}"), tally)
    return tally


def _fit(method: str) -> tuple[Any, Any]:
    """Return a fitted detector, and sequences in float16, as stores hold them, that it has not seen."""
    from builders import observed_sequences

    from apood.detectors.contract.registry import detector_class
    from apood.detectors.knn import KNN
    from apood.detectors.mahalanobis import Mahalanobis

    settings = {"members": [KNN(), Mahalanobis()]} if method == "fusion" else _SETTINGS.get(method, {})
    detector = detector_class(method)(**settings)
    outliers = observed_sequences(60, seed=2, shift=4.0) if detector.aux == "required" else None
    pool = observed_sequences(_POOL, seed=1)
    return detector.fit(observed_sequences(120), aux=outliers), pool.to(dtype=torch.float16)


def _measure(
    method: str, detector: Any, pool: Any, size: int, repetitions: int, rng: random.Random, tally: Tally
) -> None:
    """Repeat a calibration, and compare the means over new inputs with the promises."""

    def draw(number: int) -> list[int]:
        return [
            rng.randrange(_REPEATED) if rng.random() < _SHARE else rng.randrange(_REPEATED, _POOL)
            for _ in range(number)
        ]

    kept: dict[str, list[float]] = {"accepted": []} | {f"p > {level}": [] for level in _LEVELS}
    for _ in range(repetitions):
        detector.calibrate(pool.select(draw(size)), ACCEPT)
        chosen = [*draw(_TESTED), rng.randrange(_REPEATED)]  # the last one is for the comparison alone
        decisions, p_values = (decide(pool.select(chosen)) for decide in (detector.predict, detector.p_values))
        tally.note("calibrations")
        for number in (0, -1):
            alone = pool.select([chosen[number]])
            own = detector.predict(alone)[0], detector.p_values(alone)[0]
            if own != (decisions[number], p_values[number]):
                tally.note("flips", f"{method}, {size} calibration sequences: alone {own}, among others "
                           f"{(decisions[number], p_values[number])}")  # fmt: skip
        kept["accepted"].append(float((decisions[:-1] == 1).mean()))
        for level in _LEVELS:
            kept[f"p > {level}"].append(float((p_values[:-1] > level + 1e-12).mean()))
    for what, shares in kept.items():
        promise = ACCEPT if what == "accepted" else 1 - float(what.removeprefix("p > "))
        error = float(np.std(shares, ddof=1) / len(shares) ** 0.5)
        # three standard errors, if they were known; estimated from a few calibrations they must be more
        limit = float(stats.t.ppf(stats.norm.cdf(3), len(shares) - 1))
        if np.mean(shares) < promise - limit * error - 1e-12:
            tally.note("broken", f"{method}, {size} calibration sequences: {what} {np.mean(shares):.4f}, promised "
                       f"{promise:g}, standard error {error:.4f}")  # fmt: skip
        else:
            tally.note("kept")
