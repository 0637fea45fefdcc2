"""Many texts, encoded window by window in the order given; and into a token store, resumable."""

import itertools
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from pathlib import Path

import torch

from apood.encoders.text import TextEncoder
from apood.support.errors import InputError
from apood.support.progress import bar
from apood.tokens.batch import TokenBatch
from apood.tokens.store import TokenStore
from apood.tokens.text import channel_texts
from apood.tokens.writer import TokenStoreWriter

__all__ = ["EmbedCounts", "embed_to_store", "encoded_windows"]

_WINDOW_TEXTS = 1024
_WINDOW_BYTES = 1 << 29


@dataclass(frozen=True)
class EmbedCounts:
    """What one run of `embed_to_store` did.

    Attributes:
        sequences: texts encoded and written.
        tokens: their tokens.
        truncated: how many of them were cut at the encoder's limit.
        empty: how many of them have no tokens at all; fitting refuses such sequences.
        skipped: texts that the store already held from an earlier run.
    """

    sequences: int
    tokens: int
    truncated: int
    empty: int
    skipped: int


def embed_to_store(
    texts: Iterable[str],
    encoder: TextEncoder,
    folder: str | Path,
    *,
    resume: bool = False,
    dtype: torch.dtype = torch.float16,
) -> EmbedCounts:
    """Encodes `texts` and writes their states, token ids and texts to the token store `folder`, in order.

    With `resume`, the same texts are given again, and those that the store already holds are skipped without
    being encoded.

    States are kept in float16 by default: half the size of float32, and more exact than bfloat16. What float16
    cannot hold, above 65504, is refused: some middle layers of causal models need bfloat16 or float32.
    """
    total = f" of {len(texts):,}" if isinstance(texts, Sized) else ""
    sequences = tokens = empty = 0
    cut_before = encoder.truncated
    with (
        TokenStoreWriter(folder, dim=encoder.dim, dtype=dtype, encoder=encoder.identity, resume=resume) as writer,
        bar(None, "encoding", unit="tok") as progress,
    ):
        skipped = writer.sequences
        for batch in encoded_windows(_behind(texts, skipped, folder), encoder):
            writer.append(batch)
            sequences += len(batch)
            tokens += len(batch.values)
            empty += int((batch.lengths == 0).sum())
            progress.set_postfix_str(f"{skipped + sequences:,}{total} texts", refresh=False)
            progress.update(len(batch.values))
    return EmbedCounts(sequences, tokens, encoder.truncated - cut_before, empty, skipped)


def encoded_windows(texts: Iterable[str], encoder: TextEncoder) -> Iterator[TokenBatch]:
    """The states of `texts` in order, some at a time: enough to sort them by length, few enough to fit into memory."""
    remaining = iter(texts)
    bytes_at_most = encoder.max_tokens * encoder.dim * 4
    window = max(1, min(_WINDOW_TEXTS, _WINDOW_BYTES // bytes_at_most))
    while chosen := list(itertools.islice(remaining, window)):
        yield encoder.encode(chosen)


def _behind(texts: Iterable[str], count: int, folder: str | Path) -> Iterator[str]:
    """The texts after the first `count`, which must be those that the store holds."""
    remaining = iter(texts)
    if count:
        last = next(itertools.islice(remaining, count - 1, None), None)
        held = channel_texts(TokenStore(folder, channels=["text"]).select([count - 1]).channels["text"])[0]
        if last != held:
            raise InputError(
                f"The token store {str(folder)!r} holds {count} sequences that are not the first {count} texts given: "
                "it can be resumed only with the texts it was begun with."
            )
    return remaining
