"""How training reads: batches of sequences in an endless, resumable random order, prepared ahead of use."""

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
from apood.tokens.batch import TokenBatch, as_indices, cut_by_budget, pin, upload
from apood.tokens.identity import EncoderIdentity
from apood.tokens.source import TokenSource, token_budget

__all__ = [
    "Resident",
    "copy_to_device",
    "gather_sequences",
    "has_room_for",
    "move_to_device",
    "place_on_device",
    "prefetch",
    "shuffle_batches",
    "upload",
]

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


def move_to_device(batches: Iterable[TokenBatch], device: torch.device) -> Iterator[TokenBatch]:
    """The same batches on `device`; the next one is read, and copied to a GPU, while this one is computed with."""
    return _on_gpu(batches, device) if device.type == "cuda" else prefetch(batch.to(device) for batch in batches)


def _on_gpu(batches: Iterable[TokenBatch], device: torch.device) -> Iterator[TokenBatch]:
    copying = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def copy(batch: TokenBatch) -> tuple[TokenBatch, torch.cuda.Event]:
        values = pin(batch.values, device)
        with torch.cuda.stream(copying):
            moved = replace(batch, values=values.to(device, non_blocking=True))
            return moved, copying.record_event()

    for batch, arrived in prefetch(map(copy, batches)):
        computing = torch.cuda.current_stream(device)
        computing.wait_event(arrived)
        batch.values.record_stream(computing)  # or its memory would be free for the next copy while it is still read
        yield batch


def shuffle_batches(
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


class Resident:
    """Sequences that lie somewhere in `values [tokens, D]`, as a source whose batches are gathered on their device.

    Sequence i is `values[starts[i] : starts[i] + lengths[i]]`, both on the CPU. Channels are left behind. Nothing that
    it does makes the device wait.
    """

    channels = ()

    def __init__(self, values: Tensor, starts: Tensor, lengths: Tensor, encoder: EncoderIdentity | None) -> None:
        self.values, self._starts, self._lengths, self._encoder = values, starts, lengths, encoder

    @property
    def dim(self) -> int:
        """D, the length of a token."""
        return self.values.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype the tokens are kept in."""
        return self.values.dtype

    @property
    def lengths(self) -> Tensor:
        """Tokens in each sequence, int64."""
        return self._lengths

    @property
    def encoder(self) -> EncoderIdentity | None:
        """Which encoder made the tokens, where that is known."""
        return self._encoder

    def __len__(self) -> int:
        return len(self._lengths)

    def batches(self, token_budget: int) -> Iterator[TokenBatch]:
        """Consecutive batches of at most `token_budget` tokens (or of one longer sequence)."""
        for start, stop in cut_by_budget(self.lengths, token_budget):
            yield self.select(slice(start, stop))

    def select(self, indices: Any) -> TokenBatch:
        """The sequences `indices`, in that order."""
        (batch,) = gather_sequences([self], [as_indices(indices, len(self))])
        return batch

    def without_first(self) -> "Resident":
        """Old name."""
        return self.skip_first()

    def skip_first(self) -> "Resident":
        """The same sequences without their first token; a sequence of one token keeps it. Nothing is copied."""
        cut = (self._lengths > 1).long()
        return Resident(self.values, self._starts + cut, self._lengths - cut, self._encoder)


def gather_sequences(sources: Sequence[TokenSource], indices: Sequence[Tensor]) -> list[TokenBatch]:
    """The chosen sequences of each source: in one batch where all of them lie in one memory, else a batch each."""
    parts = [source for source in sources if isinstance(source, Resident)]
    if len(parts) < len(sources) or any(part.values is not parts[0].values for part in parts):
        return [source.select(chosen) for source, chosen in zip(sources, indices, strict=True)]
    starts = torch.cat([part._starts[chosen] for part, chosen in zip(parts, indices, strict=True)])
    lengths = torch.cat([part._lengths[chosen] for part, chosen in zip(parts, indices, strict=True)])
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    return [TokenBatch(_rows(parts[0].values, starts, lengths, offsets), offsets, encoder=parts[0].encoder)]


def _rows(values: Tensor, starts: Tensor, lengths: Tensor, offsets: Tensor) -> Tensor:
    """The tokens of all sequences, one after the other: a view where they lie so already."""
    total = int(offsets[-1])
    if not len(starts):
        return values[:0]
    first, length = int(starts[0]), int(lengths[0])
    gaps = starts - offsets[:-1]
    if bool((gaps == first).all()):
        return values[first : first + total]
    if length and bool((lengths == length).all()):
        # of sequences of one length whole rows of a grid are copied, if there is a grid on which all of them lie
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


def has_room_for(sources: Sequence[TokenSource], device: torch.device, spare: int) -> bool:
    """Whether all tokens fit into the free memory of a GPU and leave `spare` bytes of it."""
    free, _ = torch.cuda.mem_get_info(device)
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    new = [source for source in sources if not _is_there(source, device)]
    return (
        sum(int(source.lengths.sum()) * source.dim * source.dtype.itemsize for source in new) + spare <= free + cached
    )


def place_on_device(sources: Sequence[TokenSource], device: torch.device, spare: int) -> list[TokenSource]:
    """The sources in the memory of `device`, if it is a GPU with room for them and `spare` bytes; else as they are."""
    given = list(sources)
    if device.type != "cuda" or not all(map(len, given)) or not has_room_for(given, device, spare):
        return given
    try:
        return [*copy_to_device(given, device)]
    except torch.OutOfMemoryError:  # somebody else was faster
        return given


def copy_to_device(sources: Sequence[TokenSource], device: torch.device) -> list[Resident]:
    """All sequences of all sources in one memory on `device`; a batch that lies there already stays where it is."""
    if len(sources) > 1 and (len({s.dtype for s in sources}) > 1 or any(_is_there(s, device) for s in sources)):
        return [own for source in sources for own in copy_to_device([source], device)]  # no memory holds two dtypes
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
    return [Resident(values, own, of_own, source.encoder) for own, of_own, source in parts]


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


# old names
on_device = move_to_device
shuffled = shuffle_batches
copied = copy_to_device
gathered = gather_sequences
placed = place_on_device
room_for = has_room_for
pinned = pin
