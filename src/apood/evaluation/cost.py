"""About how long fits will take, before they begin."""

import time
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from apood.detectors.contract.base import Detector
from apood.support.checks import format_count, format_duration
from apood.support.device import resolve_device
from apood.tokens.source import TokenSource

__all__ = ["Cost", "estimate_cost"]

_EFFICIENCY = 0.6  # of training, relative to a bare matrix product; 0.4 to 0.9 were measured
_EACH_FIT = 1.0  # seconds to read, check, score and save, however small the fit
_MINUTE = 60.0
_ROWS = 512  # of the matrix product
_SECONDS = 0.05  # that the matrix product is timed for, each time


class Cost(NamedTuple):
    """What some fits will cost.

    Attributes:
        fits: the number of fits.
        seconds: the time they will take one after the other, about.
    """

    fits: int
    seconds: float

    @property
    def notice(self) -> str | None:
        """A sentence for work of more than a minute, else None."""
        if self.seconds <= _MINUTE:
            return None
        return f"{format_count(self.fits, 'fit')} will take about {format_duration(self.seconds)}."


def estimate_cost(fits: Iterable[tuple[Detector, TokenSource]]) -> Cost:
    """Return the cost of fitting each detector on its ID sequences, from the speed of this machine at this moment.

    It is right up to a factor of about two. Only the operations that a method says it needs are counted (see
    `Detector.count_operations`).
    """
    seconds, count = 0.0, 0
    speeds: dict[int, float] = {}
    for detector, source in fits:
        count += 1
        seconds += _EACH_FIT
        if operations := detector.count_operations(source):
            if source.dim not in speeds:
                speeds[source.dim] = _measure_speed(source.dim)
            seconds += operations / (_EFFICIENCY * speeds[source.dim])
    return Cost(count, seconds)


def _measure_speed(dim: int) -> float:
    """Return floating-point operations per second in a product of matrices, with one thread or all like training."""
    device, threads = resolve_device(), torch.get_num_threads()
    rows = _ROWS if device.type == "cpu" else 16 * _ROWS
    left, right = torch.ones(rows, dim, device=device), torch.ones(dim, rows, device=device)
    try:
        return max(_time_products(left, right, number) for number in (threads, 1, threads, 1))
    finally:
        torch.set_num_threads(threads)


def _time_products(left: Tensor, right: Tensor, threads: int) -> float:
    torch.set_num_threads(threads)
    float((left @ right)[0, 0])  # starts threads and loads kernels
    products, begun = 0, time.perf_counter()
    while (taken := time.perf_counter() - begun) < _SECONDS:
        float((left @ right)[0, 0])  # waits for a GPU
        products += 1
    return 2 * left.numel() * right.shape[1] * products / taken
