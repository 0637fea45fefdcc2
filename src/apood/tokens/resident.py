"""A corpus in the memory of a GPU: copied there once, and batches gathered there."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apood.support.progress import bar
from apood.tokens.batch import TokenBatch, as_indices, cut_by_budget
from apood.tokens.identity import EncoderIdentity
from apood.tokens.loader import pinned, prefetch, upload
from apood.tokens.source import TokenSource, token_budget

__all__ = ["Resident", "copied", "gathered", "placed", "room_for"]


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
        (batch,) = gathered([self], [as_indices(indices, len(self))])
        return batch

    def without_first(self) -> "Resident":
        """The same sequences without their first token; a sequence of one token keeps it. Nothing is copied."""
        cut = (self._lengths > 1).long()
        return Resident(self.values, self._starts + cut, self._lengths - cut, self._encoder)


def gathered(sources: Sequence[TokenSource], indices: Sequence[Tensor]) -> list[TokenBatch]:
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


def room_for(sources: Sequence[TokenSource], device: torch.device, spare: int) -> bool:
    """Whether all tokens fit into the free memory of a GPU and leave `spare` bytes of it."""
    free, _ = torch.cuda.mem_get_info(device)
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    new = [source for source in sources if not _is_there(source, device)]
    return (
        sum(int(source.lengths.sum()) * source.dim * source.dtype.itemsize for source in new) + spare <= free + cached
    )


def placed(sources: Sequence[TokenSource], device: torch.device, spare: int) -> list[TokenSource]:
    """The sources in the memory of `device`, if it is a GPU with room for them and `spare` bytes; else as they are."""
    given = list(sources)
    if device.type != "cuda" or not all(map(len, given)) or not room_for(given, device, spare):
        return given
    try:
        return [*copied(given, device)]
    except torch.OutOfMemoryError:  # somebody else was faster
        return given


def copied(sources: Sequence[TokenSource], device: torch.device) -> list[Resident]:
    """All sequences of all sources in one memory on `device`; a batch that lies there already stays where it is."""
    if len(sources) > 1 and (len({s.dtype for s in sources}) > 1 or any(_is_there(s, device) for s in sources)):
        return [own for source in sources for own in copied([source], device)]  # no memory holds two dtypes
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
    with bar(sum(map(len, sources)), f"copy to {values.device}", "seq") as progress:
        for source in sources:
            for batch in prefetch(source.batches(token_budget(source.dim))):  # read while others are copied
                rows = values[done : done + len(batch.values)]
                rows.copy_(pinned(batch.values, values.device), non_blocking=True)
                done += len(rows)
                progress.update(len(batch))


def _is_there(source: TokenSource, device: torch.device) -> bool:
    return isinstance(source, TokenBatch) and source.values.device == device
