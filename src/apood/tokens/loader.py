"""How training reads: batches of sequences in an endless, resumable random order, prepared ahead of use.

Both halves meet in `on_device(map(source.select, shuffled(source, seed=0, batch_size=512)), device)`.
"""

import itertools
import queue
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from apood.support.errors import InputError
from apood.tokens.batch import TokenBatch
from apood.tokens.source import TokenSource

__all__ = ["on_device", "pinned", "prefetch", "shuffled", "upload"]

Item = TypeVar("Item")


def prefetch(items: Iterable[Item], depth: int = 1) -> Iterator[Item]:
    """The same items in the same order, of which a thread has up to `depth` ready before they are asked for.

    An exception is raised where its item would have come. The thread ends with the iterator, at the
    latest when the item it is working on is done. Settings that torch keeps for each thread, such as
    `no_grad`, do not reach it.
    """
    if depth < 1:
        raise InputError(f"depth must be at least 1, got {depth}.")
    return _prefetched(iter(items), depth)


def _prefetched(items: Iterator[Item], depth: int) -> Iterator[Item]:
    ready: queue.SimpleQueue[tuple[Item] | BaseException] = queue.SimpleQueue()
    slots = threading.Semaphore(depth)
    stopped = threading.Event()

    def work() -> None:
        try:
            while slots.acquire() and not stopped.is_set():
                ready.put((next(items),))
        except BaseException as error:  # StopIteration too: it tells the consumer that this was all
            ready.put(error)

    thread = threading.Thread(target=work, name="apood-prefetch", daemon=True)
    thread.start()
    try:
        while isinstance(entry := ready.get(), tuple):
            slots.release()
            yield entry[0]
        if not isinstance(entry, StopIteration):
            raise entry
    finally:
        stopped.set()
        slots.release()
        thread.join()


def on_device(batches: Iterable[TokenBatch], device: torch.device) -> Iterator[TokenBatch]:
    """The same batches on `device`; the next one is read, and copied to a GPU, while this one is computed with."""
    return _on_gpu(batches, device) if device.type == "cuda" else prefetch(batch.to(device) for batch in batches)


def _on_gpu(batches: Iterable[TokenBatch], device: torch.device) -> Iterator[TokenBatch]:
    copying = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def copied(batch: TokenBatch) -> tuple[TokenBatch, torch.cuda.Event]:
        values = pinned(batch.values, device)
        with torch.cuda.stream(copying):
            moved = replace(batch, values=values.to(device, non_blocking=True))
            return moved, copying.record_event()

    for batch, arrived in prefetch(map(copied, batches)):
        computing = torch.cuda.current_stream(device)
        computing.wait_event(arrived)
        batch.values.record_stream(computing)  # or its memory would be free for the next copy while it is still read
        yield batch


def pinned(values: Tensor, device: torch.device) -> Tensor:
    """CPU values where a GPU can fetch them by itself; all others as they are."""
    return values.pin_memory() if device.type == "cuda" and values.device.type == "cpu" else values


def upload(numbers: Tensor, device: torch.device) -> Tensor:
    """Numbers on `device`, without waiting for what the device is busy with."""
    return pinned(numbers, device).to(device, non_blocking=True)


def shuffled(
    source: TokenSource, *, seed: int, batch_size: int, token_budget: int | None = None, start: int = 0
) -> Iterator[Tensor]:
    """An endless stream of batches, each the ascending numbers of up to `batch_size` different sequences.

    Epoch e visits every sequence once, in a random order that follows from `seed` and e. A batch is cut
    earlier where another sequence would exceed `token_budget`. What is left of an epoch opens a batch
    that sequences of the next one fill. The stream depends on nothing but the arguments and the lengths
    of `source`, so that training goes on after `start` batches exactly as if it had never stopped.
    """
    if not len(source):
        raise InputError("There are no sequences to shuffle: the source is empty.")
    for name, value, least in (("batch_size", batch_size, 1), ("token_budget", token_budget, 1), ("start", start, 0)):
        if value is not None and value < least:
            raise InputError(f"{name} must be at least {least}, got {value}.")
    if seed < 0:
        raise InputError(f"The seed must not be negative, got {seed}.")
    return itertools.islice(_batches(source.lengths, seed, min(batch_size, len(source)), token_budget), start, None)


def _batches(lengths: Tensor, seed: int, batch_size: int, token_budget: int | None) -> Iterator[Tensor]:
    def fitting(order: Tensor) -> int:
        """How many of the first sequences in `order` make one batch."""
        candidates = order[:batch_size]
        if token_budget is None:
            return len(candidates)
        within = int(torch.searchsorted(lengths[candidates].cumsum(0), token_budget, right=True))
        return min(len(candidates), max(within, 1))

    pending = torch.empty(0, dtype=torch.int64)
    for epoch in itertools.count():
        order = torch.randperm(len(lengths), generator=_generator(seed, epoch))
        # What is left of the last epoch opens a batch, so sequences that would be in it twice wait behind it.
        fresh = order[~torch.isin(order, pending)][: batch_size - len(pending)]
        pending = torch.cat([pending, fresh, order[~torch.isin(order, fresh)]])
        while (count := fitting(pending)) == batch_size or count < len(pending):
            yield pending[:count].sort().values
            pending = pending[count:]


def _generator(seed: int, epoch: int) -> torch.Generator:
    mixed = np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(mixed[0]))
