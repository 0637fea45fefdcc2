"""Saving and loading at the same time: every load gives one of the saved detectors, whole."""

import multiprocessing
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from workshop import Tally, watch

__all__ = ["break_saves"]

_SAVERS = 2


def break_saves(count: int, seed: int, folder: Path) -> Tally:
    """Load a detector `count` times while two processes save others to the same folder, and tally the loads."""
    import apood

    rng = np.random.default_rng(seed)
    detectors = [_fit(rng, shift) for shift in (0.0, 5.0)]
    allowed = {_describe(detector) for detector in detectors}
    path, tally = folder / "detector", Tally()
    detectors[0].save(path)
    stop, context = multiprocessing.get_context("fork").Event(), multiprocessing.get_context("fork")
    saves = context.Value("i", 0)
    savers = [
        context.Process(target=_save_until, args=(detectors[first:] + detectors[:first], path, stop, saves))
        for first in range(_SAVERS)
    ]
    for saver in savers:
        saver.start()

    def load_many() -> Any:
        found: dict[str, int] = {}
        for _ in range(count):
            try:
                outcome = "whole" if _describe(apood.load(path)) in allowed else "mixtures"
            except Exception as error:
                outcome = f"failed loads: {type(error).__name__}: {str(error)[:200]}"
            found[outcome] = found.get(outcome, 0) + 1
        return found

    try:
        ending = watch(load_many, patience=60 + count / 20)
    finally:
        stop.set()
        time.sleep(0.01)
        for saver in savers:
            saver.join(30)
            if saver.exitcode:
                tally.note("failed savers", f"a saver ended with {saver.exitcode}")
    tally.counts["saves"] = saves.value
    for outcome, times in (ending.value or {"the loader hung": 1}).items():
        tally.counts[outcome.split(":")[0]] += times
        if outcome != "whole":
            tally.failures.append(f"{times} x {outcome}")
    if left := [entry.name for entry in folder.iterdir() if entry.name != "detector"]:
        tally.note("leftovers", f"left behind: {left}")
    return tally


def _fit(rng: np.random.Generator, shift: float) -> Any:
    import apood

    def draw(count: int) -> list[Any]:
        return [shift + rng.normal(size=(5, 4)).astype(np.float32) for _ in range(count)]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return apood.Mahalanobis().fit(draw(40)).calibrate(draw(30), accept=0.9)


def _describe(detector: Any) -> tuple[float, float]:
    """Return the threshold and a learnt value: they differ between the detectors, and belong together."""
    return round(float(detector.threshold_), 6), round(float(detector.calibration_scores_.sum()), 6)


def _save_until(detectors: list[Any], path: Path, stop: Any, saves: Any) -> None:
    while not stop.is_set():
        for detector in detectors:
            detector.save(path)
            with saves.get_lock():
                saves.value += 1
