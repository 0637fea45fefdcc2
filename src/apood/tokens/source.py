"""Token sources: the sequences that detectors read, in memory or on disk, and views of them."""

from collections.abc import Collection, Generator, Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from apood.support.errors import InputError
from apood.support.progress import progress_bar
from apood.tokens.batch import FROM_TEXTS, TokenBatch, as_indices, cut_by_budget, upload
from apood.tokens.documents import count_documents, make_document_mask
from apood.tokens.identity import EncoderIdentity

__all__ = [
    "BaseSource",
    "Beginnings",
    "Subset",
    "TokenSource",
    "Trimmed",
    "as_source",
    "count_trimmed",
    "mark_kept",
    "read_with_progress",
    "split",
    "spread_evenly",
    "token_budget",
    "trim_ends",
]


_FEW = 64  # sequences that are read without a progress bar, because it would not appear in time


@runtime_checkable
class TokenSource(Protocol):
    """A corpus whose sequences are read in order or by number, such as a `TokenBatch` or a `TokenStore`."""

    @property
    def dim(self) -> int:
        """The dimension D of a token."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which the tokens are kept."""

    @property
    def lengths(self) -> Tensor:
        """The number of tokens of each sequence, int64."""

    @property
    def encoder(self) -> EncoderIdentity | None:
        """The encoder that made the tokens, None if unknown."""

    @property
    def channels(self) -> Collection[str]:
        """The names of the channels that are read beside the tokens."""

    @property
    def windows(self) -> Tensor | None:
        """The number of each sequence among the windows of its document; None if every sequence is a document."""

    def __len__(self) -> int: ...

    def batches(self, token_budget: int) -> Iterator[TokenBatch]:
        """Yield consecutive batches of at most `token_budget` tokens; a longer sequence is a batch of its own."""

    def select(self, indices: Any) -> TokenBatch:
        """Return the sequences `indices` (a slice, integers or booleans) in that order."""


class BaseSource:
    """A base for token sources, which only have to define `select`.

    Attributes:
        dim: the dimension D of a token.
        dtype: the dtype in which the tokens are kept.
        lengths: the number of tokens of each sequence, int64.
        encoder: the encoder that made the tokens, None if unknown.
        channels: the names of the channels that are read beside the tokens.
        windows: the number of each sequence among the windows of its document; None if every sequence is a document.
    """

    def __init__(
        self,
        dim: int,
        dtype: torch.dtype,
        lengths: Tensor,
        encoder: EncoderIdentity | None,
        channels: Collection[str] = (),
        windows: Tensor | None = None,
    ) -> None:
        self.dim, self.dtype, self.lengths, self.encoder, self.channels = dim, dtype, lengths, encoder, tuple(channels)
        self.windows = windows

    def __len__(self) -> int:
        return len(self.lengths)

    def batches(self, token_budget: int) -> Iterator[TokenBatch]:
        """Yield consecutive batches of at most `token_budget` tokens; a longer sequence is a batch of its own."""
        for start, stop in cut_by_budget(self.lengths, token_budget):
            yield self.select(slice(start, stop))

    def select(self, indices: Any) -> TokenBatch:
        """Return the sequences `indices` (a slice, integers or booleans) in that order."""
        raise NotImplementedError


class Subset(BaseSource):
    """The sequences `indices` (a slice, integers or booleans) of `source` in that order; nothing is copied.

    Choose all windows of a document or none; `split` does.

    Attributes:
        source: the source that it is a part of.
        indices: the numbers of its sequences in the source, int64.
    """

    def __init__(self, source: TokenSource, indices: Any) -> None:
        self.source, self.indices = source, as_indices(indices, len(source))
        windows = None if source.windows is None else source.windows[self.indices]
        lengths = source.lengths[self.indices]
        super().__init__(source.dim, source.dtype, lengths, source.encoder, source.channels, windows)

    def select(self, indices: Any) -> TokenBatch:
        """Return the sequences `indices` of this subset, in that order."""
        return self.source.select(self.indices[as_indices(indices, len(self))])


def split(source: TokenSource, share: float, seed: int) -> tuple[Subset, Subset]:
    """Split a source at random in two; the second part has `share` of the documents, all windows of each.

    Both parts keep the order of the source, so that a store is read forwards.
    """
    count = count_documents(source)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(int(seed)))
    taken = make_document_mask(source, order[: round(share * count)].numpy())
    return Subset(source, ~taken), Subset(source, taken)


def spread_evenly(count: int, most: int) -> Tensor:
    """Return the numbers of at most `most` of `count` sequences, evenly spaced, in ascending order."""
    # float32 can round the last of more than 2^24 numbers up to `count`
    return torch.linspace(0, count - 1, min(count, most)).long().clamp_max(count - 1)


class Beginnings(BaseSource):
    """The first tokens of each sequence of a source, without channels.

    Attributes:
        source: the source with all tokens.
    """

    def __init__(self, source: TokenSource, lengths: Tensor) -> None:
        self.source = source
        super().__init__(source.dim, source.dtype, lengths, source.encoder, windows=source.windows)

    def batches(self, token_budget: int) -> Iterator[TokenBatch]:
        """Yield consecutive batches that had at most `token_budget` tokens before they were cut."""
        first = 0
        for tokens in self.source.batches(token_budget):
            yield self._cut(tokens, self.lengths[first : first + len(tokens)])
            first += len(tokens)

    def select(self, indices: Any) -> TokenBatch:
        """Return the sequences `indices` (a slice, integers or booleans) in that order."""
        chosen = as_indices(indices, len(self))
        return self._cut(self.source.select(chosen), self.lengths[chosen])

    def _cut(self, tokens: TokenBatch, lengths: Tensor) -> TokenBatch:
        places = torch.arange(len(tokens.values)) - tokens.offsets[:-1].repeat_interleave(tokens.lengths)
        rows = (places < lengths.repeat_interleave(tokens.lengths)).nonzero().flatten()
        return TokenBatch.from_lengths(tokens.values[upload(rows, tokens.values.device)], lengths)


class Trimmed(BaseSource):
    """A source without the first or the last token of each sequence, or without both (see `trim_ends`).

    Attributes:
        source: the source with all tokens.
        first: whether first tokens are left out.
        last: whether last tokens are left out.
    """

    def __init__(self, source: TokenSource, *, first: bool, last: bool) -> None:
        self.source, self.first, self.last = source, first, last
        before, after = count_trimmed(source.lengths, first=first, last=last)
        lengths = source.lengths - before - after
        super().__init__(source.dim, source.dtype, lengths, source.encoder, windows=source.windows)

    def batches(self, token_budget: int) -> Iterator[TokenBatch]:
        """Yield consecutive batches that had at most `token_budget` tokens before they were trimmed."""
        return map(self._trim, self.source.batches(token_budget))

    def select(self, indices: Any) -> TokenBatch:
        """Return the sequences `indices` (a slice, integers or booleans) in that order."""
        return self._trim(self.source.select(indices))

    def _trim(self, tokens: TokenBatch) -> TokenBatch:
        return trim_ends(tokens, first=self.first, last=self.last)


def count_trimmed(lengths: Tensor, *, first: bool, last: bool) -> tuple[Tensor, Tensor]:
    """Return how many tokens each sequence loses at its beginning and at its end; one token always stays."""
    before = (lengths > 1).long() * first
    return before, (lengths - before > 1).long() * last


def mark_kept(lengths: Tensor, *, first: bool, last: bool) -> Tensor:
    """Return which of the tokens of all sequences are kept if first or last tokens, or both, are left out."""
    before, after = count_trimmed(lengths, first=first, last=last)
    stops = lengths.cumsum(0)
    kept = torch.ones(int(lengths.sum()), dtype=torch.bool)
    kept[(stops - lengths)[before > 0]] = False
    kept[stops[after > 0] - 1] = False
    return kept


def trim_ends(tokens: TokenBatch, *, first: bool, last: bool) -> TokenBatch:
    """Return the sequences without their first or last token, or both, and without channels; one token stays."""
    before, after = count_trimmed(tokens.lengths, first=first, last=last)
    if len(tokens) == 1:
        return TokenBatch.from_sequences([tokens.values[int(before) : len(tokens.values) - int(after)]])
    keep = mark_kept(tokens.lengths, first=first, last=last)
    rows = upload(keep.nonzero().flatten(), tokens.values.device)  # a mask on a GPU would make it wait
    return TokenBatch.from_lengths(tokens.values[rows], tokens.lengths - before - after)


def token_budget(dim: int) -> int:
    """Return how many tokens to read at once: about 128 MB in float32."""
    return max(1, 2**25 // max(dim, 1))


def read_with_progress(source: TokenSource, label: str) -> Generator[TokenBatch]:
    """Yield all sequences in batches, with a progress bar if there are many."""
    budget = token_budget(source.dim)
    if len(source) <= _FEW:
        if isinstance(source, TokenBatch) and 0 < len(source.values) <= budget:
            yield source
        else:
            yield from source.batches(budget)
        return
    with progress_bar(len(source), label, "seq") as progress:
        for batch in source.batches(budget):
            yield batch
            progress.update(len(batch))


def as_source(data: Any) -> TokenSource:
    """Return `data` as a token source.

    Args:
        data: a `TokenBatch`, a `TokenStore` or another source, a list or an object array of 2-D arrays, a padded 3-D
            array, or a pair of a padded array and its mask.
    """
    if isinstance(data, TokenBatch):
        return data
    if getattr(data, "dtype", None) == np.dtype(object):  # an array, or a column of a table
        data = list(data) if data.ndim == 1 else np.array(data.tolist())
    if isinstance(data, tuple) and len(data) == 2 and getattr(data[0], "ndim", 0) == 3:
        return TokenBatch.from_padded(*data)
    if isinstance(data, list | tuple):
        return TokenBatch.from_sequences(data)
    if getattr(data, "ndim", None) == 3:
        return TokenBatch.from_padded(data)
    if getattr(data, "ndim", None) == 2:
        rows, dim = data.shape
        raise InputError(
            f"A 2-D array [{rows}, {dim}] can be one sequence of {rows} tokens, or {rows} sequences of one token: "
            "give [X] for the former, and X[:, None] for the latter."
        )
    if isinstance(data, TokenSource):  # last, because checking a protocol takes long
        return data
    raise InputError(
        "Tokens must be a TokenBatch, a TokenStore, a list of arrays [tokens, D], or padded tokens as (array, mask), "
        f"got {type(data).__name__}{f': {FROM_TEXTS}' if isinstance(data, str) else ''}."
    )
