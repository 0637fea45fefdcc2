"""What every detector reads: sequences of tokens, wherever they lie."""

from collections.abc import Collection, Iterator
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from apood.support.errors import InputError
from apood.tokens.batch import FROM_TEXTS, TokenBatch
from apood.tokens.identity import EncoderIdentity

__all__ = ["TokenSource", "as_source", "token_budget"]


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
