"""Loading for training: shuffled batches, read ahead of use, and corpora that stay in the memory of a GPU.

`move_to_device(map(source.select, shuffle_batches(source, seed=0, batch_size=512)), device)` uses both.
"""

import itertools
import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from apood.support.errors import InputError
from apood.support.progress import progress_bar
from apood.tokens.batch import TokenBatch, as_indices, pin, upload
from apood.tokens.identity import EncoderIdentity
from apood.tokens.source import BaseSource, TokenSource, count_trimmed, token_budget

__all__ = [
    "Resident",
    "copy_to_device",
    "gather_sequences",
    "has_room_for",
    "move_to_device",
    "place_on_device",
    "prefetch",
    "shuffle_batches",
]

Item = TypeVar("Item")


def shuffle_batches(
    source: TokenSource, *, seed: int, batch_size: int, token_budget: int | None = None, start: int = 0
) -> Iterator[Tensor]:
    """Return an endless iterator over batches, each the ascending numbers of up to `batch_size` sequences.

    An epoch visits every sequence once, in a random order that follows from `seed` and the number of the epoch. What
    is left at the end of an epoch opens a batch that sequences of the next epoch fill. The batches depend on
    nothing but the arguments and the lengths of `source`, so training continues after `start` batches exactly as if
    it had never stopped.

    Args:
        source: the sequences.
        seed: the seed of the random order.
        batch_size: the largest number of sequences in a batch.
        token_budget: the largest number of tokens in a batch; a longer sequence is a batch of its own.
        start: how many batches to skip.
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
    def count_first(order: Tensor) -> int:
        """Return how many of the first sequences in `order` make one batch."""
        candidates = order[:batch_size]
        if token_budget is None:
            return len(candidates)
        within = int(torch.searchsorted(lengths[candidates].cumsum(0), token_budget, right=True))
        return min(len(candidates), max(within, 1))

    pending = torch.empty(0, dtype=torch.int64)
    for epoch in itertools.count():
        mixed = np.random.SeedSequence([int(seed), epoch]).generate_state(1, np.uint64)
        order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(int(mixed[0])))
        # What is left of the last epoch opens a batch, so sequences that would be in it twice come after it.
        fresh = order[~torch.isin(order, pending)][: batch_size - len(pending)]
        pending = torch.cat([pending, fresh, order[~torch.isin(order, fresh)]])
        while (count := count_first(pending)) == batch_size or count < len(pending):
            yield pending[:count].sort().values
            pending = pending[count:]


def prefetch(items: Iterable[Item], depth: int = 1) -> Iterator[Item]:
    """Return an iterator over the same items, of which a thread prepares up to `depth` before they are asked for.

    An exception is raised in place of its item. The thread ends with the iterator, at the latest when its current
    item is done. Settings that torch keeps per thread, such as `no_grad`, do not apply in it.
    """
    if depth < 1:
        raise InputError(f"depth must be at least 1, got {depth}.")
    return _prefetch(iter(items), depth)


def _prefetch(items: Iterator[Item], depth: int) -> Iterator[Item]:
    ready: queue.SimpleQueue[tuple[Item] | BaseException] = queue.SimpleQueue()
    slots = threading.Semaphore(depth)
    stopped = threading.Event()

    def work() -> None:
        try:
            while slots.acquire() and not stopped.is_set():
                ready.put((next(items),))
        except BaseException as error:  # also StopIteration, which tells the consumer that there are no more items
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


def move_to_device(batches: Iterable[TokenBatch], device: torch.device) -> Iterator[TokenBatch]:
    """Return an iterator over the batches on `device`; the next one is read and copied while this one is used."""
    return _move_to_gpu(batches, device) if device.type == "cuda" else prefetch(batch.to(device) for batch in batches)


def _move_to_gpu(batches: Iterable[TokenBatch], device: torch.device) -> Iterator[TokenBatch]:
    copying = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def copy(batch: TokenBatch) -> tuple[TokenBatch, torch.cuda.Event]:
        values = pin(batch.values, device)
        with torch.cuda.stream(copying):
            moved = replace(batch, values=values.to(device, non_blocking=True))
            return moved, copying.record_event()

    for batch, arrived in prefetch(map(copy, batches)):
        computing = torch.cuda.current_stream(device)
        computing.wait_event(arrived)
        batch.values.record_stream(computing)  # else the next copy could reuse its memory while it is still read
        yield batch


class Resident(BaseSource):
    """A source whose tokens lie in the memory of a device, where its batches are gathered.

    Sequence i is `values[starts[i] : starts[i] + lengths[i]]`. There are no channels. No operation makes the device
    wait.

    Attributes:
        values: the tokens `[tokens, D]` on the device, which may include tokens of other sources.
        starts: where each sequence starts in `values`, on the CPU.
    """

    def __init__(
        self,
        values: Tensor,
        starts: Tensor,
        lengths: Tensor,
        encoder: EncoderIdentity | None,
        windows: Tensor | None = None,
    ) -> None:
        self.values, self.starts = values, starts
        super().__init__(values.shape[1], values.dtype, lengths, encoder, windows=windows)

    def select(self, indices: Any) -> TokenBatch:
        """Return the sequences `indices` (a slice, integers or booleans) in that order."""
        (batch,) = gather_sequences([self], [as_indices(indices, len(self))])
        return batch

    def trim(self, *, first: bool, last: bool) -> "Resident":
        """Return the same sequences without their first or last token, or both; nothing is copied."""
        before, after = count_trimmed(self.lengths, first=first, last=last)
        lengths = self.lengths - before - after
        return Resident(self.values, self.starts + before, lengths, self.encoder, self.windows)


def gather_sequences(sources: Sequence[TokenSource], indices: Sequence[Tensor]) -> list[TokenBatch]:
    """Return the chosen sequences of each source: in one batch if all lie in one memory, else in one per source."""
    parts = [source for source in sources if isinstance(source, Resident)]
    if len(parts) < len(sources) or any(part.values is not parts[0].values for part in parts):
        return [source.select(chosen) for source, chosen in zip(sources, indices, strict=True)]
    starts = torch.cat([part.starts[chosen] for part, chosen in zip(parts, indices, strict=True)])
    lengths = torch.cat([part.lengths[chosen] for part, chosen in zip(parts, indices, strict=True)])
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    return [TokenBatch(_gather_rows(parts[0].values, starts, lengths, offsets), offsets, encoder=parts[0].encoder)]


def _gather_rows(values: Tensor, starts: Tensor, lengths: Tensor, offsets: Tensor) -> Tensor:
    """Return the tokens of all sequences in order, as a view if they lie in this order already."""
    total = int(offsets[-1])
    if not len(starts):
        return values[:0]
    first, length = int(starts[0]), int(lengths[0])
    gaps = starts - offsets[:-1]
    if bool((gaps == first).all()):
        return values[first : first + total]
    if length and bool((lengths == length).all()):
        # Sequences of one length are copied as whole rows of a grid, if there is a grid that all of them lie on.
        pitch = int(np.gcd.reduce((starts - first).numpy()))
        if pitch >= length:
            origin = first % pitch
            count = (len(values) - origin - length) // pitch + 1
            dim = values.shape[1]
            place = values.storage_offset() + origin * dim
            grid = values.as_strided((count, length * dim), (pitch * dim, 1), place)
            return grid.index_select(0, upload(starts // pitch, values.device)).view(total, dim)
    both = upload(torch.stack([gaps, lengths]), values.device)
    rows = torch.arange(total, device=values.device) + both[0].repeat_interleave(both[1], output_size=total)
    return values.index_select(0, rows)


def place_on_device(sources: Sequence[TokenSource], device: torch.device, spare: int) -> list[TokenSource]:
    """Return the sources in the memory of a GPU with room for them and `spare` bytes; else return them as given."""
    given = list(sources)
    if device.type != "cuda" or not all(map(len, given)) or not has_room_for(given, device, spare):
        return given
    try:
        return [*copy_to_device(given, device)]
    except torch.OutOfMemoryError:  # another process took the memory in the meantime
        return given


def has_room_for(sources: Sequence[TokenSource], device: torch.device, spare: int) -> bool:
    """Return whether all tokens fit into the free memory of a GPU and leave `spare` bytes."""
    free, _ = torch.cuda.mem_get_info(device)
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    new = [source for source in sources if not _is_there(source, device)]
    size = sum(int(source.lengths.sum()) * source.dim * source.dtype.itemsize for source in new)
    return size + spare <= free + cached


def copy_to_device(sources: Sequence[TokenSource], device: torch.device) -> list[Resident]:
    """Return all sources in one memory on `device`; a batch that is there already is not copied."""
    if len(sources) > 1 and (len({s.dtype for s in sources}) > 1 or any(_is_there(s, device) for s in sources)):
        return [own for source in sources for own in copy_to_device([source], device)]  # a tensor has one dtype
    lengths = torch.cat([source.lengths for source in sources])
    starts = lengths.cumsum(0) - lengths
    (first, *_) = sources
    if isinstance(first, TokenBatch) and _is_there(first, device):
        values = first.values.contiguous()
    else:
        values = torch.empty(int(lengths.sum()), first.dim, dtype=first.dtype, device=device)
        _fill(values, sources)
    counts = [len(source) for source in sources]
    parts = zip(torch.split(starts, counts), torch.split(lengths, counts), sources, strict=True)
    return [Resident(values, own, of_own, source.encoder, source.windows) for own, of_own, source in parts]


def _fill(values: Tensor, sources: Sequence[TokenSource]) -> None:
    done = 0
    with progress_bar(sum(map(len, sources)), f"copy to {values.device}", "seq") as progress:
        for source in sources:
            for batch in prefetch(source.batches(token_budget(source.dim))):  # read while others are copied
                rows = values[done : done + len(batch.values)]
                rows.copy_(pin(batch.values, values.device), non_blocking=True)
                done += len(rows)
                progress.update(len(batch))


def _is_there(source: TokenSource, device: torch.device) -> bool:
    return isinstance(source, TokenBatch) and source.values.device == device
