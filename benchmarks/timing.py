"""Timing in turns: every round times each contender once, and the median of each counts.

On a shared machine absolute times are noisy; the ratio of two medians from interleaved rounds is less so.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

__all__ = ["Call", "PeakMemory", "Timing", "alternate", "measure", "peak_memory", "synchronize"]

Call = Callable[[], object]

_LEAST_ROUNDS, _MOST_ROUNDS = 5, 200
_LEAST_MS = {"cuda": 5.0, "cpu": 1.0}  # several calls are timed at once if one is shorter
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Timing:
    """The milliseconds of every round, and the additional memory of one call."""

    rounds: list[float]
    peak_mib: float | None

    @property
    def median(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.rounds)

    def percentile(self, share: float) -> float:
        """Return the time that this share of the rounds did not exceed."""
        return sorted(self.rounds)[min(len(self.rounds) - 1, int(share * len(self.rounds)))]


def alternate(calls: Sequence[Call]) -> Call:
    """Return a call that runs the given ones in turn, so that no input is in a cache."""
    turns = itertools.cycle(calls)
    return lambda: next(turns)()


def synchronize(device: str) -> None:
    """Wait for a GPU."""
    if device == "cuda":
        torch.cuda.synchronize()


def measure(
    device: str,
    contenders: Mapping[str, Call],
    *,
    seconds: float,
    alone: bool = False,
    at_once: Mapping[str, int] | None = None,
) -> dict[str, Timing]:
    """Return the timings of the contenders, in turns for about `seconds` after a warm-up, but for at least 5 rounds.

    A GPU is timed by events around as many consecutive calls as fill some milliseconds. `alone` waits for each call
    and takes the wall-clock time. `at_once` gives the least number of consecutive calls of some contenders.
    """
    took, calls, peaks = {}, {}, {}
    for name, run in contenders.items():
        run()  # compiles kernels
        with peak_memory(device) as peak:
            run()
        peaks[name] = peak.mib
        took[name] = _time(device, run, 1, alone=True)
        least = (at_once or {}).get(name, 1)
        calls[name] = 1 if alone else max(least, round(_LEAST_MS[device] / max(took[name], 1e-3)))
    whole = sum(took[name] * calls[name] for name in contenders)
    rounds = min(_MOST_ROUNDS, max(_LEAST_ROUNDS, int(1e3 * seconds / max(whole, 1e-3))))
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            times[name].append(_time(device, run, calls[name], alone=alone))
    return {name: Timing(times[name], peaks[name]) for name in contenders}


def _time(device: str, run: Call, calls: int, *, alone: bool) -> float:
    """Return the milliseconds per call."""
    synchronize(device)
    if device == "cuda" and not alone:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        for _ in range(calls):
            run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / calls
    started = time.perf_counter()
    for _ in range(calls):
        run()
    synchronize(device)
    return (time.perf_counter() - started) * 1e3 / calls


@dataclass
class PeakMemory:
    """The largest additional memory; None if the system does not report it."""

    mib: float | None = None
    resident_mib: float | None = None


@contextmanager
def peak_memory(device: str) -> Iterator[PeakMemory]:
    """Fill in the peak when the block ends: of the GPU's memory, or of the resident set (Linux)."""
    found = PeakMemory()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        allocated = torch.cuda.memory_allocated()
    resident = _reset_resident_peak()
    yield found
    if resident is not None:
        found.mib = found.resident_mib = max(0.0, _resident("VmHWM") - resident)
    if device == "cuda":
        torch.cuda.synchronize()
        found.mib = (torch.cuda.max_memory_allocated() - allocated) / 2**20


def _reset_resident_peak() -> float | None:
    """Reset the peak of the resident set, and return its present size in MiB."""
    try:
        _CLEAR.write_text("5")
    except OSError:
        return None
    return _resident("VmRSS")


def _resident(field: str) -> float:
    (line,) = (line for line in _STATUS.read_text(encoding="utf-8").splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) / 2**10
