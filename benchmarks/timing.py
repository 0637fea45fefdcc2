"""Timing side by side: every contender runs in every round, and the best round of each counts.

On a shared machine absolute times are noise, but a ratio of two best rounds of one process is not.
"""

import platform
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

__all__ = ["Row", "best_times", "report"]


class Row(NamedTuple):
    """One line of the report."""

    what: str
    shape: str
    baseline: str
    baseline_seconds: float
    seconds: float


def best_times(contenders: Mapping[str, Callable[[], object]], rounds: int = 7) -> dict[str, float]:
    """Seconds of the best round of each contender, after one round to warm up."""
    best = dict.fromkeys(contenders, float("inf"))
    for number in range(rounds + 1):
        for name, run in contenders.items():
            started = time.perf_counter()
            run()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if number:
                best[name] = min(best[name], time.perf_counter() - started)
    return best


def report(device: str, rows: list[Row]) -> None:
    """Prints a Markdown table."""
    name = (
        torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()}, {torch.get_num_threads()} threads"
    )
    print(f"\n{name}, torch {torch.__version__}, Python {platform.python_version()}\n")
    print("| what | shape | baseline | baseline ms | ours ms | ratio |")
    print("| --- | --- | --- | ---: | ---: | ---: |")
    for row in rows:
        print(
            f"| {row.what} | {row.shape} | {row.baseline} | {row.baseline_seconds * 1e3:.1f} "
            f"| {row.seconds * 1e3:.1f} | {row.seconds / row.baseline_seconds:.2f} |"
        )
