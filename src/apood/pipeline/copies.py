"""Near copies of texts: found by small sketches, which a saved detector keeps instead of its training texts."""

import base64
import re
from collections.abc import Sequence
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apood.tokens.batch import TokenBatch, decode_texts
from apood.tokens.documents import count_documents, find_documents
from apood.tokens.source import Subset, TokenSource
from apood.tokens.store import Shard, TokenStore, channel_prefix

__all__ = [
    "Sketches",
    "choose_documents",
    "decode_sketches",
    "encode_sketches",
    "find_copies",
    "keeps_texts",
    "read_texts",
    "sketch_source",
    "sketch_texts",
]

Sketches = NDArray[np.uint32]
"""One row of hashes per text. The share of equal hashes of two rows estimates how much of two texts is the same."""

_TEXT = "text"  # the channel that keeps the texts
_HASHES = 8
# A copy has this many equal hashes: 96% of pairs that share nine tenths of their word triples do, 55% of those that
# share seven tenths, 1% of those that share three tenths.
_EQUAL = 6
_WORDS = 3  # in one piece of a text
_MOST = 10_000  # texts of one source that are sketched
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


def choose_documents(count: int) -> NDArray[np.int64]:
    """Return the numbers of the documents to sketch, of `count` of them: all, or the same random ones of many."""
    if count <= _MOST:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, _MOST, replace=False))


def sketch_source(source: TokenSource) -> Sketches | None:
    """Return the sketches of the documents that `choose_documents` chooses; None if the source keeps no texts."""
    if not keeps_texts(source):
        return None
    return sketch_texts(read_texts(source, choose_documents(count_documents(source))))


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
    """Return sketches as text for JSON."""
    return base64.b64encode(sketches.astype("<u4").tobytes()).decode()


def decode_sketches(text: str) -> Sketches:
    """Return the sketches that `encode_sketches` wrote; raise ValueError if they are something else."""
    return np.frombuffer(base64.b64decode(text, validate=True), dtype="<u4").reshape(-1, _HASHES).astype(np.uint32)


def keeps_texts(source: TokenSource) -> bool:
    """Return whether a source keeps the texts that its tokens came from."""
    if isinstance(source, Subset):
        return keeps_texts(source.source)
    if isinstance(source, TokenStore):
        return _TEXT in source.index.channels
    return isinstance(source, TokenBatch) and _TEXT in source.channels


def read_texts(source: TokenSource, documents: NDArray[np.int64]) -> list[str]:
    """Return the texts of some documents, in ascending order, of a source that keeps texts; no token is read."""
    return _read(source, torch.from_numpy(find_documents(source)[documents]))


def _read(source: TokenSource, sequences: Tensor) -> list[str]:
    """Return the texts of some sequences, in ascending order; further windows of a text have an empty one."""
    if isinstance(source, Subset):
        return _read(source.source, source.indices[sequences])
    if isinstance(source, TokenBatch):
        return decode_texts(source.channels[_TEXT].select(sequences))
    assert isinstance(source, TokenStore)
    texts, first = [], 0
    for number, record in enumerate(source.index.shards):
        own = sequences[(sequences >= first) & (sequences < first + record.sequences)] - first
        first += record.sequences
        if len(own):
            shard = Shard(source.folder, source.index, number, verify=False)
            texts += decode_texts(shard.read(channel_prefix(_TEXT), own))
    return texts
