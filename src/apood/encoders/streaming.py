"""Records through an encoder, window by window in the order given, the CPU a window ahead of the device."""

import time
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from apood.data.record import BadRecord, Record, Skipped, good_items
from apood.data.sounds import Sound
from apood.encoders.base.encoder import Encoder
from apood.tokens.batch import TokenBatch

__all__ = ["Window", "encoded_windows"]

_WINDOW_ITEMS = 1024
_WINDOW_BYTES = 1 << 30
_WINDOW_SECONDS = 15.0  # what an interruption may cost, because a window that is not complete is lost
_FIRST_ITEMS = 64  # of a window, before it is known how long one takes
_SOUND_BYTES = 1 << 28


@dataclass(frozen=True)
class Window:
    """Consecutive records, encoded.

    Attributes:
        batch: their states.
        truncated: how many of them were cut at the encoder's limit.
        skipped: how many bad records were skipped up to its end.
    """

    batch: TokenBatch
    truncated: int
    skipped: int


def encoded_windows(
    records: Iterable[Record | BadRecord], encoder: Encoder, skipped: Skipped | None = None
) -> Generator[Window]:
    """The states of `records` in order, some at a time: enough to sort them by length, few enough to fit into memory.

    While the encoder runs one window, it prepares the next in another thread.

    Bad records go to `skipped`; without it the first one is an error. What is wrong with a record, or with
    reading, is raised only after all records before it were given out; what goes wrong in the encoder, after the
    windows before.
    """
    reading = _Reading(records, skipped)
    most = max(1, min(_WINDOW_ITEMS, _WINDOW_BYTES // (encoder.max_tokens * encoder.dim * 4)))
    size = min(_FIRST_ITEMS, most)
    # A thread does what worker processes would: compiled tokenizers use all cores by themselves and hold no lock
    # (Python measured beside one keeps all of its speed), while a process has to start and to load them. Records are
    # read in the thread of the caller: another one that waits for standard input could not be interrupted.
    with ThreadPoolExecutor(1, "prepare") as pool:

        def begin() -> "tuple[Future[Any], int] | None":
            items = reading.next_items(size)
            return (pool.submit(encoder.prepare, items), reading.skipped.count) if items else None

        ahead = begin()
        while ahead is not None:
            (preparing, bad), ahead = ahead, begin()
            prepared = preparing.result()
            started = time.perf_counter()
            batch = encoder.run(prepared)
            affordable = int(_WINDOW_SECONDS * len(batch) / max(time.perf_counter() - started, 1e-9))
            size = max(1, min(2 * len(batch), affordable, most))
            yield Window(batch, prepared.cut, bad)
            del batch, prepared, preparing  # a window at rest needs its memory no longer
    if reading.error is not None:
        raise reading.error


class _Reading:
    """Takes items out of records until there are none or one is wrong; the error waits until it is asked for."""

    def __init__(self, records: Iterable[Record | BadRecord], skipped: Skipped | None) -> None:
        self.error: Exception | None = None
        self.skipped = Skipped() if skipped is None else skipped
        self._items = good_items(iter(records), skipped)

    def next_items(self, count: int) -> list[Any]:
        """At most `count` items, of sounds as many as fit into memory; none at the end and once something was wrong."""
        items: list[Any] = []
        sound_bytes = 0
        while self.error is None and len(items) < count and sound_bytes < _SOUND_BYTES:
            try:
                item = next(self._items, None)
            except Exception as error:
                self.error = error
                break
            if item is None:
                break
            items.append(item)
            if isinstance(item, Sound):
                sound_bytes += item.samples.nbytes
        return items
