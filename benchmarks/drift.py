"""False alarms and delays of the drift alarm, beside those of others, on simulated streams.

    python -m benchmarks.drift clean
    python -m benchmarks.drift copies
    python -m benchmarks.drift delay
    python -m benchmarks.drift river

Each prints one table of `benchmarks/DRIFT.md`. `river` needs the package of that name, which apood does not install.
`--streams N` is for a first look. All use one thread.
"""

import argparse
from collections.abc import Callable

import numpy as np

from apood.decisions.drift import DriftAlarm
from apood.support.progress import track
from benchmarks.drift_rivals import (
    CLEAN,
    NEVER,
    SHIFT,
    Alarm,
    Floats,
    cusum,
    cusum_path,
    make_rivals,
    make_river_alarms,
)

__all__: list[str] = []

LEVEL = 0.01
SIZES = (100, 200, 1000)
OURS = "apood"
_SHARE = 0.1  # of OOD inputs after the change
_PATIENCE = 20_000  # inputs after the change within which an alarm counts
_CHANGES = (0, 1_000, 10_000)
_REPETITIONS = 200
_RIVER_STREAMS = 50

Draw = Callable[[np.random.Generator, int], Floats]


def draw_normal(rng: np.random.Generator, count: int) -> Floats:
    """Return normal scores; every continuous distribution gives the same ranks."""
    return rng.normal(size=count)


def draw_copies(rng: np.random.Generator, count: int) -> Floats:
    """Return scores of which 30% belong to one phrase, each with an error of rounding."""
    scores = rng.normal(size=count)
    scores[rng.random(count) < 0.3] = -1.3
    return np.asarray(scores + 3e-6 * rng.uniform(-1, 1, size=count))


def our_alarm(calibration: Floats, stream: Floats) -> int:
    """Return the number of inputs until the first alarm of apood."""
    found = DriftAlarm(calibration, LEVEL).update(stream).alarm_at
    return NEVER if found is None else found


def make_alarms(seed: int) -> dict[str, Alarm]:
    """Return all alarms that know the calibration scores only."""
    return {OURS: our_alarm, **make_rivals(LEVEL, seed)}


def format_share(found: list[int], within: int) -> str:
    """Return the share of alarms within some inputs, in percent, with its standard error."""
    share = np.mean([inputs <= within for inputs in found])
    return f"{100 * share:.1f} ± {100 * np.sqrt(share * (1 - share) / len(found)):.1f}"


def print_false_alarms(found: dict[str, dict[int, list[int]]]) -> None:
    """Print the shares of clean streams with an alarm."""
    columns = [(n, within) for n in SIZES for within in (1_000, CLEAN)]
    heads = (f"n = {n:,}, {within:,} inputs" for n, within in columns)
    print(f"| false alarms, in percent | {' | '.join(heads)} |")
    print(f"| --- |{' ---: |' * len(columns)}")
    for name, by_size in found.items():
        print(f"| {name} | {' | '.join(format_share(by_size[n], within) for n, within in columns)} |")


def measure_clean(streams: int) -> None:
    print_false_alarms(find_false_alarms(draw_normal, make_alarms, streams))


def find_false_alarms(
    draw: Draw, make: Callable[[int], dict[str, Alarm]], streams: int
) -> dict[str, dict[int, list[int]]]:
    """Return the first alarms on clean streams, by name and number of calibration scores."""
    found: dict[str, dict[int, list[int]]] = {}
    for n in SIZES:
        for seed in track(range(streams), f"n = {n:,}"):
            scores = draw(np.random.default_rng([n, seed]), n + CLEAN)
            for name, alarm in make(seed).items():
                found.setdefault(name, {}).setdefault(n, []).append(alarm(scores[:n], scores[n:]))
    return found


def measure_copies(streams: int) -> None:
    print_false_alarms(find_false_alarms(draw_copies, lambda _: {f"{OURS}, 30% copies": our_alarm}, streams))


def measure_river(streams: int) -> None:
    streams = min(streams, _RIVER_STREAMS)
    print_false_alarms(find_false_alarms(draw_normal, lambda _: make_river_alarms(), streams))
    print()
    print_delays(lambda _: make_river_alarms(), streams)


def find_cusum_threshold(streams: int) -> float:
    """Return the threshold that 1% of clean streams of 50,000 inputs reach."""
    rng = np.random.default_rng(1)
    highest = [cusum_path(rng.normal(size=CLEAN)).max() for _ in track(range(streams), "CUSUM")]
    return float(np.quantile(highest, 1 - LEVEL))


def measure_delay(streams: int) -> None:
    threshold = find_cusum_threshold(streams)
    print(f"CUSUM threshold {threshold:.2f}\n")

    def make(seed: int) -> dict[str, Alarm]:
        return {"CUSUM that knows both densities": lambda _, given: cusum(given, threshold), **make_alarms(seed)}

    print_delays(make, min(streams, _REPETITIONS))


def print_delays(make: Callable[[int], dict[str, Alarm]], streams: int) -> None:
    """Print how many inputs after the change the alarms go off."""
    cells: dict[str, list[str]] = {}
    columns = [(n, change) for n in SIZES for change in _CHANGES]
    for n, change in columns:
        delays: dict[str, list[int]] = {}
        for seed in track(range(streams), f"n = {n:,}, change after {change:,}"):
            rng = np.random.default_rng([n, change, seed])
            calibration, stream = rng.normal(size=n), rng.normal(size=change + _PATIENCE)
            stream[change:] -= SHIFT * (rng.random(_PATIENCE) < _SHARE)
            for name, alarm in make(seed).items():
                delays.setdefault(name, []).append(alarm(calibration, stream) - change)
        for name, own in delays.items():
            cells.setdefault(name, []).append(format_delay(own))
    print(f"| delay in inputs | {' | '.join(f'n = {n:,}, after {change:,}' for n, change in columns)} |")
    print(f"| --- |{' ---: |' * len(columns)}")
    for name, row in cells.items():
        print(f"| {name} | {' | '.join(row)} |")


def format_delay(delays: list[int]) -> str:
    """Return the median and the mean delay, and the share of changes that were not found in time, in percent."""
    after = np.array([delay for delay in delays if delay > 0])  # others are false alarms before the change
    if not len(after):
        return "false alarms only"
    missed = np.mean(after > _PATIENCE)
    mean = np.minimum(after, _PATIENCE).mean()
    median = np.median(after)
    middle = f"{median:,.0f}" if median <= _PATIENCE else "–"
    return f"{middle} / {mean:,.0f}" + (f" ({100 * missed:.0f}% missed)" if missed else "")


def main() -> None:
    tables = {"clean": measure_clean, "copies": measure_copies, "delay": measure_delay, "river": measure_river}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=tables)
    parser.add_argument("--streams", type=int, default=1000)
    given = parser.parse_args()
    tables[given.table](given.streams)


if __name__ == "__main__":
    main()
