"""What every detector reads: sequences of tokens, wherever they lie."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from apood.support.errors import InputError
from apood.tokens.batch import FROM_TEXTS, TokenBatch, as_indices, cut_by_budget, upload
from apood.tokens.identity import EncoderIdentity

__all__ = ["SkipFirst", "Subset", "TokenSource", "as_source", "drop_first_token", "split", "token_budget"]


@runtime_checkable
class TokenSource(Protocol):
    """Sequences that can be read in order or picked by number; `TokenBatch` and `TokenStore` are both one."""

    @property
    def dim(self) -> int:
        """D, the length of a token."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype the tokens are kept in."""

    @property
    def lengths(self) -> Tensor:
        """Tokens in each sequence, int64."""

    @property
    def encoder(self) -> EncoderIdentity | None:
        """Which encoder made the tokens, where that is known."""

    @property
    def channels(self) -> Collection[str]:
        """The names of what is read beside the tokens."""

    def __len__(self) -> int: ...

    def batches(self, token_budget: int) -> Iterator[TokenBatch]:
        """Consecutive batches of at most `token_budget` tokens (or of one longer sequence)."""

    def select(self, indices: Any) -> TokenBatch:
        """The sequences `indices`, in that order."""


def token_budget(dim: int) -> int:
    """Tokens read at once: some 128 MB in float32, whatever the dimension."""
    return max(1, 2**25 // max(dim, 1))


def as_source(data: Any) -> TokenSource:
    """Takes a `TokenBatch`, a `TokenStore`, a list of 2-D arrays, or a padded `(array, mask)` pair."""
    if isinstance(data, TokenBatch):
        return data
    if isinstance(data, tuple) and len(data) == 2 and getattr(data[0], "ndim", 0) == 3:
        return TokenBatch.from_padded(*data)
    if isinstance(data, list | tuple):
        return TokenBatch.from_sequences(data)
    if getattr(data, "ndim", None) == 3:
        return TokenBatch.from_padded(data)
    if isinstance(data, TokenSource):  # a protocol takes long to tell, so it comes last
        return data
    raise InputError(
        "Tokens must be a TokenBatch, a TokenStore, a list of arrays [tokens, D], or padded tokens as (array, mask), "
        f"got {type(data).__name__}{f': {FROM_TEXTS}' if isinstance(data, str) else ''}."
    )


class Subset:
    """The sequences `indices` (slice, integers or booleans) of `source`, in that order."""

    def __init__(self, source: TokenSource, indices: Any) -> None:
        self._source = source
        self._indices = as_indices(indices, len(source))

    @property
    def source(self) -> TokenSource:
        """What it is a part of."""
        return self._source

    @property
    def indices(self) -> Tensor:
        """Which sequences of the source, int64."""
        return self._indices

    @property
    def dim(self) -> int:
        """D, the length of a token."""
        return self._source.dim

    @property
    def dtype(self) -> torch.dtype:
        """The dtype the tokens are kept in."""
        return self._source.dtype

    @property
    def lengths(self) -> Tensor:
        """Tokens in each sequence, int64."""
        return self._source.lengths[self._indices]

    @property
    def encoder(self) -> EncoderIdentity | None:
        """Which encoder made the tokens, where that is known."""
        return self._source.encoder

    @property
    def channels(self) -> Collection[str]:
        """The names of what is read beside the tokens."""
        return tuple(self._source.channels)

    def __len__(self) -> int:
        return len(self._indices)

    def batches(self, token_budget: int) -> Iterator[TokenBatch]:
        """Consecutive batches of at most `token_budget` tokens (or of one longer sequence)."""
        for start, stop in cut_by_budget(self.lengths, token_budget):
            yield self.select(slice(start, stop))

    def select(self, indices: Any) -> TokenBatch:
        """The sequences `indices` of this subset, in that order."""
        return self._source.select(self._indices[as_indices(indices, len(self))])


def split(source: TokenSource, share: float, seed: int) -> tuple[Subset, Subset]:
    """Two disjoint random parts that together are the source: one without, one with `share` of the sequences.

    Both keep the order of the source, so that a store is read forwards.
    """
    order = torch.randperm(len(source), generator=torch.Generator().manual_seed(seed))
    taken = torch.zeros(len(source), dtype=torch.bool)
    taken[order[: round(share * len(source))]] = True
    return Subset(source, ~taken), Subset(source, taken)


def drop_first_token(tokens: TokenBatch) -> TokenBatch:
    """The same sequences without their first token; a sequence of one token keeps it. Channels are left behind."""
    if len(tokens) == 1:
        return TokenBatch.from_sequences([tokens.values[1:] if len(tokens.values) > 1 else tokens.values])
    cut = tokens.lengths > 1
    keep = torch.ones(len(tokens.values), dtype=torch.bool)
    keep[tokens.offsets[:-1][cut]] = False
    rows = upload(keep.nonzero().flatten(), tokens.values.device)  # known here: a mask there would make a GPU wait
    return TokenBatch.from_lengths(tokens.values[rows], tokens.lengths - cut.long())


@dataclass(frozen=True)
class SkipFirst:
    """A token source seen through `drop_first_token`."""

    source: TokenSource

    @property
    def dim(self) -> int:
        """D, the length of a token."""
        return self.source.dim

    @property
    def dtype(self) -> torch.dtype:
        """The dtype the tokens are kept in."""
        return self.source.dtype

    @property
    def lengths(self) -> Tensor:
        """Tokens left in each sequence, int64."""
        lengths = self.source.lengths
        return lengths - (lengths > 1).long()

    @property
    def encoder(self) -> EncoderIdentity | None:
        """Which encoder made the tokens, where that is known."""
        return self.source.encoder

    @property
    def channels(self) -> tuple[str, ...]:
        """None: channels are left behind."""
        return ()

    def __len__(self) -> int:
        return len(self.source)

    def batches(self, token_budget: int) -> Iterator[TokenBatch]:
        """Consecutive batches that had at most `token_budget` tokens before the cut."""
        return map(drop_first_token, self.source.batches(token_budget))

    def select(self, indices: Any) -> TokenBatch:
        """The sequences `indices`, in that order."""
        return drop_first_token(self.source.select(indices))
