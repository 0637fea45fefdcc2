"""Timing side by side: the contenders take turns, round after round, and the median of each counts.

On a shared machine absolute times are noise; of a ratio of two medians whose rounds were interleaved, less is.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

__all__ = ["Call", "PeakMemory", "Timing", "in_turns", "measure", "peak_memory", "synchronize"]

Call = Callable[[], object]

_LEAST_ROUNDS, _MOST_ROUNDS = 5, 200
_LEAST_MS = {"cuda": 5.0, "cpu": 1.0}  # of shorter calls several are timed at once
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Timing:
    """Milliseconds of every round, and what one call needed beyond what lay in memory already."""

    rounds: list[float]
    peak_mib: float | None

    @property
    def median(self) -> float:
        """Of the rounds."""
        return statistics.median(self.rounds)

    def percentile(self, share: float) -> float:
        """The time that this share of the rounds did not exceed."""
        return sorted(self.rounds)[min(len(self.rounds) - 1, int(share * len(self.rounds)))]


def in_turns(calls: Sequence[Call]) -> Call:
    """One call after the other, so that no input is found in a cache."""
    turns = itertools.cycle(calls)
    return lambda: next(turns)()


def synchronize(device: str) -> None:
    """Waits for a GPU."""
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
    """Times the contenders in turns for about that many seconds, after a warm-up, but never fewer than 5 rounds.

    A GPU is timed by events around calls back to back, as many as fill some milliseconds. `alone` waits for each call
    and takes the wall clock: what somebody waits for who asks for one result. `at_once` names contenders of whom more
    calls than that shall be back to back, since nobody ever waits for one of them.
    """
    took, calls, peaks = {}, {}, {}
    for name, run in contenders.items():
        run()  # compiles what is to be compiled
        with peak_memory(device) as peak:
            run()
        peaks[name] = peak.mib
        took[name] = _timed(device, run, 1, alone=True)
        least = (at_once or {}).get(name, 1)
        calls[name] = 1 if alone else max(least, round(_LEAST_MS[device] / max(took[name], 1e-3)))
    whole = sum(took[name] * calls[name] for name in contenders)
    rounds = min(_MOST_ROUNDS, max(_LEAST_ROUNDS, int(1e3 * seconds / max(whole, 1e-3))))
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            times[name].append(_timed(device, run, calls[name], alone=alone))
    return {name: Timing(times[name], peaks[name]) for name in contenders}


def _timed(device: str, run: Call, calls: int, *, alone: bool) -> float:
    """Milliseconds a call."""
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
    """What was needed at most, beyond what lay in memory before; None where the system does not say."""

    mib: float | None = None
    resident_mib: float | None = None


@contextmanager
def peak_memory(device: str) -> Iterator[PeakMemory]:
    """Fills in the peak when the block ends: of the GPU's memory, or of the resident set (Linux)."""
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
    """MiB that are resident now, from where on the kernel shall note the peak."""
    try:
        _CLEAR.write_text("5")
    except OSError:
        return None
    return _resident("VmRSS")


def _resident(field: str) -> float:
    (line,) = (line for line in _STATUS.read_text(encoding="utf-8").splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) / 2**10
