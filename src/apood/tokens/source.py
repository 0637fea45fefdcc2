"""What every detector reads: sequences of tokens, wherever they lie."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from apood.support.errors import InputError
from apood.tokens.batch import TokenBatch

__all__ = ["EncoderIdentity", "TokenSource", "as_source", "describe_encoder", "same_encoder"]

EncoderIdentity = Mapping[str, str | int | bool | None]
"""What makes two encoders interchangeable: model, revision, layer, mode, max_tokens, ..."""


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

    def __len__(self) -> int: ...

    def batches(self, token_budget: int) -> Iterator[TokenBatch]:
        """Consecutive batches of at most `token_budget` tokens (or of one longer sequence)."""

    def select(self, indices: Any) -> TokenBatch:
        """The sequences `indices`, in that order."""


def as_source(data: Any) -> TokenSource:
    """Takes a `TokenBatch`, a `TokenStore`, a list of 2-D arrays, or a padded `(array, mask)` pair."""
    if isinstance(data, TokenSource):
        return data
    if isinstance(data, tuple) and len(data) == 2 and getattr(data[0], "ndim", 0) == 3:
        return TokenBatch.from_padded(*data)
    if getattr(data, "ndim", None) == 3:
        return TokenBatch.from_padded(data)
    if isinstance(data, list | tuple):
        return TokenBatch.from_sequences(data)
    raise InputError(
        "Tokens must be a TokenBatch, a TokenStore, a list of arrays [tokens, D], or padded tokens as (array, mask), "
        f"got {type(data).__name__}."
    )


def same_encoder(first: EncoderIdentity | None, second: EncoderIdentity | None) -> bool:
    """Whether tokens of one can be scored by a detector fitted on the other; an unknown encoder is trusted.

    The name of a model says where it lay, not what it is, so its fingerprint decides where both have one.
    """
    if first is None or second is None:
        return True
    ignored = {"model", "revision"} if first.get("fingerprint") and second.get("fingerprint") else set()
    keys = (set(first) | set(second)) - ignored
    return all(first.get(key) == second.get(key) for key in keys)


def describe_encoder(encoder: EncoderIdentity | None) -> str:
    """An encoder in one line, for messages."""
    if encoder is None:
        return "an unknown encoder"
    return ", ".join(f"{key} {value}" for key, value in encoder.items() if value is not None)
