"""Tokens on disk, read: a folder of shards that is a token source like a batch in memory."""

import itertools
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from apood.support.errors import InputError, StoreError
from apood.support.files import sha256_of
from apood.support.wording import meant
from apood.tokens.batch import Ragged, TokenBatch, as_indices, cut_by_budget
from apood.tokens.identity import EncoderIdentity
from apood.tokens.memory import empty_rows
from apood.tokens.shard import TOKENS, Shard, StoreIndex, channel_prefix

__all__ = ["TokenStore"]


class TokenStore:
    """The sequences that a `TokenStoreWriter` committed to `folder`.

    Only the lengths are held in memory. What is read is copied out of the shard, which is mapped for
    that moment only; `channels` names those that are read (all by default), because a channel such as
    `logits` can be far larger than the tokens. A store may be opened while it is still written:
    it then ends with the last shard that was committed.
    """

    def __init__(self, folder: str | Path, *, channels: Collection[str] | None = None) -> None:
        self._folder = Path(folder)
        self._index = StoreIndex.read(self._folder)
        self._channels = tuple(self._index.channels) if channels is None else tuple(channels)
        if unknown := sorted(set(self._channels) - set(self._index.channels)):
            raise InputError(
                f"The token store {folder} has no channel {unknown[0]!r}{meant(unknown[0], self._index.channels)}; "
                f"it has {sorted(self._index.channels)}."
            )
        lengths = [torch.empty(0, dtype=torch.int64)]
        for number in range(len(self._index.shards)):
            shard = Shard(self._folder, self._index, number)
            lengths.append(shard.offsets(TOKENS).diff())
        self._lengths = torch.cat(lengths)
        # Shard i holds the sequences from _bounds[i] up to _bounds[i + 1].
        self._bounds = torch.tensor([0, *(shard.sequences for shard in self._index.shards)]).cumsum(0)

    @property
    def folder(self) -> Path:
        """Where the store lies."""
        return self._folder

    @property
    def index(self) -> StoreIndex:
        """What its index said when it was opened."""
        return self._index

    @property
    def dim(self) -> int:
        """D, the length of a token."""
        return self._index.dim

    @property
    def dtype(self) -> torch.dtype:
        """The dtype the tokens are kept in."""
        return self._index.dtype

    @property
    def encoder(self) -> EncoderIdentity | None:
        """Which encoder made the tokens, where that is known."""
        return self._index.encoder

    @property
    def lengths(self) -> Tensor:
        """Tokens in each sequence, int64."""
        return self._lengths

    @property
    def tokens(self) -> int:
        """Tokens in all sequences."""
        return self._index.tokens

    @property
    def channels(self) -> tuple[str, ...]:
        """The channels that are read beside the tokens."""
        return self._channels

    def __len__(self) -> int:
        return len(self._lengths)

    def __repr__(self) -> str:
        return f"TokenStore({str(self.folder)!r}, sequences={len(self)}, tokens={self.tokens}, dim={self.dim})"

    def batches(self, token_budget: int) -> Iterator[TokenBatch]:
        """Consecutive batches of at most `token_budget` tokens (or of one longer sequence)."""
        for start, stop in cut_by_budget(self.lengths, token_budget):
            yield self.select(slice(start, stop))

    def select(self, indices: Any) -> TokenBatch:
        """The sequences `indices` (slice, integers or booleans) in that order, with their channels."""
        chosen = as_indices(indices, len(self))
        if bool((chosen.diff() >= 0).all()):
            return self._read(chosen)
        # Every shard is visited once, in the order of the file; the asked order is made in memory.
        ascending, order = chosen.sort(stable=True)
        return self._read(ascending).select(order.argsort())

    def _read(self, ascending: Tensor) -> TokenBatch:
        lengths = self._lengths[ascending]
        # The tokens of all shards go straight to their place: a batch can be a good part of the memory there is.
        values = empty_rows(int(lengths.sum()), (self.dim,), self.dtype)
        channels = {name: [self._index.kinds[channel_prefix(name)].empty()] for name in self._channels}
        cuts = torch.searchsorted(ascending, self._bounds).tolist()
        done = 0
        for number, (start, stop) in enumerate(itertools.pairwise(cuts)):
            if start == stop:
                continue
            shard = Shard(self._folder, self._index, number)
            sequences = ascending[start:stop] - self._bounds[number]
            rows = values[done : done + int(lengths[start:stop].sum())]
            shard.read(TOKENS, sequences, out=rows)
            done += len(rows)
            for name, parts in channels.items():
                parts.append(shard.read(channel_prefix(name), sequences))
        joined = {name: Ragged.concatenate(parts) for name, parts in channels.items()}
        return TokenBatch(values, Ragged.from_lengths(values, lengths).offsets, joined, self.encoder)

    def verify(self) -> None:
        """Recomputes the checksum of every shard; reads the whole store."""
        for record in self._index.shards:
            name = f"Shard {record.file} of the token store {self._folder}"
            try:
                found = sha256_of(self._folder / record.file)
            except OSError as error:
                raise StoreError(f"{name} cannot be read: {error}.") from error
            if found != record.sha256:
                raise StoreError(f"{name} is not the one that was written: its checksum differs from the index.")
