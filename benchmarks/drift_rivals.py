"""Other alarms for drift, to compare with: each takes calibration scores and a stream, and returns its first alarm."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

__all__ = ["CLEAN", "NEVER", "SHIFT", "cusum", "cusum_path", "make_rivals", "make_river_alarms"]

Floats = NDArray[np.float64]
Alarm = Callable[[Floats, Floats], int]
"""From calibration scores and a stream to the number of inputs until the first alarm, or NEVER."""

NEVER = 2**62
SHIFT = 2.3262  # OOD scores are normal and lower by this, in standard deviations: AUROC 95
CLEAN = 50_000  # inputs within which the share of clean streams with an alarm should be the promised one
_SHARE = 0.1  # of OOD inputs after the change
_WINDOW = 500
_BLOCK = 500


def _first(alarms: NDArray[np.bool_]) -> int:
    """Return the number of inputs until the first alarm."""
    places = np.flatnonzero(alarms)
    return int(places[0]) + 1 if len(places) else NEVER


def rank_among_calibration(calibration: Floats, stream: Floats, rng: np.random.Generator) -> Floats:
    """Return randomised p-values of inputs against a fixed calibration set."""
    below = np.searchsorted(np.sort(calibration), stream)
    return np.asarray((below + rng.random(len(stream))) / (len(calibration) + 1))


def rank_among_all_before(calibration: Floats, stream: Floats, rng: np.random.Generator) -> Floats:
    """Return randomised p-values of inputs against the calibration set and all inputs before: independent, uniform."""
    known, p = np.sort(calibration), np.empty(len(stream))
    for first in range(0, len(stream), _BLOCK):
        block = stream[first : first + _BLOCK]
        below = np.searchsorted(known, block) + np.tril(block[None, :] < block[:, None], -1).sum(axis=1)
        p[first : first + len(block)] = (below + rng.random(len(block))) / (len(known) + np.arange(len(block)) + 1)
        known = np.sort(np.concatenate([known, block]), kind="stable")
    return p


def simple_jumper(p_values: Floats, level: float) -> int:
    """Return the first alarm of the simple jumper martingale (Vovk et al. 2021) with its usual jumping rate 0.01."""
    log_capital, capital = 0.0, [1 / 3, 1 / 3, 1 / 3]
    for place, centred in enumerate((p_values - 0.5).tolist()):
        total = sum(capital)
        low, middle, high = (0.99 * own + 0.01 * total / 3 for own in capital)
        capital = [low * (1 - centred), middle, high * (1 + centred)]
        total = sum(capital)
        if not 1e-100 < total < 1e100:
            capital, log_capital = [own / total for own in capital], log_capital + np.log(total)
            total = 1.0
        if log_capital + np.log(total) >= -np.log(level):
            return place + 1
    return NEVER


def ks_every_window(calibration: Floats, stream: Floats, level: float) -> int:
    """Return the first alarm of a one-sided Kolmogorov-Smirnov test of each window of 500 against the calibration."""
    known, n = np.sort(calibration), len(calibration)
    windows = np.sort(stream[: len(stream) // _WINDOW * _WINDOW].reshape(-1, _WINDOW), axis=1)
    share_below = np.searchsorted(known, windows.ravel()).reshape(windows.shape) / n
    lower = np.max(np.arange(1, _WINDOW + 1) / _WINDOW - share_below, axis=1)
    # the asymptotic p-value of the one-sided test
    found = _first(np.exp(-2 * lower**2 * n * _WINDOW / (n + _WINDOW)) <= level)
    return found if found == NEVER else found * _WINDOW


def ks_shared(calibration: Floats, stream: Floats, level: float) -> int:
    """Return the same with the level divided by the number of windows in 50,000 inputs."""
    return ks_every_window(calibration, stream, level / (CLEAN // _WINDOW))


def confidence_band(calibration: Floats, stream: Floats, level: float) -> int:
    """Return the first alarm of bets on exceeding a confidence band for the ID distribution.

    Half of the level goes to upper bounds for the shares of ID scores below six calibration scores, all at once.
    Bets that more inputs are below than the bound allows start before every input.
    """
    n = len(calibration)
    ranks = np.array(sorted({max(1, round(share * (n + 1))) for share in (0.0, 0.003, 0.01, 0.03, 0.1, 0.3)}))
    bound = beta.ppf(1 - level / 2 / len(ranks), ranks, n + 1 - ranks)
    shares = np.array([0.03, 0.1, 0.3, 0.8])
    rate = bound[:, None] + shares * (1 - bound[:, None])
    below = stream[:, None] <= np.sort(calibration)[ranks - 1]
    if_below, if_not = np.log(rate / bound[:, None]), np.log1p(-rate) - np.log1p(-bound)[:, None]
    growth = np.cumsum(np.where(below[:, :, None], if_below, if_not).reshape(len(stream), -1), axis=0)
    inputs = np.arange(len(stream), dtype=np.float64)
    waiting = 1 / (1 + np.log1p(np.append(inputs, len(stream))))
    stake = np.log(waiting[:-1] * waiting[1:] * np.log1p(1 / (1 + inputs)))
    started = stake[:, None] - np.vstack([np.zeros_like(growth[:1]), growth[:-1]])
    worth = np.logaddexp.accumulate(started) + growth
    evidence = np.logaddexp.reduce(worth, axis=1) - np.log(worth.shape[1])
    return _first(np.logaddexp(evidence, np.log(waiting[1:])) >= -np.log(level / 2))


def cusum(stream: Floats, threshold: float) -> int:
    """Return the first alarm of a CUSUM that knows both densities and the share of OOD inputs."""
    return _first(cusum_path(stream) >= threshold)


def cusum_path(stream: Floats) -> Floats:
    """Return the statistic of the CUSUM after each input."""
    ratio = np.log(1 - _SHARE + _SHARE * np.exp(-SHIFT * stream - SHIFT**2 / 2))
    total = np.cumsum(ratio)
    return np.asarray(total - np.minimum.accumulate(np.minimum(total, 0)))


def make_rivals(level: float, seed: int) -> dict[str, Alarm]:
    """Return the alarms by name. Those that take p-values break ties by draws from `seed`."""
    return {
        "conformal martingale, fixed calibration": lambda calibration, stream: simple_jumper(
            rank_among_calibration(calibration, stream, np.random.default_rng(seed)), level
        ),
        "conformal martingale, growing calibration": lambda calibration, stream: simple_jumper(
            rank_among_all_before(calibration, stream, np.random.default_rng(seed)), level
        ),
        "confidence band": lambda calibration, stream: confidence_band(calibration, stream, level),
        "KS, each window of 500 at the level": lambda calibration, stream: ks_every_window(calibration, stream, level),
        "KS, level shared by 100 windows": lambda calibration, stream: ks_shared(calibration, stream, level),
    }


def make_river_alarms() -> dict[str, Alarm]:
    """Return the detectors of river with their defaults, by name."""
    from river import drift

    makers: dict[str, Callable[[], Any]] = {
        "river ADWIN": drift.ADWIN,
        "river KSWIN": lambda: drift.KSWIN(seed=0),
        "river PageHinkley": drift.PageHinkley,
    }
    return {name: partial(_run_river, make) for name, make in makers.items()}


def _run_river(make: Callable[[], Any], calibration: Floats, stream: Floats) -> int:
    """Return the first alarm after the calibration scores, which the detector sees first."""
    detector = make()
    for score in calibration.tolist():
        detector.update(score)
    for place, score in enumerate(stream.tolist()):
        detector.update(score)
        if detector.drift_detected:
            return place + 1
    return NEVER
