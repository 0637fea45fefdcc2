"""Sequences without their first token: for models that park attention there and say nothing with it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from apood.tokens.batch import TokenBatch
from apood.tokens.identity import EncoderIdentity
from apood.tokens.loader import upload
from apood.tokens.source import TokenSource

__all__ = ["SkipFirst", "without_first"]


def without_first(tokens: TokenBatch) -> TokenBatch:
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
    """A token source seen through `without_first`."""

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
        return map(without_first, self.source.batches(token_budget))

    def select(self, indices: Any) -> TokenBatch:
        """The sequences `indices`, in that order."""
        return without_first(self.source.select(indices))
