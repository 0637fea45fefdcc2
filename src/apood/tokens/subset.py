"""Some sequences of a source, as a source: splits of a corpus that is never copied."""

from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor

from apood.tokens.batch import TokenBatch, as_indices, cut_by_budget
from apood.tokens.identity import EncoderIdentity
from apood.tokens.source import TokenSource

__all__ = ["Subset", "split"]


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
