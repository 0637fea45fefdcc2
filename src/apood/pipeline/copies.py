"""Near copies of texts: found by small sketches, which a saved detector keeps instead of its training texts."""

import base64
import re
from collections.abc import Sequence
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray

from apood.tokens.batch import Ragged, TokenBatch, decode_texts
from apood.tokens.documents import find_documents
from apood.tokens.source import Subset, TokenSource
from apood.tokens.store import Shard, TokenStore, channel_prefix

__all__ = ["Sketches", "decode_sketches", "encode_sketches", "find_copies", "read_texts", "sketch_texts"]

Sketches = NDArray[np.uint32]
"""One row of hashes per text. The share of equal hashes of two rows estimates how much of two texts is the same."""

_TEXT = "text"  # the channel that keeps the texts
_HASHES, _EQUAL = (
    8,
    6,
)  # a copy has this many equal hashes: 96% of pairs that share nine tenths of their word triples do,
# 55% of those that share seven tenths, 1% of those that share three tenths
_WORDS = 3  # in one piece of a text
_MOST = 10_000  # texts that are kept as sketches
_ROWS = 256  # texts that are compared at a time
_FACTORS = np.random.default_rng(0).integers(1, 2**63, _HASHES, dtype=np.uint64) * 2 + 1


def sketch_texts(texts: Sequence[str]) -> Sketches:
    """Return the sketch of each text: the smallest values of 8 hash functions over its triples of words (MinHash)."""
    rows = np.empty((len(texts), _HASHES), dtype=np.uint32)
    for row, text in zip(rows, texts, strict=True):
        words = re.findall(r"\w+", text.casefold()) or [text.strip()]
        pieces = {" ".join(words[start : start + _WORDS]) for start in range(max(1, len(words) - _WORDS + 1))}
        numbers = np.array([crc32(piece.encode("utf-8", "surrogatepass")) for piece in pieces], dtype=np.uint64)
        row[:] = ((numbers[:, None] + 1) * _FACTORS >> np.uint64(32)).astype(np.uint32).min(axis=0)
    return rows


def find_copies(sketches: Sketches, known: Sketches) -> NDArray[np.bool_]:
    """Return which texts are copies, or nearly, of one of the known texts, by their sketches."""
    found = np.zeros(len(sketches), dtype=np.bool_)
    for start in range(0, len(sketches), _ROWS):
        some = sketches[start : start + _ROWS]
        equal = np.zeros((len(some), len(known)), dtype=np.uint8)
        for number in range(_HASHES):
            equal += some[:, number, None] == known[None, :, number]
        found[start : start + _ROWS] = (equal >= _EQUAL).any(axis=1)
    return found


def encode_sketches(sketches: Sketches) -> str:
    """Return sketches as text for JSON; of many, a random sample."""
    if len(sketches) > _MOST:
        sketches = np.random.default_rng(0).choice(sketches, _MOST, replace=False)
    return base64.b64encode(sketches.astype("<u4").tobytes()).decode()


def decode_sketches(text: str) -> Sketches:
    """Return the sketches that `encode_sketches` wrote; raise ValueError if they are something else."""
    return np.frombuffer(base64.b64decode(text, validate=True), dtype="<u4").reshape(-1, _HASHES).astype(np.uint32)


def read_texts(source: TokenSource) -> list[str] | None:
    """Return the text of each document; None if the source does not keep texts. No token of a store is read."""
    texts = _read_all(source)
    return None if texts is None else [texts[start] for start in find_documents(source)]


def _read_all(source: TokenSource) -> list[str] | None:
    """Return the text of each sequence; further windows of a text have an empty one."""
    if isinstance(source, TokenBatch):
        return decode_texts(source.channels[_TEXT]) if _TEXT in source.channels else None
    if isinstance(source, Subset):
        texts = _read_all(source.source)
        return None if texts is None else [texts[index] for index in source.indices.tolist()]
    if not isinstance(source, TokenStore) or _TEXT not in source.index.channels:
        return None
    parts: list[Ragged] = []
    for number, record in enumerate(source.index.shards):
        shard = Shard(source.folder, source.index, number, verify=False)
        parts.append(shard.read(channel_prefix(_TEXT), torch.arange(record.sequences)))
    return [text for part in parts for text in decode_texts(part)]
