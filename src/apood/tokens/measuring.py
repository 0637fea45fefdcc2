"""What a token store holds, in numbers: counts, lengths, and whether its tokens look healthy."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from apood.tokens.documents import count_documents
from apood.tokens.source import read_with_progress
from apood.tokens.store import TokenStore

__all__ = ["StoreStats"]


@dataclass(frozen=True)
class StoreStats:
    """Numbers about a store, all of which is read for them.

    Attributes:
        documents: the number of documents.
        sequences: the number of sequences.
        tokens: the number of tokens.
        bytes: the size of its shards.
        shortest: the number of tokens of the shortest sequence; None if there are no sequences.
        median: the median number of tokens of a sequence; None if there are no sequences.
        longest: the number of tokens of the longest sequence; None if there are no sequences.
        empty: the number of sequences without tokens, which fitting refuses.
        mean_norm: the mean Euclidean norm of the finite tokens; None if there are none.
        not_finite: the number of tokens with an infinite or undefined value.
    """

    documents: int
    sequences: int
    tokens: int
    bytes: int
    shortest: int | None
    median: float | None
    longest: int | None
    empty: int
    mean_norm: float | None
    not_finite: int

    @classmethod
    def of(cls, store: TokenStore) -> Self:
        """Read a store and return its numbers."""
        total, finite = 0.0, 0
        for batch in read_with_progress(store, "read"):
            norms = batch.values.double().norm(dim=1)
            norms = norms[norms.isfinite()]
            total, finite = total + float(norms.sum()), finite + len(norms)
        lengths = store.lengths.numpy()
        some = len(lengths) > 0
        return cls(
            documents=count_documents(store),
            sequences=len(store),
            tokens=store.tokens,
            bytes=sum(shard.bytes for shard in store.index.shards),
            shortest=int(lengths.min()) if some else None,
            median=float(np.median(lengths)) if some else None,
            longest=int(lengths.max()) if some else None,
            empty=int((lengths == 0).sum()),
            mean_norm=total / finite if finite else None,
            not_finite=store.tokens - finite,
        )
