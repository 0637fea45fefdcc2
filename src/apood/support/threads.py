"""The number of threads of repeated work on a CPU: all or one, whichever is faster on this machine now.

The threads of torch wait for each other after every operation. If other programs keep a core busy, one thread is always
late, and all together can take many times as long as one alone.
"""

import os
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import torch

__all__ = ["ThreadRace"]

_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # whoever sets one has chosen
_ROUNDS = 3  # pieces that either number of threads is timed on
_CLEARLY = 3.0  # times as slow: once is enough to know


class ThreadRace:
    """Times the first pieces of repeated work with all threads and with one in turn, and does the rest with the faster.

    Nothing is timed or set if `OMP_NUM_THREADS` or `MKL_NUM_THREADS` is set, or if torch has one thread anyway. Sums of
    floats depend on the number of threads, so results are only the same to the last digit if one of these variables is
    set.

    Args:
        on_cpu: whether the work is done by the CPU.

    Examples:
        >>> import torch
        >>> from apood.support.threads import ThreadRace
        >>> race = ThreadRace()
        >>> for _ in range(10):
        ...     with race.piece():
        ...         product = torch.ones(8, 8) @ torch.ones(8, 8)
    """

    def __init__(self, *, on_cpu: bool = True) -> None:
        self._all = self._chosen = torch.get_num_threads()
        self._times: dict[int, list[float]] = defaultdict(list)
        self._turns: deque[int] = deque()
        if on_cpu and self._all > 1 and not any(name in os.environ for name in _VARIABLES):
            # the first piece also allocates memory and starts threads, so it is not counted
            self._turns.extend([self._all, *[1, self._all] * _ROUNDS])
        self._warm = False

    @contextmanager
    def piece(self, size: float = 1.0) -> Iterator[None]:
        """Do one piece of the work, of a size relative to other pieces, and set the number of threads back."""
        racing = bool(self._turns)
        threads = self._turns.popleft() if racing else self._chosen
        if threads != self._all:
            torch.set_num_threads(threads)
        begun = time.perf_counter()
        try:
            yield
        finally:
            if threads != self._all:
                torch.set_num_threads(self._all)
        if racing:
            self._note(threads, (time.perf_counter() - begun) / size)

    def _note(self, threads: int, seconds: float) -> None:
        """Keep the time of a piece, and choose the faster number of threads if it is known."""
        if not self._warm:
            self._warm = True
            return
        self._times[threads].append(seconds)
        if len(self._times) < 2:
            return
        one, every = (median(self._times[number]) for number in (1, self._all))
        if not self._turns or max(one, every) > _CLEARLY * min(one, every):
            self._turns.clear()
            self._chosen = 1 if one < every else self._all
